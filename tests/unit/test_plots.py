"""The figures of tunnels and streams, by what they draw."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.container import BarContainer
from matplotlib.patches import StepPatch

import headrace
from headrace.errors import MissingDependencyError
from headrace.model.tunnels.lag import Lag
from headrace.model.tunnels.values import FINISHED, Backlog, Channel, ChannelKind, ChannelState
from headrace.ports.plots import tunnel_figure
from headrace.streaming_sql.stream_figure import stream_figure
from headrace.streaming_sql.stream_history import BatchRecord
from headrace.streaming_sql.stream_registry import StreamRegistry
from headrace.streaming_sql.workspace import Workspace


def channels(*backlogs: Backlog) -> list[tuple[Channel, Backlog]]:
    return [
        (Channel(f"c$x${number}", ChannelKind.STREAM, ChannelState.OPEN, FINISHED), backlog)
        for number, backlog in enumerate(backlogs)
    ]


def steps(axes: Axes) -> dict[str, list[float]]:
    """Return the heights of the steps above their baselines, by their labels."""
    found = {}
    for patch in axes.patches:
        assert isinstance(patch, StepPatch)
        values, _, baseline = patch.get_data()
        found[str(patch.get_label())] = list(np.asarray(values) - np.asarray(baseline))
    return found


def test_a_tunnel_has_a_bar_for_each_channel(tmp_path: Path) -> None:
    figure = tunnel_figure("Tunnel a$b$", channels(Backlog(3), Backlog(None, at_least=7), Backlog(0)))
    (axes,) = figure.axes
    bars = [each for each in axes.containers if isinstance(each, BarContainer)]
    assert [bar.patches[0].get_width() for bar in bars] == [3, 7, 0]
    assert [bool(bar.patches[0].get_hatch()) for bar in bars] == [False, True, False]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["c$x$0", "c$x$1", "c$x$2"]
    assert [text.get_text() for text in axes.texts] == [" open, 3", " open, more than 7", " open, 0"]
    assert axes.get_title() == "Tunnel a$b$"
    assert figure._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]


def test_the_channels_with_most_unread_rows_are_shown() -> None:
    (axes,) = tunnel_figure("t", channels(*(Backlog(number) for number in range(100)))).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == [f"c$x${number}" for number in range(60, 100)]
    assert axes.get_title().endswith("without 60 channels")


def test_a_tunnel_without_channels_and_one_of_a_store_can_be_drawn(tmp_path: Path) -> None:
    tunnel_figure("t", []).savefig(tmp_path / "empty.png")
    with headrace.open(tmp_path / "shop", create=True) as store:
        table = store.create_table("orders", {"id": "long"}, "id")
        tunnel = store.create_tunnel("orders", "stats", "Stream")
        table.put([{"id": 1}])
        assert tunnel.plot().axes[0].get_title() == "Tunnel stats of orders: 1 unread"


def test_a_stream_has_rows_phases_and_lag(tmp_path: Path) -> None:
    batches = [
        BatchRecord(
            float(n),
            n,
            10 * n,
            n or None,
            {"triggerExecution": 2.0, "later": 0.25, "addBatch": 1.5, "latestOffset": 0.5},
            Lag(5 - n),
        )
        for n in range(3)
    ]
    figure = stream_figure("$s$", batches)
    rows, seconds, lag = (steps(axes) for axes in figure.axes)
    assert rows["in"] == [0, 10, 20]
    assert np.isnan(rows["out"][0])
    assert rows["out"][1:] == [1, 2]
    # In the order of the phases, and each upon the others.
    assert list(seconds.items()) == [("latestOffset", [0.5] * 3), ("addBatch", [1.5] * 3), ("later", [0.25] * 3)]
    assert list(lag.values()) == [[5, 4, 3]]
    assert [label.get_text() for label in figure.axes[2].get_xticklabels()] == ["0", "1", "2"]
    figure.savefig(tmp_path / "stream.png")
    stream_figure("none", []).savefig(tmp_path / "none.png")


def test_a_long_history_has_few_numbers_of_batches() -> None:
    figure = stream_figure("s", [BatchRecord(float(n), n, 1) for n in range(500)])
    assert len(figure.axes[2].get_xticklabels()) == 12
    assert len(steps(figure.axes[0])["in"]) == 500


def test_a_status_draws_its_history(tmp_path: Path) -> None:
    registry = StreamRegistry(Workspace(tmp_path))
    registry.record_start("s", script="", fingerprint="f", target="t", checkpoint="cp")
    assert registry.get("s").plot().axes[0].get_title() == "Stream s: 0 batches"


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'headrace\[plot\]'"):
        stream_figure("s", [])
