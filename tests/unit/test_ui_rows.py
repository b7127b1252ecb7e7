"""Cursors and filters of the pages of rows, as texts."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import pytest

from headrace.errors import OptionError
from headrace.model.tables.schema import TableSchema
from headrace.ui.rows import condition, decode_cursor, encode_cursor

TIME = datetime.datetime(2026, 2, 3, 4, 5, 6, 789000)
VALUES: dict[str, Any] = {
    "string": '0x41 é\0"',
    "long": -(2**63),
    "binary": b"\x00\xff",
    "int": 7,
    "date": datetime.date(1969, 7, 20),
    "timestamp": TIME.replace(tzinfo=datetime.UTC),
    "timestamp_ntz": TIME,
    "decimal(10,2)": decimal.Decimal("-0.50"),
}


@pytest.mark.parametrize("kind", VALUES)
def test_a_key_of_each_type_goes_through_a_cursor(kind: str) -> None:
    schema = TableSchema.of({"id": "long", "key": kind}, ["key", "id"])
    key = (VALUES[kind], 5)
    text = encode_cursor(key)
    assert text is not None
    assert decode_cursor(text, schema) == key


@pytest.mark.parametrize(
    "text", ["", "[", "5", "null", "{}", "[]", '["1", "2"]', '["x"]', f'["{10**30}"]', "[" * 30_000, "[null]"]
)
def test_a_text_that_is_no_cursor_is_refused(text: str) -> None:
    schema = TableSchema.of({"id": "long"}, ["id"])
    with pytest.raises(OptionError, match="does not exist"):
        decode_cursor(text, schema)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("timestamp", "2026-02-03", datetime.datetime(2026, 2, 3, tzinfo=datetime.UTC)),
        ("timestamp", "2026-02-03 04:05:06.789Z", VALUES["timestamp"]),
        ("timestamp_ntz", "2026-02-03T04:05:06.789", TIME),
        ("date", " 1969-07-20", VALUES["date"]),
        ("binary", "0x00ff", b"\x00\xff"),
        ("binary", "abc", b"abc"),
        ("boolean", "true", True),
        ("double", "1e3", 1000.0),
        ("decimal(10,2)", "-0.5", VALUES["decimal(10,2)"]),
    ],
)
def test_a_filter_takes_values_as_the_page_shows_them(kind: str, text: str, value: object) -> None:
    schema = TableSchema.of({"id": "long", "column": kind}, ["id"])
    assert condition(schema, "column", "=", text)[0].value == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [("long", "many"), ("long", str(2**63)), ("timestamp", "yesterday"),
     ("date", "2026-13-01"), ("binary", "0xzz"), ("array<long>", "[1]")],
)  # fmt: skip
def test_a_value_that_does_not_fit_names_the_type(kind: str, text: str) -> None:
    schema = TableSchema.of({"id": "long", "column": kind}, ["id"])
    with pytest.raises(OptionError, match=r"does not fit.*" + kind.partition("<")[0].partition("(")[0]):
        condition(schema, "column", "=", text)
