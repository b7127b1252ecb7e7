"""The figure of a stream's batches, by matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.ports.plots import new_figure, short
from headrace.streaming_sql.stream_history import PARTS, PHASES, WHOLE_BATCH, BatchRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_NUMBERS = 12


def stream_figure(name: str, batches: Sequence[BatchRecord]) -> Figure:
    """Return a stream's batches in order: rows in and out, seconds by phase, and unread rows after each.

    Each series is one artist of steps, which matplotlib draws without gaps for any number of batches. A number that is
    unknown has no step.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    figure = new_figure(6.0)
    rows, seconds, lag = figure.subplots(3, 1, sharex=True)
    _steps(rows, [batch.rows_in for batch in batches], fill=True, label="in", color="tab:blue")
    _steps(rows, [batch.rows_out for batch in batches], label="out", color="tab:orange", linewidth=1.5)
    rows.set_ylabel("rows")
    _stack_phases(seconds, batches)
    seconds.set_ylabel("seconds")
    _steps(lag, [None if batch.lag is None else batch.lag.rows for batch in batches], fill=True, color="tab:gray")
    lag.set_ylabel("unread rows")
    lag.set_xlabel("batch")
    # Spark's numbers of the batches, of which a failure can repeat one.
    shown = range(len(batches))[:: -(-len(batches) // _MOST_NUMBERS) or 1]
    lag.set_xticks(shown, [str(batches[place].batch) for place in shown])
    for axes in (rows, seconds, lag):
        axes.set_ylim(bottom=0, top=None if axes.dataLim.ymax > 0 else 1)
    for axes in (rows, seconds):
        if axes.get_legend_handles_labels()[1]:
            axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize="small")
    rows.set_title(f"Stream {short(name)}: {len(batches):,} batches", parse_math=False)
    return figure


def _steps(
    axes: Axes,
    values: Sequence[int | None],
    *,
    color: str,
    fill: bool = False,
    label: str | None = None,
    linewidth: float | None = None,
) -> None:
    if values:
        heights = np.array([np.nan if value is None else value for value in values])
        axes.stairs(heights, _edges(len(values)), fill=fill, label=label, color=color, linewidth=linewidth)


def _stack_phases(axes: Axes, batches: Sequence[BatchRecord]) -> None:
    found = dict.fromkeys(phase for batch in batches for phase in batch.durations if phase not in (WHOLE_BATCH, *PARTS))
    below = np.zeros(len(batches))
    for phase in [*(phase for phase in PHASES if phase in found), *(phase for phase in found if phase not in PHASES)]:
        above = below + [batch.durations.get(phase, 0.0) for batch in batches]
        axes.stairs(above, _edges(len(batches)), baseline=below, fill=True, label=phase)
        below = above


def _edges(count: int) -> np.ndarray[tuple[Any, ...], np.dtype[np.floating[Any]]]:
    """Return the edges of steps whose centers are the places of the batches."""
    return np.arange(count + 1) - 0.5
