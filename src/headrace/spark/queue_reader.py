"""Queues as a streaming source of Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from headrace.feeds.queue_feed import QueueFeed, QueueOffset
from headrace.feeds.queue_reading import QueueRange, plan_tasks, read_rows
from headrace.spark.garbage_collection import freeze_loaded_modules
from headrace.spark.sources import QueueDataSource
from headrace.spark.stream_reader import FeedStreamReader, Offset

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.ports import Store


@dataclass
class RangesTask(InputPartition):
    """Ranges of rows that one task reads, in this order."""

    ranges: tuple[QueueRange, ...]


def read_ranges(source: QueueDataSource, schema: StructType, task: RangesTask) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task in the columns of a schema."""
    fail_on_data_loss = source.settings.get("failOnDataLoss")
    with source.open_store() as store:
        queues = {name: store.queue(name) for name in dict.fromkeys(part.queue for part in task.ranges)}
        shape = source.queue_shape(list(queues.values()), schema)
        for part in task.ranges:
            for page in read_rows(queues[part.queue], part, fail_on_data_loss=fail_on_data_loss):
                yield shape.rows(part.queue, page)
    freeze_loaded_modules()


class QueueStreamReader(FeedStreamReader[QueueDataSource, QueueOffset]):
    """Offsets are the JSON of a `QueueOffset`; see `headrace.feeds.queue_feed` for what they mean."""

    def _make_feed(self, store: Store) -> QueueFeed:
        settings = self._source.settings
        return QueueFeed(
            store,
            self._source.open_queues(store),
            self._source.open_consumer(store),
            start=settings.get("startingPosition"),
            limits=settings.limits(),
            fail_on_data_loss=settings.get("failOnDataLoss"),
        )

    @property
    def feed(self) -> QueueFeed:
        feed = super().feed
        assert isinstance(feed, QueueFeed)
        return feed

    def _position(self, offset: Offset) -> QueueOffset:
        return QueueOffset.of_json(offset)

    def _offset(self, position: QueueOffset) -> Offset:
        return position.to_json()

    def initialOffset(self) -> Offset:
        return self.feed.initial().to_json()

    def reportLatestOffset(self) -> Offset:
        """Return where the queues end, and how many rows were waiting in each partition."""
        return self.feed.ends().to_json() | super().reportLatestOffset()

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        ranges = self.feed.ranges(QueueOffset.of_json(start), QueueOffset.of_json(end))
        return [RangesTask(task) for task in plan_tasks(ranges, self._source.settings.get("minPartitions"))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangesTask)
        yield from read_ranges(self._source, self._schema, partition)
