"""Rows of a partition in table ``chunk``, addressed by row index: the storage of change logs and queues.

The data of a chunk is one Arrow IPC record batch message without its schema. The commit version and timestamp are in
columns beside the data: once for the whole chunk, or for each commit in ``commits`` if the chunk was merged. Row
indexes never change. The bytes are in the chunk itself, or in table ``blob`` if they were staged before the append.

Each 64th small append merges the last 64 chunks of its level into one of the next level, until a chunk is large
enough. So the cost of a read depends neither on the sizes of the appends nor on the length of the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import apsw
import numpy as np
import pyarrow as pa

from headrace.errors import SchemaError, UnsupportedError
from headrace.model.types import MAX_NESTING
from headrace.stores.embedded.connection import ROW_INDEX_BITS
from headrace.stores.shared.streams import pieces

MAX_CHUNK_ROWS = 65536
MAX_CHUNK_BYTES = 8 << 20
SMALL_BYTES = 32 << 10
SMALL_ROWS = 4096
FAN_IN = 64
FINAL_BYTES = 128 << 10
FINAL_ROWS = 8192
FINAL_LEVEL = 9
PAGE_BYTES = 8 << 20
# A chunk of at least this size is read alone, without the copy that joins chunks.
ALONE_BYTES = 1 << 20
# SQLite holds at most 1 GB in a row.
_MAX_ROW_BYTES = 900 << 20

Runs: TypeAlias = "np.ndarray[tuple[int, int], np.dtype[np.int64]]"
"""Consecutive commits: rows of (number of rows, version, timestamp in µs since 1970)."""


class Message(NamedTuple):
    """Consecutive rows as one Arrow IPC message: its bytes, or its id in table ``blob``."""

    rows: int
    size: int
    data: bytes | pa.Buffer = b""
    blob: int | None = None

    @property
    def is_small(self) -> bool:
        """Whether the message will be merged with others."""
        return self.rows < SMALL_ROWS and self.size < SMALL_BYTES


class Chunk(NamedTuple):
    """Consecutive rows as they are stored."""

    id: int
    n: int
    level: int
    schema: int
    version: int
    ts: int
    commits: bytes | None
    data: bytes

    @property
    def runs(self) -> Runs:
        """The commits in this chunk."""
        if self.commits is None:
            return np.array([[self.n, self.version, self.ts]], dtype=np.int64)
        return np.frombuffer(self.commits, dtype=np.int64).reshape(-1, 3)

    @property
    def first(self) -> int:
        """The row index of the first row."""
        return row_index(self.id)


_FIELDS = "id, n, level, schema, version, ts, commits, data"
_INSERT = f"INSERT INTO chunk ({_FIELDS}, blob) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
SELECT = (
    "SELECT c.id, c.n, c.level, c.schema, c.version, c.ts, c.commits, ifnull(b.data, c.data)"
    " FROM chunk c LEFT JOIN blob b ON b.id = c.blob"
)
# The chunks of the ids below the first binding, from the chunk that contains the row of the second binding.
_PAGE = (
    f"{SELECT} WHERE c.id < ?1 AND c.id >= (SELECT id FROM chunk WHERE id <= ?2 ORDER BY id DESC LIMIT 1) ORDER BY c.id"
)
# The same without their data.
_HEADS = (
    "SELECT id, n, level, schema, version, ts, commits, x'' FROM chunk WHERE id < ?1"
    " AND id >= (SELECT id FROM chunk WHERE id <= ?2 ORDER BY id DESC LIMIT 1) ORDER BY id"
)
_VERSION, _TIME = 1, 2
"""Columns of `Runs`."""


def chunk_ids(partition_id: int) -> tuple[int, int]:
    """Return the range of the chunk ids of a partition; the end is excluded."""
    return partition_id << ROW_INDEX_BITS, (partition_id + 1) << ROW_INDEX_BITS


def row_index(chunk_id: int) -> int:
    """Return the row index of a chunk's first row."""
    return chunk_id & ((1 << ROW_INDEX_BITS) - 1)


def serialise(rows: pa.RecordBatch) -> list[Message]:
    """Return rows as messages that fit into chunks. Needs no lock.

    Raises:
        SchemaError: a row is larger than SQLite's limit.
    """
    return [_message(piece) for piece in pieces(rows, MAX_CHUNK_ROWS, MAX_CHUNK_BYTES)]


def _message(rows: pa.RecordBatch) -> Message:
    try:
        data = rows.serialize()
    except pa.ArrowInvalid as error:
        raise UnsupportedError(
            "rows with types that are nested so deep cannot be written",
            received=str(error),
            valid=f"at most {MAX_NESTING} arrays, maps and structs inside each other",
            remedy="drop the table or queue, and create it with other columns",
        ) from None
    if data.size > _MAX_ROW_BYTES:
        raise SchemaError("a row is too large", received=f"{data.size} bytes", valid=f"at most {_MAX_ROW_BYTES} bytes")
    return Message(rows.num_rows, data.size, data)


def append(
    connection: apsw.Connection,
    partition_id: int,
    messages: Sequence[Message],
    schema: pa.Schema,
    schema_version: int,
    version: int,
    ts: int,
) -> int:
    """Append the rows of one commit to a partition, inside the caller's write transaction.

    Args:
        schema: the schema of the messages; its number is ``schema_version``.
        version: the version of the commit; ``ts`` is its timestamp in µs since 1970.

    Returns:
        The row index of the first row.
    """
    ((next_row, small),) = connection.execute("SELECT next, small FROM partition WHERE id = ?", (partition_id,))
    is_small = len(messages) == 1 and messages[0].is_small
    small = small + 1 if is_small else 0
    level = 0 if is_small else FINAL_LEVEL
    row = next_row
    for rows, _, data, blob in messages:
        row_id = chunk_ids(partition_id)[0] | row
        connection.execute(_INSERT, (row_id, rows, level, schema_version, version, ts, None, data, blob))
        row += rows
    grown = sum(message.size for message in messages)
    if small and small % FAN_IN == 0:
        grown += _compact(connection, partition_id, schema, small)
    connection.execute(
        "UPDATE partition SET next = ?, small = ?, log_bytes = log_bytes + ? WHERE id = ?",
        (row, small, grown, partition_id),
    )
    return int(next_row)


def _compact(connection: apsw.Connection, partition_id: int, schema: pa.Schema, small: int) -> int:
    """Merge the newest chunks, level by level; return the change of their size in bytes (usually below 0)."""
    grown = 0
    while small % FAN_IN == 0:
        small //= FAN_IN
        newest = connection.execute(
            f"{SELECT} WHERE c.id >= ? AND c.id < ? ORDER BY c.id DESC LIMIT ?", (*chunk_ids(partition_id), FAN_IN)
        )
        chunks = [Chunk(*row) for row in newest][::-1]
        # Chunks of an older schema and large chunks are not merged.
        if len(chunks) < FAN_IN or len({(chunk.level, chunk.schema) for chunk in chunks}) > 1:
            break
        data = pa.concat_batches(decode(schema, chunks)).serialize()
        rows = sum(chunk.n for chunk in chunks)
        final = data.size >= FINAL_BYTES or rows >= FINAL_ROWS
        level = FINAL_LEVEL if final else chunks[0].level + 1
        first, last = chunks[0], chunks[-1]
        commits = np.concatenate([chunk.runs for chunk in chunks]).tobytes()
        connection.execute("DELETE FROM chunk WHERE id BETWEEN ? AND ?", (first.id, last.id))
        connection.execute(_INSERT, (first.id, rows, level, first.schema, last.version, last.ts, commits, data, None))
        grown += data.size - sum(len(chunk.data) for chunk in chunks)
        if final:
            break
    return grown


def page(
    connection: apsw.Connection,
    partition_id: int,
    first_row: int,
    end: int,
    max_rows: int,
    alone_bytes: int = ALONE_BYTES,
) -> list[Chunk]:
    """Return consecutive chunks with ``max_rows`` rows, or about 8 MB, in all; the first contains ``first_row``.

    All begin before ``end``. The row ``first_row`` must exist and be before ``end``. A chunk of at least
    ``alone_bytes`` is returned alone.
    """
    low = chunk_ids(partition_id)[0]
    found = connection.execute(_PAGE, (low | end, low | first_row))
    chunks: list[Chunk] = []
    size = 0
    for row in found:
        chunk = Chunk(*row)
        if chunks and len(chunk.data) >= alone_bytes:
            break
        chunks.append(chunk)
        size += len(chunk.data)
        if len(chunk.data) >= alone_bytes or size >= PAGE_BYTES or chunk.first + chunk.n >= first_row + max_rows:
            break
    return chunks


def decode(schema: pa.Schema, chunks: Sequence[Chunk]) -> list[pa.RecordBatch]:
    """Return the rows of chunks of one schema."""
    if len(chunks) == 1:
        return [decode_message(schema, chunks[0].data)]
    stream = b"".join([schema.serialize().to_pybytes(), *(chunk.data for chunk in chunks)])
    return list(pa.ipc.open_stream(stream))


def decode_message(schema: pa.Schema, data: bytes) -> pa.RecordBatch:
    """Return the rows of one message."""
    return pa.ipc.read_record_batch(pa.py_buffer(data), schema)


def commits_of(chunks: Sequence[Chunk]) -> Runs:
    """Return the commits of consecutive chunks."""
    return np.concatenate([chunk.runs for chunk in chunks]) if chunks else np.empty((0, 3), dtype=np.int64)


def replace(connection: apsw.Connection, chunk: Chunk, rows: pa.RecordBatch) -> int:
    """Replace the rows of a chunk by the same number of rows; return the change of its size in bytes."""
    data = _message(rows).data
    connection.execute("DELETE FROM blob WHERE id = (SELECT blob FROM chunk WHERE id = ?)", (chunk.id,))
    connection.execute("UPDATE chunk SET data = ?, blob = NULL WHERE id = ?", (data, chunk.id))
    return len(data) - len(chunk.data)


def runs(connection: apsw.Connection, partition_id: int, first_row: int, end: int, rows: int) -> Runs:
    """Return the commits of the rows from ``first_row`` up to ``end``, excluded: of at least ``rows`` rows, if any.

    The rows must exist. Their data is not read.
    """
    if first_row >= end:
        return np.empty((0, 3), dtype=np.int64)
    low = chunk_ids(partition_id)[0]
    chunks: list[Chunk] = []
    for row in connection.execute(_HEADS, (low | end, low | first_row)):
        chunks.append(Chunk(*row))
        if chunks[-1].first + chunks[-1].n >= first_row + rows:
            break
    found = commits_of(chunks)
    ends = chunks[0].first + np.cumsum(found[:, 0])
    counts = np.minimum(ends, end) - np.maximum(ends - found[:, 0], first_row)
    found = np.column_stack([counts, found[:, _VERSION], found[:, _TIME]])
    kept: Runs = found[counts > 0]
    return kept


def row_at_time(connection: apsw.Connection, partition_id: int, ts: int) -> int:
    """Return the index of the first row that was committed at or after ``ts`` (µs), or the partition's end."""
    return _first_row(connection, partition_id, _TIME, ts)


def row_after_version(connection: apsw.Connection, partition_id: int, version: int) -> int:
    """Return the index of the first row of a later commit than a version, or the partition's end."""
    return _first_row(connection, partition_id, _VERSION, version + 1)


def _first_row(connection: apsw.Connection, partition_id: int, column: int, least: int) -> int:
    """Return the index of the first row whose commit has at least a version or timestamp, or the partition's end."""
    ((first, next_row),) = connection.execute("SELECT first, next FROM partition WHERE id = ?", (partition_id,))
    low, high = int(first), int(next_row)
    # Most searches are for the end of the log.
    if low < high and _chunk_at(connection, partition_id, high - 1).runs[-1][column] < least:
        return high
    while low < high:
        middle = _chunk_at(connection, partition_id, (low + high) // 2)
        commits = middle.runs
        if commits[-1][column] < least:
            low = middle.first + middle.n
        elif middle.first <= low or commits[0][column] < least:
            earlier = commits[commits[:, column] < least]
            return max(int(first), middle.first + int(earlier[:, 0].sum()))
        else:
            high = middle.first
    return low


def time_of_row(connection: apsw.Connection, partition_id: int, row: int) -> int:
    """Return the commit timestamp (µs) of a row that was not removed."""
    chunk = _chunk_at(connection, partition_id, row)
    ends = np.cumsum(chunk.runs[:, 0])
    return int(chunk.runs[np.searchsorted(ends, row - chunk.first, side="right"), 2])


def _chunk_at(connection: apsw.Connection, partition_id: int, row: int) -> Chunk:
    """Return the chunk that contains a row, without its data."""
    found = connection.execute(
        "SELECT id, n, level, schema, version, ts, commits, x'' FROM chunk WHERE id <= ? ORDER BY id DESC LIMIT 1",
        (chunk_ids(partition_id)[0] | row,),
    )
    ((*values,),) = found
    return Chunk(*values)


def remove(connection: apsw.Connection, partition_id: int, before: int) -> None:
    """Set the first row index of a partition, and delete all chunks below it. A lower index changes nothing.

    ``trimmed`` of the partition becomes the timestamp of the newest deleted chunk, and ``trimmed_version`` of its table
    or queue the version of that chunk, unless that of another partition is newer.
    """
    low, high = chunk_ids(partition_id)
    # Of the chunks that begin before the index, only the last can contain rows after it.
    newest = connection.execute(
        "SELECT id, id + n FROM chunk WHERE id >= ? AND id < ? ORDER BY id DESC LIMIT 1", (low, low + before)
    ).fetchone()
    if newest is not None:
        high = min(high, newest[0] if newest[1] > low + before else newest[1])
        ((size, ts, version),) = connection.execute(
            "SELECT total(ifnull(length(b.data), length(c.data))), max(c.ts), max(c.version)"
            " FROM chunk c LEFT JOIN blob b ON b.id = c.blob WHERE c.id >= ? AND c.id < ?",
            (low, high),
        )
        delete(connection, low, high)
        connection.execute(
            "UPDATE partition SET log_bytes = log_bytes - ?, trimmed = ifnull(?, trimmed) WHERE id = ?",
            (int(size), ts, partition_id),
        )
        connection.execute(
            "UPDATE object SET trimmed_version = max(trimmed_version, ifnull(?, 0))"
            " WHERE id = (SELECT object FROM partition WHERE id = ?)",
            (version, partition_id),
        )
    connection.execute("UPDATE partition SET first = max(first, ?) WHERE id = ?", (before, partition_id))


def delete(connection: apsw.Connection, low: int, high: int) -> None:
    """Delete the chunks with ids from ``low`` up to ``high``, excluded, and their blobs."""
    bounds = (low, high)
    connection.execute(
        "DELETE FROM blob WHERE id IN (SELECT blob FROM chunk WHERE id >= ? AND id < ? AND blob IS NOT NULL)", bounds
    )
    connection.execute("DELETE FROM chunk WHERE id >= ? AND id < ?", bounds)
