"""Key ranges, filters and masks of Tablestore select exactly the rows that satisfy the conditions."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.tables.conditions import OPERATORS, KeyRange, Predicate
from headrace.model.tables.schema import TableSchema
from headrace_tablestore.store.tables.conditions import filter_of, matching
from headrace_tablestore.store.tables.key_ranges import MatchingKeys, Span, WireKey, matching_keys
from headrace_tablestore.wire import table_pb2 as pb
from headrace_tablestore.wire.plainbuffer.rows import decode_value
from headrace_tablestore.wire.plainbuffer.values import Marker

SCHEMA = TableSchema.of(
    {
        "k1": "string",
        "k2": "long",
        "flag": "boolean",
        "n": "long",
        "real": "double",
        "narrow": "float",
        "text": "string",
    },
    ("k1", "k2"),
)
NAN, INF = float("nan"), float("inf")
VALUES: dict[str, list[Any]] = {
    "k1": ["", "a", "ab", "b", "é", "🙂"],
    "k2": [-(2**63), -1, 0, 1, 2**63 - 1],
    "flag": [True, False],
    "n": [-1, 0, 1],
    "real": [-INF, -1.5, -0.0, 0.0, 1.5, INF, NAN],
    "narrow": [-1.5, 0.0, 0.1, NAN],
    "text": ["", "a", "ab", "b", "🙂"],
}
KEYS = [(k1, k2) for k1 in VALUES["k1"] for k2 in VALUES["k2"]]


@st.composite
def predicates(draw: st.DrawFn) -> Predicate:
    name = draw(st.sampled_from(list(VALUES)))
    is_text = name in ("k1", "text")
    operator = draw(st.sampled_from([each for each in OPERATORS if is_text or each != "starts with"]))
    if operator == "in":
        return Predicate(name, operator, draw(st.lists(st.sampled_from([*VALUES[name], None]), max_size=3)))
    value = None if operator.startswith("is") else draw(st.sampled_from([*VALUES[name], None]))
    return Predicate(name, operator, value)


@st.composite
def contents(draw: st.DrawFn) -> list[dict[str, Any]]:
    keys = draw(st.lists(st.sampled_from(KEYS), unique=True, max_size=12))
    names = list(VALUES)[2:]
    return [
        dict(zip(("k1", "k2"), key, strict=True))
        | {name: draw(st.none() | st.sampled_from(VALUES[name])) for name in names}
        for key in sorted(keys)
    ]


def holds(value: Any, predicate: Predicate) -> bool:
    operator, operand = predicate.operator, predicate.value
    if operator.startswith("is"):
        return (value is None) == (operator == "is null")
    if value is None or operand is None:
        return False
    if operator == "in":
        return any(holds(value, Predicate(predicate.column, "=", item)) for item in operand)
    if operator == "starts with":
        return bool(value.startswith(operand))
    if isinstance(value, float):
        value, operand = ((math.isnan(each), 0.0 if math.isnan(each) else each) for each in (value, operand))
    return bool(
        {
            "=": value == operand,
            "!=": value != operand,
            "<": value < operand,
            "<=": value <= operand,
            ">": value > operand,
            ">=": value >= operand,
        }[operator]
    )


def order(key: WireKey) -> list[tuple[int, Any]]:
    ends = {Marker.INF_MIN: 0, Marker.INF_MAX: 2}
    return [(ends[value], 0) if isinstance(value, Marker) else (1, value) for _, value in key]


def visited(place: MatchingKeys) -> list[tuple[Any, ...]]:
    """Return the keys of `KEYS` that a read of the key ranges visits, in its order, with repetitions."""
    if place.keys is not None:
        return [key for key in place.keys if key in KEYS]
    named = {key: tuple(zip(("k1", "k2"), key, strict=True)) for key in KEYS}
    return [
        key
        for span in place.spans
        for key in KEYS
        if order(span.start(SCHEMA)) <= order(named[key]) < order(span.end(SCHEMA))
    ]


_bounds = st.none() | st.tuples(st.sampled_from(VALUES["k1"])) | st.sampled_from(KEYS)


@given(conditions=st.lists(predicates(), max_size=4), low=_bounds, high=_bounds)
def test_key_ranges_cover_all_keys_that_satisfy_the_conditions_once_and_in_order(
    conditions: list[Predicate], low: Any, high: Any
) -> None:
    found = visited(matching_keys(SCHEMA, KeyRange(low, high), conditions))
    assert found == sorted(set(found))
    on_keys = [each for each in conditions if each.column in ("k1", "k2")]
    for key in KEYS:
        inside = (low is None or key[: len(low)] >= low) and (high is None or key[: len(high)] < high)
        row = dict(zip(("k1", "k2"), key, strict=True))
        if inside and all(holds(row[each.column], each) for each in on_keys):
            # If a condition is never true, all keys may be omitted.
            never = any(each.value is None and not each.operator.startswith("is") for each in conditions)
            assert never or key in found


def test_whole_keys_become_point_reads_and_key_prefixes_become_ranges() -> None:
    place = matching_keys(SCHEMA, KeyRange(), [Predicate("k1", "in", ["b", "a"]), Predicate("k2", "=", 1)])
    assert place.keys == (("a", 1), ("b", 1))
    (span,) = matching_keys(SCHEMA, KeyRange(), [Predicate("k1", "=", "a"), Predicate("k2", ">", 5)]).spans
    assert span.start(SCHEMA) == (("k1", "a"), ("k2", 6))
    assert span.end(SCHEMA) == (("k1", "a"), ("k2", Marker.INF_MAX))
    assert Span().start(SCHEMA) == (("k1", Marker.INF_MIN), ("k2", Marker.INF_MIN))
    many = [Predicate("k1", "in", [str(number) for number in range(200)])]
    assert matching_keys(SCHEMA, KeyRange(), many) == MatchingKeys(None, (Span(),))


def test_the_bound_after_the_longest_key_has_at_most_its_length() -> None:
    schema = TableSchema.of({"k": "string"}, "k")
    longest = "x" * 1024
    (below,) = matching_keys(schema, KeyRange(), [Predicate("k", "<=", longest)]).spans
    (above,) = matching_keys(schema, KeyRange(), [Predicate("k", ">", longest)]).spans
    assert below.end(schema) == (("k", Marker.INF_MAX),)
    assert above.start(schema) == (("k", longest),)


# -- filters and masks ----------------------------------------------------------------------------------


def passes(data: bytes, row: dict[str, Any]) -> bool:
    """Return whether a row passes a filter of a service that compares doubles by IEEE 754."""
    message = pb.Filter.FromString(data)
    if message.type == pb.FT_SINGLE_COLUMN_VALUE:
        single = pb.SingleColumnValueFilter.FromString(message.filter)
        assert single.filter_if_missing
        assert single.latest_version_only
        value, operand = row[single.column_name], decode_value(single.column_value)
        if value is None:
            return False
        assert isinstance(operand, int | float | str)
        operators = ("=", "!=", ">", ">=", "<", "<=")
        compare = {
            "=": value == operand,
            "!=": value != operand,
            ">": value > operand,
            ">=": value >= operand,
            "<": value < operand,
            "<=": value <= operand,
        }
        return bool(compare[operators[single.comparator - 1]])
    composite = pb.CompositeColumnValueFilter.FromString(message.filter)
    parts = [passes(part.SerializeToString(), row) for part in composite.sub_filters]
    return {pb.LO_NOT: not parts[0], pb.LO_AND: all(parts), pb.LO_OR: any(parts)}[composite.combinator]


def comparisons(data: bytes) -> int:
    message = pb.Filter.FromString(data)
    if message.type == pb.FT_SINGLE_COLUMN_VALUE:
        return 1
    parts = pb.CompositeColumnValueFilter.FromString(message.filter).sub_filters
    return sum(comparisons(part.SerializeToString()) for part in parts)


@given(rows=contents(), conditions=st.lists(predicates(), max_size=4))
def test_a_filter_keeps_all_matching_rows_and_the_mask_removes_the_others(
    rows: list[dict[str, Any]], conditions: list[Predicate]
) -> None:
    wanted = [row for row in rows if all(holds(row[each.column], each) for each in conditions)]
    data = filter_of(SCHEMA, conditions)
    if data is not None:
        assert comparisons(data) <= 10
        assert all(passes(data, row) for row in wanted)
    batch = pa.RecordBatch.from_pylist(rows, SCHEMA.arrow)
    expected = pa.RecordBatch.from_pylist(wanted, SCHEMA.arrow).select(["k1", "k2"])
    assert matching(batch, SCHEMA, conditions).select(["k1", "k2"]) == expected


@pytest.mark.parametrize(
    ("predicate", "pushed"),
    [
        (Predicate("n", "=", 1), True),
        (Predicate("n", "in", list(range(10))), True),
        (Predicate("n", "in", list(range(11))), False),
        (Predicate("real", ">", 1.5), True),
        (Predicate("real", ">", 0.0), False),
        (Predicate("real", "=", NAN), False),
        (Predicate("narrow", "=", 0.5), False),
        (Predicate("text", "is null"), False),
        (Predicate("k1", "=", "a"), False),
    ],
)
def test_only_conditions_with_equal_semantics_are_sent_to_the_service(predicate: Predicate, pushed: bool) -> None:
    assert (filter_of(SCHEMA, [predicate]) is not None) == pushed
