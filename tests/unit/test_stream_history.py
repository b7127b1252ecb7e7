"""The history of streams in a workspace: batches, ends of runs, limits, and the upgrade of its format."""

from __future__ import annotations

import datetime
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import apsw
import pytest

from headrace.batches.sinks import batch_figures
from headrace.errors import OptionError, StoreDamagedError, remedy_in
from headrace.model.tunnels.lag import Lag
from headrace.streaming_sql import running_streams, stream_history
from headrace.streaming_sql.running_streams import RunningStreams, batch_record, has_batch
from headrace.streaming_sql.stream_history import BatchRecord, StreamHistory
from headrace.streaming_sql.stream_registry import StreamRegistry
from headrace.streaming_sql.workspace import _FORMAT_VERSION, Workspace

# The definitions and the version of a workspace that an earlier release wrote.
FORMAT_1 = """
CREATE TABLE definition (name TEXT PRIMARY KEY, definition TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE owner (id INTEGER PRIMARY KEY AUTOINCREMENT, pid INTEGER NOT NULL);
CREATE TABLE stream (name TEXT PRIMARY KEY, shown_name TEXT NOT NULL, script TEXT NOT NULL, fingerprint TEXT NOT NULL,
    target TEXT NOT NULL, checkpoint TEXT NOT NULL, wanted TEXT NOT NULL, state TEXT NOT NULL, owner INTEGER NOT NULL,
    pid INTEGER NOT NULL, query_id TEXT, batch INTEGER, rows_per_second REAL, lag INTEGER, error TEXT,
    started REAL NOT NULL, updated REAL NOT NULL) WITHOUT ROWID;
INSERT INTO owner VALUES (1, 4711);
INSERT INTO stream VALUES ('old', 'Old', 'CREATE STREAM Old', 'f', 't', 'cp', 'running', 'stopped', 1, 4711, 'id', 7,
    2.5, 12, NULL, 1.0, 2.0);
PRAGMA user_version = 1;
"""
NOW = time.time()
RECORD = BatchRecord(NOW, 3, 100, 40, {"addBatch": 0.5, "triggerExecution": 2.0}, Lag(7, 1, 4, 2), NOW - 60, 9, 4096)
REPORT: dict[str, Any] = {
    "id": "00000000-0000-0000-0000-00000000cafe",
    "timestamp": "2026-01-31T12:00:00.250Z",
    "batchId": 3,
    "durationMs": {"addBatch": 500, "triggerExecution": 2000},
    "eventTime": {"watermark": "2026-01-31T11:00:00.000Z"},
    "stateOperators": [
        {"numRowsTotal": 4, "memoryUsedBytes": 1000},
        {"numRowsTotal": 5, "memoryUsedBytes": 3096},
    ],
    "sources": [
        {
            "numInputRows": 60,
            "latestOffset": {"rowsBehindLatest": {"a": 5, "b": 2}, "rowsUnknown": ["b"], "baseRanges": [4, 2]},
        },
        {"numInputRows": 40, "latestOffset": None},
    ],
    "sink": {"numOutputRows": -1},
}


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path)


@pytest.fixture
def registry(workspace: Workspace) -> StreamRegistry:
    registry = StreamRegistry(workspace)
    start(registry)
    return registry


def start(registry: StreamRegistry) -> None:
    registry.record_start("S", script="CREATE STREAM S", fingerprint="f", target="t", checkpoint="cp")


def test_a_workspace_of_format_1_keeps_its_streams_and_gets_a_history(tmp_path: Path) -> None:
    directory = tmp_path / ".headrace"
    directory.mkdir()
    connection = apsw.Connection(str(directory / "workspace.db"))
    connection.execute(FORMAT_1)
    workspace = Workspace(tmp_path)
    (old,) = StreamRegistry(workspace).all()
    assert (old.name, old.batch, old.unread, old.remedy) == ("Old", 7, Lag(12), None)
    StreamRegistry(workspace).set_progress("old", 8, 1.0, Lag(0), [RECORD])
    # A process of the earlier release that has the workspace open goes on.
    connection.execute("UPDATE stream SET batch = 9, lag = 1 WHERE name = 'old'")
    assert StreamRegistry(workspace).get("old").batch == 9
    assert StreamHistory(workspace).batches("OLD") == [RECORD]
    connection.close()


def test_a_workspace_of_a_newer_format_is_refused(workspace: Workspace, registry: StreamRegistry) -> None:
    with workspace.write() as connection:
        connection.execute(f"PRAGMA user_version = {_FORMAT_VERSION + 1}")
    workspace.close()
    with pytest.raises(StoreDamagedError, match="newer version"):
        registry.all()


def test_batches_are_listed_by_time(workspace: Workspace, registry: StreamRegistry) -> None:
    records = [replace(RECORD, time=NOW + number, batch=number) for number in range(5)]
    records[2] = replace(records[2], rows_out=None, lag=None, watermark=None, state_rows=None, state_bytes=None)
    registry.set_progress("S", 4, 50.0, Lag(7), records)
    history = StreamHistory(workspace)
    assert history.batches("s") == records
    assert history.batches("s", since=NOW + 1, until=NOW + 3) == records[1:3]
    assert history.batches("s", limit=2) == records[3:]
    assert history.last_batch("s") == records[4]
    assert history.batches("other") == []
    assert (RECORD.seconds, RECORD.rows_per_second) == (2.0, 50.0)


def test_the_history_outlives_a_run_and_ends_with_its_stream(workspace: Workspace, registry: StreamRegistry) -> None:
    history = StreamHistory(workspace)
    registry.set_progress("S", 3, 1.0, Lag(7), [RECORD])
    registry.set_ended("S", "failed", "OptionError: no", "say yes")
    assert (registry.get("s").error, registry.get("s").remedy) == ("OptionError: no", "say yes")
    start(registry)
    registry.set_ended("S", "stopped")
    assert registry.get("s").error is None
    assert [ending.state for ending in history.endings("S")] == ["stopped", "failed"]
    failure = history.last_error("S")
    assert failure is not None
    assert (failure.error, failure.remedy) == ("OptionError: no", "say yes")
    assert history.batches("S") == [RECORD]
    registry.forget("S")
    assert (history.batches("S"), history.endings("S")) == ([], [])


def test_the_number_and_the_age_of_batches_are_limited(
    workspace: Workspace, registry: StreamRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_history, "KEPT_BATCHES", 10)
    old = replace(RECORD, time=NOW - 8 * 86400)
    records = [replace(RECORD, time=NOW + number, batch=number) for number in range(30)]
    registry.set_progress("S", 0, None, None, [old, *records[:5]])
    assert StreamHistory(workspace).batches("S") == records[:5]
    monkeypatch.setattr(stream_history, "PRUNE_EVERY", 25)
    registry.set_progress("S", 0, None, None, records[5:])
    assert StreamHistory(workspace).batches("S") == records[20:]


def test_a_report_of_spark_becomes_a_record() -> None:
    batch_figures.note_rows(REPORT["id"], 3, 17)
    record = batch_record(REPORT)
    assert record == BatchRecord(
        1769860800.25,
        *(3, 100, 17),
        {"addBatch": 0.5, "triggerExecution": 2.0},
        Lag(7, 1, 4, 2),
        1769857200.0,
        *(9, 4096),
    )
    assert batch_record({**REPORT, "batchId": 4}).rows_out is None
    plain = batch_record(
        {**REPORT, "eventTime": {"watermark": "1970-01-01T00:00:00.000Z"}, "stateOperators": [], "sources": []}
    )
    assert (plain.watermark, plain.state_rows, plain.lag) == (None, None, None)
    assert has_batch(REPORT)
    assert not has_batch({**REPORT, "durationMs": {"latestOffset": 1}})


class Report:
    """A progress report, as pyspark has it."""

    def __init__(self, batch: int, *, at: int | None = None, idle: bool = False) -> None:
        durations = {"latestOffset": 1} if idle else REPORT["durationMs"]
        started = datetime.datetime.fromtimestamp(NOW + (batch if at is None else at), datetime.UTC).isoformat()
        self.json = json.dumps({**REPORT, "batchId": batch, "timestamp": started, "durationMs": durations})
        self.batchId = batch
        self.processedRowsPerSecond = 50.0


class Query:
    """A query that is shorter than a poll: several batches end between two looks."""

    id = REPORT["id"]

    def __init__(self) -> None:
        self.recentProgress: list[Report] = []
        self.isActive = True

    @property
    def lastProgress(self) -> Report | None:
        return self.recentProgress[-1] if self.recentProgress else None

    def exception(self) -> None:
        return None


def test_every_batch_gets_into_the_history_once(
    workspace: Workspace, registry: StreamRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running_streams, "_POLL_SECONDS", 0.01)
    monkeypatch.setattr(running_streams, "_HISTORY_SECONDS", 0.02)
    history, query, streams = StreamHistory(workspace), Query(), RunningStreams(registry)
    # One assignment for each look of the watching thread: it must not see half of a change.
    query.recentProgress = [Report(0), Report(1), Report(2)]
    streams.start("S", lambda: query)  # type: ignore[arg-type, return-value]
    for count, more in (
        (4, [Report(3)]),
        (6, [Report(4), Report(5)]),
        (6, [Report(6, idle=True)]),
        (7, [Report(6, at=7), Report(7, at=8, idle=True)]),
    ):
        query.recentProgress = [*query.recentProgress, *more]
        deadline = time.monotonic() + 30
        while len(history.batches("S")) < count:
            assert time.monotonic() < deadline
            time.sleep(0.005)
    query.recentProgress = [*query.recentProgress, Report(7, at=9), Report(8, at=10)]
    query.isActive = False
    assert streams.wait(30)
    assert [record.batch for record in history.batches("S")] == list(range(9))
    status = registry.get("S")
    assert (status.state, status.batch, status.unread) == ("finished", 8, Lag(7, 1, 4, 2))
    assert status.eta_seconds is None


def test_the_remedy_of_an_error_is_found_in_its_message() -> None:
    for labels in ({}, {"received": "a; b"}, {"valid": "c"}, {"received": "x", "valid": "y"}):
        found = remedy_in(str(OptionError("no", **labels, remedy="do it")))
        assert found is not None
        assert found.endswith("do it")
    assert remedy_in(str(OptionError("no", received="x", remedy="do it; or not"))) == "do it; or not"
    assert remedy_in(str(OptionError("no", received="x"))) is None


def test_a_lag_says_what_it_does_not_know() -> None:
    assert Lag(10).eta_seconds(4.0) == 2.5
    assert Lag(0).eta_seconds(None) == 0.0
    assert Lag(10).eta_seconds(0.0) is None
    assert Lag(10).eta_seconds(float("nan")) is None
    assert Lag(10, unknown=1).eta_seconds(4.0) == 2.5
    assert Lag(0, unknown=1).eta_seconds(4.0) is None
    assert Lag.total([Lag(1, 0, 2, 1), Lag(2, 1)]) == Lag(3, 1, 2, 1)
    assert [str(lag) for lag in (Lag(5), Lag(5, 1), Lag(0, 1, 3, 1), Lag(5, 0, 3, 3))] == [
        "5",
        "more than 5",
        "unknown (1 of 3 ranges)",
        "5",
    ]
