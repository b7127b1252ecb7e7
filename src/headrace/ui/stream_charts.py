"""The charts of a stream's batches: rows, lag, durations by phase, delay of the watermark, state."""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from headrace.streaming_sql.stream_history import PARTS, WHOLE_BATCH, BatchRecord

MAX_POINTS = 240
Period: TypeAlias = tuple[float, float]
# A stream was idle if it had no batch for this time, and for this multiple of the usual time between batches.
_IDLE_SECONDS, _IDLE_STEPS = 60.0, 5
# In the order in which Spark goes through them.
PHASES = {
    "latestOffset": "find new rows",
    "getBatch": "get the batch",
    "walCommit": "log the offsets",
    "queryPlanning": "plan",
    "gather": "gather rows",
    "evaluate": "evaluate",
    "publish": "publish",
    "addBatch": "read, compute and write",
    "commitOffsets": "log the commit",
}


@dataclass(frozen=True)
class Chart:
    """A chart: a title, its data as JSON for the script of the page, and whether its legend needs more space."""

    title: str
    data: str
    tall: bool = False


def charts_of(batches: Sequence[BatchRecord], begin: float, end: float) -> list[Chart]:
    """Return the charts of batches in order of time. Charts without any value are left out.

    Args:
        begin, end: the period of the time axis, in seconds since 1970.
    """
    points, period = thinned(batches), (begin, end)
    found = [
        _lines(points, period, "Rows a batch", {"in": lambda each: each.rows_in, "out": lambda each: each.rows_out}),
        _lines(points, period, "Lag in rows", {"unread rows": _lag}),
        _phases(points, period),
        _lines(points, period, "Watermark behind the clock, in seconds", {"seconds": _delay}),
        _lines(points, period, "Rows of state", {"rows": lambda each: each.state_rows}),
        _lines(points, period, "State in MiB", {"MiB": _mebibytes}),
    ]
    return [chart for chart in found if chart is not None]


def thinned(batches: Sequence[BatchRecord]) -> list[BatchRecord]:
    """Return at most `MAX_POINTS` batches: of each interval the longest one, which a person looks for."""
    step = max(1, -(-len(batches) // MAX_POINTS))
    return [max(batches[at : at + step], key=lambda each: each.seconds) for at in range(0, len(batches), step)]


def _lines(
    points: Sequence[BatchRecord],
    period: Period,
    title: str,
    lines: dict[str, Callable[[BatchRecord], float | None]],
) -> Chart | None:
    values = {name: [value(each) for each in points] for name, value in lines.items()}
    drawn = {name: found for name, found in values.items() if any(each is not None for each in found)}
    return _chart(points, period, title, drawn.items(), stacked=False) if drawn else None


def _phases(points: Sequence[BatchRecord], period: Period) -> Chart | None:
    """Return the durations of the phases, one upon the other. What is not in a known phase is "other"."""
    if not any(each.durations for each in points):
        return None
    parts = [[_seconds(each, phase) for phase in PHASES] for each in points]
    for part, each in zip(parts, points, strict=True):
        part.append(max(0.0, each.durations.get(WHOLE_BATCH, 0.0) - sum(part)))
    names = [*PHASES.values(), "other"]
    sums = [[round(each, 3) for each in itertools.accumulate(part)] for part in parts]
    # The highest first: each area covers the part of the one before that is below it.
    lines = [(name, [each[place] for each in sums]) for place, name in reversed(list(enumerate(names)))]
    return _chart(points, period, "Duration of a batch by phase, in seconds", lines, stacked=True)


def _seconds(batch: BatchRecord, phase: str) -> float:
    """Return the duration of a phase; of ``addBatch`` without the parts that headrace has measured."""
    seconds = batch.durations.get(phase, 0.0)
    inner = sum(batch.durations.get(part, 0.0) for part in PARTS) if phase == "addBatch" else 0.0
    return max(0.0, seconds - inner)


def _chart(
    points: Sequence[BatchRecord],
    period: Period,
    title: str,
    lines: Iterable[tuple[str, Sequence[float | None]]],
    *,
    stacked: bool,
) -> Chart:
    times = [round(each.time, 2) for each in points]
    idle = _idle(times)
    data = {
        "x": _with_breaks(times, idle, lambda place: (times[place - 1] + times[place]) / 2),
        "range": period,
        "time": True,
        "labels": None,
        "stacked": stacked,
        "lines": [{"name": name, "y": _with_breaks(values, idle, lambda _: None)} for name, values in lines],
    }
    return Chart(title, json.dumps(data), tall=stacked)


def _idle(times: Sequence[float]) -> list[int]:
    """Return the places of batches before which a stream had none for long: no line leads there."""
    steps = [after - before for before, after in itertools.pairwise(times)]
    if not steps:
        return []
    longest = max(_IDLE_SECONDS, _IDLE_STEPS * statistics.median(steps))
    return [place for place, step in enumerate(steps, 1) if step > longest]


def _with_breaks(
    values: Sequence[float | None], idle: Sequence[int], between: Callable[[int], float | None]
) -> list[float | None]:
    """Return values with one more before each of some places."""
    found: list[float | None] = []
    for place, value in enumerate(values):
        if place in idle:
            found.append(between(place))
        found.append(value)
    return found


def _lag(batch: BatchRecord) -> float | None:
    return None if batch.lag is None else batch.lag.rows


def _delay(batch: BatchRecord) -> float | None:
    return None if not batch.watermark else round(batch.time - batch.watermark, 2)


def _mebibytes(batch: BatchRecord) -> float | None:
    return None if batch.state_bytes is None else round(batch.state_bytes / (1 << 20), 3)
