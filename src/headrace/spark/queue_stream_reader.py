"""Queues as a streaming source of Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from headrace.batches.feeds.queue_feed import QueueFeed
from headrace.batches.feeds.queue_offset import QueueOffset
from headrace.batches.feeds.queue_reading import QueueRange, read_rows
from headrace.formats.source import Source
from headrace.spark.executors import task_store
from headrace.spark.stream_reader import FeedStreamReader
from headrace.stores.registry import StoreAddress

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.ports import Store


def read_ranges(
    source: Source, schema: StructType, ranges: tuple[QueueRange, ...], store: StoreAddress
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of some ranges, in the columns of a schema, in a task."""
    from pyspark.sql.pandas.types import to_arrow_schema

    fail_on_data_loss = source.settings.get("failOnDataLoss")
    with task_store(store) as opened:
        queues = {name: opened.queue(name) for name in dict.fromkeys(each.queue for each in ranges)}
        shape = source.queue_shape(list(queues.values()), to_arrow_schema(schema, timezone="UTC"))
        for each in ranges:
            for page in read_rows(queues[each.queue], each, fail_on_data_loss=fail_on_data_loss):
                yield shape.rows(each.queue, page)


class QueueStreamReader(FeedStreamReader[QueueOffset, tuple[QueueRange, ...]]):
    """Queues as a streaming source; offsets are the JSON of a `QueueOffset`."""

    def _make_feed(self, store: Store) -> QueueFeed:
        settings = self._source.settings
        return QueueFeed(
            store,
            self._source.open_queues(store),
            self._source.open_consumer(store),
            start=settings.get("startingPosition"),
            limits=self._source.limits(),
            fail_on_data_loss=settings.get("failOnDataLoss"),
            min_tasks=settings.get("minPartitions"),
        )

    def _read(self, task: tuple[QueueRange, ...], store: StoreAddress) -> Iterator[pa.RecordBatch]:
        return read_ranges(self._source, self._schema, task, store)
