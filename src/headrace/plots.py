"""Figures of tunnels and of streams, by matplotlib: the forms of ``plot()``.

The figures do not belong to pyplot, so that a program which makes many of them keeps none.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from headrace.errors import MissingDependencyError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from headrace.ports.tunnels import TunnelDescription
    from headrace.streaming_sql.stream_history import BatchRecord

_MOST_CHANNELS = 40
_MOST_NUMBERS = 20
_WIDTH = 8.0
_COLORS = {"open": "tab:orange", "waiting": "tab:gray", "finished": "tab:green"}
# The whole batch contains the other phases.
_WHOLE = "triggerExecution"


def tunnel_figure(described: TunnelDescription) -> Figure:
    """Return the unread rows of a tunnel's channels as bars, in the order of their creation.

    A channel whose number of unread rows is unknown has a hatched bar, as long as the least number. Finished channels
    have no bar. Of more than 40 channels those with most unread rows are shown.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    channels = list(described.channels)
    if len(channels) > _MOST_CHANNELS:
        most = sorted(channels, key=lambda each: each.backlog.known, reverse=True)[:_MOST_CHANNELS]
        channels = [each for each in channels if each in most]
    figure = _figure(1.2 + 0.28 * max(len(channels), 1))
    from matplotlib.ticker import MaxNLocator

    axes = figure.subplots()
    for place, each in enumerate(channels):
        unknown = each.backlog.unread is None
        state = each.channel.state.value
        axes.barh(place, each.backlog.known, color=_COLORS[state], hatch="///" if unknown else None)
        rows = f"more than {each.backlog.known:,}" if unknown else f"{each.backlog.known:,}"
        axes.annotate(f" {state}, {rows}", (each.backlog.known, place), va="center", parse_math=False)
    axes.set_yticks(range(len(channels)), [each.channel.id for each in channels], parse_math=False)
    axes.invert_yaxis()
    axes.set_xlim(0, max([each.backlog.known for each in channels], default=0) * 1.3 or 1)
    axes.set_xlabel("unread rows")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    left_out = len(described.channels) - len(channels)
    more = f", without {left_out} channels" if left_out else ""
    axes.set_title(f"Tunnel {described.name} of {described.table}: {described.lag} unread{more}", parse_math=False)
    return figure


def stream_figure(name: str, batches: Sequence[BatchRecord]) -> Figure:
    """Return a stream's batches in order: rows in and out, seconds by phase, and unread rows after each.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    figure = _figure(6.0)
    rows, seconds, lag = figure.subplots(3, 1, sharex=True)
    places = range(len(batches))
    rows.bar([place - 0.2 for place in places], [batch.rows_in for batch in batches], width=0.4, label="in")
    # A sink that does not count its rows has none.
    rows.bar([place + 0.2 for place in places], [batch.rows_out or 0 for batch in batches], width=0.4, label="out")
    rows.set_ylabel("rows")
    _stack_phases(seconds, batches)
    seconds.set_ylabel("seconds")
    lag.bar(places, [batch.lag.rows if batch.lag is not None else 0 for batch in batches], color="tab:gray")
    lag.set_ylabel("unread rows")
    lag.set_xlabel("batch")
    # Spark's numbers of the batches, of which a failure can repeat one.
    shown = places[:: max(1, len(batches) // _MOST_NUMBERS)]
    lag.set_xticks(shown, [str(batches[place].batch) for place in shown])
    for axes in (rows, seconds, lag):
        axes.set_ylim(bottom=0, top=None if any(bar.get_height() for bar in axes.patches) else 1)
    for axes in (rows, seconds):
        if axes.get_legend_handles_labels()[1]:
            axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize="small")
    rows.set_title(f"Stream {name}: {len(batches):,} batches", parse_math=False)
    return figure


def _stack_phases(axes: Axes, batches: Sequence[BatchRecord]) -> None:
    below = np.zeros(len(batches))
    for phase in dict.fromkeys(phase for batch in batches for phase in batch.durations if phase != _WHOLE):
        heights = np.array([batch.durations.get(phase, 0.0) for batch in batches])
        axes.bar(range(len(batches)), heights, bottom=below, label=phase)
        below += heights


def _figure(height: float) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingDependencyError(
            "figures need a package that is not installed", received="matplotlib", remedy="pip install 'headrace[plot]'"
        ) from None

    class ShownFigure(Figure):
        """A figure that a notebook shows without pyplot."""

        def _repr_png_(self) -> bytes:
            picture = io.BytesIO()
            self.savefig(picture, format="png")
            return picture.getvalue()

    return ShownFigure(figsize=(_WIDTH, height), layout="constrained")
