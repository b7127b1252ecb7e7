"""The progress of streams as records, rows and lines: the same figures in each command that shows streams."""

from __future__ import annotations

import datetime
import time
from typing import TYPE_CHECKING, Any

from headrace.model.tunnels.lag import duration_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import RenderableType

    from headrace.cli.output import Output
    from headrace.streaming_sql.stream_registry import StreamStatus

LIST_COLUMNS = (
    "name", "state", "target", "batch", "rows_per_second", "lag", "lag_seconds", "lag_bytes", "slot_status",
    "slot_bytes", "eta_seconds", "pid", "error",
)  # fmt: skip
NOTHING = "The workspace has no streams."
_REDRAWN_SECONDS = 30
_HEADINGS = ("stream", "state", "batch", "rows/s", "lag", "behind", "bytes", "slot", "ETA")


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
        "lag_age_seconds": None if status.lag_age_seconds is None else round(status.lag_age_seconds, 1),
        "lag_seconds": None if status.lag_seconds is None else round(status.lag_seconds, 1),
        "lag_bytes": status.lag_bytes,
        "slot_status": status.slot_status,
        "slot_bytes": status.slot_bytes,
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
    names = (
        *("name", "state", "batch", "rows_per_second", "lag", "lag_is_exact", "lag_age_seconds"),
        *("lag_seconds", "lag_bytes", "slot_status", "slot_bytes", "eta_seconds"),
    )
    return {name: facts[name] for name in names} | {"rows_per_second": None if rate is None else round(rate, 1)}


def progress_line(status: StreamStatus) -> str:
    """Return the figures of a running stream as one line."""
    name, state, batch, rate, lag, behind, size, slot, eta = (
        ("-" if figure is None else figure) for figure in _figures(status)
    )
    until = "" if eta == "-" else f", done in {eta}"
    age = "" if behind == "-" else f", {behind} behind"
    unread = "" if size == "-" else f", {size} bytes"
    kept = "" if slot == "-" else f", slot {slot}"
    return f"{name}: {state}, batch {batch}, {rate} rows/s, lag {lag}{age}{unread}{kept}{until}"


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
    """Return the values that change when a picture of the streams has to be drawn again; also the age of an old lag."""
    ages = [each.lag_age_seconds if each.is_live else None for each in streams]
    return [(*_changing(each), (age or 0.0) // _REDRAWN_SECONDS) for each, age in zip(streams, ages, strict=True)]


def _changing(status: StreamStatus) -> tuple[object, ...]:
    return status.name, status.state, status.batch, status.lag, status.lag_unknown, status.slot_status


def _figures(status: StreamStatus) -> tuple[str | int | float | None, ...]:
    rate = None if status.rows_per_second is None else round(status.rows_per_second, 1)
    eta = duration_text(status.eta_seconds) if status.eta_seconds else None
    behind = None if status.lag_seconds is None else duration_text(status.lag_seconds)
    slot = status.slot_status
    if status.slot_bytes is not None:
        slot = f"{slot} ({status.slot_bytes} bytes)"
    return status.name, status.state, status.batch, rate, status.lag_text, behind, status.lag_bytes, slot, eta


def _instant(seconds: float) -> str:
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat(timespec="seconds")
