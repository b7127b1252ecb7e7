"""JSON lines with composite values: rows survive writing and reading, and errors name line, column and value."""

from __future__ import annotations

import datetime
import decimal
import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.cli.output import JsonOutput
from headrace.cli.row_files import read_rows
from headrace.errors import SchemaError
from headrace.model.queues.columns import QueueSchema

SCHEMA = QueueSchema.of({
    "id": "long not null",
    "tags": "array<string>",
    "prices": "map<int, decimal(10,2)>",
    "visit": "struct<page:string, at:timestamp, stay:interval day to second, raw:binary, days:array<date>>",
    "share": "double",
    "nested": "map<string, array<struct<n:int>>>",
})  # fmt: skip
ROWS: list[dict[str, Any]] = [
    {
        "id": 1,
        "tags": ["a", None, ""],
        "prices": [(7, decimal.Decimal("1.50")), (8, None)],
        "visit": {
            "page": "ü",
            "at": datetime.datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=datetime.UTC),
            "stay": datetime.timedelta(days=1, microseconds=250_000),
            "raw": b"\x00\xff",
            "days": [datetime.date(2026, 1, 2)],
        },
        "share": float("inf"),
        "nested": [("a", [{"n": 1}, {"n": None}]), ("b", [])],
    },
    {"id": 2, **dict.fromkeys(("tags", "prices", "visit", "share", "nested"))},
]


def read(tmp_path: Path, text: str) -> list[dict[str, Any]]:
    file = tmp_path / "rows.jsonl"
    file.write_text(text)
    batches = list(read_rows(str(file), None, SCHEMA))
    assert all(
        batch.schema.field(name).type == SCHEMA.column(name).type for batch in batches for name in batch.schema.names
    )
    return [row for batch in batches for row in batch.to_pylist()]


def test_printed_rows_can_be_read(tmp_path: Path) -> None:
    out = io.StringIO()
    JsonOutput(out).rows([pa.RecordBatch.from_pylist(ROWS, schema=SCHEMA.arrow)])
    assert '"prices": {"7": "1.50", "8": null}' in out.getvalue()
    assert '"stay": 86400.25' in out.getvalue()
    assert read(tmp_path, out.getvalue()) == ROWS


def test_columns_that_occur_in_no_row_are_omitted(tmp_path: Path) -> None:
    assert read(tmp_path, '{"id": 1}\n\n{"id": 2, "tags": []}') == [{"id": 1, "tags": None}, {"id": 2, "tags": []}]
    assert read(tmp_path, "") == []


def test_many_lines_are_read_in_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.rows.json_rows._LINES_PER_BATCH", 7)
    assert [row["id"] for row in read(tmp_path, "".join(f'{{"id": {n}}}\n' for n in range(30)))] == list(range(30))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"id": 1', "line 2 is not JSON"),
        ("[1]", "line 2 is not a JSON object"),
        ('{"idd": 1}', "line 2: no column 'idd'"),
        ('{"id": "one"}', "line 2, column 'id', value \"one\""),
        ('{"tags": "a"}', "line 2, column 'tags', value \"a\": expected an array"),
        ('{"visit": {"url": "x"}}', "no field 'url'; fields: page, at"),
        ('{"visit": {"raw": "no base64"}}', "line 2, column 'visit'"),
        ('{"visit": {"days": ["x"]}}', "line 2, column 'visit'"),
        ('{"prices": {"x": 1}}', "line 2, column 'prices'"),
        ('{"prices": {"1": 1e12}}', "column 'prices'"),
        ('{"prices": {"1": "x"}}', "line 2, column 'prices'"),
        ('{"nested": []}', "line 2, column 'nested', value []: expected an object"),
    ],
)
def test_a_value_that_does_not_fit_is_named(tmp_path: Path, line: str, says: str) -> None:
    with pytest.raises(SchemaError) as caught:
        read(tmp_path, f'{{"id": 1}}\n{line}\n')
    assert says in str(caught.value)
