"""Queues and consumers in memory, with the methods that a feed calls. They count the calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa

from headrace.batches.feeds.queue_feed import QueueFeed
from headrace.batches.feeds.queue_offset import QueueOffset
from headrace.batches.feeds.queue_reading import read_rows
from headrace.errors import DataLossError, OffsetConflictError
from headrace.model.queues.columns import QueueSchema
from headrace.model.queues.values import Bounds, ConsumerPartition, Disposition, QueuePage
from headrace.ports import Consumer, Queue, Registration, Store

ROW_BYTES = 10


class MemoryQueue:
    """Row ``i`` of partition ``p`` has the value ``1000 p + i``; commits are a second apart, from second 0 on."""

    def __init__(self, name: str, partitions: int = 1, columns: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.id = f"{name} 1"
        self.schema = QueueSchema.of(columns or {"value": "long"})
        self.lower = [0] * partitions
        self.upper = [0] * partitions
        self.page_rows = 3
        self.copies = 0
        self.asked: Counter[str] = Counter()

    def append(self, rows: int, partition: int = 0) -> None:
        self.upper[partition] += rows

    def trim(self, partition: int, before: int) -> None:
        self.lower[partition] = max(self.lower[partition], before)

    def add_partitions(self, count: int) -> None:
        self.lower += [0] * count
        self.upper += [0] * count

    def recreate(self, partitions: int = 1) -> None:
        self.id = f"{self.name} {int(self.id.split()[-1]) + 1}"
        self.lower, self.upper = [0] * partitions, [0] * partitions

    def bounds(self) -> dict[int, Bounds]:
        self.asked["bounds"] += 1
        pairs = zip(self.lower, self.upper, strict=True)
        return {number: Bounds(low, high, (high - low) * ROW_BYTES) for number, (low, high) in enumerate(pairs)}

    def read(self, partition: int, first_row: int, max_rows: int = 1000, *, until: int | None = None) -> QueuePage:
        if first_row < self.lower[partition]:
            raise DataLossError("trimmed")
        end = min(first_row + min(max_rows, self.page_rows), self.upper[partition], until or self.upper[partition])
        values = [1000 * partition + row for row in range(first_row, end)]
        return QueuePage(partition, first_row, pa.record_batch({"value": pa.array(values, pa.int64())}))

    def row_at(self, partition: int, timestamp: float) -> int:
        return max(self.lower[partition], min(int(timestamp), self.upper[partition]))

    def commit_time(self, partition: int, row: int) -> float | None:
        self.asked["commit_time"] += 1
        return float(row)


class MemoryConsumer:
    """Offsets in a dict; registered for the given queues."""

    def __init__(self, name: str, queues: Sequence[MemoryQueue]) -> None:
        self.name = name
        self.queues = {queue.name: queue for queue in queues}
        self.at: dict[str, dict[int, int]] = {queue.name: {} for queue in queues}
        self.published: dict[str, dict[int, int]] = {}

    def registrations(self) -> list[Registration]:
        return [Registration(queue, self.name, False) for queue in self.queues]

    def offsets(self, queue: str) -> dict[int, int]:
        return {number: self.at[queue].get(number, 0) for number in range(len(self.queues[queue].upper))}

    def publish(self, queue: str, offsets: Mapping[int, int]) -> None:
        """Advance like a publication."""
        self.at[queue].update(offsets)
        self.published[queue] = dict(offsets)

    def advance(
        self,
        queue: str,
        offsets: Mapping[int, int],
        expected: Mapping[int, int] | None = None,
        *,
        or_published: bool = False,
    ) -> None:
        for number, row in (expected or {}).items():
            there = or_published and self.published.get(queue, {}).get(number) == offsets.get(number)
            if self.at[queue].get(number, 0) != row and not there:
                raise OffsetConflictError.of(self.name, queue, number, row, self.at[queue].get(number, 0))
        self.at[queue].update(offsets)

    def status(self, queue: str) -> list[ConsumerPartition]:
        return [
            ConsumerPartition(
                number,
                row,
                Bounds(0, 0),
                Disposition.UP_TO_DATE,
                0,
                None,
                0.0,
                1.0 if number in self.at[queue] else None,
            )
            for number, row in self.offsets(queue).items()
        ]


def a_store(name: str = "here") -> Store:
    """Return an object with the id of a store, and without times of rows."""
    return cast(Store, SimpleNamespace(id=name, capabilities=SimpleNamespace(row_times=False)))


def as_queue(queue: MemoryQueue) -> Queue:
    return cast(Queue, queue)


def as_consumer(consumer: MemoryConsumer) -> Consumer:
    return cast(Consumer, consumer)


def feed_of(*queues: MemoryQueue, consumer: MemoryConsumer | None = None, **options: Any) -> QueueFeed:
    return QueueFeed(
        a_store(),
        [as_queue(queue) for queue in queues],
        None if consumer is None else as_consumer(consumer),
        **options,
    )


def begun(feed: QueueFeed) -> QueueOffset:
    """Return the offset of the first batch, which only fixes the start."""
    start = feed.latest(feed.initial())
    assert feed.ranges(feed.initial(), start) == []
    return start


def values(feed: QueueFeed, queue: MemoryQueue, start: QueueOffset, end: QueueOffset) -> list[int]:
    return [
        value
        for part in feed.ranges(start, end)
        for page in read_rows(as_queue(queue), part, fail_on_data_loss=feed.fail_on_data_loss)
        for value in page.rows.column(0).to_pylist()
    ]


def rows(offset: QueueOffset, queue: str = "q") -> dict[int, int]:
    return dict(offset.queues[queue])
