"""Puts and updates without conditions as one Arrow batch, from the wire into the table.

Rows of one client mostly have the same columns in the same order. The columns are guessed from one row. The rows are
decoded with them and encoded again. If the bytes are equal, the guess was right. Otherwise the caller writes the rows
one by one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.tables.changes import RowChange
from headrace.model.tables.schema import Column, TableSchema
from headrace.rows.by_position import repeats
from headrace.stores.embedded.for_servers import EmbeddedTable
from headrace_tablestore.endpoint.instances import staying
from headrace_tablestore.endpoint.rows import transactions
from headrace_tablestore.endpoint.rows.layout import (
    ARROW_TYPES,
    TIMESTAMP,
    TIMESTAMPS,
    CellType,
    Layout,
    any_valid,
    cell_timestamps,
    cell_type,
    is_valid,
    is_valid_cell_name,
    layout_of,
    pack_timestamps_of,
    type_of_column,
)
from headrace_tablestore.endpoint.rows.transactions import DecidedChange, FoundRows
from headrace_tablestore.endpoint.rows.writing import add_columns
from headrace_tablestore.wire import table_pb2 as pb
from headrace_tablestore.wire.limits import (
    MAX_COLUMNS_PER_WRITE,
    MAX_KEY_VALUE_BYTES,
    MAX_VALUE_BYTES,
)
from headrace_tablestore.wire.plainbuffer.decoding import decode_records
from headrace_tablestore.wire.plainbuffer.encoding import encode_puts
from headrace_tablestore.wire.plainbuffer.rows import decode_row
from headrace_tablestore.wire.plainbuffer.values import PlainBufferError


def write_bulk(table: EmbeddedTable, kind: int, records: Sequence[bytes]) -> bool:
    """Put or update rows in one transaction. Return False, without a write, if they must be written one by one.

    Args:
        kind: `pb.PUT` or `pb.UPDATE`.
        records: the rows on the wire.
    """
    rows = BulkRows.of(table.schema, records)
    return rows is not None and rows.write(table, kind)


@dataclass(frozen=True)
class BulkRows:
    """Rows of one table with the same columns.

    Attributes:
        schema: the table's schema when the rows were parsed.
        rows: the key columns, then the attributes by wire name.
        cells: the names and types of the attributes.
    """

    schema: TableSchema
    rows: pa.RecordBatch
    cells: Sequence[tuple[str, CellType]]

    @classmethod
    def of(cls, schema: TableSchema, records: Sequence[bytes]) -> BulkRows | None:
        """Parse rows. Return None if their columns differ, or if a row must be checked by itself."""
        # The longest row probably has all columns.
        cells = _cells_of(max(records, key=len), schema)
        if cells is None:
            return None
        key = tuple(schema.column(name) for name in schema.primary_key)
        wire = TableSchema((*key, *(Column(name, ARROW_TYPES[kind]) for name, kind in cells)), schema.primary_key)
        try:
            rows = decode_records(records, wire).rows.select(list(wire.names))
        except PlainBufferError:
            # A row is invalid. Written one by one, each row has its own error.
            return None
        if encode_puts(rows, wire) != list(records) or not _within_limits(rows, wire):
            return None
        return cls(schema, rows, cells)

    def write(self, table: EmbeddedTable, kind: int) -> bool:
        """Put or update the rows, see `write_bulk`."""
        if kind == pb.UPDATE:
            return self.update(table)
        self.put(table)
        return True

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
        """Update the rows. Return False, without an update, if they must be updated one by one."""
        if not any_valid((self.rows.column(name) for name, _ in self.cells), self.rows.num_rows).all():
            return False
        layout = add_columns(table, self.cells)
        rows = _renamed(self.rows, layout, self.cells)
        update = _Update(rows, self.cells)
        with staying(table, self.schema, layout.schema):
            transactions.transact(table, rows, update.decide)
        return update.done


class _Update:
    """Decides an update of rows with the same columns; see `transact`."""

    def __init__(self, rows: pa.RecordBatch, cells: Sequence[tuple[str, CellType]]) -> None:
        self.done = False
        self._rows = rows
        self._cells = cells

    def decide(self, found: FoundRows) -> list[DecidedChange]:
        layout = layout_of(found.schema)
        if layout.versioned:
            return []
        now = time.time_ns() // 1_000_000
        rows = self._rows
        columns = [layout.cell_column(*cell).column for cell in self._cells]
        if any(len(layout.of_name[name]) > 1 for name, _ in self._cells) or repeats(rows, found.schema.primary_key):
            return []
        if layout.timed:
            written = {name: is_valid(rows.column(name)) for name in columns}
            timestamps = cell_timestamps(found.rows, layout, now)
            has_value = {each.column: is_valid(found.rows.column(each.column)) for each in layout.cell_columns}
            if any((mask & has_value[name] & (timestamps[name] > now)).any() for name, mask in written.items()):
                # A cell has a newer version, which stays.
                return []
            kept = {
                each.index: (mask, timestamps[each.column])
                for each in layout.cell_columns
                if (mask := has_value[each.column] & ~written.get(each.column, np.False_)).any()
            }
            rows = rows.append_column(TIMESTAMP, pa.repeat(pa.scalar(now), rows.num_rows))
            rows = rows.append_column(TIMESTAMPS, pack_timestamps_of(kept, now, rows.num_rows))
        self.done = True
        return [DecidedChange(RowChange.UPDATE, rows)]


def _cells_of(record: bytes, schema: TableSchema) -> list[tuple[str, CellType]] | None:
    """Return the names and types of a row's cells; None if the row has more than values."""
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
        if not is_valid_cell_name(cell.name) or cell.name in schema.primary_key:
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
    """Return rows with the names of the table's columns instead of wire names."""
    columns = [layout.cell_column(*cell).column for cell in cells]
    key = rows.column_names[: rows.num_columns - len(columns)]
    return pa.RecordBatch.from_arrays(rows.columns, [*key, *columns])
