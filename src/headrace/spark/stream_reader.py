"""What streaming sources of Spark share, and a tunnel as one of them.

One instance lives in Spark's planning process for the life of the query; copies of it, without the
connections, go to the tasks.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from headrace.errors import OptionError
from headrace.feeds.channel_reading import read_channel
from headrace.feeds.tunnel_feed import TunnelFeed
from headrace.spark.garbage_collection import freeze_loaded_modules
from headrace.tunnels.records import INITIAL_BATCH, ChannelPlan
from headrace.tunnels.values import Start

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.ports import Store
    from headrace.spark.sources import _StoreDataSource

Offset: TypeAlias = dict[str, Any]
Position = TypeVar("Position")
Source = TypeVar("Source", bound="_StoreDataSource")
_NO_LIMIT = (1 << 63) - 1
# With nothing to read, Spark asks a hundred times a second; then a question may wait so long for new data …
_IDLE_WAIT_SECONDS = 0.1
# … but only where it follows the last answer at once: in a query that is busy with another source it must not.
_POLLING_SECONDS = 0.05


@dataclass
class _ChannelTask(InputPartition):
    """One channel of one batch."""

    batch: str
    part: ChannelPlan


class Feed(Protocol[Position]):
    """What a stream reader asks of a feed: `headrace.feeds` has one for tunnels and one for queues."""

    def latest(self, previous: Position, *, unlimited: bool = False) -> Position: ...

    def commit(self, end: Position, /) -> None: ...

    def pin(self) -> None: ...

    def behind(self) -> dict[str, int]: ...


class FeedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow, Generic[Source, Position]):
    """What stream readers share: the life of the feed, limits, and waiting where there is nothing to read."""

    def __init__(self, source: Source, schema: StructType) -> None:
        self._source = source
        self._schema = schema
        self._store: Store | None = None
        self._feed: Feed[Position] | None = None
        self._idle = False
        self._answered = 0.0

    def __getstate__(self) -> dict[str, Any]:
        return {"_source": self._source, "_schema": self._schema}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["_source"], state["_schema"])  # type: ignore[misc]

    @abstractmethod
    def _make_feed(self, store: Store) -> Feed[Position]: ...

    @abstractmethod
    def _position(self, offset: Offset) -> Position:
        """Return what an offset says, or raise `OptionError` if it is another source's."""

    @abstractmethod
    def _offset(self, position: Position) -> Offset: ...

    @property
    def feed(self) -> Feed[Position]:
        if self._feed is None:
            self._store = self._source.open_store()
            self._feed = self._make_feed(self._store)
        return self._feed

    def getDefaultReadLimit(self) -> ReadLimit:
        # The options hold the limits; anything but "all available" says that they apply.
        return ReadMaxRows(_NO_LIMIT)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        feed, previous = self.feed, self._position(start)
        if not (self._idle and self._waits_in_vain(feed)):
            latest = feed.latest(previous, unlimited=isinstance(limit, ReadAllAvailable))
            self._idle = latest == previous
            previous = latest
        self._answered = time.monotonic()
        return self._offset(previous)

    def _waits_in_vain(self, feed: Feed[Position]) -> bool:
        """Wait a moment for a commit to the store; tell whether a look at the feed is certain to find nothing."""
        assert self._store is not None
        if time.monotonic() - self._answered > _POLLING_SECONDS:
            return False
        changed = self._store.wait_for_change(_IDLE_WAIT_SECONDS)
        # Rows that wait for more of them become due by time alone.
        return not changed and not any(feed.behind().values())

    def prepareForTriggerAvailableNow(self) -> None:
        self.feed.pin()

    def reportLatestOffset(self) -> Offset:
        """Return how many rows were waiting in each channel or partition; `headrace.spark.listener` reads it."""
        return {"rowsBehindLatest": self.feed.behind()}

    def commit(self, end: Offset) -> None:
        self.feed.commit(self._position(end))

    def stop(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = self._feed = None


class TunnelStreamReader(FeedStreamReader["_StoreDataSource", str]):
    """Offsets are ``{"batch": <batch id>}``; see `headrace.feeds.tunnel_feed` for what they mean.

    Tokens are opaque, so the rows that wait are the only honest "latest" there is.
    """

    def _make_feed(self, store: Store) -> TunnelFeed:
        settings = self._source.settings
        start = settings.get("startingPosition")
        if not isinstance(start, Start):
            raise OptionError(
                "option startingPosition has row indexes, and a tunnel has none",
                valid="committed, earliest, latest or a timestamp",
            )
        return TunnelFeed(
            self._source.open_tunnel(store),
            start=start,
            limits=settings.limits(),
            retain_batches=settings.get("retainBatches"),
        )

    def _position(self, offset: Offset) -> str:
        return _batch_of(offset)

    def _offset(self, position: str) -> Offset:
        return {"batch": position}

    def initialOffset(self) -> Offset:
        return {"batch": INITIAL_BATCH}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        feed, batch = self.feed, _batch_of(end)
        assert isinstance(feed, TunnelFeed)
        return [_ChannelTask(batch, part) for part in feed.plan(batch) if part.max_rows != 0]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _ChannelTask)
        settings = self._source.settings
        with self._source.open_store() as store:
            tunnel = self._source.open_tunnel(store)
            shape = self._source.shape(tunnel.table, self._schema)
            for changes in read_channel(
                tunnel, partition.batch, partition.part, fail_on_data_loss=settings.get("failOnDataLoss")
            ):
                yield shape.rows(changes)
        freeze_loaded_modules()


def _batch_of(offset: Offset) -> str:
    batch = offset.get("batch") if isinstance(offset, dict) else None
    if not isinstance(batch, str):
        raise OptionError(
            "the checkpoint's offset is not one of a tunnel",
            received=str(offset)[:200],
            valid='{"batch": "<uuid>"}',
            remedy="the checkpoint location was used by another source; choose a new one",
        )
    return batch
