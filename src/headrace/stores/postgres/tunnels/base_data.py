"""Base data: chunks of the table's key range, each with the rows of one snapshot.

The first reader of a chunk reads it in one short transaction, and saves its rows and its snapshot: the **spool** of the
chunk. It gets these rows in one page. Every later read is one of the spool, so a repeated batch has the same rows. A
snapshot remains until the stream has passed it, because the stream leaves out the changes that a chunk's snapshot has
seen.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from headrace.model.tables.changes import Changes
from headrace.model.tables.schema import TableSchema
from headrace.model.tunnels.losses import already_read
from headrace.model.tunnels.values import FINISHED, Page, Position
from headrace.stores.postgres.tunnels.meta_tables import PostgresStatements
from headrace.stores.postgres.tunnels.positions import lsn_text, row_of, row_position
from headrace.stores.shared.streams import stream_of

_SPOOL_ROWS = 65_536


class Chunk(NamedTuple):
    """A chunk that has been read: its snapshot, the LSN and time (seconds) of the snapshot, and the number of its rows.

    The caller that has read it also has its pieces in the spool, each with the number of its first row.
    """

    snapshot: str
    lsn: int
    time: float
    rows: int
    pieces: Sequence[tuple[int, pa.RecordBatch]] | None = None


class TableRows(NamedTuple):
    """Rows of a table, and the oids of the partitions that it had."""

    batches: Sequence[pa.RecordBatch]
    leaves: Collection[int] = ()


class ChunkRows(NamedTuple):
    """The rows of a chunk, and the snapshot that they were read in: its text, the LSN before it, its Unix time."""

    snapshot: str
    lsn: int
    time: float
    rows: TableRows


def find(statements: PostgresStatements, tunnel: str, channel: str) -> Chunk | None:
    """Return a chunk that has been read, or None."""
    row = statements.execute(
        "SELECT snapshot, lsn - '0/0', time, rows FROM headrace.chunk WHERE tunnel = %s AND channel = %s",
        (tunnel, channel),
    ).fetchone()
    return None if row is None else Chunk(row[0], int(row[1]), row[2], row[3])


def row_counts(statements: PostgresStatements, tunnel: str) -> dict[str, int]:
    """Return the numbers of rows of all chunks that have been read, by channel."""
    return dict(statements.execute("SELECT channel, rows FROM headrace.chunk WHERE tunnel = %s", (tunnel,)).fetchall())


def spool(statements: PostgresStatements, tunnel: str, channel: str, chunk: ChunkRows) -> Chunk:
    """Save the rows of a chunk, unless another reader has saved them; return the saved chunk.

    Runs in the caller's transaction. The end of the log is noted after the snapshot: the snapshot has seen no
    transaction that is committed from there on.
    """
    saved = statements.execute(
        "INSERT INTO headrace.chunk (tunnel, channel, snapshot, lsn, time, rows) VALUES (%s, %s, %s, %s::pg_lsn, %s, 0)"
        " ON CONFLICT DO NOTHING",
        (tunnel, channel, chunk.snapshot, lsn_text(chunk.lsn), chunk.time),
    )
    if saved.rowcount:
        rows, pieces = 0, []
        for batch in _pieces(chunk.rows.batches):
            statements.execute(
                "INSERT INTO headrace.spool (tunnel, channel, first_row, rows, content) VALUES (%s, %s, %s, %s, %b)",
                (tunnel, channel, rows, batch.num_rows, memoryview(stream_of(batch))),
            )
            pieces.append((rows, batch))
            rows += batch.num_rows
        statements.execute(
            "UPDATE headrace.chunk SET rows = %s WHERE tunnel = %s AND channel = %s", (rows, tunnel, channel)
        )
        statements.execute(
            "UPDATE headrace.tunnel SET base_end = greatest(base_end, pg_current_wal_insert_lsn()) WHERE id = %s",
            (tunnel,),
        )
        return Chunk(chunk.snapshot, chunk.lsn, chunk.time, rows, pieces)
    spooled = find(statements, tunnel, channel)
    if spooled is None:
        raise already_read(channel)
    return spooled


def read(
    statements: PostgresStatements,
    tunnel: str,
    channel: str,
    chunk: Chunk,
    schema: TableSchema,
    base_rows: Callable[[pa.RecordBatch], pa.RecordBatch],
    position: Position,
    max_rows: int,
    until: Position | None,
) -> Page:
    """Read rows of a chunk from a position, up to another one: of the spool, or all of a chunk that was just read.

    Args:
        schema: the columns of the rows.
        base_rows: returns rows of the spool with these columns.
    """
    first = row_of(position)
    last = chunk.rows if until is None or until == FINISHED else min(chunk.rows, row_of(until))
    pieces = chunk.pieces
    if pieces is None:
        last = min(last, first + max(1, min(max_rows, _SPOOL_ROWS)))
        pieces = _spooled(statements, tunnel, channel, first, last) if first < last else ()
    parts = []
    for start, batch in pieces:
        low, high = max(0, first - start), min(batch.num_rows, last - start)
        if low < high:
            rows = base_rows(batch.slice(low, high - low))
            parts.append(Changes.of_base(rows, chunk.lsn, int(chunk.time * 1e6)))
    found = Changes.joined(parts or [Changes.none(schema)])
    return Page(found, FINISHED if last >= chunk.rows else row_position(max(first, last)))


def _spooled(
    statements: PostgresStatements, tunnel: str, channel: str, first: int, last: int
) -> list[tuple[int, pa.RecordBatch]]:
    """Return the pieces of the spool with the rows from ``first`` to before ``last``."""
    pieces = statements.execute(
        "SELECT first_row, content FROM headrace.spool WHERE tunnel = %s AND channel = %s"
        " AND first_row < %s AND first_row + rows > %s ORDER BY first_row",
        (tunnel, channel, last, first),
        binary=True,
    ).fetchall()
    if not pieces:
        raise already_read(channel)
    return [(start, pa.ipc.open_stream(content).read_next_batch()) for start, content in pieces]


def release(statements: PostgresStatements, tunnel: str, channels: Sequence[str]) -> None:
    """Delete the spools of chunks whose ends are committed."""
    statements.execute("DELETE FROM headrace.spool WHERE tunnel = %s AND channel = ANY(%s)", (tunnel, list(channels)))


def no_rows(schema: TableSchema) -> Page:
    """Return the empty page at the end of a channel."""
    return Page(Changes.none(schema), FINISHED)


def _pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for start in range(0, batch.num_rows, _SPOOL_ROWS):
            yield batch.slice(start, _SPOOL_ROWS)
