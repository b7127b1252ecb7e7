"""Texts made to break parsers: whatever they hold, a parser gives a value or an error of headrace's own."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import HeadraceError, SqlError
from headrace.model.tables.schema import TableSchema
from headrace.model.tunnels.values import Start
from headrace.model.types import parse_type
from headrace.rows.json_rows import JsonRowError, read_nested_json_lines
from headrace.streaming_sql.language.grammar import parse
from headrace.streaming_sql.language.rewriting import rewrite
from headrace.testing.effort import thorough
from headrace_tablestore.endpoint.rows.filters import parse_filter
from headrace_tablestore.wire.plainbuffer.rows import decode_row
from headrace_ytsaurus.endpoint.select.grammar import parse_query
from headrace_ytsaurus.wire.paths import parse_path
from headrace_ytsaurus.wire.types import YtColumn
from headrace_ytsaurus.wire.yson.documents import load_fragment, loads
from headrace_ytsaurus.wire.yson.json_rows import read_json_rows
from headrace_ytsaurus.wire.yson.rows_decoding import decode_rows

DEEP = 1500
DIGITS = "9" * 5000
HOSTILE: Sequence[str] = (
    *(opening * DEEP for opening in ("(", "[", "{", "<", "array<", "/*", "{a=", "f(", "not ", "case when ", "-", "'")),
    "(" * DEEP + "1" + ")" * DEEP,
    "1" + "+1" * DEEP,
    "array<" * DEEP + "int" + ">" * DEEP,
    *(DIGITS, f"-{DIGITS}", f"{DIGITS}.{DIGITS}", f"1e{DIGITS}", "1e999999999", f"{DIGITS}u", f"0x{DIGITS}", "²", "١"),
    *("'\\UFFFFFFFF'", "'\\U00110000'", "'\\ud800'", "'\\777'", "'\\x'", "\ud800", "'\ud800'", "`\udfff`", "\0", "NaN"),
)
COLUMNS = [
    YtColumn.of("n", "int64"),
    YtColumn.of("d", "double"),
    YtColumn.of("any", "yson"),
    YtColumn.of("list", {"type_name": "list", "item": "int64"}),
]
SCHEMA = TableSchema.of({"id": "long", "x": "array<long>", "d": "decimal(5,2)", "t": "interval day to second"}, "id")


def of_bytes(parser: Callable[[bytes], Any]) -> Callable[[str], Any]:
    return lambda text: parser(text.encode("utf-8", "surrogatepass"))


def sql(text: str) -> None:
    for statement in parse(text):
        rewrite(statement.part, lambda relation: {})


def json_lines(data: bytes) -> None:
    list(read_nested_json_lines(io.BytesIO(data), SCHEMA))


PARSERS: dict[str, tuple[Callable[[str], Any], Sequence[str]]] = {
    "type": (parse_type, ("$", "array<$>", "decimal($)", "struct<$:int>", "struct<`$`:int>", "map<$,int>")),
    "sql": (
        sql,
        (
            "$",
            "CREATE SCAN s ON t USING STREAM OPTIONS (a=$)",
            "CREATE QUEUE q (a $)",
            "CREATE QUEUE q (a int) PARTITIONS $",
            "CREATE TABLE t (a $) USING headrace",
            "INSERT INTO t SELECT TUMBLING(a, $) FROM t WHERE delay(a) < $",
            "SET $",
        ),
    ),
    "path": (parse_path, ("$", "//$", "<$>//a", "//a{$}", "//a[$]", "//a/@$")),
    "query": (parse_query, ("* from [//t] where $", "$ from [//t]", "* from [//t] limit $")),
    "start": (Start.parse, ("$", "2026-$")),
    "yson": (of_bytes(loads), ("$", "{a=$}", "<a=$>b")),
    "fragment": (of_bytes(load_fragment), ("$", "{a=$}", "<a=$>b")),
    "rows": (of_bytes(lambda data: decode_rows(data, COLUMNS)), ("$", "{n=$};", "{d=$};", "{any=$};", "{list=$};")),
    "json rows": (
        of_bytes(lambda data: read_json_rows(data, COLUMNS).rows),
        ("$", '{"n":$}', '{"d":$}', '{"any":$}', '{"list":$}', '{"n":"$"}'),
    ),
    "json lines": (of_bytes(json_lines), ("$", '{"id":$}', '{"x":[$]}', '{"d":$}', '{"t":"$"}')),
    "filter": (of_bytes(parse_filter), ("$",)),
    "row": (of_bytes(decode_row), ("$", "\x75\0\0\0$")),
}
OWN = (HeadraceError, JsonRowError)


@pytest.mark.parametrize("parser", PARSERS)
def test_hostile_texts_give_a_value_or_an_own_error(parser: str) -> None:
    read, forms = PARSERS[parser]
    for form in forms:
        for hostile in HOSTILE:
            try:
                read(form.replace("$", hostile))
            except OWN:
                continue


@settings(deadline=None, max_examples=thorough(120))
@given(
    st.sampled_from(sorted(PARSERS)),
    st.lists(
        st.one_of(st.sampled_from([text[:40] for text in HOSTILE]), st.text(st.characters(), max_size=5)), max_size=6
    ),
    st.data(),
)
def test_mixtures_of_hostile_texts_give_a_value_or_an_own_error(parser: str, texts: list[str], data: Any) -> None:
    read, forms = PARSERS[parser]
    try:
        read(data.draw(st.sampled_from(list(forms))).replace("$", "".join(texts)))
    except OWN:
        return


@pytest.mark.parametrize(
    ("text", "column", "says"),
    [
        (r"CREATE SCAN s ON t USING STREAM OPTIONS (a='\UFFFFFFFF')", 44, "not a character of Unicode"),
        (r"CREATE SCAN s ON t USING STREAM OPTIONS (a='\ud800')", 44, "a lone surrogate"),
        ("SELECT '\ud800'", 9, "a lone surrogate"),
        ("CREATE QUEUE q (a " + "array<" * DEEP + ")", 19, "not closed|nested too deep"),
        ("CREATE TABLE t (a " + "array<" * 31 + "int" + ">" * 31 + ") USING headrace", 204, "nested too deep"),
    ],
)
def test_errors_of_hostile_sql_show_the_place(text: str, column: int, says: str) -> None:
    with pytest.raises(SqlError, match=says) as caught:
        parse(text)
    assert caught.value.line == 1
    assert caught.value.column == column or "not closed" in str(caught.value)
    assert len(str(caught.value).encode()) < 3000
