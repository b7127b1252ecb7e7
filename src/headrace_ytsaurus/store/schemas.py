"""Columns and rows of YTsaurus' tables as columns and rows of headrace's tables and queues.

The values are the same, with two exceptions. Computed columns are omitted, because they cannot be written. The commit
time in ``$timestamp``, which the service counts in 2**-30 seconds, is a ``timestamp``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import SchemaError, UnsupportedError
from headrace.model.queues.columns import CUMULATIVE_DATA_WEIGHT, ROW_INDEX, TABLET_INDEX, TIMESTAMP, QueueSchema
from headrace.model.tables.column_limits import check_key_length, check_key_types
from headrace.model.tables.schema import Column, RowSchema, TableSchema
from headrace.model.types import COMMON_KEY_TYPES, check_nesting
from headrace.rows import to_column
from headrace_ytsaurus.store.connection import as_batch
from headrace_ytsaurus.wire.types import YtColumn, schema_of, yt_columns

KEY_TYPES = (*COMMON_KEY_TYPES, "byte", "short", "int")
"""The names of the types of key columns."""
_TIME = pa.timestamp("us", tz="UTC")
_PARTS_OF_A_SECOND = 30
_MICROSECONDS = 1_000_000
# Types of the service that begin in 1970. A new table has types with all values of headrace's types.
_WIDE = {"date": "date32", "timestamp": "timestamp64"}
_ROW_INDEX = YtColumn.of(ROW_INDEX, "int64", required=True)
_TABLET_INDEX = YtColumn.of(TABLET_INDEX, "int64", required=False)


@dataclass(frozen=True)
class TableLayout:
    """The columns of a sorted table.

    Attributes:
        schema: the columns in headrace.
        columns: the columns that can be written, by name.
        key: all key columns of the service, in key order, computed ones included.
    """

    schema: TableSchema
    columns: Mapping[str, YtColumn]
    key: tuple[YtColumn, ...]

    @classmethod
    def of(cls, columns: Sequence[YtColumn], name: str) -> TableLayout:
        """Return the layout of a table.

        Raises:
            UnsupportedError: headrace does not support its key.
            SchemaError: a type is nested too deep.
        """
        given = [column for column in columns if column.expression is None]
        _check_nesting(given)
        key = [column.name for column in given if column.sort_order is not None]
        try:
            schema = TableSchema(tuple(column.column for column in given), tuple(key))
            check_key_length(schema)
            check_key_types(schema, "YTsaurus", KEY_TYPES)
        except (SchemaError, UnsupportedError) as error:
            raise UnsupportedError(
                f"table {name!r} has a key that headrace cannot use",
                received=", ".join(f"{column.name} {column.yt}" for column in given if column.sort_order is not None),
                valid="1 to 4 key columns that are whole numbers (but uint64) or strings",
                remedy=error.problem,
            ) from None
        sorted_by = tuple(column for column in columns if column.sort_order is not None)
        return cls(schema, {column.name: column for column in given}, sorted_by)

    @property
    def computed(self) -> bool:
        """Whether the key has a computed column."""
        return any(column.expression is not None for column in self.key)

    def written(self, rows: pa.Table) -> tuple[pa.RecordBatch, list[YtColumn]]:
        """Return rows in the service's types, and their columns.

        Raises:
            SchemaError: a key is outside the range of its column.
        """
        columns = [self.columns[name] for name in rows.column_names]
        arrays = [_as_type(rows.column(column.name), column) for column in columns]
        return as_batch(pa.table(dict(zip(rows.column_names, arrays, strict=True)))), columns

    def check_keys(self, rows: pa.RecordBatch) -> None:
        """Raise `UnsupportedError` if a key has a null: the service allows it, headrace does not."""
        for column in self.key:
            if rows.column(column.name).null_count:
                raise UnsupportedError(
                    "the table has rows with null in their key, which headrace does not support",
                    received=f"null in column {column.name!r}",
                    remedy="read it with YTsaurus' own client",
                )

    def read(self, rows: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
        """Return some columns of the service's rows in headrace's types."""
        fields = [self.schema.arrow.field(name) for name in names]
        arrays = [rows.column(field.name).cast(field.type) for field in fields]
        if not arrays:
            return pa.RecordBatch.from_struct_array(pa.array([{}] * rows.num_rows, pa.struct([])))
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _check_nesting(columns: Iterable[YtColumn]) -> None:
    """Raise `SchemaError` if Arrow cannot represent a column of an existing table."""
    for column in columns:
        check_nesting(column.type, column.name)


def _as_type(values: pa.ChunkedArray, column: YtColumn) -> pa.ChunkedArray:
    return values if values.type == column.type else to_column(values, column.column)


@dataclass(frozen=True)
class QueueLayout:
    """The columns of a queue in headrace and in the service, in the same order."""

    schema: QueueSchema
    columns: tuple[YtColumn, ...]

    @classmethod
    def of(cls, columns: Sequence[YtColumn], time_type: pa.DataType = _TIME) -> QueueLayout:
        """Return the layout of a queue; ``time_type`` is the type of the commit time, `timestamp` or `long`.

        Raises:
            SchemaError: a type is nested too deep.
        """
        given = tuple(column for column in columns if column.expression is None)
        _check_nesting(given)
        return cls(QueueSchema(tuple(_queue_column(column, time_type) for column in given)), given)

    @property
    def pulled(self) -> tuple[YtColumn, ...]:
        """The columns of a read: the row index, and the columns of the queue."""
        return (_ROW_INDEX, *self.columns)

    @property
    def accepted(self) -> RowSchema:
        """The columns that writers can set: all except the columns that the service fills, and the partition."""
        return RowSchema((*self.schema.written.columns, Column(TABLET_INDEX, pa.int64())))

    @property
    def written(self) -> list[YtColumn]:
        """The columns of a write, and the partition after them."""
        written = self.schema.written
        return [*(column for column in self.columns if column.name in written), _TABLET_INDEX]

    def read(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return pulled rows in headrace's types, without the row index."""
        arrays = [
            _time_of(rows.column(column.name)).cast(self.schema.column(column.name).type)
            if _is_commit_time(column)
            else rows.column(column.name)
            for column in self.columns
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema.arrow)


def _queue_column(column: YtColumn, time_type: pa.DataType) -> Column:
    return Column(column.name, time_type) if _is_commit_time(column) else column.column


def _is_commit_time(column: YtColumn) -> bool:
    return column.name == TIMESTAMP and column.yt == "uint64"


def _time_of(timestamps: pa.Array) -> pa.Array:
    """Return the service's timestamps as times, rounded down to microseconds."""
    whole = timestamps.cast(pa.int64())
    seconds = pc.shift_right(whole, _PARTS_OF_A_SECOND)
    parts = pc.bit_wise_and(whole, (1 << _PARTS_OF_A_SECOND) - 1)
    fraction = pc.shift_right(pc.multiply(parts, _MICROSECONDS), _PARTS_OF_A_SECOND)
    return pc.add(pc.multiply(seconds, _MICROSECONDS), fraction).cast(_TIME)


def timestamp_of(moment: float) -> int:
    """Return the service's timestamp for a time in seconds since 1970; `_time_of` of it is not below that time."""
    micros = max(0, round(moment * _MICROSECONDS))
    seconds, fraction = divmod(micros, _MICROSECONDS)
    return (seconds << _PARTS_OF_A_SECOND) + -(-(fraction << _PARTS_OF_A_SECOND) // _MICROSECONDS)


def seconds_of(timestamp: int) -> float | None:
    """Return a timestamp of the service in seconds since 1970; None for the minimal timestamp."""
    parts = timestamp & ((1 << _PARTS_OF_A_SECOND) - 1)
    seconds = timestamp >> _PARTS_OF_A_SECOND
    return None if not timestamp else seconds + ((parts * _MICROSECONDS) >> _PARTS_OF_A_SECOND) / _MICROSECONDS


def table_schema(schema: TableSchema, *, binary_strings: bool = False) -> Any:
    """Return the value of ``@schema`` for a new sorted table; its texts are ``utf8`` if strings are binary."""
    columns = yt_columns(schema.columns, schema.primary_key, strings_as=_text_type(binary_strings))
    return _schema_value(columns, unique_keys=True)


def queue_schema(schema: QueueSchema, *, binary_strings: bool = False) -> Any:
    """Return the value of ``@schema`` for a new queue; its texts are ``utf8`` if strings are binary."""
    system = {TIMESTAMP: "uint64", CUMULATIVE_DATA_WEIGHT: "int64"}
    columns = yt_columns(schema.written.columns, strings_as=_text_type(binary_strings))
    by_name = {column.name: column for column in columns}
    by_name |= {name: YtColumn.of(name, yt, required=False) for name, yt in system.items()}
    return _schema_value([by_name[name] for name in schema.names], unique_keys=False)


def _text_type(binary_strings: bool) -> str:
    return "utf8" if binary_strings else "string"


def _schema_value(columns: Sequence[YtColumn], *, unique_keys: bool) -> Any:
    from yt.yson import to_yson_type

    wide = [
        replace(column, yt=_WIDE.get(column.yt, column.yt)) if isinstance(column.yt, str) else column
        for column in columns
    ]
    return to_yson_type(schema_of(wide), attributes={"strict": True, "unique_keys": unique_keys})
