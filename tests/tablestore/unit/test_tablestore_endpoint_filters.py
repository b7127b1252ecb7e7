"""Filters: their messages, and the agreement of the evaluations for a row and for a page."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.model.tables.conditions import Predicate
from headrace_tablestore.endpoint.rows.filters import (
    Combination,
    Combinator,
    Comparator,
    Comparison,
    Filter,
    Pagination,
    Rule,
    mask,
    matches,
    necessary,
    paginated,
    parse_filter,
)
from headrace_tablestore.endpoint.rows.layout import ARROW_TYPES, CellType, cell_type
from headrace_tablestore.wire import table_pb2 as pb
from headrace_tablestore.wire.errors import ServiceError
from headrace_tablestore.wire.plainbuffer.rows import encode_value
from headrace_tablestore.wire.plainbuffer.values import Value

NAMES = ("a", "b")
VALUES: st.SearchStrategy[Value] = st.one_of(
    st.integers(-2, 2),
    st.sampled_from([-1.0, -0.0, 0.0, 1.0, float("nan"), float("inf")]),
    st.booleans(),
    st.sampled_from(["", "a", "ab", "12x", "é", "\U0001f600"]),
    st.sampled_from([b"", b"a", b"\xff"]),
)
RULES = st.builds(
    Rule,
    st.sampled_from(["([0-9]+)", "^(a)", "x(y)?"]),
    st.sampled_from([CellType.INTEGER, CellType.STRING, CellType.DOUBLE]),
)
COMPARISONS = st.builds(
    Comparison, st.sampled_from(NAMES), st.sampled_from(Comparator), VALUES, st.booleans(), st.none() | RULES
)
FILTERS: st.SearchStrategy[Filter] = st.recursive(
    COMPARISONS,
    lambda inner: st.one_of(
        st.builds(lambda part: Combination(Combinator.NOT, (part,)), inner),
        st.builds(
            Combination, st.sampled_from([Combinator.AND, Combinator.OR]), st.lists(inner, min_size=1).map(tuple)
        ),
    ),
    max_leaves=5,
)
ROWS = st.lists(st.dictionaries(st.sampled_from(NAMES), VALUES), max_size=6)


def versions(row: dict[str, Any]) -> dict[str, list[Any]]:
    """Return a row with one version of each cell."""
    return {name: [value] for name, value in row.items()}


def as_columns(rows: list[dict[str, Any]]) -> dict[str, list[pa.Array]]:
    """Return rows as columns: one column for each name and type."""
    columns: dict[str, list[pa.Array]] = {}
    for name in NAMES:
        for kind in CellType:
            values = [row.get(name) if cell_type(row.get(name)) is kind else None for row in rows]
            columns.setdefault(name, []).append(pa.array(values, ARROW_TYPES[kind]))
    return columns


@settings(deadline=None)
@given(FILTERS, ROWS)
def test_filters_agree_on_pages_and_rows(parsed: Filter, rows: list[dict[str, Any]]) -> None:
    expected = [matches(parsed, versions(row)) for row in rows]
    assert mask(parsed, as_columns(rows), len(rows)).tolist() == expected


@settings(deadline=None)
@given(FILTERS, ROWS)
def test_the_predicates_for_the_store_keep_every_matching_row(parsed: Filter, rows: list[dict[str, Any]]) -> None:
    predicates = necessary(parsed, lambda name, kind: f"{name}:{kind}")
    for row in rows:
        if matches(parsed, versions(row)):
            for predicate in predicates:
                name, _, kind = predicate.column.partition(":")
                assert cell_type(row[name]) == kind


def test_a_conjunction_becomes_predicates_for_the_store() -> None:
    parsed = Combination(
        Combinator.AND,
        (
            Comparison("a", Comparator.GREATER, 1, if_missing=False),
            Comparison("b", Comparator.LESS, 1, if_missing=True),
            Combination(Combinator.OR, (Comparison("a", Comparator.EQUAL, 3, if_missing=False),)),
        ),
    )
    assert necessary(parsed, lambda name, kind: name) == [Predicate("a", ">", 1)]
    assert necessary(parsed, lambda name, kind: None) == []


def single(name: str, comparator: pb.ComparatorType, value: Any, **more: Any) -> bytes:
    message = pb.SingleColumnValueFilter(
        comparator=comparator,
        column_name=name,
        column_value=encode_value(value),
        **{"filter_if_missing": True, "latest_version_only": True, **more},
    )
    return pb.Filter(type=pb.FT_SINGLE_COLUMN_VALUE, filter=message.SerializeToString()).SerializeToString()


def composite(combinator: pb.LogicalOperator, *parts: bytes) -> bytes:
    message = pb.CompositeColumnValueFilter(combinator=combinator)
    message.sub_filters.extend(pb.Filter.FromString(part) for part in parts)
    return pb.Filter(type=pb.FT_COMPOSITE_COLUMN_VALUE, filter=message.SerializeToString()).SerializeToString()


def test_filter_messages_are_parsed() -> None:
    data = composite(pb.LO_NOT, single("a", pb.CT_EQUAL, "x", filter_if_missing=False))
    assert parse_filter(data) == Combination(Combinator.NOT, (Comparison("a", Comparator.EQUAL, "x", if_missing=True),))
    page = pb.ColumnPaginationFilter(offset=2, limit=3).SerializeToString()
    data = pb.Filter(type=pb.FT_COLUMN_PAGINATION, filter=page).SerializeToString()
    assert parse_filter(data) == Pagination(2, 3)
    rule = pb.ValueTransferRule(regex="t1:([0-9]+)", cast_type=pb.VT_INTEGER)
    parsed = parse_filter(single("a", pb.CT_GREATER_EQUAL, 5, value_trans_rule=rule))
    assert matches(parsed, {"a": ["t1:7,"]})
    assert not matches(parsed, {"a": ["t1:3,"]})
    assert not matches(parsed, {"a": ["nothing"]})


@pytest.mark.parametrize(
    "data",
    [
        b"\xff",
        composite(pb.LO_NOT),
        composite(pb.LO_AND),
        composite(pb.LO_NOT, single("a", pb.CT_EQUAL, 1), single("a", pb.CT_EQUAL, 1)),
        composite(pb.LO_AND, *[single("a", pb.CT_EQUAL, 1)] * 32),
        single("a", pb.CT_EQUAL, None),
        pb.Filter(type=pb.FT_COLUMN_PAGINATION, filter=b"\x08\x00\x10\x00").SerializeToString(),
    ],
)
def test_an_invalid_filter_is_an_invalid_parameter(data: bytes) -> None:
    with pytest.raises(ServiceError) as caught:
        parse_filter(data)
    assert caught.value.code == "OTSParameterInvalid"


def test_deep_nesting_is_refused() -> None:
    data = single("a", pb.CT_EQUAL, 1)
    for _ in range(200):
        data = composite(pb.LO_NOT, data)
    with pytest.raises(ServiceError, match="The count of filter exceeds the max: 32"):
        parse_filter(data)


def test_an_invalid_regular_expression_is_an_invalid_parameter() -> None:
    for regex in ("(", "no group", "(?=a)"):
        parsed = Comparison("a", Comparator.EQUAL, "x", False, Rule(regex, CellType.STRING))
        with pytest.raises(ServiceError, match="regular expression"):
            matches(parsed, {"a": ["no group"]})


def test_column_pagination_counts_existing_cells() -> None:
    columns = {"a": pa.array([1, None]), "b": pa.array([2, 3]), "c": pa.array([4, 5])}
    left = paginated(Pagination(1, 1), columns, 2)
    assert {name: array.to_pylist() for name, array in left.items()} == {
        "a": [None, None],
        "b": [2, None],
        "c": [None, 5],
    }
