"""The figures of streams on the command line: as lines, as JSON, and while they are watched."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from headrace.cli.main import EXIT_INTERRUPTED, main
from headrace.cli.stream_progress import progress_facts, progress_line, progress_state
from headrace.model.tunnels.lag import Lag, Slot, duration_text
from headrace.streaming_sql.stream_registry import StreamRegistry, StreamStatus
from headrace.streaming_sql.workspace import Workspace
from tests.clocks import patch_time


def running(directory: Path, lag: Lag | None, rate: float | None = 50.0) -> StreamStatus:
    """Record a running stream with a lag."""
    registry = StreamRegistry(Workspace(directory))
    if registry.find("S") is None:
        registry.record_start("S", script="", fingerprint="f", target="t", checkpoint="cp")
        registry.set_running("S", "id")
    registry.set_progress("S", 3, rate, lag)
    return registry.get("S")


@pytest.mark.parametrize(
    ("lag", "says"),
    [
        (Lag(5000), "lag 5000, done in 1 min 40 s"),
        (Lag(5000, 1, 4, 2), "lag more than 5000 (2 of 4 ranges), done in 1 min 40 s"),
        (Lag(5000, seconds=90.2, bytes=700), "lag 5000, 1 min 30 s behind, 700 bytes, done in 1 min 40 s"),
        (Lag(50, slot=Slot("reserved", 900)), "lag 50, slot reserved (900 bytes), done in 1 s"),
        (Lag(50, slot=Slot("lost")), "lag 50, slot lost, done in 1 s"),
        (Lag(0, 2), "lag unknown"),
        (Lag(0), "lag 0"),
        (None, "lag -"),
    ],
)
def test_a_line_says_what_is_known(tmp_path: Path, lag: Lag | None, says: str) -> None:
    assert progress_line(running(tmp_path, lag)) == f"S: running, batch 3, 50.0 rows/s, {says}"


def test_json_tells_an_unknown_lag_from_none(tmp_path: Path) -> None:
    facts = progress_facts(running(tmp_path, Lag(0, 2)))
    assert (facts["lag"], facts["lag_is_exact"], facts["eta_seconds"]) == (0, False, None)
    assert progress_facts(running(tmp_path, Lag(100)))["eta_seconds"] == 2.0
    assert progress_facts(running(tmp_path, Lag(100), None))["eta_seconds"] is None


def test_an_ended_stream_has_no_time_left(tmp_path: Path) -> None:
    running(tmp_path, Lag(100))
    registry = StreamRegistry(Workspace(tmp_path))
    registry.set_ended("S", "stopped")
    assert registry.get("S").eta_seconds is None


def test_an_old_lag_has_its_age_everywhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that runs for minutes reports nothing; rows that came meanwhile are not in the lag."""
    status = running(tmp_path, Lag(0))
    assert (status.lag_text, progress_facts(status)["lag_age_seconds"]) == ("0", 0.0)
    fresh = progress_state([status])
    later = time.time() + 200
    patch_time(monkeypatch, "headrace.streaming_sql.stream_registry", time=lambda: later)
    assert status.lag_text == "0 (3 min 20 s ago)"
    assert "lag 0 (3 min 20 s ago)" in progress_line(status)
    assert "0 (3 min 20 s ago)" in status._repr_html_()
    assert progress_state([status]) != fresh
    for command in (["list"], ["describe", "S"]):
        assert main(["stream", *command, "-w", str(tmp_path)]) == 0
        assert "0 (3 min 20 s ago)" in " ".join(capsys.readouterr().out.split())
        assert main(["stream", *command, "-w", str(tmp_path), "--json"]) == 0
        (facts,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        facts = facts[0] if isinstance(facts, list) else facts
        assert (facts["lag"], round(facts["lag_age_seconds"])) == (0, 200)


def test_a_lag_of_a_process_that_does_not_write_its_time_has_no_age(tmp_path: Path) -> None:
    running(tmp_path, Lag(3))
    with Workspace(tmp_path).write() as connection:
        connection.execute("UPDATE stream SET lag_time = NULL")
    assert StreamRegistry(Workspace(tmp_path)).get("S").lag_text == "3 (at an unknown time)"


@pytest.mark.parametrize(("bounded", "left"), [(True, Lag(0, 0, 4, 4)), (False, Lag(0, 2, 4, 3))])
def test_a_finished_bounded_stream_has_read_all_rows(tmp_path: Path, bounded: bool, left: Lag) -> None:
    """The last report is from the begin of the last batch, when the store had not counted all rows."""
    registry = StreamRegistry(Workspace(tmp_path))
    registry.record_start("S", script="", fingerprint="f", target="t", checkpoint="cp", bounded=bounded)
    registry.set_progress("S", 3, 50.0, Lag(0, 2, 4, 3))
    registry.set_ended("S", "finished")
    assert registry.get("S").unread == left


def test_a_stream_that_starts_again_keeps_its_last_batch_and_lag(tmp_path: Path) -> None:
    running(tmp_path, Lag(7))
    registry = StreamRegistry(Workspace(tmp_path))
    registry.set_ended("S", "failed", "no server")
    registry.record_start("S", script="", fingerprint="f", target="t", checkpoint="cp")
    status = registry.get("S")
    assert (status.state, status.batch, status.unread, status.error) == ("starting", 3, Lag(7), None)
    registry.set_running("S", "id")
    assert registry.get("S").batch == 3
    # The query of a new checkpoint begins anew.
    registry.set_running("S", "other")
    status = registry.get("S")
    assert (status.batch, status.unread, status.lag_age_seconds) == (None, None, None)


def test_durations_have_two_units() -> None:
    texts = {0.4: "0 s", 45: "45 s", 200: "3 min 20 s", 7500: "2 h 5 min", 273_600: "3 d 4 h"}
    assert {seconds: duration_text(seconds) for seconds in texts} == texts


def test_streams_are_watched_until_an_interruption(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lags = iter([Lag(0), None])
    running(tmp_path, Lag(100))

    def next_lag(seconds: float) -> None:
        lag = next(lags)
        if lag is None:
            raise KeyboardInterrupt
        running(tmp_path, lag)

    patch_time(monkeypatch, "headrace.cli.stream_progress", sleep=next_lag)
    assert main(["stream", "list", "--watch", "--json", "-w", str(tmp_path)]) == EXIT_INTERRUPTED
    shown = [json.loads(line)["streams"][0] for line in capsys.readouterr().out.splitlines()]
    assert [(each["lag"], each["eta_seconds"]) for each in shown] == [(100, 2.0), (0, 0.0)]
