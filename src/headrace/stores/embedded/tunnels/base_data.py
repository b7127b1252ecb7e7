"""Base channels of a tunnel: the rows of a key range at the creation of the tunnel."""

from __future__ import annotations

from typing import NamedTuple

import apsw
import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.tables.changes import Changes
from headrace.model.tables.conditions import KeyRange
from headrace.model.tables.schema import Key, TableSchema
from headrace.model.tunnels.losses import already_read
from headrace.model.tunnels.values import FINISHED, Page, Position
from headrace.stores.embedded.tables.physical import PhysicalTable
from headrace.stores.embedded.tunnels.positions import key_of, key_position, rows_after

# Most rows in a page.
_PAGE_ROWS = 65536


class Snapshot(NamedTuple):
    """A state of a table that its undo rows preserve: its commit version, and timestamp in µs."""

    id: int
    version: int
    ts: int


def take_snapshot(connection: apsw.Connection, object_id: int, tunnel_id: str) -> int:
    """Preserve the current rows of a table until the snapshot is released; return its id."""
    connection.execute(
        "INSERT INTO snapshot (object, tunnel, version, ts) SELECT ?, ?, version, ts FROM clock", (object_id, tunnel_id)
    )
    return connection.last_insert_rowid()


def snapshot_of(connection: apsw.Connection, object_id: int, tunnel_id: str) -> Snapshot:
    """Return the snapshot of a table for a tunnel that has base channels.

    Raises:
        DataLossError: all base data of the table was read, and the snapshot was released.
    """
    row = connection.execute(
        "SELECT id, version, ts FROM snapshot WHERE object = ? AND tunnel = ?", (object_id, tunnel_id)
    ).fetchone()
    if row is None:
        raise already_read(tunnel_id)
    return Snapshot(*row)


def no_rows(schema: TableSchema) -> Page:
    """Return the empty page at the end of a channel."""
    return Page(Changes.of_base(pa.RecordBatch.from_pylist([], schema.changes), 0, 0), FINISHED)


def read(
    connection: apsw.Connection,
    table: PhysicalTable,
    keys: KeyRange,
    snapshot: Snapshot,
    position: Position,
    max_rows: int,
    until: Key | None,
) -> Page:
    """Read the rows of a key range after a position, in key order, up to the key ``until`` (included)."""
    start = advance(connection, table, keys, snapshot, position, 0)
    if start == FINISHED:
        return no_rows(table.schema)
    schema, after = table.schema, key_of(start)
    page = table.read(connection, schema.names, keys, (), after, max(1, min(max_rows, _PAGE_ROWS)), snapshot.id)
    rows, ended = page.rows, page.ended
    if until is not None:
        count = _count_up_to(rows, schema, until)
        ended = ended and count == rows.num_rows
        rows = rows.slice(0, count)
    rows = pa.RecordBatch.from_arrays(rows.columns, schema=schema.changes)
    changes = Changes.of_base(rows, snapshot.version, snapshot.ts)
    if ended:
        return Page(changes, FINISHED)
    last = _last_key(rows, schema) if rows.num_rows else after
    return Page(changes, key_position(last, rows_after(start, rows.num_rows)))


def advance(
    connection: apsw.Connection,
    table: PhysicalTable,
    keys: KeyRange,
    snapshot: Snapshot,
    position: Position,
    rows: int,
) -> Position:
    """Return the position ``rows`` rows after a position, without rows to skip."""
    missing = position.skip + rows
    if missing == 0:
        return position
    after = key_of(position)
    while missing > 0:
        page = table.read(connection, table.schema.primary_key, keys, (), after, min(missing, _PAGE_ROWS), snapshot.id)
        if page.last is None:
            return FINISHED
        after = page.last
        missing -= page.rows.num_rows
    return key_position(after, rows_after(position, rows))


def _last_key(rows: pa.RecordBatch, schema: TableSchema) -> Key:
    return tuple(rows.column(name)[rows.num_rows - 1].as_py() for name in schema.primary_key)


def _count_up_to(rows: pa.RecordBatch, schema: TableSchema, key: Key) -> int:
    """Return the number of rows up to a key (included); the rows are in key order."""
    within: pa.BooleanArray | pa.Scalar = pa.scalar(True)
    for name, value in reversed(list(zip(schema.primary_key, key, strict=True))):
        column = rows.column(name)
        scalar = pa.scalar(value, column.type)
        within = pc.or_(pc.less(column, scalar), pc.and_(pc.equal(column, scalar), within))
    return int(pc.sum(within, min_count=0).as_py())
