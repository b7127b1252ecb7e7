"""Consumers: compare-and-set of offsets in one tablet transaction."""

from __future__ import annotations

import datetime
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace.errors import NotFoundError, OffsetConflictError, OptionError, StoreError
from headrace.model.queues.columns import CUMULATIVE_DATA_WEIGHT, TIMESTAMP, data_weights
from headrace.model.queues.values import ConsumerPartition, Disposition
from headrace.ports import Consumer, QueuePartition, Registration
from headrace_ytsaurus.store import catalog
from headrace_ytsaurus.store.catalog import Names
from headrace_ytsaurus.store.connection import YtConnection, nested
from headrace_ytsaurus.store.failures import (
    YtBusyError,
    YtOffsetConflictError,
    YtTransactionLostError,
    translated,
)
from headrace_ytsaurus.store.publication.progress import Progress, keeper_of, move_keeper
from headrace_ytsaurus.store.queues import registrations
from headrace_ytsaurus.store.queues.queue import YtQueue
from headrace_ytsaurus.wire.errors import Code

_LARGEST_OFFSET = (1 << 63) - 1
_log = logging.getLogger("headrace")


class YtConsumer(Consumer):
    """A consumer's table, by its name."""

    def __init__(self, connection: YtConnection, names: Names, name: str) -> None:
        self.path = catalog.find(connection, names, name, catalog.CONSUMER).path
        self.name = name
        self._connection = connection
        self._names = names

    def __repr__(self) -> str:
        return f"YtConsumer({self.name!r})"

    def _partitions(self, queue: str) -> int:
        return catalog.find(self._connection, self._names, queue, catalog.QUEUE).tablets

    def offsets(self, queue: str) -> dict[int, int]:
        count = self._partitions(queue)
        found = registrations.offsets(self._connection, self.path, self._names.path(queue))
        return {number: found.get(number, 0) for number in range(count)}

    def advance(
        self,
        queue: str,
        offsets: Mapping[int, int],
        expected: Mapping[int, int] | None = None,
        *,
        or_published: bool = False,
    ) -> None:
        path = self._names.path(queue)
        registered = check_registered(self._connection, self._names, self.name, queue)
        check_offsets(self._partitions(queue), queue, offsets, expected or {})
        progress = Progress(self._connection, self._names)
        move = OffsetMove(self.name, self.path, queue, path, offsets, expected or {})
        unanswered = False

        def attempt() -> None:
            nonlocal unanswered
            try:
                with self._connection.transaction() as client:
                    if unanswered and self._is_done(client, move):
                        return
                    self._move(client, move, progress, or_published=or_published)
                    if keeper_of(self._names, self.path) in registered:
                        move_keeper(client, self._names, self.path, path, offsets)
            except YtBusyError as error:
                # After a conflict, nothing was committed.
                unanswered |= not error.contains(Code.TABLET_LOCK_CONFLICT)
                raise
            except YtTransactionLostError:
                unanswered = True
                raise

        self._connection.repeated(attempt)

    def _is_done(self, client: Any, move: OffsetMove) -> bool:
        """Return whether the offsets are those of a commit whose response was lost."""
        found = registrations.offsets(self._connection, move.consumer_path, move.queue_path, client=client)
        return all(found.get(number, 0) == offset for number, offset in move.offsets.items())

    def _move(self, client: Any, move: OffsetMove, progress: Progress, *, or_published: bool) -> None:
        numbers = list(move.offsets)

        def published() -> Mapping[int, int]:
            return progress.load(client, move.consumer_path, move.queue_path, numbers) if or_published else {}

        advance(self._connection, client, move, published)
        progress.forget(client, move.consumer_path, move.queue_path, numbers)

    def registrations(self) -> list[Registration]:
        catalog.find(self._connection, self._names, self.name, catalog.CONSUMER)
        return [
            Registration(self._names.name(queue), self.name, vital)
            for queue, _, vital in registrations.listed(self._connection, None, self.path)
        ]

    def status(self, queue: str) -> list[ConsumerPartition]:
        handle = YtQueue(self._connection, self._names, queue)
        offsets, now = self.offsets(queue), time.time()
        consumed = self._last_consumed(queue)
        return [
            _status(handle, each, offsets.get(each.number, 0), consumed, now) for each in handle.describe().partitions
        ]

    def _last_consumed(self, queue: str) -> dict[int, float]:
        """Return the time when the offset in each partition was set, if the queue agent reports it."""
        try:
            status = self._connection.attribute(self.path, "queue_consumer_partitions", {})
        except StoreError:
            # The queue agent does not know the consumer yet, or the cluster has no queue agent.
            _log.debug("the queue agent reports nothing about consumer %s", self.name, exc_info=True)
            return {}
        cluster = registrations.cluster_name(self._connection)
        partitions = nested(status, f"{cluster}:{self._names.path(queue)}")
        found = {}
        for number, partition in enumerate(partitions if isinstance(partitions, list) else ()):
            moment = nested(partition, "last_consume_time")
            seconds = datetime.datetime.fromisoformat(str(moment)).timestamp() if moment else 0.0
            if seconds > 0:
                found[number] = seconds
        return found


@dataclass(frozen=True)
class OffsetMove:
    """An advance of a consumer in a queue: names for messages, paths for the service."""

    consumer: str
    consumer_path: str
    queue: str
    queue_path: str
    offsets: Mapping[int, int]
    expected: Mapping[int, int]
    kept: bool = False
    """Whether the consumer has a keeper."""


def check_registered(connection: YtConnection, names: Names, consumer: str, queue: str) -> dict[str, bool]:
    """Return the paths of the registered consumers of a queue, and which of them are vital.

    Raises:
        NotFoundError: this consumer is not registered, or the queue does not exist.
    """
    path = names.path(queue)
    registered = dict(registrations.of_queue(connection, path))
    if names.path(consumer) in registered:
        return registered
    catalog.find(connection, names, queue, catalog.QUEUE)
    raise NotFoundError(
        f"consumer {consumer!r} is not registered for queue {queue!r}",
        valid=[names.name(there) for there in registered if not names.is_state(there)],
        remedy="register it with store.register_consumer(queue, consumer)",
    )


def check_offsets(partitions: int, queue: str, offsets: Mapping[int, int], expected: Mapping[int, int]) -> None:
    """Raise `OptionError` for a partition that does not exist or an invalid offset."""
    for number in (*offsets, *expected):
        if not 0 <= number < partitions:
            raise OptionError(
                f"queue {queue!r} has no such partition", received=repr(number), valid=f"0 to {partitions - 1}"
            )
    for number, offset in offsets.items():
        if not 0 <= offset <= _LARGEST_OFFSET:
            raise OptionError(
                f"an offset in partition {number} is not a row index", received=offset, valid=f"0 to {_LARGEST_OFFSET}"
            )


def advance(
    connection: YtConnection,
    client: Any,
    move: OffsetMove,
    published: Callable[[], Mapping[int, int]],
    *,
    dry: bool = False,
) -> None:
    """Set a consumer's offsets in the transaction of a client.

    Args:
        published: returns the offsets that publications have set; called only if needed. An offset that a publication
            has already advanced is not a conflict.
        dry: only check for conflicts.

    Raises:
        OffsetConflictError: an offset is not the expected one. The transaction must not be committed.
    """

    def check(number: int, there: int) -> None:
        wanted = move.offsets.get(number)
        if there != wanted or published().get(number) != there:
            raise OffsetConflictError.of(move.consumer, move.queue, number, move.expected[number], there)

    unmoved = {number: offset for number, offset in move.expected.items() if dry or number not in move.offsets}
    if unmoved:
        found = registrations.offsets(connection, move.consumer_path, move.queue_path, client=client)
        for number, offset in unmoved.items():
            if found.get(number, 0) != offset:
                check(number, found.get(number, 0))
    for number, offset in move.offsets.items() if not dry else ():
        try:
            with translated(f"advance consumer {move.consumer_path}"):
                # With an expected offset, the commit fails if another process changes it.
                client.advance_queue_consumer(
                    move.consumer_path, move.queue_path, number, move.expected.get(number), offset
                )
        except YtOffsetConflictError as error:
            check(number, int(error.attributes["current_offset"]))


def _status(
    queue: YtQueue, partition: QueuePartition, offset: int, consumed: Mapping[int, float], now: float
) -> ConsumerPartition:
    bounds = partition.bounds
    waiting = bounds.lower < bounds.upper and offset < bounds.upper
    first = max(offset, bounds.lower)
    committed = None
    if waiting and TIMESTAMP in queue.schema.names:
        committed = queue.commit_time(partition.number, first)
    elif waiting and first == bounds.upper - 1:
        committed = partition.last_commit
    return ConsumerPartition(
        partition=partition.number,
        offset=offset,
        bounds=bounds,
        disposition=Disposition.of(bounds, offset),
        unread_rows=bounds.upper - offset,
        unread_weight=_unread_weight(queue, partition, offset),
        lag_seconds=0.0 if committed is None else max(0.0, now - committed),
        last_consumed=consumed.get(partition.number),
    )


def _unread_weight(queue: YtQueue, partition: QueuePartition, offset: int) -> int | None:
    """Return the data weight of the rows from an offset; None if the rows do not have it."""
    bounds = partition.bounds
    if CUMULATIVE_DATA_WEIGHT not in queue.schema.names or offset == 0:
        return None
    if offset == bounds.upper:
        return 0
    if partition.weight is None or not bounds.lower <= offset < bounds.upper:
        return None
    row = queue.read(partition.number, offset, 1).rows
    before = row.column(CUMULATIVE_DATA_WEIGHT)[0].as_py() - int(data_weights(row)[0])
    return partition.weight - int(before)
