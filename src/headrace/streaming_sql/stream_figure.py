"""The figure of a stream's batches, by matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from headrace.plots import new_figure, short
from headrace.streaming_sql.stream_history import BatchRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_NUMBERS = 20
# The whole batch contains the other phases.
_WHOLE = "triggerExecution"


def stream_figure(name: str, batches: Sequence[BatchRecord]) -> Figure:
    """Return a stream's batches in order: rows in and out, seconds by phase, and unread rows after each.

    A number that is unknown has no bar.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    figure = new_figure(6.0)
    rows, seconds, lag = figure.subplots(3, 1, sharex=True)
    _bars(rows, [batch.rows_in for batch in batches], shift=-0.2, width=0.4, label="in")
    _bars(rows, [batch.rows_out for batch in batches], shift=0.2, width=0.4, label="out")
    rows.set_ylabel("rows")
    _stack_phases(seconds, batches)
    seconds.set_ylabel("seconds")
    _bars(lag, [None if batch.lag is None else batch.lag.rows for batch in batches], color="tab:gray")
    lag.set_ylabel("unread rows")
    lag.set_xlabel("batch")
    # Spark's numbers of the batches, of which a failure can repeat one.
    shown = range(len(batches))[:: max(1, len(batches) // _MOST_NUMBERS)]
    lag.set_xticks(shown, [str(batches[place].batch) for place in shown])
    for axes in (rows, seconds, lag):
        axes.set_ylim(bottom=0, top=None if any(bar.get_height() for bar in axes.patches) else 1)
    for axes in (rows, seconds):
        if axes.get_legend_handles_labels()[1]:
            axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize="small")
    rows.set_title(f"Stream {short(name)}: {len(batches):,} batches", parse_math=False)
    return figure


def _bars(
    axes: Axes,
    values: Sequence[int | None],
    *,
    shift: float = 0.0,
    width: float = 0.8,
    label: str = "",
    color: str | None = None,
) -> None:
    known = [(place + shift, value) for place, value in enumerate(values) if value is not None]
    axes.bar([place for place, _ in known], [value for _, value in known], width=width, label=label, color=color)


def _stack_phases(axes: Axes, batches: Sequence[BatchRecord]) -> None:
    below = np.zeros(len(batches))
    for phase in dict.fromkeys(phase for batch in batches for phase in batch.durations if phase != _WHOLE):
        heights = np.array([batch.durations.get(phase, 0.0) for batch in batches])
        axes.bar(range(len(batches)), heights, bottom=below, label=phase)
        below += heights
