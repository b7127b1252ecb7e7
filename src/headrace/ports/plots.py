"""Figures by matplotlib for notebooks: the forms of ``plot()``. `headrace.streaming_sql.stream_figure` draws streams.

The figures do not belong to pyplot, so that a program which makes many of them keeps none.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.support.extras import PLOTS, check_extras

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from headrace.model.tunnels.values import Backlog, Channel

_MOST_CHANNELS = 40
_MOST_CHARACTERS = 80
_WIDTH = 8.0
_COLORS = {"open": "tab:orange", "waiting": "tab:gray", "finished": "tab:green"}


def tunnel_figure(title: str, channels: Sequence[tuple[Channel, Backlog]]) -> Figure:
    """Return the unread rows of a tunnel's channels as bars, in the order of their creation.

    A channel whose number of unread rows is unknown has a hatched bar, as long as the least number. Finished channels
    have no bar. Of more than 40 channels those with most unread rows are shown.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    most = sorted(range(len(channels)), key=lambda place: channels[place][1].known, reverse=True)[:_MOST_CHANNELS]
    shown = [channels[place] for place in sorted(most)]
    figure = new_figure(1.2 + 0.28 * max(len(shown), 1))
    from matplotlib.ticker import MaxNLocator

    axes = figure.subplots()
    for place, (channel, backlog) in enumerate(shown):
        unknown = backlog.unread is None
        axes.barh(place, backlog.known, color=_COLORS[channel.state.value], hatch="///" if unknown else None)
        rows = f"more than {backlog.known:,}" if unknown else f"{backlog.known:,}"
        axes.annotate(f" {channel.state}, {rows}", (backlog.known, place), va="center", parse_math=False)
    axes.set_yticks(range(len(shown)), [short(channel.id) for channel, _ in shown], parse_math=False)
    axes.invert_yaxis()
    axes.set_xlim(0, max([backlog.known for _, backlog in shown], default=0) * 1.3 or 1)
    axes.set_xlabel("unread rows")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    left_out = len(channels) - len(shown)
    axes.set_title(short(title) + (f", without {left_out} channels" if left_out else ""), parse_math=False)
    return figure


def short(text: str) -> str:
    """Return a name that leaves room for the figure."""
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}…"


def new_figure(height: float) -> Figure:
    """Return an empty figure, 8 inches wide and as high as given in inches, which a notebook shows.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    check_extras("figures", PLOTS)
    from matplotlib.figure import Figure

    class ShownFigure(Figure):
        """A figure that a notebook shows without pyplot."""

        def _repr_png_(self) -> bytes:
            picture = io.BytesIO()
            self.savefig(picture, format="png")
            return picture.getvalue()

    return ShownFigure(figsize=(_WIDTH, height), layout="constrained")
