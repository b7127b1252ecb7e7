"""The change log of a partition: Arrow IPC messages in rows of table ``chunk``, addressed by log row index.

A chunk's data is one record batch message without its schema: the columns ``_op`` (int8) and ``_written``
(binary, a little-endian bitmap over the attributes; null means all), then the table's columns as they were in the
chunk's schema version. Commit version and timestamp stand beside the data, not in it: once for the whole chunk,
or per commit in ``commits`` for chunks that were merged. Row indexes never change.

Small appends are merged 64 at a time by the append that makes them 64, level by level, until a chunk is large
enough; so what a reader pays does not depend on how the log was written, nor on how long it is.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import apsw
import numpy as np
import pyarrow as pa

from headrace.errors import DataLossError
from headrace.model import Changes, TableSchema
from headrace.stores.embedded.database import ROW_INDEX_BITS

MAX_CHUNK_ROWS = 65536
SMALL_BYTES = 32 << 10
SMALL_ROWS = 4096
FAN_IN = 64
FINAL_BYTES = 128 << 10
FINAL_ROWS = 8192
FINAL_LEVEL = 9
PAGE_BYTES = 8 << 20
# A chunk from this size on is read alone, without the copy that joining costs.
ALONE_BYTES = 1 << 20

_LOG_FIELDS = [pa.field("_op", pa.int8(), nullable=False), pa.field("_written", pa.binary())]
_TIMESTAMP = pa.timestamp("us", tz="UTC")


class _Chunk(NamedTuple):
    id: int
    n: int
    level: int
    schema: int
    version: int
    ts: int
    commits: bytes | None
    data: bytes

    @property
    def runs(self) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
        """The commits in this chunk: rows of (number of changes, version, timestamp)."""
        if self.commits is None:
            return np.array([[self.n, self.version, self.ts]], dtype=np.int64)
        return np.frombuffer(self.commits, dtype=np.int64).reshape(-1, 3)


_COLUMNS = "id, n, level, schema, version, ts, commits, data"


def chunk_ids(partition_id: int) -> tuple[int, int]:
    """Return the range of chunk ids, end excluded, that belong to a partition."""
    return partition_id << ROW_INDEX_BITS, (partition_id + 1) << ROW_INDEX_BITS


def append(
    connection: apsw.Connection,
    partition_id: int,
    schema_version: int,
    rows: pa.RecordBatch,
    ops: pa.Int8Array,
    written: pa.BinaryArray | None,
    version: int,
    ts: int,
) -> None:
    """Append the changes of one commit to a partition's log, inside the caller's write transaction.

    Args:
        rows: all columns of the table in the given schema version, in their stored types.
        ops: `ChangeOp` codes, one for each row.
        written: which attributes were set, as a bitmap for each row; null, or None for all rows, means all.
        version: the commit's version, ``ts`` its timestamp in µs since 1970.
    """
    if rows.num_rows == 0:
        return
    if written is None:
        written = pa.nulls(rows.num_rows, pa.binary())
    batch = pa.RecordBatch.from_arrays([ops, written, *rows.columns], schema=_log_schema(rows.schema))
    messages = [
        (start, batch.slice(start, MAX_CHUNK_ROWS).serialize()) for start in range(0, rows.num_rows, MAX_CHUNK_ROWS)
    ]
    size = sum(message.size for _, message in messages)
    is_small = rows.num_rows < SMALL_ROWS and size < SMALL_BYTES
    ((next_row, small),) = connection.execute("SELECT next, small FROM partition WHERE id = ?", (partition_id,))
    small = small + 1 if is_small else 0
    first_id = chunk_ids(partition_id)[0] | next_row
    connection.executemany(
        f"INSERT INTO chunk ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, NULL, ?)",
        [
            (
                first_id + start,
                min(MAX_CHUNK_ROWS, rows.num_rows - start),
                0 if is_small else FINAL_LEVEL,
                schema_version,
                version,
                ts,
                message,
            )
            for start, message in messages
        ],
    )
    if small and small % FAN_IN == 0:
        size += _compact(connection, partition_id, rows.schema, small)
    connection.execute(
        "UPDATE partition SET next = next + ?, small = ?, log_bytes = log_bytes + ? WHERE id = ?",
        (rows.num_rows, small, size, partition_id),
    )


def _compact(connection: apsw.Connection, partition_id: int, schema: pa.Schema, small: int) -> int:
    """Merge the newest chunks, level by level; return by how many bytes the log grew (usually below 0)."""
    grown = 0
    low, high = chunk_ids(partition_id)
    while small % FAN_IN == 0:
        small //= FAN_IN
        newest = connection.execute(
            f"SELECT {_COLUMNS} FROM chunk WHERE id >= ? AND id < ? ORDER BY id DESC LIMIT ?", (low, high, FAN_IN)
        )
        chunks = [_Chunk(*row) for row in newest][::-1]
        # Chunks from before a new column, or beside a large append, stay as they are.
        if len(chunks) < FAN_IN or len({(chunk.level, chunk.schema) for chunk in chunks}) > 1:
            break
        batches = _decode(_log_schema(schema), [chunk.data for chunk in chunks])
        data = pa.Table.from_batches(batches).combine_chunks().to_batches()[0].serialize()
        rows = sum(chunk.n for chunk in chunks)
        final = data.size >= FINAL_BYTES or rows >= FINAL_ROWS
        level = FINAL_LEVEL if final else chunks[0].level + 1
        commits = np.concatenate([chunk.runs for chunk in chunks]).tobytes()
        newest_commit = chunks[-1]
        connection.execute("DELETE FROM chunk WHERE id BETWEEN ? AND ?", (chunks[0].id, chunks[-1].id))
        connection.execute(
            f"INSERT INTO chunk ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (chunks[0].id, rows, level, chunks[0].schema, newest_commit.version, newest_commit.ts, commits, data),
        )
        grown += data.size - sum(len(chunk.data) for chunk in chunks)
        if final:
            break
    return grown


def read(
    connection: apsw.Connection, partition_id: int, first_row: int, max_rows: int, until: int | None = None
) -> tuple[Changes, int]:
    """Read changes from a log row index on.

    The page ends with a whole chunk, so it may be longer than ``max_rows``; it holds about 8 MB at most.

    Args:
        until: no change from this row index on is given.

    Returns:
        The changes, with the table's columns as they are now, and the row index behind them.

    Raises:
        DataLossError: the log no longer begins early enough.
    """
    ((object_id, name, first, next_row, schema_version),) = connection.execute(
        "SELECT o.id, o.name, p.first, p.next, o.schema_version FROM partition p JOIN object o ON o.id = p.object"
        " WHERE p.id = ?",
        (partition_id,),
    )
    if first_row < first:
        raise DataLossError(
            f"changes of table {name!r} were removed before they were read",
            received=f"partition {partition_id}, log rows {first_row} to {first - 1} ({first - first_row} changes)",
            remedy="set option failOnDataLoss=false to go on behind them",
        )
    end = next_row if until is None else min(next_row, until)
    chunks = _chunks_of_page(connection, partition_id, first_row, end, max_rows) if first_row < end else []
    schema = stored_schema(connection, object_id, schema_version)
    batches: list[pa.RecordBatch] = []
    for version, run in groupby(chunks, key=lambda chunk: chunk.schema):
        then = schema if version == schema_version else stored_schema(connection, object_id, version)
        batches += _decode(_log_schema(then.arrow), [chunk.data for chunk in run])
    changes = _changes(schema, batches, [chunk.runs for chunk in chunks])
    skipped = first_row - _row_index(chunks[0].id) if chunks else 0
    changes = changes.slice(skipped, min(changes.num_rows - skipped, max(end - first_row, 0)))
    return changes, first_row + changes.num_rows


def _chunks_of_page(
    connection: apsw.Connection, partition_id: int, first_row: int, end: int, max_rows: int
) -> list[_Chunk]:
    low = chunk_ids(partition_id)[0]
    found = connection.execute(
        f"SELECT {_COLUMNS} FROM chunk WHERE id < ?1 AND"
        " id >= (SELECT id FROM chunk WHERE id <= ?2 ORDER BY id DESC LIMIT 1) ORDER BY id",
        (low | end, low | first_row),
    )
    chunks: list[_Chunk] = []
    size = 0
    for row in found:
        chunk = _Chunk(*row)
        if chunks and len(chunk.data) >= ALONE_BYTES:
            break
        chunks.append(chunk)
        size += len(chunk.data)
        if len(chunk.data) >= ALONE_BYTES or size >= PAGE_BYTES or low + first_row + max_rows <= chunk.id + chunk.n:
            break
    return chunks


def _changes(
    schema: TableSchema,
    batches: Sequence[pa.RecordBatch],
    runs: Sequence[np.ndarray[tuple[int, int], np.dtype[np.int64]]],
) -> Changes:
    """Put decoded batches together; columns that a batch is too old to have are null."""
    commits = np.concatenate(runs) if runs else np.empty((0, 3), dtype=np.int64)
    columns = [
        _joined(
            [
                batch.column(index) if index < batch.num_columns else pa.nulls(batch.num_rows, field.type)
                for batch in batches
            ],
            field.type,
        )
        for index, field in enumerate(_log_schema(schema.arrow))
    ]
    return Changes(
        rows=pa.RecordBatch.from_arrays(columns[2:], schema=schema.arrow),
        ops=columns[0],
        versions=pa.array(np.repeat(commits[:, 1], commits[:, 0])),
        timestamps=pa.array(np.repeat(commits[:, 2], commits[:, 0])).view(_TIMESTAMP),
        written=decode_written(columns[1], [column.name for column in schema.attributes]),
    )


def _joined(arrays: list[pa.Array], data_type: pa.DataType) -> pa.Array:
    if len(arrays) == 1:
        return arrays[0]
    return pa.concat_arrays(arrays) if arrays else pa.array([], data_type)


def decode_written(written: pa.BinaryArray, attributes: Sequence[str]) -> dict[str, pa.BooleanArray] | None:
    """Return, for each attribute, which rows had it written; None if every row had all of them written.

    Attributes behind the end of a bitmap were added later, and were not written.
    """
    if written.null_count == len(written):
        return None
    everything = written.is_null().to_numpy(zero_copy_only=False)
    offsets = np.frombuffer(written.buffers()[1], dtype=np.int32)[written.offset : written.offset + len(written) + 1]
    lengths = np.diff(offsets)
    # One byte more, so that every row has some byte to look at, whatever its length.
    bitmaps = np.frombuffer((written.buffers()[2] or pa.py_buffer(b"")).to_pybytes() + b"\0", dtype=np.uint8)
    result = {}
    for index, name in enumerate(attributes):
        byte, bit = divmod(index, 8)
        there = lengths > byte
        bits = (bitmaps[np.where(there, offsets[:-1] + byte, len(bitmaps) - 1)] >> bit) & 1
        result[name] = pa.array(everything | (there & bits.astype(bool)))
    return result


def row_at_time(connection: apsw.Connection, partition_id: int, ts: int) -> int:
    """Return the index of the first change kept that was committed at or after ``ts`` (µs), or the log's end."""
    ((first, next_row),) = connection.execute("SELECT first, next FROM partition WHERE id = ?", (partition_id,))
    low, high = int(first), int(next_row)
    while low < high:
        middle = _chunk_at(connection, partition_id, (low + high) // 2)
        start = _row_index(middle.id)
        if middle.ts < ts:
            low = start + middle.n
        elif start <= low or middle.runs[0][2] < ts:
            earlier = middle.runs[middle.runs[:, 2] < ts]
            return max(int(first), start + int(earlier[:, 0].sum()))
        else:
            high = start
    return low


def time_of_row(connection: apsw.Connection, partition_id: int, row: int) -> int:
    """Return the commit timestamp (µs) of a change that the log still has."""
    chunk = _chunk_at(connection, partition_id, row)
    ends = np.cumsum(chunk.runs[:, 0])
    return int(chunk.runs[np.searchsorted(ends, row - _row_index(chunk.id), side="right"), 2])


def _chunk_at(connection: apsw.Connection, partition_id: int, row: int) -> _Chunk:
    """Return the chunk that holds a row, without its data."""
    found = connection.execute(
        "SELECT id, n, level, schema, version, ts, commits, x'' FROM chunk WHERE id <= ? ORDER BY id DESC LIMIT 1",
        (chunk_ids(partition_id)[0] | row,),
    )
    ((*values,),) = found
    return _Chunk(*values)


def _row_index(chunk_id: int) -> int:
    return chunk_id & ((1 << ROW_INDEX_BITS) - 1)


def _log_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([*_LOG_FIELDS, *schema])


def _decode(schema: pa.Schema, messages: list[bytes]) -> list[pa.RecordBatch]:
    if len(messages) == 1:
        return [pa.ipc.read_record_batch(pa.py_buffer(messages[0]), schema)]
    stream = b"".join([schema.serialize().to_pybytes(), *messages])
    return list(pa.ipc.open_stream(stream))


def stored_schema(connection: apsw.Connection, object_id: int, version: int) -> TableSchema:
    """Return one version of a table's schema."""
    ((schema, keys),) = connection.execute(
        "SELECT schema, keys FROM object_schema WHERE object = ? AND version = ?", (object_id, version)
    )
    return _parsed_schema(schema, keys)


@functools.lru_cache(maxsize=256)
def _parsed_schema(schema: bytes, keys: str) -> TableSchema:
    return TableSchema.of(pa.ipc.read_schema(pa.py_buffer(schema)), json.loads(keys))
