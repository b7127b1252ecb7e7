"""The progress of streams as records, rows and lines: the same figures in each command that shows streams."""

from __future__ import annotations

import datetime
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import RenderableType

    from headrace.cli.output import Output
    from headrace.streaming_sql.stream_registry import StreamStatus

LIST_COLUMNS = (
    "name", "state", "target", "batch", "rows_per_second", "lag", "eta_seconds", "pid", "error",
)  # fmt: skip
NOTHING = "The workspace has no streams."
_HEADINGS = ("stream", "state", "batch", "rows/s", "lag", "ETA")


def status_facts(status: StreamStatus) -> dict[str, Any]:
    """Return a stream's status as one record. The numbers are null where they are unknown."""
    return {
        "name": status.name,
        "state": status.state,
        "target": status.target,
        "checkpoint": status.checkpoint,
        "pid": status.pid,
        "query_id": status.query_id,
        "batch": status.batch,
        "rows_per_second": status.rows_per_second,
        "lag": status.lag,
        "lag_is_exact": None if status.unread is None else status.unread.exact,
        "base_ranges": status.ranges,
        "base_ranges_read": status.ranges_done,
        "eta_seconds": None if status.eta_seconds is None else round(status.eta_seconds, 1),
        "error": status.error,
        "remedy": status.remedy,
        "started": _instant(status.started),
        "updated": _instant(status.updated),
    }


def progress_facts(status: StreamStatus) -> dict[str, Any]:
    """Return the figures of a running stream as one record."""
    facts = status_facts(status)
    rate = facts["rows_per_second"]
    names = ("name", "state", "batch", "rows_per_second", "lag", "lag_is_exact", "eta_seconds")
    return {name: facts[name] for name in names} | {"rows_per_second": None if rate is None else round(rate, 1)}


def progress_line(status: StreamStatus) -> str:
    """Return the figures of a running stream as one line."""
    name, state, batch, rate, lag, eta = (("-" if figure is None else figure) for figure in _figures(status))
    until = "" if eta == "-" else f", done in {eta}"
    return f"{name}: {state}, batch {batch}, {rate} rows/s, lag {lag}{until}"


def progress_picture(streams: Sequence[StreamStatus]) -> RenderableType:
    """Return the figures of streams as a table for a terminal, which `headrace.cli.output.LiveView` refreshes."""
    from headrace.cli.output import console_table

    return console_table(_HEADINGS, [_figures(status) for status in streams])


def watch_streams(output: Output, read: Callable[[], Sequence[StreamStatus]]) -> None:
    """Show the figures of streams until the process is interrupted.

    Args:
        read: returns the streams of now.
    """
    with output.live() as view:
        while True:
            streams = read()
            text = "\n".join(map(progress_line, streams)) or NOTHING
            view.show(text, progress_picture(streams), streams=[progress_facts(status) for status in streams])
            time.sleep(view.seconds_between)


def progress_state(streams: Sequence[StreamStatus]) -> list[tuple[object, ...]]:
    """Return the values that change when a picture of the streams has to be drawn again."""
    return [(each.name, each.state, each.batch, each.lag, each.lag_unknown) for each in streams]


def duration_text(seconds: float) -> str:
    """Return a duration for people, in two units: ``45 s``, ``3 min 20 s``, ``2 h 5 min``, ``3 d 4 h``."""
    whole = round(seconds)
    for size, unit, smaller, smaller_unit in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // smaller} {smaller_unit}"
    return f"{whole} s"


def _figures(status: StreamStatus) -> tuple[str, str, int | None, float | None, str | None, str | None]:
    rate = None if status.rows_per_second is None else round(status.rows_per_second, 1)
    lag = None if status.unread is None else str(status.unread)
    eta = duration_text(status.eta_seconds) if status.eta_seconds else None
    return status.name, status.state, status.batch, rate, lag, eta


def _instant(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="seconds")
