"""The query language of the endpoint for YTsaurus, without a server."""

from __future__ import annotations

import contextlib
import operator as operators
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.model.tables.conditions import Predicate
from headrace.testing.effort import thorough
from headrace_ytsaurus.endpoint.select.execution import Limits, run
from headrace_ytsaurus.endpoint.select.grammar import parse_query
from headrace_ytsaurus.endpoint.select.pushdown import pushed_down
from headrace_ytsaurus.endpoint.tables.row_sources import RowsInMemory
from headrace_ytsaurus.wire.errors import Code, YtError
from headrace_ytsaurus.wire.types import YtColumn, columns_of

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

LEAST = -(1 << 63)


def found(query: str, rows: Sequence[tuple[Any, ...]], **limits: Any) -> list[tuple[Any, ...]]:
    arrays = [pa.array([row[place] for row in rows], pa.int64()) for place in range(3)]
    source = RowsInMemory(pa.RecordBatch.from_arrays(arrays, names=list("abc")), COLUMNS)
    batches, _ = run(parse_query(query), source, Limits(**limits))
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def ordered(value: int | None) -> tuple[bool, int]:
    """Return a sort key that puts null first, as the language does."""
    return (value is not None, value or 0)


@settings(max_examples=thorough(150), deadline=None)
@given(st.text(max_size=80) | st.lists(FRAGMENTS, max_size=14).map(" ".join))
def test_any_text_is_a_query_or_a_query_error(text: str) -> None:
    with contextlib.suppress(YtError):
        parse_query(text, {"p": 1})


@settings(max_examples=thorough(30), deadline=None)
@given(ROWS, st.sampled_from(list(COMPARISONS)))
def test_null_is_the_least_value_and_equals_itself(rows: list[tuple[Any, ...]], operator: str) -> None:
    compare = COMPARISONS[operator]
    assert found(f"* from [//t] where a {operator} b", rows) == [
        row for row in rows if compare(ordered(row[0]), ordered(row[1]))
    ]
    assert found(f"* from [//t] where (a, b) {operator} (b, c)", rows) == [
        row for row in rows if compare((ordered(row[0]), ordered(row[1])), (ordered(row[1]), ordered(row[2])))
    ]


@settings(max_examples=thorough(30), deadline=None)
@given(ROWS, st.integers(0, 5), st.integers(0, 5))
def test_sorting_and_limits_equal_those_of_a_list(rows: list[tuple[Any, ...]], offset: int, limit: int) -> None:
    expected = sorted(rows, key=lambda row: ordered(row[1]))
    expected.sort(key=lambda row: ordered(row[0]), reverse=True)
    query = f"* from [//t] order by a desc, b offset {offset} limit {limit}"
    assert found(query, rows) == expected[offset : offset + limit]


@settings(max_examples=thorough(30), deadline=None)
@given(ROWS)
def test_groups_equal_those_of_a_dictionary(rows: list[tuple[Any, ...]]) -> None:
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


# -- whole numbers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("-9223372036854775808", LEAST),
        ("-a", LEAST),
        ("a - 1", (1 << 63) - 1),
        ("~b", 0),
        ("-7 / 2", -3),
        ("-7 % 2", -1),
        ("-1 << 63", LEAST),
        ("a >> 63", -1),
        ("null / 0 + 1 % null", None),
        # Errors in branches that are not taken do not count.
        ("if(b = -1, 5, a / (b + 1))", 5),
        ("if(b = 0, a / b, 6)", 6),
        ("case when b = 0 then a / b when b = -1 then 7 else a % (b + 1) end", 7),
        ("if_null(b, a / b) + coalesce(null, c, 1 / 0)", 2),
        ("if(b != -1 and a / b > 0 or b = -1, 8, 1 << 64)", 8),
    ],
)
def test_whole_numbers_wrap_around_and_errors_count_only_where_needed(expression: str, value: int | None) -> None:
    assert found(f"{expression} as x from [//t]", [(LEAST, -1, 3)]) == [(value,)]


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        *[(each, "Division by zero") for each in ("a / 0", "a % c", "1 / 0", "5u % 0u", "if(c = 0, a / c, 1)")],
        *[(each, "by -1") for each in ("a / b", "a % b", "-9223372036854775808 / -1", "b = 0 or a / b = 1")],
        *[(each, "0 to 63 bits") for each in ("a << 64", "a >> 64", "1 << b", "1 >> b", "1u << 64u", "1 << 1000")],
        *[(each, "The literal does not fit int64") for each in ("-9223372036854775809", "a + 9223372036854775808")],
    ],
)
def test_undefined_results_of_whole_numbers_are_errors(expression: str, message: str) -> None:
    with pytest.raises(YtError, match=message):
        found(f"{expression} as x from [//t]", [(LEAST, -1, 0)])


# -- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        ("a + b as x from [//t] where x > 2 order by x desc limit 9", [(7,), (3,)]),
        ("a + b as x, x * 2 as y, y + x as z from [//t] where z = 9", [(3, 6, 9)]),
        ("a % 2 as x, sum(b) as n from [//t] group by x having n > 2 order by n limit 9", [(1, 6)]),
        ("x, sum(b) as n, n + 1 as m from [//t] group by a % 2 as x order by x limit 9", [(0, 0, 1), (1, 6, 7)]),
        # Within its own expression, and with the table in front, a name is a column.
        ("-a as a from [//t] where a < -2", [(-3,)]),
        ("-a as a from [//t] as t where t.a < 2", [(-1,), (0,)]),
        ("b as c, t.c as d from [//t] as t where t.c = 9", [(0, 9)]),
        ("a * 2 as a, a as d from [//t] where d = 6", [(6, 6)]),
        ("((1 as x) + x) as y from [//t] where a = x", [(2,)]),
        ("a from [//t] as t where t.a > 0 group by a / 10 as a", [(0,)]),
        # Before grouping, the alias of an aggregate is a column.
        ("max(a) as a from [//t] where a < 3 group by 1", [(1,)]),
    ],
)
def test_aliases_can_be_used_in_every_clause(query: str, rows: list[tuple[Any, ...]]) -> None:
    assert found(query, [(1, 2, 7), (3, 4, 8), (0, 0, 9)]) == rows


def test_an_expression_without_alias_is_named_by_its_text() -> None:
    query = parse_query("select a,  b +\n 1, if(a = 1, (b), 2), sum(c) as s, `d e` from [//t] where a = 1")
    assert [item.name for item in query.items or ()] == ["a", "b + 1", "if(a = 1, (b), 2)", "s", "d e"]


def test_conditions_on_aliases_are_not_pushed_down() -> None:
    query = parse_query("-k as k, v as w from [//t] as t where k > 5 and t.k > 6 and w = 7 and v = 8")
    assert [(each.column, each.value) for each in pushed_down(query)] == [("v", 8), ("k", 6)]


@pytest.mark.parametrize("query", ["x.a from [//t] as t", "t.x.a from [//t] as t"])
def test_names_with_an_unknown_table_are_errors(query: str) -> None:
    with pytest.raises(YtError, match="Undefined reference"):
        found(query, [(1, 2, 3)])


def test_aliases_nested_too_often_are_refused() -> None:
    tower = ", ".join(["a as a0", *(f"a{number} + a{number} as a{number + 1}" for number in range(100))])
    with pytest.raises(YtError, match="too many nested aliases"):
        found(f"{tower} from [//t]", [(1, 2, 3)])


# -- the rest of the language ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("a between (1 and 2, 5 and 6)", True),
        ("a not between (1 and 4, 6 and 6)", True),
        ("(a, b) between ((5) and (5, -4), (5, 7) and (6))", True),
        ("(a, b) between ((4) and (4), (5, 8) and (5, 9))", False),
        ("a between (4) and (6)", True),
        ("1 + 2 << 1 | 8 & 12 ^ 1", 15),
        ("not a = 5 or a in (5) = %true and -a - -b = 2", True),
        ("a is not null and c is null", True),
        ("floor(-1.5)", -2),
        ("ceil(1.2) + trunc(-1.7) + sign(-2.0)", 0),
        ("int64(-1.9)", -1),
        ("if(is_finite(%inf), int64(%inf), 3)", 3),
        ("regex_replace_all('[a-c]+', 'abcdxa', '-')", b"-dx-"),
        ("regex_full_match('a|b', 'ab') or regex_partial_match('^b', 'ab')", False),
        ("timestamp_floor_week(1700000000) - timestamp_floor_month(1700000000)", 1_036_800),
        ("timestamp_floor_hour(-1)", -3600),
    ],
)
def test_functions_and_operators_follow_the_documentation(expression: str, value: Any) -> None:
    assert found(f"{expression} as x from [//t]", [(5, 7, None)]) == [(value,)]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("a from [//t] order by a", "ORDER BY used without LIMIT"),
        ("a from [//t] offset 1", "OFFSET used without LIMIT"),
        ("a from [//t] group by a having a > 1 limit 1", "HAVING with LIMIT"),
        ("a from [//t] where a between (1 and 2, 3)", "two bounds"),
        ("a from [//t] where a is 5", "expected NULL"),
        ("a from [//t] limit 1 limit 2", "unexpected 'limit'"),
        ("int64(1e300) as x from [//t]", "outside the range"),
        ("uint64(-1.0) as x from [//t]", "outside the range"),
        ("timestamp_floor_day(-9223372036854775808) as x from [//t]", "range of times"),
        ("regex_full_match('(', 'a') as x from [//t]", "Invalid regular expression"),
    ],
)
def test_queries_that_a_cluster_refuses_are_refused(query: str, message: str) -> None:
    with pytest.raises(YtError, match=message):
        found(query, [(1, 2, 3)])


def test_cardinality_ignores_null_and_is_unsigned() -> None:
    assert found("cardinality(a) - 3u as n from [//t] group by 1", [(1, 0, 0), (None, 0, 0), (2, 0, 0), (1, 0, 0)]) == [
        ((1 << 64) - 1,)
    ]


# -- strings ---------------------------------------------------------------------------------------------------------


def test_strings_can_be_any_bytes() -> None:
    columns = columns_of([{"name": "s", "type_v3": {"type_name": "tagged", "tag": "binary", "item": "string"}}])
    values = [b"", b"a", b"a\xff", b"\xff\x00", b"\xd0\xb0"]
    source = RowsInMemory(pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], names=["s"]), columns)

    def chosen(condition: str, placeholder: bytes = b"") -> list[bytes]:
        query = parse_query(f"s || '\\xfe' as x from [//t] where {condition}", {"p": placeholder})
        batches, answered = run(query, source, Limits())
        assert answered[0].type == batches[0].schema.field("x").type == pa.binary()
        return [value[:-1] for value in batches[0].column("x").to_pylist()]

    assert chosen(r's = "a\xff"') == chosen("s = {p}", b"a\xff") == [b"a\xff"]
    assert chosen(r's >= "a\xff" and s < "\xff"') == [b"a\xff", b"\xd0\xb0"]
    assert chosen(r's in ("a", "\377\0", "\xfe")') == [b"a", b"\xff\x00"]
    assert chosen('s = "а"') == [b"\xd0\xb0"]
    # With a pattern in UTF-8, an underscore matches a character.
    assert chosen("s like '_'") == chosen("regex_full_match('.', s)") == [b"a", b"\xd0\xb0"]
    assert chosen(r'"a\xff" like "a%" and s like "a_" or s like "%\xff"') == [b"a\xff"]
    assert chosen(r"""regex_replace_all("b", "b\xff", "a") = s and is_substr("\xff", s)""") == [b"a\xff"]
    assert chosen("if(s in ('a', 'а'), upper(s), '') = 'А'") == [b"\xd0\xb0"]
    conditions = pushed_down(parse_query(r's from [//t] where s > "a\xff" and s in ("a", "\xff")'))
    assert [each.value for each in conditions] == [("a", b"\xff"), b"a\xff"]


# -- limits and pushdown ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "items",
    [
        "'{}' as x",
        "if(a = 1, '{}', 'x') as x",
        "length(concat('{0}', '{0}', if(a = 1, 'y', 'x'))) as x",
        "length('{}' || if(a = 1, 'y', 'x')) as x",
    ],
)
def test_a_query_that_needs_too_much_memory_fails(items: str) -> None:
    text = items.format("x" * 100_000)
    with pytest.raises(YtError, match="too many bytes"):
        found(f"{text} from [//t]", [(1, 2, 3)] * 5000)


def test_a_query_fails_at_its_deadline() -> None:
    with pytest.raises(YtError, match="timed out") as error:
        run(
            parse_query("sum(a) from [//t] group by 1"),
            _Endless(),
            Limits(input_rows=1 << 62, deadline=time.monotonic()),
        )
    assert error.value.code == Code.TIMEOUT


class _Endless:
    """A table with an unlimited number of rows."""

    columns: Sequence[YtColumn] = COLUMNS

    def scan(self, names: Sequence[str], conditions: Sequence[Predicate]) -> Iterator[pa.RecordBatch]:
        batch = pa.RecordBatch.from_arrays([pa.array(range(1000), pa.int64())] * len(names), names=list(names))
        while True:
            yield batch


def test_a_query_with_a_limit_stops_reading() -> None:
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
        ("k in (-1, 2u)", [("k", "in", (-1, 2))]),
        ("k = 5 or k = 6", []),
        ("not k = 5", []),
        ("k != 5", []),
        ("k = v", []),
        ("k = #", []),
        ("k in (1, #)", []),
        ("k + 1 = 5", []),
    ],
)
def test_comparisons_with_literals_are_pushed_down(where: str, conditions: list[tuple[str, str, Any]]) -> None:
    query = parse_query(f"* from [//t] where {where}")
    assert sorted((each.column, each.operator, each.value) for each in pushed_down(query)) == sorted(conditions)
