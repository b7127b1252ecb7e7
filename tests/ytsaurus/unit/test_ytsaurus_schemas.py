"""Columns of YTsaurus' tables in headrace: keys, computed columns, and timestamps."""

from __future__ import annotations

import datetime

import pyarrow as pa
import pytest

from headrace.errors import SchemaError, UnsupportedError
from headrace.model.queues.columns import QueueSchema
from headrace.model.tables.schema import TableSchema
from headrace_ytsaurus.store.schemas import (
    QueueLayout,
    TableLayout,
    queue_schema,
    seconds_of,
    table_schema,
    timestamp_of,
)
from headrace_ytsaurus.wire.types import YtColumn, columns_of


def key(name: str, yt: str, expression: str | None = None) -> YtColumn:
    column = YtColumn.of(name, yt, sort_order="ascending")
    return column if expression is None else YtColumn(**{**vars(column), "expression": expression})


def test_integer_keys_have_their_types_and_are_checked_on_write() -> None:
    layout = TableLayout.of([key("id", "uint8"), key("at", "int32"), YtColumn.of("n", "int64")], "t")
    assert [column.type for column in layout.schema.columns] == [pa.int16(), pa.int32(), pa.int64()]
    rows, columns = layout.written(pa.table({"id": pa.array([0, 255], pa.int64()), "n": [1, 2]}))
    assert (rows.column("id").type, [column.name for column in columns]) == (pa.int16(), ["id", "n"])
    with pytest.raises(SchemaError, match="'id'"):
        layout.written(pa.table({"id": pa.array([1 << 40], pa.int64())}))


def test_computed_key_columns_are_hidden_but_order_the_rows() -> None:
    layout = TableLayout.of([key("hash", "uint64", "farm_hash(id)"), key("id", "string")], "t")
    assert (layout.schema.names, layout.schema.primary_key, layout.computed) == (("id",), ("id",), True)
    assert [column.name for column in layout.key] == ["hash", "id"]


def test_rows_with_a_null_key_are_an_error() -> None:
    layout = TableLayout.of([key("a", "int64"), key("b", "string"), YtColumn.of("n", "int64")], "t")
    layout.check_keys(pa.record_batch({"a": [1], "b": ["x"], "n": pa.array([None], pa.int64())}))
    with pytest.raises(UnsupportedError, match="null in column 'b'"):
        layout.check_keys(pa.record_batch({"a": [1, 2], "b": ["x", None]}))


@pytest.mark.parametrize(
    "columns", [[key("id", "uint64")], [key("id", "double")], [key(f"k{n}", "int64") for n in range(5)]]
)
def test_an_unsupported_key_is_named(columns: list[YtColumn]) -> None:
    with pytest.raises(UnsupportedError, match=f"'t' has a key.*{columns[-1].name} {columns[-1].yt}"):
        TableLayout.of(columns, "t")


def test_new_tables_hold_every_value_of_their_types() -> None:
    schema = TableSchema.of({"day": "date", "at": "timestamp", "raw": "binary", "id": "long"}, "id")
    columns = columns_of([dict(column) for column in table_schema(schema)])
    assert [(column.name, column.yt) for column in columns[:3]] == [
        ("id", "int64"),
        ("day", "date32"),
        ("at", "timestamp64"),
    ]
    assert TableLayout.of(columns, "t").schema.column("raw").type == pa.binary()
    assert table_schema(schema).attributes == {"strict": True, "unique_keys": True}


def test_a_queue_schema_round_trips() -> None:
    schema = QueueSchema.of({"data": "string", "$timestamp": "timestamp", "$cumulative_data_weight": "long"})
    layout = QueueLayout.of(columns_of([dict(column) for column in queue_schema(schema)]))
    assert layout.schema == schema
    assert [column.name for column in layout.written] == ["data", "$tablet_index"]


@pytest.mark.parametrize("seconds", [1.0, 1_700_000_000.0, 1_700_000_000.123456, 1_700_000_000.999999])
def test_times_round_trip_with_microseconds(seconds: float) -> None:
    timestamp = timestamp_of(seconds)
    assert seconds_of(timestamp) == pytest.approx(seconds, abs=1e-7)
    layout = QueueLayout.of(
        columns_of(
            [dict(column) for column in queue_schema(QueueSchema.of({"a": "string", "$timestamp": "timestamp"}))]
        )
    )
    rows = pa.RecordBatch.from_pydict(
        {"$row_index": [0], "a": ["x"], "$timestamp": pa.array([timestamp]).cast(pa.decimal128(20, 0))}
    )
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    assert layout.read(rows).column("$timestamp").to_pylist() == [moment]


def test_time_zero_means_no_time() -> None:
    assert seconds_of(0) is None
