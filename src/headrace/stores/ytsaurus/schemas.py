"""What the columns of YTsaurus' tables are as those of tables and queues of headrace, and rows on their way between.

A value stays what it is. Three things look different here: whole numbers in keys are all ``long``, because keys of
headrace have no other, and are checked against the column's own range when they are written; columns that follow from
an expression are left out, as nobody can write them; and the commit time in ``$timestamp``, which the service counts in
2**30 parts of a second, is a ``timestamp``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import SchemaError, UnsupportedError
from headrace.queues.columns import CUMULATIVE_DATA_WEIGHT, ROW_INDEX, TABLET_INDEX, TIMESTAMP, QueueSchema
from headrace.rows import to_column
from headrace.stores.ytsaurus.connection import as_batch
from headrace.tables.schema import Column, RowSchema, TableSchema
from headrace.types import check_nesting
from headrace.wire.ytsaurus.types import YtColumn, schema_of, yt_columns

_TIME = pa.timestamp("us", tz="UTC")
_PARTS_OF_A_SECOND = 30
_MICROSECONDS = 1_000_000
# The service's types that begin in 1970; a new table has those that hold every value of headrace's type.
_WIDE = {"date": "date32", "timestamp": "timestamp64"}
_ROW_INDEX = YtColumn.of(ROW_INDEX, "int64", required=True)
_TABLET_INDEX = YtColumn.of(TABLET_INDEX, "int64", required=False)


@dataclass(frozen=True)
class TableLayout:
    """The columns of a sorted table.

    Attributes:
        schema: as headrace has them.
        columns: those that can be written, by name.
        key: all key columns of the service, in key order, those that follow from an expression too.
    """

    schema: TableSchema
    columns: Mapping[str, YtColumn]
    key: tuple[YtColumn, ...]

    @classmethod
    def of(cls, columns: Sequence[YtColumn], name: str) -> TableLayout:
        """Return the layout of a table.

        Raises:
            UnsupportedError: its key is none that a table of headrace can have.
            SchemaError: a type is nested too deep.
        """
        given = [column for column in columns if column.expression is None]
        _check_nesting(given)
        key = [column.name for column in given if column.sort_order is not None]
        try:
            schema = TableSchema(tuple(_key_column(column) for column in given), tuple(key))
        except SchemaError as error:
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
        """Tell whether the key has a column that follows from an expression."""
        return any(column.expression is not None for column in self.key)

    def written(self, rows: pa.Table) -> tuple[pa.RecordBatch, list[YtColumn]]:
        """Return rows in the service's own types, and the columns to write them with.

        Raises:
            SchemaError: a key is outside of the range of its column.
        """
        columns = [self.columns[name] for name in rows.column_names]
        arrays = [_as_type(rows.column(column.name), column) for column in columns]
        return as_batch(pa.table(dict(zip(rows.column_names, arrays, strict=True)))), columns

    def check_keys(self, rows: pa.RecordBatch) -> None:
        """Raise `UnsupportedError` if a row has null in its key: in the service it may, here no row can."""
        for column in self.key:
            if rows.column(column.name).null_count:
                raise UnsupportedError(
                    "the table has rows with null in their key, which headrace cannot tell",
                    received=f"null in column {column.name!r}",
                    remedy="read it with YTsaurus' own client",
                )

    def read(self, rows: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
        """Return some columns of rows, as the service gave them, in headrace's types."""
        fields = [self.schema.arrow.field(name) for name in names]
        arrays = [rows.column(field.name).cast(field.type) for field in fields]
        if not arrays:
            return pa.RecordBatch.from_struct_array(pa.array([{}] * rows.num_rows, pa.struct([])))
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _check_nesting(columns: Iterable[YtColumn]) -> None:
    """Raise `SchemaError` if a column of a table that others made cannot be carried in Arrow."""
    for column in columns:
        check_nesting(column.type, column.name)


def _key_column(column: YtColumn) -> Column:
    if column.sort_order is not None and pa.types.is_integer(column.type):
        return Column(column.name, pa.int64(), nullable=False)
    return column.column


def _as_type(values: pa.ChunkedArray, column: YtColumn) -> pa.ChunkedArray:
    return values if values.type == column.type else to_column(values, column.column)


@dataclass(frozen=True)
class QueueLayout:
    """The columns of a queue: as headrace has them, and as the service does, in the same order."""

    schema: QueueSchema
    columns: tuple[YtColumn, ...]

    @classmethod
    def of(cls, columns: Sequence[YtColumn], time_type: pa.DataType = _TIME) -> QueueLayout:
        """Return the layout of a queue; ``time_type`` is that of the commit time, `timestamp` or `long`.

        Raises:
            SchemaError: a type is nested too deep.
        """
        given = tuple(column for column in columns if column.expression is None)
        _check_nesting(given)
        return cls(QueueSchema(tuple(_queue_column(column, time_type) for column in given)), given)

    @property
    def pulled(self) -> tuple[YtColumn, ...]:
        """What a page of rows is read as: the row index, and the columns."""
        return (_ROW_INDEX, *self.columns)

    @property
    def accepted(self) -> RowSchema:
        """What writers can give: the columns but those that the service fills, and the partition."""
        return RowSchema((*self.schema.written.columns, Column(TABLET_INDEX, pa.int64())))

    @property
    def written(self) -> list[YtColumn]:
        """The columns that a writer gives, and the partition behind them."""
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
    """Return the service's timestamps as times, to the microsecond below."""
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
    """Return the time of one of the service's timestamps, in seconds since 1970; None for the one before all."""
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
