"""The query language of the endpoint for YTsaurus, without a server."""

from __future__ import annotations

import contextlib
import operator as operators
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.endpoints.ytsaurus.row_sources import FewRows
from headrace.endpoints.ytsaurus.select_grammar import parse_query
from headrace.endpoints.ytsaurus.select_rows import Limits, pushed_down, run
from headrace.model import Predicate
from headrace.wire.ytsaurus.errors import YtError
from headrace.wire.ytsaurus.types import YtColumn

COLUMNS = [YtColumn.of(name, {"type_name": "optional", "item": "int64"}) for name in "abc"]
ROWS = st.lists(st.tuples(*[st.none() | st.integers(-3, 3)] * 3), max_size=12)
COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operators.eq,
    "!=": operators.ne,
    "<": operators.lt,
    "<=": operators.le,
    ">": operators.gt,
    ">=": operators.ge,
}
WORDS = "select * k [k] `k from [//t] where ( ) , = in between and or not 5u 1.5 'y' {p} %true # as sum(k) - limit by"
FRAGMENTS = st.sampled_from([*WORDS.split(), '"x', "order by", "\\", "\0"])


def found(query: str, rows: Sequence[tuple[Any, ...]], **limits: Any) -> list[tuple[Any, ...]]:
    arrays = [pa.array([row[place] for row in rows], pa.int64()) for place in range(3)]
    source = FewRows(pa.RecordBatch.from_arrays(arrays, names=list("abc")), COLUMNS)
    batches, _ = run(parse_query(query), source, Limits(**limits))
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def ordered(value: int | None) -> tuple[bool, int]:
    """Return a value in a form that sorts as the language does: null first."""
    return (value is not None, value or 0)


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=80) | st.lists(FRAGMENTS, max_size=14).map(" ".join))
def test_any_text_is_a_query_or_an_error_that_is_meant(text: str) -> None:
    with contextlib.suppress(YtError):
        parse_query(text, {"p": 1})


@settings(max_examples=30, deadline=None)
@given(ROWS, st.sampled_from(list(COMPARISONS)))
def test_null_is_less_than_everything_and_equals_itself(rows: list[tuple[Any, ...]], operator: str) -> None:
    compare = COMPARISONS[operator]
    assert found(f"* from [//t] where a {operator} b", rows) == [
        row for row in rows if compare(ordered(row[0]), ordered(row[1]))
    ]
    assert found(f"* from [//t] where (a, b) {operator} (b, c)", rows) == [
        row for row in rows if compare((ordered(row[0]), ordered(row[1])), (ordered(row[1]), ordered(row[2])))
    ]


@settings(max_examples=30, deadline=None)
@given(ROWS, st.integers(0, 5), st.integers(0, 5))
def test_rows_are_sorted_and_cut_as_a_list_would_be(rows: list[tuple[Any, ...]], offset: int, limit: int) -> None:
    expected = sorted(rows, key=lambda row: ordered(row[1]))
    expected.sort(key=lambda row: ordered(row[0]), reverse=True)
    query = f"* from [//t] order by a desc, b offset {offset} limit {limit}"
    assert found(query, rows) == expected[offset : offset + limit]


@settings(max_examples=30, deadline=None)
@given(ROWS)
def test_groups_are_those_of_a_dictionary(rows: list[tuple[Any, ...]]) -> None:
    groups: dict[Any, list[Any]] = {}
    for row in rows:
        groups.setdefault(row[0], []).append(row[1])

    def summed(values: list[Any]) -> int | None:
        known = [value for value in values if value is not None]
        return sum(known) if known else None

    answered = found("a, sum(b) as s, sum(1) as n from [//t] group by a", rows)
    assert sorted(answered, key=lambda row: ordered(row[0])) == [
        (key, summed(groups[key]), len(groups[key])) for key in sorted(groups, key=ordered)
    ]


class _Endless:
    """Rows that never end."""

    columns: Sequence[YtColumn] = COLUMNS

    def scan(self, names: Sequence[str], conditions: Sequence[Predicate]) -> Iterator[pa.RecordBatch]:
        batch = pa.RecordBatch.from_arrays([pa.array(range(1000), pa.int64())] * len(names), names=list(names))
        while True:
            yield batch


def test_no_more_is_read_than_a_limit_needs() -> None:
    batches, _ = run(parse_query("a from [//t] where a = 7 limit 3"), _Endless(), Limits())
    assert sum(batch.num_rows for batch in batches) == 3
    with pytest.raises(YtError, match="excessive input"):
        run(parse_query("a from [//t] order by a limit 3"), _Endless(), Limits())


@pytest.mark.parametrize(
    ("where", "conditions"),
    [
        ("k = 5 and v > 'x'", [("k", "=", 5), ("v", ">", "x")]),
        ("5u <= k", [("k", ">=", 5)]),
        ("(k, v) = (-1, 'x')", [("k", "=", -1), ("v", "=", "x")]),
        ("(k, v) > (1, 'x')", [("k", ">=", 1)]),
        ("k between 1 and 2", [("k", ">=", 1), ("k", "<=", 2)]),
        ("k in (1, 2u)", [("k", "in", (1, 2))]),
        ("k = 5 or k = 6", []),
        ("not k = 5", []),
        ("k != 5", []),
        ("k = v", []),
        ("k = #", []),
        ("k in (1, #)", []),
        ("k + 1 = 5", []),
    ],
)
def test_what_a_scan_can_look_at_is_what_every_wanted_row_satisfies(
    where: str, conditions: list[tuple[str, str, Any]]
) -> None:
    query = parse_query(f"* from [//t] where {where}")
    assert sorted((each.column, each.operator, each.value) for each in pushed_down(query)) == sorted(conditions)
