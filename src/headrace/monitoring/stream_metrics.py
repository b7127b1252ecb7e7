"""The metrics of the streams in a workspace, from its registry and the history of its batches."""

from __future__ import annotations

import bisect
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from headrace.streaming_sql.catalog import Catalog
from headrace.streaming_sql.stream_history import PARTS, PHASES, WHOLE_BATCH, BatchRecord, StreamHistory
from headrace.streaming_sql.stream_registry import StreamRegistry, StreamStatus
from headrace.streaming_sql.stream_states import kept_beside
from headrace.streaming_sql.workspace import Workspace

MOST_STREAMS = 200
"""The metrics have at most this number of streams, by name."""
BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
"""The upper bounds of the durations in seconds."""
# Names, texts and values of the gauges.
_STATUS_GAUGES: tuple[tuple[str, str, Callable[[StreamStatus], float | None]], ...] = (
    ("headrace_stream_running", "1 while a stream runs.", lambda status: float(status.is_live)),
    ("headrace_stream_failed", "1 after a run failed.", lambda status: float(status.state == "failed")),
    ("headrace_stream_lost", "1 after the process of a stream died.", lambda status: float(status.state == "lost")),
    ("headrace_stream_lag_rows", "Known unread rows in the sources of a stream.", lambda status: status.lag),
    (
        "headrace_stream_lag_timestamp_seconds",
        "The time at which the lag was measured, in seconds since 1970.",
        lambda status: None if status.lag is None else status.lag_time,
    ),
    (
        "headrace_stream_lag_unknown_channels",
        "Channels with more unread rows than the lag counts.",
        lambda status: None if status.lag is None else status.lag_unknown,
    ),
    ("headrace_stream_lag_seconds", "Age of the oldest unread change of a stream.", lambda status: status.lag_seconds),
    ("headrace_stream_lag_bytes", "Size of the unread changes of a stream.", lambda status: status.lag_bytes),
    (
        "headrace_stream_eta_seconds",
        "Time to read the known unread rows at the speed of the last batch.",
        lambda status: status.eta_seconds,
    ),
)
_BATCH_GAUGES: tuple[tuple[str, str, Callable[[BatchRecord], float | None]], ...] = (
    (
        "headrace_stream_watermark_timestamp_seconds",
        "The watermark, in seconds since 1970.",
        lambda batch: batch.watermark,
    ),
    ("headrace_stream_state_rows", "Rows of a stream's state.", lambda batch: batch.state_rows),
    ("headrace_stream_state_bytes", "Memory of a stream's state.", lambda batch: batch.state_bytes),
    (
        "headrace_stream_last_batch_timestamp_seconds",
        "Start of the last batch, in seconds since 1970.",
        lambda batch: batch.time,
    ),
)


@dataclass
class _Durations:
    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    total: float = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect.bisect_left(BUCKETS, seconds)] += 1
        self.total += seconds

    def cumulative(self) -> list[tuple[str, float]]:
        reached, found = 0, []
        for bound, count in zip([*map(str, BUCKETS), "+Inf"], self.counts, strict=True):
            reached += count
            found.append((bound, float(reached)))
        return found


@dataclass
class _Totals:
    """What a stream has done since the collector exists: counters of Prometheus never decrease."""

    seen: float
    rows_in: int = 0
    rows_out: int = 0
    batches: int = 0
    phases: dict[str, _Durations] = field(default_factory=dict)

    def add(self, batch: BatchRecord) -> None:
        self.seen = batch.time
        self.batches += 1
        self.rows_in += batch.rows_in
        self.rows_out += batch.rows_out or 0
        for phase, seconds in batch.durations.items():
            if phase == WHOLE_BATCH or phase in (*PHASES, *PARTS):
                self.phases.setdefault(phase, _Durations()).add(seconds)


class StreamCollector(Collector):
    """Collects the metrics of streams when they are read. Counters begin with 0 when the collector is created.

    Args:
        workspace: the workspace of the streams.
        shown: the streams to collect; by default all.
    """

    def __init__(self, workspace: Workspace, shown: Callable[[StreamStatus], bool] = lambda status: True) -> None:
        self._registry, self._history = StreamRegistry(workspace), StreamHistory(workspace)
        self._catalog = Catalog(workspace)
        self._shown = shown
        self._since = time.time()
        self._totals: dict[str, _Totals] = {}

    def describe(self) -> list[Metric]:
        """Return no metrics: a registry would otherwise collect them when the collector is registered."""
        return []

    def collect(self) -> Iterator[Metric]:
        streams = [status for status in self._registry.all() if self._shown(status)][:MOST_STREAMS]
        for status in streams:
            totals = self._totals.setdefault(status.name, _Totals(self._since))
            for batch in self._history.batches(status.name, since=totals.seen):
                if batch.time > totals.seen:
                    totals.add(batch)
        yield from self._counters(streams)
        yield from self._gauges(streams)
        yield from self._states(streams)

    def _states(self, streams: list[StreamStatus]) -> Iterator[Metric]:
        labels = ["stream", "state"]
        rows = GaugeMetricFamily(
            "headrace_state_table_rows", "Rows of a table of state in a stream's target store.", labels=labels
        )
        sizes = GaugeMetricFamily("headrace_state_table_bytes", "Bytes of a table of state.", labels=labels)
        bad = GaugeMetricFamily(
            "headrace_stream_bad_rows", "Rows in the table of the rows that the target has refused.", labels=["stream"]
        )
        for name, kept in kept_beside(streams, self._catalog).items():
            if kept.bad_rows is not None:
                bad.add_metric([name], kept.bad_rows)
            for each in kept.states:
                for family, value in ((rows, each.size.rows), (sizes, each.size.bytes)):
                    if value is not None:
                        family.add_metric([name, each.content], value)
        yield from (rows, sizes, bad)

    def _counters(self, streams: list[StreamStatus]) -> Iterator[Metric]:
        rows = CounterMetricFamily(
            "headrace_stream_rows",
            "Rows that a stream has read (in) and published (out).",
            labels=["stream", "direction"],
        )
        batches = CounterMetricFamily("headrace_stream_batches", "Completed batches of a stream.", labels=["stream"])
        seconds = HistogramMetricFamily(
            "headrace_batch_seconds",
            "Durations of the phases of batches; triggerExecution is the whole batch.",
            labels=["stream", "phase"],
        )
        parts = HistogramMetricFamily(
            "headrace_batch_part_seconds",
            "Durations of the parts of phase addBatch, of streams whose batches headrace publishes.",
            labels=["stream", "part"],
        )
        for name in (status.name for status in streams):
            totals = self._totals[name]
            rows.add_metric([name, "in"], totals.rows_in)
            rows.add_metric([name, "out"], totals.rows_out)
            batches.add_metric([name], totals.batches)
            for phase, durations in totals.phases.items():
                family = parts if phase in PARTS else seconds
                family.add_metric([name, phase], durations.cumulative(), durations.total)
        yield from (rows, batches, seconds, parts)

    def _gauges(self, streams: list[StreamStatus]) -> Iterator[Metric]:
        last = {status.name: self._history.last_batch(status.name) for status in streams}
        for name, text, of_status in _STATUS_GAUGES:
            yield _gauge(name, text, {status.name: of_status(status) for status in streams})
        for name, text, of_batch in _BATCH_GAUGES:
            yield _gauge(name, text, {stream: of_batch(batch) for stream, batch in last.items() if batch is not None})


def _gauge(name: str, text: str, values: Mapping[str, float | None]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=["stream"])
    for stream, value in values.items():
        if value is not None:
            family.add_metric([stream], value)
    return family
