"""A tunnel as a streaming source of Spark.

One instance lives in Spark's planning process for the life of the query; copies of it, without the
connections, go to the tasks.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from headrace.errors import OptionError
from headrace.feeds.reading import read_channel
from headrace.feeds.tunnel_feed import TunnelFeed
from headrace.model import INITIAL_BATCH, ChannelPlan
from headrace.spark.workers import settle

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.ports import Store
    from headrace.spark.sources import _StoreDataSource

Offset: TypeAlias = dict[str, Any]
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


class TunnelStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets are ``{"batch": <batch id>}``; see `headrace.feeds.tunnel_feed` for what they mean."""

    def __init__(self, source: _StoreDataSource, schema: StructType) -> None:
        self._source = source
        self._schema = schema
        self._store: Store | None = None
        self._open_feed: TunnelFeed | None = None
        self._idle = False
        self._answered = 0.0

    def __getstate__(self) -> dict[str, Any]:
        return {"_source": self._source, "_schema": self._schema}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["_source"], state["_schema"])  # type: ignore[misc]

    @property
    def _feed(self) -> TunnelFeed:
        if self._open_feed is None:
            settings = self._source.settings
            self._store = self._source.open_store()
            self._open_feed = TunnelFeed(
                self._source.open_tunnel(self._store),
                start=settings.get("startingPosition"),
                limits=settings.limits(),
                retain_batches=settings.get("retainBatches"),
            )
        return self._open_feed

    def initialOffset(self) -> Offset:
        return {"batch": INITIAL_BATCH}

    def getDefaultReadLimit(self) -> ReadLimit:
        # The options hold the limits; anything but "all available" says that they apply.
        return ReadMaxRows(_NO_LIMIT)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        feed, previous = self._feed, _batch_of(start)
        if not (self._idle and self._waits_in_vain()):
            latest = feed.latest(previous, unlimited=isinstance(limit, ReadAllAvailable))
            self._idle = latest == previous
            previous = latest
        self._answered = time.monotonic()
        return {"batch": previous}

    def _waits_in_vain(self) -> bool:
        """Wait a moment for a commit to the store; tell whether a look at the tunnel is certain to find nothing."""
        assert self._store is not None
        if time.monotonic() - self._answered > _POLLING_SECONDS:
            return False
        changed = self._store.wait_for_change(_IDLE_WAIT_SECONDS)
        # Rows that wait for more of them become due by time alone.
        return not changed and not any(self._feed.behind().values())

    def prepareForTriggerAvailableNow(self) -> None:
        self._feed.pin()

    def reportLatestOffset(self) -> Offset:
        """Return how many changes were waiting in each channel behind the current batch.

        Tokens are opaque, so this is the only honest "latest" there is; `headrace.spark.listener` reads it.
        """
        return {"rowsBehindLatest": self._feed.behind()}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        batch = _batch_of(end)
        return [_ChannelTask(batch, part) for part in self._feed.plan(batch) if part.max_rows != 0]

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
        settle()

    def commit(self, end: Offset) -> None:
        self._feed.commit(_batch_of(end))

    def stop(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = self._open_feed = None


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
