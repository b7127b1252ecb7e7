"""A condition in SQL selects the rows that the same condition selects in Python."""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Callable
from typing import Any

import apsw
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.errors import OptionError, SchemaError
from headrace.model.tables.conditions import KeyRange, Predicate
from headrace.model.tables.schema import TableSchema
from headrace.rows.conditions import typed_key
from headrace.stores.embedded.tables.codec import RowCodec
from headrace.stores.embedded.tables.conditions import bounds, predicate_sql, where
from headrace.stores.embedded.tables.physical import PhysicalTable
from headrace.support.sqlite.notes import provide_notes

D = decimal.Decimal
NAN, INF = float("nan"), float("inf")
NUMBERS = [NAN, -INF, -1.5, -0.0, 0.0, 5e-324, 1.5, INF]
TEXTS = ["", "a", "a\0", "ab", "b", "é", "\ud7ff", "\U0010ffff", "\U0010ffffx"]
SAMPLES: dict[str, list[Any]] = {
    "boolean": [False, True],
    "byte": [-128, -1, 0, 1, 127],
    "long": [-(2**63), -1, 0, 1, 2**63 - 1],
    "float": NUMBERS[:5] + NUMBERS[6:],
    "double": NUMBERS,
    "date": [datetime.date(1, 1, 1), datetime.date(1970, 1, 1), datetime.date(2026, 1, 31)],
    "timestamp": [datetime.datetime(year, 1, 1, tzinfo=datetime.UTC) for year in (1, 1970, 2026)],
    "decimal(10,2)": [D("-99999999.99"), D("-0.01"), D(0), D("99999999.99")],
    "string": TEXTS,
    "binary": [b"", b"\0", b"a", b"a\xff", b"a\xff\xff", b"b", b"\xff", b"\xff\xff"],
}
SCHEMA = TableSchema.of({"id": "long"} | {kind: kind for kind in SAMPLES}, "id")
COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda left, right: left == right,
    "!=": lambda left, right: left != right,
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    ">=": lambda left, right: left >= right,
}


def ordered(value: Any) -> Any:
    """Return a number that compares like floats in Spark: NaN equals itself and is last."""
    if isinstance(value, float):
        return (1, 0.0) if math.isnan(value) else (0, value)
    return value


def holds(value: Any, operator: str, operand: Any) -> bool:
    if operator == "is null":
        return value is None
    if value is None:
        return False
    if operator == "is not null":
        return True
    if operator == "in":
        return any(ordered(value) == ordered(each) for each in operand if each is not None)
    if operand is None:
        return False
    if operator == "starts with":
        return bool(value.startswith(operand))
    return COMPARE[operator](ordered(value), ordered(operand))


@pytest.fixture(scope="module")
def table() -> tuple[apsw.Connection, PhysicalTable, list[dict[str, Any]]]:
    """A table with every sample of every column, and with nulls."""
    connection = apsw.Connection(":memory:")
    provide_notes(connection)
    physical = PhysicalTable(1, SCHEMA, 1)
    physical.create(connection)
    count = 1 + max(len(samples) for samples in SAMPLES.values())
    rows = [
        {"id": number} | {kind: samples[number] if number < len(samples) else None for kind, samples in SAMPLES.items()}
        for number in range(count)
    ]
    physical.write(connection, physical.codec.encode(pa.RecordBatch.from_pylist(rows, schema=SCHEMA.arrow)))
    return connection, physical, rows


@pytest.mark.parametrize("kind", SAMPLES)
def test_every_operator_selects_the_matching_rows(
    kind: str, table: tuple[apsw.Connection, PhysicalTable, list[dict[str, Any]]]
) -> None:
    connection, physical, rows = table
    predicates = [Predicate(kind, operator, value) for operator in COMPARE for value in [*SAMPLES[kind], None]]
    predicates += [Predicate(kind, "is null"), Predicate(kind, "is not null")]
    predicates += [Predicate(kind, "in", values) for values in ([], [None], SAMPLES[kind][:2], SAMPLES[kind][1::2])]
    if kind in ("string", "binary"):
        predicates += [Predicate(kind, "starts with", value) for value in [*SAMPLES[kind], None]]
    for predicate in predicates:
        page = physical.read(connection, ["id"], KeyRange(), [predicate]).rows
        expected = [row["id"] for row in rows if holds(row[kind], predicate.operator, predicate.value)]
        assert page.column("id").to_pylist() == expected, predicate


@pytest.mark.parametrize("operator", ["<", "<=", "=", "!=", ">", ">="])
def test_negative_nan_is_as_large_as_any_other_nan(operator: str) -> None:
    connection = apsw.Connection(":memory:")
    provide_notes(connection)
    schema = TableSchema.of({"id": "long", "x": "double"}, "id")
    physical = PhysicalTable(1, schema, 1)
    physical.create(connection)
    rows = pa.RecordBatch.from_pylist(
        [{"id": 0, "x": math.copysign(NAN, -1)}, {"id": 1, "x": 1.0}], schema=schema.arrow
    )
    physical.write(connection, physical.codec.encode(rows))
    for operand in (NAN, 0.0, INF):
        found = physical.read(connection, ["id"], KeyRange(), [Predicate("x", operator, operand)]).rows
        expected = [key for key, value in ((0, NAN), (1, 1.0)) if holds(value, operator, operand)]
        assert found.column("id").to_pylist() == expected


@pytest.mark.parametrize(
    ("column", "operator", "value"),
    [
        ("long", "=", 2.5),
        ("byte", "<", 1000),
        ("long", ">", 2**63),
        ("long", "=", "1"),
        ("float", "<", 1e300),
        ("string", "=", 1),
        ("string", "in", ["a", 1]),
        ("decimal(10,2)", "=", D("0.001")),
        ("date", "=", datetime.datetime(2026, 1, 1)),
        ("id", ">", 2.5),
        ("nope", "=", 1),
    ],
)
def test_values_that_a_column_cannot_hold_are_an_error(column: str, operator: str, value: Any) -> None:
    with pytest.raises(SchemaError):
        where(RowCodec(SCHEMA), KeyRange(), [Predicate(column, operator, value)])


@pytest.mark.parametrize(
    ("column", "operator", "value"),
    [("long", "starts with", 1), ("string", "in", "abc"), ("long", "in", 5), ("long", "in", range(10_001))],
)
def test_operators_with_a_wrong_operand_are_an_error(column: str, operator: str, value: Any) -> None:
    with pytest.raises(OptionError):
        predicate_sql(RowCodec(SCHEMA), Predicate(column, operator, value))


KEY_SCHEMA = TableSchema.of({"a": "string", "b": "long", "c": "binary", "x": "int"}, ["a", "b", "c"])
KEY_PARTS: dict[str, list[Any]] = {"a": ["", "a", "a\0", "b"], "b": [-1, 0, 1], "c": [b"", b"a", b"\xff"]}
KEYS = st.tuples(*(st.sampled_from(parts) for parts in KEY_PARTS.values()))
BOUNDS = st.none() | st.builds(lambda key, length: key[:length], KEYS, st.integers(1, 3))
CONDITIONS = st.one_of(
    *(
        st.builds(
            Predicate,
            st.just(name),
            st.sampled_from([*COMPARE, "in", "starts with"] if name != "b" else [*COMPARE, "in"]),
            st.sampled_from(parts),
        )
        for name, parts in KEY_PARTS.items()
    )
).map(lambda each: Predicate(each.column, "in", [each.value]) if each.operator == "in" else each)


@pytest.fixture(scope="module")
def keyed() -> tuple[apsw.Connection, PhysicalTable, list[tuple[Any, ...]]]:
    """A table with every combination of the key parts."""
    connection = apsw.Connection(":memory:")
    provide_notes(connection)
    physical = PhysicalTable(1, KEY_SCHEMA, 1)
    physical.create(connection)
    keys = [(a, b, c) for a in KEY_PARTS["a"] for b in KEY_PARTS["b"] for c in KEY_PARTS["c"]]
    rows = pa.RecordBatch.from_pylist([{"a": a, "b": b, "c": c} for a, b, c in keys], schema=KEY_SCHEMA.arrow)
    physical.write(connection, physical.codec.encode(rows))
    return connection, physical, keys


@given(low=BOUNDS, high=BOUNDS, conditions=st.lists(CONDITIONS, max_size=4), after=st.none() | KEYS)
@example(low=("a",), high=("a",), conditions=[], after=None)
def test_key_ranges_and_conditions_compare_keys_like_tuples(
    low: Any,
    high: Any,
    conditions: list[Predicate],
    after: Any,
    keyed: tuple[apsw.Connection, PhysicalTable, list[tuple[Any, ...]]],
) -> None:
    connection, physical, keys = keyed
    page = physical.read(connection, ["a", "b", "c"], KeyRange(low, high), conditions, after).rows
    expected = [
        key
        for key in keys
        if (low is None or key[: len(low)] >= low)
        and (high is None or key[: len(high)] < high)
        and (after is None or key > after)
        and all(holds(key["abc".index(each.column)], each.operator, each.value) for each in conditions)
    ]
    assert list(zip(*page.to_pydict().values(), strict=True)) == expected


def test_a_page_seeks_its_first_key_directly() -> None:
    conditions = [Predicate("a", "=", "a"), Predicate("b", ">=", 0), Predicate("x", ">", 5)]
    low, high, remaining = bounds(RowCodec(KEY_SCHEMA), KeyRange(), conditions)
    assert low is not None
    assert high is not None
    assert (low.prefix, high.prefix, remaining) == (("a", 0), ("a",), conditions[2:])
    sql = where(RowCodec(KEY_SCHEMA), KeyRange(), conditions, after=("a", 7, b"x"))
    assert sql.text.startswith("(k0, k1, k2) > (?, ?, ?) AND (k0) <= (?) AND ")
    assert sql.bindings[:4] == ("a", 7, b"x", "a")


@pytest.mark.parametrize("key", [("a", 1, b"", 2), (None,), (1,), ("a", "b")])
def test_invalid_keys_are_an_error(key: tuple[Any, ...]) -> None:
    with pytest.raises(SchemaError):
        typed_key(KEY_SCHEMA, key)


def test_thousands_of_conditions_are_one_condition_of_sqlite() -> None:
    codec = RowCodec(SCHEMA)
    with pytest.raises(OptionError, match="too many values in the conditions; received: 16001"):
        where(codec, KeyRange(), [Predicate("string", "!=", str(number)) for number in range(16_001)])
    connection = apsw.Connection(":memory:")
    provide_notes(connection)
    table = PhysicalTable(1, SCHEMA, 1)
    table.create(connection)
    texts = [Predicate("string", "!=", str(number)) for number in range(1500)]
    assert table.count(connection, KeyRange(), texts) == 0
    assert where(codec, KeyRange(), texts).bindings == tuple(str(number) for number in range(1500))
