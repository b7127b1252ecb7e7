"""Queues as a batch source of Spark: row ranges as tasks, narrowed by filters on a row's address."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from headrace.feeds.queue_columns import PARTITION, ROW_INDEX
from headrace.feeds.queue_feed import check_registered
from headrace.feeds.queue_positions import check_positions, resolve_position
from headrace.feeds.queue_reading import QueueRange, plan_tasks, rows_left
from headrace.spark.batch_reader import predicate_of
from headrace.spark.queue_reader import RangesTask, read_ranges
from headrace.spark.sources import ROWS_PER_SPLIT, QueueDataSource
from headrace.tables.conditions import Predicate
from headrace.tunnels.values import Start, StartKind

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.ports import Consumer, Queue


class QueueReader(DataSourceReader):
    """Reads what is in queues between two positions, as it was when the read was planned."""

    def __init__(self, source: QueueDataSource, schema: StructType) -> None:
        self._source = source
        self._schema = schema
        self._predicates: list[Predicate] = []

    def partitions(self) -> Sequence[InputPartition]:
        settings = self._source.settings
        with self._source.open_store() as store:
            queues = self._source.open_queues(store)
            self._source.queue_shape(queues, self._schema)
            names = [queue.name for queue in queues]
            for position in ("startingPosition", "endingPosition"):
                check_positions(settings.get(position), names)
            consumer = self._source.open_consumer(store)
            if consumer is not None:
                check_registered(consumer, names)
            ranges = [part for queue in queues for part in self._ranges(queue, consumer)]
        address = self._source.address_columns()
        for predicate in self._predicates:
            place = PARTITION if predicate.column in address.of(PARTITION) else ROW_INDEX
            ranges = [narrowed(part, place, predicate) for part in ranges]
        count = settings.get("splits") or 1 + sum(part.rows for part in ranges) // ROWS_PER_SPLIT
        return [RangesTask(task) for task in plan_tasks(ranges, None if count == 1 else count)]

    def _ranges(self, queue: Queue, consumer: Consumer | None) -> Iterable[QueueRange]:
        settings = self._source.settings
        start = settings.get("startingPosition") if settings.given("startingPosition") else Start(StartKind.EARLIEST)
        bounds = queue.bounds()
        first = resolve_position(start, queue, bounds, consumer)
        end = resolve_position(settings.get("endingPosition"), queue, bounds, consumer)
        for number in bounds:
            part = QueueRange(queue.name, number, first[number], max(first[number], end[number]))
            yield rows_left(part, bounds[number], fail_on_data_loss=settings.get("failOnDataLoss"))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Where there is nothing to read, and so no partition, Spark has None read.
        if isinstance(partition, RangesTask):
            yield from read_ranges(self._source, self._schema, partition)


class FilteringQueueReader(QueueReader):
    """A `QueueReader` that takes filters; a class of its own, because Spark refuses it where push-down is off."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        address = self._source.address_columns()
        taken = address.of(PARTITION) | address.of(ROW_INDEX)
        for given in filters:
            predicate = predicate_of(given)
            if predicate is None or predicate.column not in taken or predicate.operator not in _NARROWING:
                yield given
            else:
                self._predicates.append(predicate)


_NARROWING = ("=", "<", "<=", ">", ">=", "is not null")


def narrowed(part: QueueRange, place: str, predicate: Predicate) -> QueueRange:
    """Return the rows of a range that satisfy a condition on the partition (``place``) or on the row index."""
    if predicate.operator == "is not null":
        return part
    low, high = _interval(predicate)
    if place == PARTITION:
        inside = (low is None or part.partition >= low) and (high is None or part.partition <= high)
        return part if inside else replace(part, next=part.first)
    first = part.first if low is None else min(max(part.first, low), part.next)
    end = part.next if high is None else max(min(part.next, high + 1), first)
    return replace(part, first=first, next=end)


def _interval(predicate: Predicate) -> tuple[int | None, int | None]:
    """Return the least and the greatest whole number that satisfy a comparison; None is no bound."""
    value = int(predicate.value)
    match predicate.operator:
        case "=":
            return value, value
        case "<":
            return None, value - 1
        case "<=":
            return None, value
        case ">":
            return value + 1, None
        case _:
            return value, None
