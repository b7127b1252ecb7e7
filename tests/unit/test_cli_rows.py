"""Rows in files, and keys and conditions in texts."""

from __future__ import annotations

import base64
import contextlib
import datetime
import decimal
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.conditions import parse_condition, parse_key, parse_value
from headrace.cli.output import to_json
from headrace.cli.row_files import first_rows, read_rows
from headrace.errors import OptionError, SchemaError
from headrace.model.tables.conditions import Predicate
from headrace.model.tables.schema import TableSchema

SCHEMA = TableSchema.of(
    {
        "id": "long",
        "name": "string",
        "data": "binary",
        "day": "date",
        "at": "timestamp",
        "price": "decimal(10,2)",
        "share": "double",
        "small": "byte",
        "yes": "boolean",
    },
    "id",
)
ROWS: list[dict[str, Any]] = [
    {
        "id": 1,
        "name": 'a "quoted", text',
        "data": b"\x00\xff",
        "day": datetime.date(2026, 1, 2),
        "at": datetime.datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=datetime.UTC),
        "price": decimal.Decimal("12.50"),
        "share": 0.25,
        "small": -128,
        "yes": True,
    },
    {"id": 2, "name": "", **dict.fromkeys(("data", "day", "at", "price", "share", "small", "yes"))},
]
TABLE = pa.Table.from_pylist(ROWS, schema=SCHEMA.arrow)


def write(path: Path) -> None:
    """Write `ROWS` in the format of the file's suffix."""
    if path.suffix == ".jsonl":
        path.write_text("".join(to_json(row) + "\n" for row in ROWS))
    elif path.suffix == ".csv":
        encoded = [None if row["data"] is None else base64.b64encode(row["data"]).decode() for row in ROWS]
        as_text = TABLE.set_column(2, "data", pa.array(encoded, pa.string()))
        pyarrow.csv.write_csv(as_text, path)
    elif path.suffix == ".parquet":
        pyarrow.parquet.write_table(TABLE, path)
    elif path.suffix == ".arrow":
        with pyarrow.ipc.new_file(path, TABLE.schema) as writer:
            writer.write_table(TABLE)
    else:
        with pyarrow.ipc.new_stream(path, TABLE.schema) as writer:
            writer.write_table(TABLE)


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet", "arrow", "arrows"])
def test_rows_survive_writing_and_reading_in_every_format(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"rows.{suffix}"
    write(file)
    batches = list(read_rows(str(file), None, SCHEMA))
    assert [row for batch in batches for row in batch.to_pylist()] == ROWS
    assert all(batch.schema.types == SCHEMA.arrow.types for batch in batches)


def test_columns_that_are_missing_in_a_csv_file_are_omitted(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("id,share\n1,0.5\n")
    assert [batch.to_pylist() for batch in read_rows(str(file), None, SCHEMA)] == [[{"id": 1, "share": 0.5}]]


def test_json_lines_are_read_in_blocks_that_end_with_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.cli.row_files._BLOCK_BYTES", 50)
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(json.dumps({"id": number, "name": "x" * (number % 7)}) for number in range(100)))
    batches = list(read_rows(str(file), None, SCHEMA))
    assert len(batches) > 10
    assert [row["id"] for batch in batches for row in batch.to_pylist()] == list(range(100))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("rows.csv", "id,unknown\n1,2\n"),
        ("rows.csv", "id,small\n1,300\n"),
        ("rows.csv", "id,data\n1,no base64\n"),
        ("rows.jsonl", '{"id": 1, "unknown": 2}\n'),
        ("rows.jsonl", '{"id": "one"}\n'),
        ("rows.jsonl", "[1, 2]\n"),
        ("rows.jsonl", "{"),
        ("rows.parquet", "no parquet"),
        ("rows.arrow", "no arrow"),
    ],
)
def test_files_that_do_not_fit_are_refused(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(SchemaError):
        list(read_rows(str(tmp_path / name), None, SCHEMA))


def test_the_error_for_a_json_value_names_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.cli.row_files._BLOCK_BYTES", 20)
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(f'{{"id": {n}}}\n' for n in range(6)) + '{"id": "one"}\n')
    with pytest.raises(SchemaError, match="line 7, column 'id', value \"one\": "):
        list(read_rows(str(file), None, SCHEMA))


def test_a_missing_file_and_an_unknown_suffix_are_errors_with_remedies(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="No such file"):
        list(read_rows(str(tmp_path / "none.csv"), None, SCHEMA))
    unknown = tmp_path / "rows.xls"
    unknown.write_bytes(b"")
    with pytest.raises(OptionError, match="give --format"):
        list(read_rows(str(unknown), None, SCHEMA))


def test_a_limit_cuts_inside_a_batch() -> None:
    batches = [pa.record_batch({"a": [1, 2]}), pa.record_batch({"a": [3, 4]}), pa.record_batch({"a": [5]})]
    assert [batch.num_rows for batch in first_rows(batches, 3)] == [2, 1]
    assert [batch.num_rows for batch in first_rows(batches, None)] == [2, 2, 1]


@pytest.mark.parametrize(
    ("text", "predicate"),
    [
        ("id > 10", Predicate("id", ">", 10)),
        ("id>=10", Predicate("id", ">=", 10)),
        ("id == -1", Predicate("id", "=", -1)),
        ("id <> 1", Predicate("id", "!=", 1)),
        ("id in 1,2, 3", Predicate("id", "in", (1, 2, 3))),
        ("name = 'it''s'", Predicate("name", "=", "it's")),
        ("name = it's", Predicate("name", "=", "it's")),
        ("name = ''", Predicate("name", "=", "")),
        ("name in 'a,b', c", Predicate("name", "in", ("a,b", "c"))),
        ("name starts with ab", Predicate("name", "starts with", "ab")),
        ("name IS NOT  NULL", Predicate("name", "is not null")),
        ("name is null", Predicate("name", "is null")),
        ("yes = true", Predicate("yes", "=", True)),
        ("price < 1.5", Predicate("price", "<", decimal.Decimal("1.50"))),
        ("day = 2026-01-02", Predicate("day", "=", datetime.date(2026, 1, 2))),
    ],
)
def test_conditions_have_the_value_in_the_type_of_the_column(text: str, predicate: Predicate) -> None:
    assert parse_condition(text, SCHEMA) == predicate


def test_column_names_with_blanks_and_operators_are_found() -> None:
    schema = TableSchema.of({"id": "long", "id in stock": "long", "a=b": "string"}, "id")
    assert parse_condition("id in stock = 3", schema) == Predicate("id in stock", "=", 3)
    assert parse_condition("id in 3", schema) == Predicate("id", "in", (3,))
    assert parse_condition("a=b = c", schema) == Predicate("a=b", "=", "c")


@pytest.mark.parametrize("text", ["", "id", "unknown = 1", "id ~ 3", "idin 3", "id is null 3", "name starts within x"])
def test_an_invalid_condition_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="cannot read the condition"):
        parse_condition(text, SCHEMA)


@given(st.text(), st.sampled_from(["", "name ", "id > ", "yes in ", "at = "]))
def test_any_condition_gives_a_result_or_a_headrace_error(text: str, beginning: str) -> None:
    with contextlib.suppress(OptionError, SchemaError):
        parse_condition(beginning + text, SCHEMA)


def test_keys_name_key_columns_only() -> None:
    assert parse_key({"id": "7"}, SCHEMA) == {"id": 7}
    with pytest.raises(SchemaError, match="not a key column"):
        parse_key({"name": "x"}, SCHEMA)
    with pytest.raises(SchemaError, match="does not fit"):
        parse_key({"id": "seven"}, SCHEMA)


def test_binary_values_are_base64() -> None:
    assert parse_value("AP8=", pa.binary(), "data") == b"\x00\xff"
    for text in ("no base64", "é"):
        with pytest.raises(SchemaError):
            parse_value(text, pa.binary(), "data")


def test_arguments_that_are_not_utf_8_are_values_of_no_type() -> None:
    for kind in (pa.int64(), pa.timestamp("us", "UTC"), pa.binary()):
        with pytest.raises(SchemaError, match="does not fit"):
            parse_value("1\udcff", kind, "x")
