"""Staged rows, which readers do not see: table ``stage``.

Rows for a table are staged as compressed Arrow IPC streams. Rows for a queue are staged as the messages of its future
chunks. A large message is in table ``blob`` and stays there at publication, so its bytes are written once.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import apsw
import pyarrow as pa

from headrace.model.queues.validation import Route
from headrace.ports import Staged
from headrace.rows.staged_parts import missing
from headrace.stores.embedded import chunks
from headrace.stores.embedded.chunks import Message
from headrace.stores.embedded.queues.layout import PartitionRows, split, typed
from headrace.stores.embedded.queues.stored_queues import QueueState
from headrace.stores.shared.staging import BatchKey
from headrace.stores.shared.streams import streams

STAGE_BYTES = 4 << 20
# The input is staged in transactions of this size.
FLUSH_BYTES = 64 << 20


class StagePart(NamedTuple):
    """One row of table ``stage``: rows for a table, or for a queue (by its id) and, if known, a partition."""

    rows: int
    data: bytes | pa.Buffer
    queue: int | None = None
    number: int | None = None
    in_blob: bool = False


# -- cutting --------------------------------------------------------------------------------------------


def table_parts(rows: Iterable[pa.RecordBatch]) -> Iterator[StagePart]:
    """Yield rows for a table as Arrow IPC streams of about `STAGE_BYTES`."""
    return (StagePart(count, data) for count, data in streams(rows, STAGE_BYTES))


def queue_parts(state: QueueState, rows: Iterable[pa.RecordBatch], route: Route) -> Iterator[StagePart]:
    """Yield rows for a queue as messages of about `STAGE_BYTES`, each for one partition."""
    waiting: dict[int | None, list[pa.RecordBatch]] = {}
    total = 0
    for batch in rows:
        for number, piece in split(typed(batch, state.layout), state.layout, route, state.upper):
            pieces = waiting.setdefault(number, [])
            pieces.append(piece)
            total += piece.nbytes
            size = sum(each.nbytes for each in pieces)
            if size >= STAGE_BYTES or sum(each.num_rows for each in pieces) >= chunks.MAX_CHUNK_ROWS:
                yield from _messages(state, number, waiting.pop(number))
                total -= size
        # Many partitions with few rows each.
        if total >= FLUSH_BYTES:
            for number, pieces in waiting.items():
                yield from _messages(state, number, pieces)
            waiting, total = {}, 0
    for number, pieces in waiting.items():
        yield from _messages(state, number, pieces)


def _messages(state: QueueState, number: int | None, batches: Sequence[pa.RecordBatch]) -> Iterator[StagePart]:
    for message in chunks.serialise(batches[0] if len(batches) == 1 else pa.concat_batches(batches)):
        # Small messages will be merged. Cumulative weights are known only at publication.
        in_blob = not message.is_small and not state.layout.has_weight
        yield StagePart(message.rows, message.data, state.id, number, in_blob)


# -- storing --------------------------------------------------------------------------------------------


def insert(connection: apsw.Connection, key: BatchKey, parts: Iterable[StagePart]) -> list[Staged]:
    """Stage parts inside the caller's write transaction."""
    staged = []
    now = time.time()
    for part in parts:
        blob = None
        if part.in_blob:
            connection.execute("INSERT INTO blob (data) VALUES (?)", (part.data,))
            blob = connection.last_insert_rowid()
        connection.execute(
            "INSERT INTO stage (job, sink, batch, created, n, data, queue, number, blob)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*key, now, part.rows, b"" if part.in_blob else part.data, part.queue, part.number, blob),
        )
        staged.append(Staged(connection.last_insert_rowid(), part.rows))
    return staged


def load_table_rows(connection: apsw.Connection, key: BatchKey, receipt: Staged) -> pa.Table:
    """Return the staged rows of a receipt for a table.

    Raises:
        PublicationError: they do not exist.
    """
    found = _find(connection, "data", "s.queue IS NULL", key, receipt)
    return pa.ipc.open_stream(pa.py_buffer(found[0])).read_all()


def take_queue_rows(connection: apsw.Connection, key: BatchKey, receipt: Staged, state: QueueState) -> PartitionRows:
    """Remove and return the staged rows of a receipt for a queue. The caller appends them in the same transaction.

    Raises:
        PublicationError: they do not exist.
    """
    number, count, data, blob, size = _find(
        connection,
        "s.number, s.n, s.data, s.blob, (SELECT length(data) FROM blob WHERE id = s.blob)",
        f"s.queue = {state.id}",
        key,
        receipt,
    )
    connection.execute("DELETE FROM stage WHERE id = ?", (receipt.id,))
    if state.layout.has_weight:
        return PartitionRows(number, chunks.decode_message(state.layout.written, data))
    return PartitionRows(number, (Message(count, len(data) if blob is None else size, data, blob),))


def _find(connection: apsw.Connection, columns: str, condition: str, key: BatchKey, receipt: Staged) -> tuple[Any, ...]:
    found = connection.execute(
        f"SELECT {columns} FROM stage s WHERE s.id = ? AND s.job = ? AND s.sink = ? AND s.batch = ? AND {condition}",
        (receipt.id, *key),
    )
    for row in found:
        return tuple(row)
    raise missing(*key, receipt, "its rows were discarded, or staged for another batch, sink or queue")


def delete(connection: apsw.Connection, condition: str, bindings: tuple[Any, ...]) -> None:
    """Delete staged rows by a condition on table ``stage``, with their blobs, inside the caller's write transaction."""
    connection.execute(
        f"DELETE FROM blob WHERE id IN (SELECT blob FROM stage WHERE {condition} AND blob IS NOT NULL)", bindings
    )
    connection.execute(f"DELETE FROM stage WHERE {condition}", bindings)
