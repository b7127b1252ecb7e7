"""The lag of running streams, with the metric names of Spark's Kafka source."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from headrace.model.tunnels.lag import Lag, Slot

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress


@dataclass(frozen=True)
class SourceLag:
    """The number of rows of one source that a query had not read when it reported progress.

    ``rows_by_partition`` has the number for each channel of a tunnel, by id, or for each partition of a queue, named
    ``<queue>[<number>]``. The fields up to ``total_rows_behind`` are the minimum, maximum, average and sum of these
    numbers. Unread base data counts.

    Attributes:
        unknown: the channels that have more unread rows than ``rows_by_partition`` says.
        ranges: the number of key ranges of base data.
        ranges_done: how many of them are read.
        seconds: the age of the oldest unread change; None if it is unknown.
        bytes: the size of the unread changes; None if it is unknown.
        slot: the log that a server of PostgreSQL keeps for the tunnel, with the status of its replication slot; None
            for other sources. The server is asked at most every 10 seconds.
    """

    min_offsets_behind_latest: int
    max_offsets_behind_latest: int
    avg_offsets_behind_latest: float
    total_rows_behind: int
    rows_by_partition: Mapping[str, int] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    ranges: int = 0
    ranges_done: int = 0
    seconds: float | None = None
    bytes: int | None = None
    slot: Slot | None = None

    @property
    def lag(self) -> Lag:
        """The lag as one value."""
        unknown = len(self.unknown)
        return Lag(self.total_rows_behind, unknown, self.ranges, self.ranges_done, self.seconds, self.bytes, self.slot)

    def as_metrics(self) -> dict[str, str]:
        """Return the lag with Spark's metric names, as texts."""
        return {
            "minOffsetsBehindLatest": str(self.min_offsets_behind_latest),
            "maxOffsetsBehindLatest": str(self.max_offsets_behind_latest),
            "avgOffsetsBehindLatest": str(self.avg_offsets_behind_latest),
        }


def lag_of(progress: StreamingQueryProgress | dict[str, Any]) -> list[SourceLag | None]:
    """Return the lag of each source in a query's progress report; None for a source of another package.

    Examples:
        >>> [lag.total_rows_behind for lag in headrace.lag_of(query.lastProgress) if lag]
        [0]
    """
    sources = progress["sources"] if isinstance(progress, dict) else json.loads(progress.json)["sources"]
    return [_lag_of_source(source.get("latestOffset")) for source in sources]


def _lag_of_source(latest: Any) -> SourceLag | None:
    if isinstance(latest, str):
        try:
            latest = json.loads(latest)
        except ValueError:
            return None
    behind = latest.get("rowsBehindLatest") if isinstance(latest, dict) else None
    if not isinstance(behind, dict):
        return None
    by_partition = {name: int(count) for name, count in behind.items()}
    rows = list(by_partition.values()) or [0]
    unknown = tuple(latest.get("rowsUnknown", ()))
    ranges, done = latest.get("baseRanges", (0, 0))
    age, size, slot = latest.get("secondsBehindLatest"), latest.get("bytesBehindLatest"), latest.get("slot")
    return SourceLag(
        *(min(rows), max(rows), sum(rows) / len(rows), sum(rows), by_partition, unknown, ranges, done, age, size),
        None if slot is None else Slot(**slot),
    )


class LagListener(StreamingQueryListener):
    """Calls a function with the lag in each progress report of a session's queries.

    Add it with ``spark.streams.addListener(LagListener(publish))``. The arguments of ``publish`` are the query's name,
    or its id if it has none, and the list that `lag_of` returns.

    Examples:
        >>> lags = {}
        >>> listener = headrace.LagListener(lambda name, lag: lags.update({name: lag}))
        >>> spark.streams.addListener(listener)
        >>> spark.streams.removeListener(listener)
    """

    def __init__(self, publish: Callable[[str, list[SourceLag | None]], None]) -> None:
        self._publish = publish

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        self._publish(progress.name or str(progress.id), lag_of(progress))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        pass
