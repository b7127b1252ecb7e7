"""Consumers of the embedded store: registrations, offsets with compare-and-set, and lag."""

from __future__ import annotations

import time
from collections.abc import Mapping

import apsw

from headrace.errors import NotFoundError, OffsetConflictError, OptionError
from headrace.model.queues.columns import CUMULATIVE_DATA_WEIGHT, data_weights
from headrace.model.queues.values import ConsumerPartition, Disposition
from headrace.ports import Consumer, QueuePartition, Registration
from headrace.stores.embedded import catalog
from headrace.stores.embedded.connection import Database
from headrace.stores.embedded.queues import stored_queues
from headrace.stores.embedded.queues.queue import EmbeddedQueue

_LARGEST_OFFSET = (1 << 63) - 1


class EmbeddedConsumer(Consumer):
    """A consumer of the embedded store, by its name."""

    def __init__(self, database: Database, name: str) -> None:
        self._database = database
        self.name = name

    def __repr__(self) -> str:
        return f"EmbeddedConsumer({self.name!r})"

    def offsets(self, queue: str) -> dict[int, int]:
        with self._database.read() as connection:
            states = _states(connection, *_ids(connection, queue, self.name))
        return {number: offset for number, (offset, _) in states.items()}

    def advance(
        self,
        queue: str,
        offsets: Mapping[int, int],
        expected: Mapping[int, int] | None = None,
        *,
        or_published: bool = False,
    ) -> None:
        with self._database.write() as connection:
            advance(connection, self.name, queue, offsets, expected or {}, or_published=or_published)

    def registrations(self) -> list[Registration]:
        with self._database.read() as connection:
            return registrations(connection, consumer=self.name)

    def status(self, queue: str) -> list[ConsumerPartition]:
        with self._database.read() as connection:
            states = _states(connection, *_ids(connection, queue, self.name))
            handle = EmbeddedQueue(self._database, queue)
            now = time.time()
            return [_status(handle, each, *states[each.number], now) for each in handle.describe().partitions]


def advance(
    connection: apsw.Connection,
    consumer: str,
    queue: str,
    offsets: Mapping[int, int],
    expected: Mapping[int, int],
    *,
    or_published: bool = False,
    job: str | None = None,
) -> None:
    """Set a consumer's offsets inside the caller's write transaction; see `headrace.ports.Consumer.advance`.

    ``job`` is the job whose batch contains the advance. Its query may read the batch again, for example for another
    sink, or after it was killed. So an offset that the same job has already advanced to the new position is not a
    conflict, and automatic trimming keeps the rows of the batch until the consumer advances again.
    """
    queue_id, consumer_id = _ids(connection, queue, consumer)
    registered = connection.execute(
        "SELECT vital FROM registration WHERE queue = ? AND consumer = ?", (queue_id, consumer_id)
    ).fetchone()
    if registered is None:
        raise NotFoundError(
            f"consumer {consumer!r} is not registered for queue {queue!r}",
            valid=[registration.consumer for registration in registrations(connection, queue=queue)],
            remedy="register it with store.register_consumer(queue, consumer)",
        )
    found = {number: offset for number, (offset, _) in _states(connection, queue_id, consumer_id).items()}
    published = dict(
        connection.execute(
            "SELECT number, job FROM consumer_offset WHERE queue = ? AND consumer = ? AND job IS NOT NULL",
            (queue_id, consumer_id),
        )
    )
    for number in (*offsets, *expected):
        if number not in found:
            raise OptionError(f"queue {queue!r} has no such partition", received=repr(number), valid=found)
    for number, offset in offsets.items():
        if not 0 <= offset <= _LARGEST_OFFSET:
            raise OptionError(
                f"an offset in partition {number} is not a row index", received=offset, valid=f"0 to {_LARGEST_OFFSET}"
            )
    for number, offset in expected.items():
        accepted = number in published and (or_published or published[number] == job)
        there_already = accepted and found[number] == offsets.get(number)
        if found[number] != offset and not there_already:
            raise OffsetConflictError.of(consumer, queue, number, offset, found[number])
    kept = {number: min(expected.get(number, found[number]), offset) for number, offset in offsets.items()}
    now = time.time()
    connection.executemany(
        "INSERT INTO consumer_offset (queue, consumer, number, next, consumed, kept, job) VALUES (?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT DO UPDATE SET next = excluded.next, consumed = excluded.consumed, kept = excluded.kept,"
        " job = excluded.job",
        [
            (queue_id, consumer_id, number, offset, now, offset if job is None else kept[number], job)
            for number, offset in offsets.items()
        ],
    )
    if registered[0]:
        stored_queues.auto_trim(connection, queue_id)


def register(connection: apsw.Connection, queue: str, consumer: str, *, vital: bool) -> Registration:
    """Register a consumer, or change whether it is vital, inside the caller's write transaction."""
    connection.execute(
        "INSERT INTO registration (queue, consumer, vital) VALUES (?, ?, ?)"
        " ON CONFLICT DO UPDATE SET vital = excluded.vital",
        (*_ids(connection, queue, consumer), vital),
    )
    return Registration(queue, consumer, vital)


def unregister(connection: apsw.Connection, queue: str, consumer: str) -> None:
    """Remove a registration inside the caller's write transaction; offsets are kept."""
    connection.execute("DELETE FROM registration WHERE queue = ? AND consumer = ?", _ids(connection, queue, consumer))


def registrations(
    connection: apsw.Connection, *, queue: str | None = None, consumer: str | None = None
) -> list[Registration]:
    """Return the registrations of a queue, of a consumer, or all, by the names of both.

    Raises:
        NotFoundError: there is no such queue or consumer.
    """
    queue_id = None if queue is None else catalog.find(connection, queue, "queue")
    consumer_id = None if consumer is None else catalog.find(connection, consumer, "consumer")
    return stored_queues.registrations(connection, queue_id, consumer_id)


def _ids(connection: apsw.Connection, queue: str, consumer: str) -> tuple[int, int]:
    return catalog.find(connection, queue, "queue"), catalog.find(connection, consumer, "consumer")


def _states(connection: apsw.Connection, queue_id: int, consumer_id: int) -> dict[int, tuple[int, float | None]]:
    """Return for each partition number of a queue a consumer's offset and the time when it was set."""
    found = connection.execute(
        "SELECT p.number, coalesce(o.next, 0), o.consumed FROM partition p"
        " LEFT JOIN consumer_offset o ON o.queue = p.object AND o.consumer = ? AND o.number = p.number"
        " WHERE p.object = ? ORDER BY p.number",
        (consumer_id, queue_id),
    )
    return {number: (offset, consumed) for number, offset, consumed in found}


def _status(
    queue: EmbeddedQueue, partition: QueuePartition, offset: int, consumed: float | None, now: float
) -> ConsumerPartition:
    bounds = partition.bounds
    committed = queue.commit_time(partition.number, max(offset, bounds.lower))
    return ConsumerPartition(
        partition=partition.number,
        offset=offset,
        bounds=bounds,
        disposition=Disposition.of(bounds, offset),
        unread_rows=bounds.upper - offset,
        unread_weight=_unread_weight(queue, partition, offset),
        lag_seconds=0.0 if committed is None else max(0.0, now - committed),
        last_consumed=consumed,
    )


def _unread_weight(queue: EmbeddedQueue, partition: QueuePartition, offset: int) -> int | None:
    """Return the data weight of the rows from an offset; None if the rows do not have it."""
    bounds = partition.bounds
    if partition.weight is None or offset == 0:
        return None
    if offset == bounds.upper:
        return 0
    if not bounds.lower <= offset < bounds.upper:
        return None
    row = queue.read(partition.number, offset, 1).rows
    before = row.column(CUMULATIVE_DATA_WEIGHT)[0].as_py() - int(data_weights(row)[0])
    return partition.weight - int(before)
