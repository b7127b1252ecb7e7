"""Streaming sources of Spark: `FeedStreamReader` binds a `headrace.batches.feeds.feed.Feed` to Spark's interface.

One reader exists in Spark's planning process for the life of the query. Its copies in the tasks have no connections.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from headrace.batches.feeds.channel_reading import ChannelTask, read_channel
from headrace.batches.feeds.feed import Feed, FeedPlanner, Offset, Position, Task
from headrace.batches.feeds.tunnel_feed import TunnelFeed
from headrace.formats.source import Source
from headrace.spark.executors import Sent, task_store
from headrace.spark.garbage_collection import freeze_loaded_modules
from headrace.stores.registry import StoreAddress

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.ports import Store

_NO_LIMIT = (1 << 63) - 1


@dataclass
class PlannedTask(InputPartition):
    """A task of a feed, as Spark sends it to a worker, with the address of the store that it was planned for."""

    task: Any
    store: StoreAddress


class FeedStreamReader(Sent, DataSourceStreamReader, SupportsTriggerAvailableNow, Generic[Position, Task]):
    """The streaming source of a feed. Subclasses create the feed, and read a task of it."""

    def __init__(self, source: Source, schema: StructType) -> None:
        self._source = source
        self._schema = schema
        self._store: Store | None = None
        self._open_planner: FeedPlanner[Position, Task] | None = None

    def _sent_state(self) -> dict[str, Any]:
        return {"_source": self._source, "_schema": self._schema, "_store": None, "_open_planner": None}

    @abstractmethod
    def _make_feed(self, store: Store) -> Feed[Position, Task]: ...

    @abstractmethod
    def _read(self, task: Task, store: StoreAddress) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task, in a worker."""

    @property
    def _planner(self) -> FeedPlanner[Position, Task]:
        if self._open_planner is None:
            self._store = self._source.open_store()
            self._open_planner = FeedPlanner(self._make_feed(self._store), self._store)
        return self._open_planner

    def getDefaultReadLimit(self) -> ReadLimit:
        # Any limit but ReadAllAvailable means that the limits in the options apply.
        return ReadMaxRows(_NO_LIMIT)

    def initialOffset(self) -> Offset:
        return self._planner.initial()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        return self._planner.latest(start, unlimited=isinstance(limit, ReadAllAvailable))

    def prepareForTriggerAvailableNow(self) -> None:
        self._planner.feed.fix_end()

    def reportLatestOffset(self) -> Offset:
        return self._planner.feed.report()

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        tasks = self._planner.tasks(start, end)
        assert self._store is not None
        address = self._source.location.store.of(self._store)
        return [PlannedTask(task, address) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, PlannedTask)
        yield from self._read(partition.task, partition.store)
        freeze_loaded_modules()

    def commit(self, end: Offset) -> None:
        self._planner.commit(end)

    def stop(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = self._open_planner = None


class TunnelStreamReader(FeedStreamReader[str, ChannelTask]):
    """A tunnel as a streaming source; offsets are ``{"batch": "<uuid>"}``."""

    def _make_feed(self, store: Store) -> TunnelFeed:
        return TunnelFeed(
            self._source.open_checked_tunnel(store),
            start=self._source.tunnel_start(),
            limits=self._source.limits(),
            retain_batches=self._source.settings.get("retainBatches"),
        )

    def _read(self, task: ChannelTask, store: StoreAddress) -> Iterator[pa.RecordBatch]:
        fail_on_data_loss = self._source.settings.get("failOnDataLoss")
        with task_store(store) as opened:
            tunnel = self._source.open_tunnel(opened)
            shape = self._source.shape(tunnel, self._schema.fieldNames())
            for changes in read_channel(tunnel, task.batch, task.plan, fail_on_data_loss=fail_on_data_loss):
                yield shape.rows(changes)
