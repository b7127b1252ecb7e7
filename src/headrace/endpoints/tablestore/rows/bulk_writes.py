"""Puts and updates without conditions as one Arrow batch, from the wire into the table.

Rows of one client mostly have the same columns in the same order. So a guess is made at them, the rows are decoded
with it, and encoded again: if that gives the bytes that came, nothing in them was overlooked. If not, the caller
takes the rows one by one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.endpoints.tablestore.instances import staying
from headrace.endpoints.tablestore.rows.layout import (
    ARROW_TYPES,
    TIMESTAMP,
    TIMESTAMPS,
    CellType,
    Layout,
    Mask,
    cell_timestamps,
    cell_type,
    is_holdable,
    layout_of,
    pack_timestamps_of,
    type_of_column,
)
from headrace.endpoints.tablestore.rows.writing import add_columns
from headrace.rows.by_position import repeats
from headrace.stores.embedded.tables.table import Decided, EmbeddedTable, Found
from headrace.tables.changes import RowChange
from headrace.tables.schema import Column, TableSchema
from headrace.wire.plainbuffer.decoding import decode_records
from headrace.wire.plainbuffer.encoding import encode_puts
from headrace.wire.plainbuffer.rows import decode_row
from headrace.wire.plainbuffer.values import PlainBufferError
from headrace.wire.tablestore.limits import (
    MAX_COLUMNS_PER_WRITE,
    MAX_KEY_VALUE_BYTES,
    MAX_VALUE_BYTES,
)


@dataclass(frozen=True)
class BulkRows:
    """Rows of one table with the same columns, read from messages of their own.

    Attributes:
        schema: the table's, by which they were read.
        rows: key columns, then attributes by their names on the wire.
        cells: names and types of the attributes.
    """

    schema: TableSchema
    rows: pa.RecordBatch
    cells: Sequence[tuple[str, CellType]]

    @classmethod
    def of(cls, schema: TableSchema, records: Sequence[bytes]) -> BulkRows | None:
        """Read rows; None if their columns differ, or something about them has to be looked at one by one."""
        # The longest row most likely has all columns.
        cells = _cells_of(max(records, key=len), schema)
        if cells is None:
            return None
        key = tuple(schema.column(name) for name in schema.primary_key)
        wire = TableSchema((*key, *(Column(name, ARROW_TYPES[kind]) for name, kind in cells)), schema.primary_key)
        try:
            rows = decode_records(records, wire).rows.select(list(wire.names))
        except PlainBufferError:
            # Some row is of another kind: one by one, each is told on its own.
            return None
        if encode_puts(rows, wire) != list(records) or not _within_limits(rows, wire):
            return None
        return cls(schema, rows, cells)

    def put(self, table: EmbeddedTable) -> None:
        """Put the rows."""
        layout = add_columns(table, self.cells)
        rows = _renamed(self.rows, layout, self.cells)
        if layout.timed:
            now = pa.repeat(pa.scalar(time.time_ns() // 1_000_000), rows.num_rows)
            rows = rows.append_column(TIMESTAMP, now)
        with staying(table, self.schema, layout.schema):
            table.put(rows)

    def update(self, table: EmbeddedTable) -> bool:
        """Set the rows' cells; do nothing and return False if that has to be done one by one."""
        if not _any_valid(self.rows, [name for name, _ in self.cells]).all():
            return False
        layout = add_columns(table, self.cells)
        rows = _renamed(self.rows, layout, self.cells)
        update = _Update(rows, self.cells)
        with staying(table, self.schema, layout.schema):
            table.transact(rows, update.decide)
        return update.done


class _Update:
    """Decides an update of rows with the same columns; see `EmbeddedTable.transact`."""

    def __init__(self, rows: pa.RecordBatch, cells: Sequence[tuple[str, CellType]]) -> None:
        self.done = False
        self._rows = rows
        self._cells = cells

    def decide(self, found: Found) -> list[Decided]:
        layout = layout_of(found.schema)
        if layout.versioned:
            return []
        now = time.time_ns() // 1_000_000
        rows = self._rows
        columns = [layout.place(*cell).column for cell in self._cells]
        if any(len(layout.of_name[name]) > 1 for name, _ in self._cells) or repeats(rows, found.schema.primary_key):
            return []
        if layout.timed:
            written = {name: _numpy(rows.column(name).is_valid()) for name in columns}
            timestamps = cell_timestamps(found.rows, layout, now)
            there = {each.column: _numpy(found.rows.column(each.column).is_valid()) for each in layout.placed}
            if any((mask & there[name] & (timestamps[name] > now)).any() for name, mask in written.items()):
                # A newer version of a cell stays.
                return []
            kept = {
                each.index: (mask, timestamps[each.column])
                for each in layout.placed
                if (mask := there[each.column] & ~written.get(each.column, np.False_)).any()
            }
            rows = rows.append_column(TIMESTAMP, pa.repeat(pa.scalar(now), rows.num_rows))
            rows = rows.append_column(TIMESTAMPS, pack_timestamps_of(kept, now, rows.num_rows))
        self.done = True
        return [Decided(RowChange.UPDATE, rows)]


def _cells_of(record: bytes, schema: TableSchema) -> list[tuple[str, CellType]] | None:
    """Return the names and types of a row's cells, None if there is more to it than values."""
    row = decode_row(record)
    if tuple(name for name, _ in row.key) != schema.primary_key or row.delete or row.sequence is not None:
        return None
    if any(cell_type(value) is not type_of_column(schema.column(name).type) for name, value in row.key):
        return None
    cells: dict[str, CellType] = {}
    for cell in row.cells:
        kind = cell_type(cell.value)
        if kind is None or cell.op is not None or cell.timestamp is not None or cell.name in cells:
            return None
        if not is_holdable(cell.name) or cell.name in schema.primary_key:
            return None
        cells[cell.name] = kind
    return list(cells.items()) if len(cells) <= MAX_COLUMNS_PER_WRITE else None


def _within_limits(rows: pa.RecordBatch, schema: TableSchema) -> bool:
    for column in schema.columns:
        limit = MAX_KEY_VALUE_BYTES if column.name in schema.primary_key else MAX_VALUE_BYTES
        if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
            longest = pc.max(pc.binary_length(rows.column(column.name))).as_py()
            if longest is not None and longest > limit:
                return False
    return True


def _renamed(rows: pa.RecordBatch, layout: Layout, cells: Sequence[tuple[str, CellType]]) -> pa.RecordBatch:
    """Return rows, whose attributes have their names on the wire, with the names of the table's columns."""
    columns = [layout.place(*cell).column for cell in cells]
    key = rows.column_names[: rows.num_columns - len(columns)]
    return pa.RecordBatch.from_arrays(rows.columns, [*key, *columns])


def _any_valid(rows: pa.RecordBatch, names: Sequence[str]) -> Mask:
    result = np.zeros(rows.num_rows, np.bool_)
    for name in names:
        result |= _numpy(rows.column(name).is_valid())
    return result


def _numpy(flags: pa.BooleanArray) -> Mask:
    result: Mask = flags.to_numpy(zero_copy_only=False)
    return result
