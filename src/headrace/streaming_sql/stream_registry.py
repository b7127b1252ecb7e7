"""The registry of a workspace's streams, which all its processes share."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from headrace.errors import AlreadyExistsError, NotFoundError, StoreBusyError
from headrace.model.tunnels.lag import Lag, duration_text
from headrace.streaming_sql import stream_history
from headrace.streaming_sql.stream_history import BatchRecord, Ending, StreamHistory
from headrace.streaming_sql.workspace import Workspace
from headrace.support import notebooks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STATES = ("starting", "running", "stopped", "finished", "failed", "lost")
LIVE_STATES = ("starting", "running")
# An idle stream measures its lag every 10 seconds, a busy one after each batch.
_OLD_SECONDS = 5.0
_STOP_TIMEOUT_SECONDS = 120.0
_COLUMNS = (
    "shown_name, state, target, checkpoint, owner, pid, query_id, batch, rows_per_second, lag, error, started, "
    "updated, script, fingerprint, lag_unknown, ranges, ranges_done, remedy, lag_time, view, "
    "lag_seconds, lag_bytes, slot_status, slot_bytes"
)


@dataclass(frozen=True)
class StreamStatus:
    """The state of a stream in the workspace.

    Attributes:
        state: one of `STATES`; ``lost`` if its process has died.
        query_id: Spark's id of the query, which is in its checkpoint.
        batch: the last completed batch.
        rows_per_second: the speed of that batch.
        lag: the known number of unread rows in its sources at ``lag_time``; None if they do not report it.
        error: the error of its last run, if that failed.
        started, updated: seconds since 1970.
        script: the statements that start the stream again, without secrets.
        fingerprint: a hash of the statement, to detect another text.
        lag_unknown: the number of channels with more unread rows than ``lag`` counts.
        ranges, ranges_done: the key ranges of base data in its sources, and how many of them are read.
        remedy: what solves the problem of ``error``; None if it does not say.
        lag_time: the time at which the lag was measured, in seconds since 1970; None if it is unknown.
        view: the query of the materialized view that the stream keeps; None for other streams.
        lag_seconds: the age of the oldest unread change at ``lag_time``; None if it is unknown.
        lag_bytes: the size of the unread changes at ``lag_time``; None if it is unknown.
        slot_status: the status of the replication slot that its tunnels have, the worst of several; None without one.
        slot_bytes: the size of the log that servers keep for these slots; None without one, or if it is unknown.
        history: the workspace's history of streams, which `plot` reads.
    """

    name: str
    state: str
    target: str
    checkpoint: str
    pid: int
    query_id: str | None
    batch: int | None
    rows_per_second: float | None
    lag: int | None
    error: str | None
    started: float
    updated: float
    script: str
    fingerprint: str = field(repr=False)
    lag_unknown: int = 0
    ranges: int = 0
    ranges_done: int = 0
    remedy: str | None = None
    lag_time: float | None = None
    view: str | None = None
    lag_seconds: float | None = None
    lag_bytes: int | None = None
    slot_status: str | None = None
    slot_bytes: int | None = None
    history: StreamHistory | None = field(default=None, repr=False, compare=False)

    @property
    def unread(self) -> Lag | None:
        """The lag with what is unknown of it; None if the sources do not report it."""
        return None if self.lag is None else Lag(self.lag, self.lag_unknown, self.ranges, self.ranges_done)

    @property
    def lag_age_seconds(self) -> float | None:
        """The age of the lag: rows that came later are not in it. None without a lag, or if its age is unknown."""
        return None if self.lag is None or self.lag_time is None else max(0.0, time.time() - self.lag_time)

    @property
    def lag_text(self) -> str | None:
        """The lag for people, with its age if it is old: ``1200 (3 min 20 s ago)``; None if it is unknown."""
        if self.unread is None:
            return None
        age = self.lag_age_seconds
        if age is None:
            return f"{self.unread} (at an unknown time)"
        return f"{self.unread} ({duration_text(age)} ago)" if age >= _OLD_SECONDS else str(self.unread)

    @property
    def eta_seconds(self) -> float | None:
        """The time until a running stream has read all its rows, at the speed of the last batch; None if unknown."""
        return self.unread.eta_seconds(self.rows_per_second) if self.is_live and self.unread is not None else None

    @property
    def is_live(self) -> bool:
        return self.state in LIVE_STATES

    def _repr_html_(self) -> str:
        rate = None if self.rows_per_second is None else round(self.rows_per_second, 1)
        values = {"state": self.state, "target": self.target, "batch": self.batch, "rows per second": rate}
        values["lag"] = self.lag_text
        failure = {"error": self.error, "remedy": self.remedy} if self.error else {}
        return notebooks.facts(f"Stream {self.name}", {**values, **failure})

    def plot(self, *, batches: int = 500) -> Figure:
        """Return a figure of the last batches: rows in and out, seconds by phase, and unread rows.

        Args:
            batches: the maximum number of batches.

        Raises:
            MissingDependencyError: matplotlib (``headrace[plot]``) is not installed.
        """
        from headrace.streaming_sql.stream_figure import stream_figure

        return stream_figure(self.name, [] if self.history is None else self.history.batches(self.name, limit=batches))

    def check_ended(self) -> None:
        """Raise `AlreadyExistsError` if the stream runs."""
        if self.is_live:
            raise AlreadyExistsError(
                "the stream is already running",
                received=f"{self.name}, in process {self.pid}",
                remedy=f"STOP STREAM {self.name} stops it",
            )

    def check_text(self, fingerprint: str) -> None:
        """Raise `AlreadyExistsError` if a query of the stream has run, and had another text."""
        if self.query_id is not None and self.fingerprint != fingerprint:
            if self.view is not None:
                raise AlreadyExistsError(
                    "a materialized view of this name was created with another query or other options",
                    received=self.name,
                    remedy=f"CREATE OR REPLACE MATERIALIZED VIEW {self.name} … gives it this query and these options",
                )
            raise AlreadyExistsError(
                "a stream of this name was created with another text",
                received=self.name,
                remedy=f"CREATE OR REPLACE STREAM {self.name} … gives a stream that follows tables another text; for "
                f"others, DROP STREAM {self.name} first, and use another checkpointLocation if the new query does not "
                "fit the state of the old one",
            )


class StreamRegistry:
    """The table of streams in a workspace. Names are case-insensitive."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        # The streams of this process whose queries end when they have read all rows.
        self._bounded: set[str] = set()

    def all(self) -> list[StreamStatus]:
        """Return the streams, by name."""
        return [self._status(row) for row in self._workspace.query(f"SELECT {_COLUMNS} FROM stream ORDER BY name")]

    def names(self) -> list[str]:
        """Return the names of the streams, without their states."""
        return [name for (name,) in self._workspace.query("SELECT shown_name FROM stream ORDER BY name")]

    def find(self, name: str) -> StreamStatus | None:
        rows = self._workspace.query(f"SELECT {_COLUMNS} FROM stream WHERE name = ?", (name.lower(),))
        return self._status(rows[0]) if rows else None

    def get(self, name: str) -> StreamStatus:
        """Return a stream, or raise `NotFoundError`."""
        found = self.find(name)
        if found is None:
            known = [status.name for status in self.all()]
            raise NotFoundError("no such stream in this workspace", received=name, valid=known)
        return found

    def _status(self, row: tuple[Any, ...]) -> StreamStatus:
        name, state, target, checkpoint, owner, *rest = row
        if state in LIVE_STATES and not self._workspace.is_alive(owner):
            state = "lost"
        return replace(StreamStatus(name, state, target, checkpoint, *rest), history=StreamHistory(self._workspace))

    def record_start(
        self,
        name: str,
        *,
        script: str,
        fingerprint: str,
        target: str,
        checkpoint: str,
        view: str | None = None,
        replace: bool = False,
        bounded: bool = False,
    ) -> None:
        """Record that this process starts a stream, before it starts the query.

        A stream whose query never started has only its name, so it may get another text. A stream that starts again
        keeps its last batch and lag, until its query reports new ones.

        Args:
            view: the query of the materialized view that the stream keeps; None leaves it as it is.
            replace: the stream may have had another text.
            bounded: the query ends when it has read all rows that its sources have at its start.

        Raises:
            AlreadyExistsError: the stream runs in any process, or was created with another text.
        """
        owner = self._workspace.owner()
        now = time.time()
        (self._bounded.add if bounded else self._bounded.discard)(name.lower())
        with self._workspace.write() as connection:
            rows = list(connection.execute(f"SELECT {_COLUMNS} FROM stream WHERE name = ?", (name.lower(),)))
            query_id = batch = None
            lag: tuple[Any, ...] = (None, 0, 0, 0, None)
            if rows:
                known = self._status(rows[0])
                known.check_ended()
                query_id, batch, view = known.query_id, known.batch, known.view if view is None else view
                lag = (known.lag, known.lag_unknown, known.ranges, known.ranges_done, known.lag_time)
                if not replace:
                    known.check_text(fingerprint)
            connection.execute(
                "INSERT OR REPLACE INTO stream (name, shown_name, script, fingerprint, target, checkpoint, wanted, "
                "state, owner, pid, query_id, started, updated, "
                "batch, lag, lag_unknown, ranges, ranges_done, lag_time, view) "
                "VALUES (?, ?, ?, ?, ?, ?, 'running', 'starting', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    *(name.lower(), name, script, fingerprint, target, checkpoint, owner, os.getpid(), query_id),
                    *(now, now, batch, *lag, view),
                ),
            )

    def set_script(self, name: str, script: str) -> None:
        """Record the statements that start a stream again."""
        self._update(name, "script = ?", script)

    def set_running(self, name: str, query_id: str) -> None:
        """Record that a query runs. A query with another id, of a new checkpoint, has no batch yet."""
        kept = ("batch", "lag", "lag_time", "lag_seconds", "lag_bytes", "slot_status", "slot_bytes")
        of_query = ", ".join(f"{column} = CASE WHEN query_id = ?1 THEN {column} END" for column in kept)
        self._update(name, f"state = 'running', query_id = ?1, {of_query}", query_id)

    def set_progress(
        self,
        name: str,
        batch: int,
        rows_per_second: float | None,
        lag: Lag | None,
        completed: Sequence[BatchRecord] = (),
    ) -> None:
        """Record the progress of a stream, and its completed batches in its history, in one transaction."""
        unread = Lag(0) if lag is None else lag
        slot = (None, None) if unread.slot is None else unread.slot
        with self._workspace.write() as connection:
            connection.execute(
                "UPDATE stream SET batch = ?1, rows_per_second = ?2, lag = ?3, lag_unknown = ?4, ranges = ?5, "
                "ranges_done = ?6, updated = ?7, lag_time = ?7, lag_seconds = ?8, lag_bytes = ?9, "
                "slot_status = ?10, slot_bytes = ?11 WHERE name = ?12",
                (
                    *(batch, rows_per_second, None if lag is None else lag.rows, unread.unknown, unread.ranges),
                    *(unread.ranges_done, time.time(), unread.seconds, unread.bytes, *slot, name.lower()),
                ),
            )
            stream_history.add_batches(connection, name, completed)

    def set_ended(self, name: str, state: str, error: str | None = None, remedy: str | None = None) -> None:
        """Record the end of a run, also in the history.

        A bounded query that has finished has read all rows: its last report is from before its last batch.
        """
        now = time.time()
        with self._workspace.write() as connection:
            if state == "finished" and name.lower() in self._bounded:
                connection.execute(
                    "UPDATE stream SET lag = 0, lag_unknown = 0, ranges_done = ranges, lag_time = ?, "
                    "lag_seconds = CASE WHEN lag_seconds IS NOT NULL THEN 0 END, "
                    "lag_bytes = CASE WHEN lag_bytes IS NOT NULL THEN 0 END "
                    "WHERE name = ? AND lag IS NOT NULL",
                    (now, name.lower()),
                )
            connection.execute(
                "UPDATE stream SET state = ?, error = ?, remedy = ?, updated = ? WHERE name = ?",
                (state, error, remedy, now, name.lower()),
            )
            stream_history.add_ending(connection, name, Ending(now, state, error, remedy))

    def ask_to_stop(self, name: str) -> None:
        """Request a stop from the process that runs a stream."""
        self._update(name, "wanted = 'stopped'")

    def asked_to_stop(self) -> set[str]:
        """Return the names (in lower case) of the streams with a requested stop."""
        return {name for (name,) in self._workspace.query("SELECT name FROM stream WHERE wanted = 'stopped'")}

    def forget(self, name: str) -> None:
        """Delete a stream and its history."""
        with self._workspace.write() as connection:
            connection.execute("DELETE FROM stream WHERE name = ?", (name.lower(),))
            stream_history.forget(connection, name)

    def _update(self, name: str, assignments: str, *values: object) -> None:
        with self._workspace.write() as connection:
            connection.execute(
                f"UPDATE stream SET {assignments}, updated = ? WHERE name = ?", (*values, time.time(), name.lower())
            )

    def wait_until_ended(self, name: str, timeout: float = _STOP_TIMEOUT_SECONDS) -> None:
        """Wait until a stream has ended, in any process.

        Raises:
            StoreBusyError: the stream has not ended in time.
        """
        deadline = time.monotonic() + timeout
        while (status := self.find(name)) is not None and status.is_live:
            if time.monotonic() > deadline:
                raise StoreBusyError(
                    "the process of the stream has not stopped it yet",
                    received=f"{status.name}, in process {status.pid}",
                    remedy="wait for its batch to end, or end that process",
                )
            time.sleep(0.1)
