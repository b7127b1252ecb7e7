"""Queues in the transaction of a caller: creating, appending, trimming and dropping.

A queue is an object with numbered partitions. The rows of a partition are in chunks.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Sequence
from typing import NamedTuple

import apsw
import pyarrow as pa

from headrace.errors import OptionError
from headrace.model.queues.columns import QueueSchema
from headrace.model.queues.validation import Route, no_partition
from headrace.model.queues.values import Bounds, QueueOptions, RowRange, trim_target
from headrace.model.tables.column_limits import check_columns
from headrace.ports import QueuePartition, Registration, Rows
from headrace.stores.embedded import catalog, chunks
from headrace.stores.embedded.connection import ROW_INDEX_BITS
from headrace.stores.embedded.queues.layout import Layout, PartitionRows, split, typed
from headrace.stores.embedded.schemas import stored_columns

_SCHEMA_VERSION = 1
_CHUNKS_PER_APPEND = 256
# Each append and each batch reads all partitions of its queue, which takes about a second for this number.
MOST_PARTITIONS = 1 << 16
_NO_NUMBER_OF_SQLITE = 1 << 63


class QueueState(NamedTuple):
    """The state of a queue in a transaction; ``upper`` is the index of the next row of each partition, by number."""

    id: int
    name: str
    layout: Layout
    options: QueueOptions
    upper: tuple[int, ...]

    @property
    def identity(self) -> tuple[int, int, Layout]:
        """The identity on which prepared rows depend: the object, and the numbers of partitions and columns."""
        return self.id, len(self.upper), self.layout


class Prepared(NamedTuple):
    """Rows that were typed, divided among partitions and serialised without a lock."""

    identity: tuple[int, int, Layout]
    rows: pa.Table
    route: Route
    parts: tuple[PartitionRows, ...]

    @property
    def num_rows(self) -> int:
        return int(self.rows.num_rows)


# -- creating, loading, dropping ------------------------------------------------------------------------


def create(connection: apsw.Connection, name: str, schema: QueueSchema, options: QueueOptions, partitions: int) -> int:
    """Create a queue inside the caller's write transaction and return its object id; the name must be free.

    Raises:
        OptionError: the number of partitions is not between 1 and `MOST_PARTITIONS`.
        SchemaError: too many columns, or a type is nested too deep.
    """
    check_columns(schema)
    queue_id = catalog.create(connection, name, "queue", options, _SCHEMA_VERSION)
    connection.execute(
        "INSERT INTO object_schema (object, version, schema, keys) VALUES (?, ?, ?, '[]')",
        (queue_id, _SCHEMA_VERSION, schema.arrow.serialize().to_pybytes()),
    )
    add_partitions(connection, queue_id, partitions)
    return queue_id


def add_partitions(connection: apsw.Connection, queue_id: int, count: int) -> int:
    """Add empty partitions after the last one; return the new number of partitions.

    Raises:
        OptionError: ``count`` is below 1, or the queue would have more than `MOST_PARTITIONS`.
    """
    ((known,),) = connection.execute("SELECT count(*) FROM partition WHERE object = ?", (queue_id,))
    _check_count(count, known)
    connection.executemany(
        "INSERT INTO partition (object, parents, open, number) VALUES (?, '[]', 1, ?)",
        [(queue_id, number) for number in range(known, known + count)],
    )
    return int(known + count)


def _check_count(count: int, known: int) -> None:
    most = MOST_PARTITIONS - known
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= most:
        raise OptionError(
            f"a queue has 1 to {MOST_PARTITIONS} partitions",
            received=f"{count!r} more than {known}" if known else repr(count),
            valid=f"1 to {most}" if most else "no more",
        )


def load(connection: apsw.Connection, name: str) -> QueueState:
    """Return the state of a queue, or raise `NotFoundError`."""
    found = connection.execute(
        "SELECT o.id, o.options, s.schema FROM object o JOIN object_schema s ON s.object = o.id"
        " WHERE o.name = ? AND o.kind = 'queue'",
        (name,),
    )
    for queue_id, options, schema in found:
        upper = connection.execute("SELECT next FROM partition WHERE object = ? ORDER BY number", (queue_id,))
        return QueueState(queue_id, name, _layout(schema), _options(options), tuple(row[0] for row in upper))
    raise catalog.not_found(connection, name, "queue")


@functools.lru_cache(maxsize=256)
def _layout(schema: bytes) -> Layout:
    return Layout(QueueSchema(stored_columns(schema)))


def _options(text: str) -> QueueOptions:
    return QueueOptions(**json.loads(text))


def drop(connection: apsw.Connection, queue_id: int) -> None:
    """Remove a queue, its rows, registrations, offsets and sessions inside the caller's write transaction."""
    for table in ("registration", "consumer_offset", "producer_session"):
        connection.execute(f"DELETE FROM {table} WHERE queue = ?", (queue_id,))
    catalog.drop(connection, queue_id)


# -- partitions ------------------------------------------------------------------------------------------


def partitions(connection: apsw.Connection, state: QueueState) -> list[QueuePartition]:
    """Return all partitions of a queue, by number.

    If a part of the oldest chunk was trimmed, the bytes of its rest are estimated.
    """
    found = connection.execute(
        "SELECT number, first, next, log_bytes, weight, trimmed,"
        " (SELECT id FROM chunk WHERE id >= p.id << ?2 AND id < (p.id + 1) << ?2 ORDER BY id LIMIT 1),"
        " (SELECT ts FROM chunk WHERE id >= p.id << ?2 AND id < (p.id + 1) << ?2 ORDER BY id DESC LIMIT 1)"
        " FROM partition p WHERE object = ?1 ORDER BY number",
        (state.id, ROW_INDEX_BITS),
    )
    result = []
    for number, first, next_row, size, weight, trimmed, oldest, newest_ts in found:
        if oldest is not None:
            size = size * (next_row - first) // (next_row - chunks.row_index(oldest))
        ts = newest_ts or trimmed
        result.append(
            QueuePartition(
                number=number,
                bounds=Bounds(first, next_row, size),
                weight=weight if state.layout.has_weight else None,
                last_commit=ts / 1e6 if ts else None,
            )
        )
    return result


class StoredPartition(NamedTuple):
    """One partition of a queue; ``bounds`` are without the bytes."""

    id: int
    layout: Layout
    bounds: Bounds


def stored_partition(connection: apsw.Connection, queue: str, number: int) -> StoredPartition:
    """Return a partition of a queue.

    Raises:
        NotFoundError: the queue does not exist.
        OptionError: the queue does not have this partition.
    """
    found = connection.execute(
        "SELECT p.id, s.schema, p.first, p.next FROM object o JOIN object_schema s ON s.object = o.id"
        " JOIN partition p ON p.object = o.id AND p.number = ? WHERE o.name = ? AND o.kind = 'queue'",
        (number, queue),
    )
    for partition_id, schema, first, next_row in found:
        return StoredPartition(partition_id, _layout(schema), Bounds(first, next_row))
    raise no_partition(number, len(load(connection, queue).upper))


def registrations(
    connection: apsw.Connection, queue_id: int | None = None, consumer_id: int | None = None
) -> list[Registration]:
    """Return the registrations of a queue, of a consumer, or all, by the names of both."""
    found = connection.execute(
        "SELECT q.name, c.name, r.vital FROM registration r"
        " JOIN object q ON q.id = r.queue JOIN object c ON c.id = r.consumer"
        " WHERE (?1 IS NULL OR r.queue = ?1) AND (?2 IS NULL OR r.consumer = ?2) ORDER BY q.name, c.name",
        (queue_id, consumer_id),
    )
    return [Registration(queue, consumer, bool(vital)) for queue, consumer, vital in found]


# -- appending ------------------------------------------------------------------------------------------


def prepare(state: QueueState, rows: Rows, route: Route) -> Prepared:
    """Type rows, divide them among partitions, and serialise them if that is possible before their commit.

    Raises:
        SchemaError: the rows do not fit the queue.
        OptionError: a partition does not exist, or two options choose the partition.
    """
    table = typed(rows, state.layout)
    cut = split(table, state.layout, route, state.upper)
    parts = [
        PartitionRows(number, batch if state.layout.has_weight else tuple(chunks.serialise(batch)))
        for number, batch in cut
    ]
    return Prepared(state.identity, table, route, tuple(parts))


def append(
    connection: apsw.Connection,
    queue: str,
    rows: Rows | Prepared,
    version: int,
    ts: int,
    *,
    partition: int | None = None,
    key: str | Sequence[str] | None = None,
) -> list[RowRange]:
    """Append rows to a queue inside the caller's write transaction; see `headrace.ports.Queue.append`.

    Args:
        rows: rows, or the result of `prepare` before the transaction (``partition`` and ``key`` are then ignored).
        version: the version of the commit; ``ts`` is its timestamp (µs since 1970). Both come from `stamp`.
    """
    state = load(connection, queue)
    if not isinstance(rows, Prepared):
        rows = prepare(state, rows, Route.of(partition, key))
    elif rows.identity != state.identity:
        # After `prepare`, partitions or columns were added, or the queue was dropped and created again.
        rows = prepare(state, rows.rows, rows.route)
    ranges = append_parts(connection, state, rows.parts, version, ts)
    auto_trim(connection, state.id)
    return ranges


def append_parts(
    connection: apsw.Connection, state: QueueState, parts: Sequence[PartitionRows], version: int, ts: int
) -> list[RowRange]:
    """Append parts in order, and all without a number to one partition; return their row ranges, by partition."""
    balanced = None
    ranges: dict[int, RowRange] = {}
    for part in parts:
        number = part.number
        if number is None:
            balanced = number = fewest_rows(connection, state.id) if balanced is None else balanced
        added = _append_part(connection, state, number, part, version, ts)
        ranges[number] = RowRange(number, ranges.get(number, added).first, added.next)
    return [ranges[number] for number in sorted(ranges)]


def fewest_rows(connection: apsw.Connection, queue_id: int) -> int:
    """Return the number of the partition that has had the fewest rows."""
    ((number,),) = connection.execute(
        "SELECT number FROM partition WHERE object = ? ORDER BY next, number LIMIT 1", (queue_id,)
    )
    return int(number)


def _append_part(
    connection: apsw.Connection, state: QueueState, number: int, part: PartitionRows, version: int, ts: int
) -> RowRange:
    ((partition_id, weight),) = connection.execute(
        "SELECT id, weight FROM partition WHERE object = ? AND number = ?", (state.id, number)
    )
    messages: Sequence[chunks.Message]
    if isinstance(part.content, pa.RecordBatch):
        stored, weight = state.layout.weigh(part.content, weight)
        messages = chunks.serialise(stored)
        connection.execute("UPDATE partition SET weight = ? WHERE id = ?", (weight, partition_id))
    else:
        messages = part.content
    first = chunks.append(connection, partition_id, messages, state.layout.stored, _SCHEMA_VERSION, version, ts)
    return RowRange(number, first, first + sum(message.rows for message in messages))


# -- trimming -------------------------------------------------------------------------------------------


def auto_trim(connection: apsw.Connection, queue_id: int) -> int:
    """Trim a few chunks inside the caller's write transaction, if automatic trimming is on; return the rows removed.

    Appends and advances of vital consumers call it, so it is cheap without rows to remove.
    """
    ((text,),) = connection.execute("SELECT options FROM object WHERE id = ?", (queue_id,))
    options = _options(text)
    return trim_consumed(connection, queue_id, options, _CHUNKS_PER_APPEND) if options.auto_trim else 0


def trim_consumed(
    connection: apsw.Connection, queue_id: int, options: QueueOptions, max_chunks: int | None = None
) -> int:
    """Remove the rows that all vital consumers have read and that the options do not retain; return their number.

    Args:
        max_chunks: most chunks to remove from each partition; None is no limit.
    """
    # A vital consumer without an offset counts as 0. Without vital consumers the query finds no partition. A partition
    # is closed when a client of an endpoint for YTsaurus has unmounted it.
    found = connection.execute(
        "SELECT p.id, p.first, p.next, min(ifnull(o.kept, 0)) AS read FROM partition p"
        " JOIN registration r ON r.queue = p.object AND r.vital"
        " LEFT JOIN consumer_offset o ON o.queue = p.object AND o.consumer = r.consumer AND o.number = p.number"
        " WHERE p.object = ? AND p.open GROUP BY p.id HAVING read > p.first",
        (queue_id,),
    )
    removed = 0
    for partition_id, first, next_row, read in list(found):
        oldest_kept = None
        if options.retained_seconds is not None:
            ts = int(max(0.0, time.time() - options.retained_seconds) * 1e6)
            oldest_kept = chunks.row_at_time(connection, partition_id, ts)
        target = trim_target(Bounds(first, next_row), [read], options.retained_rows, oldest_kept)
        if max_chunks is not None:
            target = min(target, _end_of_chunk(connection, partition_id, max_chunks))
        if target > first:
            chunks.remove(connection, partition_id, target)
            removed += target - first
    return int(removed)


def _end_of_chunk(connection: apsw.Connection, partition_id: int, count: int) -> int:
    """Return the row index after the chunk with a number, counted from 1 at the oldest; no limit without that chunk."""
    found = connection.execute(
        "SELECT id + n FROM chunk WHERE id >= ? AND id < ? ORDER BY id LIMIT 1 OFFSET ?",
        (*chunks.chunk_ids(partition_id), count - 1),
    )
    return next((chunks.row_index(end) for (end,) in found), _NO_NUMBER_OF_SQLITE)


def trim_all(connection: apsw.Connection, state: QueueState) -> None:
    """Remove all rows of a queue."""
    found = connection.execute("SELECT id, next FROM partition WHERE object = ? AND first < next", (state.id,))
    for partition_id, next_row in list(found):
        chunks.remove(connection, partition_id, next_row)
