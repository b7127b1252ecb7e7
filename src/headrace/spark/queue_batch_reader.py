"""Queues as a batch source of Spark: tasks are row ranges, which filters on a row's address narrow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from headrace.batches.feeds.queue_columns import PARTITION, ROW_INDEX
from headrace.batches.feeds.queue_feed import check_registered
from headrace.batches.feeds.queue_positions import check_positions, resolve_position
from headrace.batches.feeds.queue_reading import QueueRange, plan_tasks, rows_left
from headrace.formats.source import ROWS_PER_SPLIT, QueueRead
from headrace.model.tables.conditions import Predicate
from headrace.model.tunnels.values import Start, StartKind
from headrace.spark.executors import Sent
from headrace.spark.stream_reader import PlannedTask
from headrace.spark.table_batch_reader import predicate_of

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.ports import Consumer, Queue


class QueueReader(Sent, DataSourceReader):
    """Reads the rows of queues between two positions, which are resolved when the read is planned."""

    def __init__(self, read: QueueRead, schema: StructType) -> None:
        self._read = read
        self._schema = schema
        self._predicates: list[Predicate] = []

    def partitions(self) -> Sequence[InputPartition]:
        from pyspark.sql.pandas.types import to_arrow_schema

        source = self._read.source
        settings = source.settings
        with source.open_store() as store:
            queues = self._read.open(store)
            self._read.shape(queues, to_arrow_schema(self._schema, timezone="UTC"))
            names = [queue.name for queue in queues]
            for position in ("startingPosition", "endingPosition"):
                check_positions(settings.get(position), names)
            consumer = self._read.open_consumer(store)
            if consumer is not None:
                check_registered(consumer, names)
            ranges = [each for queue in queues for each in self._ranges(queue, consumer)]
            address = source.location.store.of(store)
        columns = self._read.address_columns()
        for predicate in self._predicates:
            column = PARTITION if predicate.column in columns.of(PARTITION) else ROW_INDEX
            ranges = [narrowed(each, column, predicate) for each in ranges]
        count = settings.get("splits") or 1 + sum(each.rows for each in ranges) // ROWS_PER_SPLIT
        return [PlannedTask(task, self._read, address) for task in plan_tasks(ranges, None if count == 1 else count)]

    def _ranges(self, queue: Queue, consumer: Consumer | None) -> Iterable[QueueRange]:
        settings = self._read.source.settings
        start = settings.get("startingPosition") if settings.is_set("startingPosition") else Start(StartKind.EARLIEST)
        bounds = queue.bounds()
        first = resolve_position(start, queue, bounds, consumer)
        end = resolve_position(settings.get("endingPosition"), queue, bounds, consumer)
        for number in bounds:
            wanted = QueueRange(queue.name, number, first[number], max(first[number], end[number]))
            yield rows_left(wanted, bounds[number], fail_on_data_loss=settings.get("failOnDataLoss"))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Without partitions, Spark calls this with None.
        if isinstance(partition, PlannedTask):
            yield from partition.rows(self._schema)


class FilteringQueueReader(QueueReader):
    """A `QueueReader` that accepts filters. A separate class, because Spark rejects it if push-down is disabled."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        columns = self._read.address_columns()
        taken = columns.of(PARTITION) | columns.of(ROW_INDEX)
        for given in filters:
            predicate = predicate_of(given)
            if predicate is None or predicate.column not in taken or predicate.operator not in _NARROWING:
                yield given
            else:
                self._predicates.append(predicate)


_NARROWING = ("=", "<", "<=", ">", ">=", "is not null")


def narrowed(rows: QueueRange, column: str, predicate: Predicate) -> QueueRange:
    """Return the rows of a range that satisfy a condition on ``column``: `PARTITION` or `ROW_INDEX`."""
    if predicate.operator == "is not null":
        return rows
    low, high = _interval(predicate)
    if column == PARTITION:
        inside = (low is None or rows.partition >= low) and (high is None or rows.partition <= high)
        return rows if inside else replace(rows, next=rows.first)
    first = rows.first if low is None else min(max(rows.first, low), rows.next)
    end = rows.next if high is None else max(min(rows.next, high + 1), first)
    return replace(rows, first=first, next=end)


def _interval(predicate: Predicate) -> tuple[int | None, int | None]:
    """Return the smallest and the largest integer that satisfy a comparison; None is no bound."""
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
