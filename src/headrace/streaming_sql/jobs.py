"""The streams of a workspace: a registry that all its processes share, and the running queries of this one."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.errors import AlreadyExistsError, NotFoundError, StoreBusyError, own_message
from headrace.spark.listener import lag_of
from headrace.streaming_sql.secrets import hide
from headrace.streaming_sql.workspace import Workspace

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger("headrace")

STATES = ("starting", "running", "stopped", "finished", "failed", "lost")
LIVE_STATES = ("starting", "running")
_POLL_SECONDS = 0.5
_STOP_TIMEOUT_SECONDS = 120.0
_COLUMNS = (
    "shown_name, state, target, checkpoint, owner, pid, query_id, batch, rows_per_second, lag, error, started, "
    "updated, script, fingerprint"
)


@dataclass(frozen=True)
class StreamStatus:
    """A stream as the workspace knows it.

    Attributes:
        state: one of `STATES`; ``lost`` when its process died without a word.
        query_id: Spark's id of the query, which lives in its checkpoint.
        batch: the last batch that is done.
        rows_per_second: how fast that batch was processed.
        lag: rows that its sources have behind that batch; None if they do not tell.
        started, updated: seconds since 1970.
        script: the statements that start it again; secrets are not in there.
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

    @property
    def is_live(self) -> bool:
        return self.state in LIVE_STATES

    def need_ended(self) -> None:
        """Raise `AlreadyExistsError` if the stream runs."""
        if self.is_live:
            raise AlreadyExistsError(
                "the stream runs already",
                received=f"{self.name}, in process {self.pid}",
                remedy=f"STOP STREAM {self.name} stops it",
            )


class StreamRegistry:
    """The table of streams in a workspace. Names are compared without regard to case."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def all(self) -> list[StreamStatus]:
        """Return the streams, by name."""
        return [self._status(row) for row in self._workspace.query(f"SELECT {_COLUMNS} FROM stream ORDER BY name")]

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
        return StreamStatus(name, state, target, checkpoint, *rest)

    def claim(self, name: str, *, script: str, fingerprint: str, target: str, checkpoint: str) -> None:
        """Take a stream for this process, before it starts.

        Raises:
            AlreadyExistsError: it runs, here or in another process, or was created with another text.
        """
        owner = self._workspace.owner()
        now = time.time()
        with self._workspace.write() as connection:
            rows = list(connection.execute(f"SELECT {_COLUMNS} FROM stream WHERE name = ?", (name.lower(),)))
            if rows:
                known = self._status(rows[0])
                known.need_ended()
                if known.fingerprint != fingerprint:
                    raise AlreadyExistsError(
                        "a stream of this name was created with another text",
                        received=known.name,
                        remedy=f"DROP STREAM {known.name} first; and if the new query does not fit the old one's "
                        "state, use another checkpointLocation",
                    )
            connection.execute(
                "INSERT OR REPLACE INTO stream (name, shown_name, script, fingerprint, target, checkpoint, wanted, "
                "state, owner, pid, started, updated) VALUES (?, ?, ?, ?, ?, ?, 'running', 'starting', ?, ?, ?, ?)",
                (name.lower(), name, script, fingerprint, target, checkpoint, owner, os.getpid(), now, now),
            )

    def set_running(self, name: str, query_id: str) -> None:
        self._update(name, "state = 'running', query_id = ?", query_id)

    def set_progress(self, name: str, batch: int, rows_per_second: float | None, lag: int | None) -> None:
        self._update(name, "batch = ?, rows_per_second = ?, lag = ?", batch, rows_per_second, lag)

    def set_ended(self, name: str, state: str, error: str | None = None) -> None:
        self._update(name, "state = ?, error = ?", state, error)

    def ask_to_stop(self, name: str) -> None:
        """Tell the process that runs a stream to stop it."""
        self._update(name, "wanted = 'stopped'")

    def asked_to_stop(self) -> set[str]:
        """Return the names (in lower case) of streams that somebody wants stopped."""
        return {name for (name,) in self._workspace.query("SELECT name FROM stream WHERE wanted = 'stopped'")}

    def forget(self, name: str) -> None:
        with self._workspace.write() as connection:
            connection.execute("DELETE FROM stream WHERE name = ?", (name.lower(),))

    def _update(self, name: str, assignments: str, *values: object) -> None:
        with self._workspace.write() as connection:
            connection.execute(
                f"UPDATE stream SET {assignments}, updated = ? WHERE name = ?", (*values, time.time(), name.lower())
            )

    def wait_until_ended(self, name: str, timeout: float = _STOP_TIMEOUT_SECONDS) -> None:
        """Wait for the process that runs a stream to end it.

        Raises:
            StoreBusyError: it did not in time.
        """
        deadline = time.monotonic() + timeout
        while (status := self.find(name)) is not None and status.is_live:
            if time.monotonic() > deadline:
                raise StoreBusyError(
                    "the process of the stream was asked to stop it and has not done so yet",
                    received=f"{status.name}, in process {status.pid}",
                    remedy="wait for its batch to end, or end that process",
                )
            time.sleep(0.1)


@dataclass
class _Job:
    """A running query of this process."""

    name: str
    query: StreamingQuery
    deadline: float
    secrets: frozenset[str]
    reported: tuple[int, str] | None = None
    ended: bool = False
    error: BaseException | None = None


class RunningStreams:
    """The running queries of one session: watched by a thread that reports to the registry and obeys it."""

    def __init__(self, registry: StreamRegistry) -> None:
        self._registry = registry
        self._jobs: dict[str, _Job] = {}
        self._changed = threading.Condition(threading.RLock())
        self._thread: threading.Thread | None = None

    def start(
        self,
        name: str,
        start: Callable[[], StreamingQuery],
        *,
        timeout_ms: int | None = None,
        secrets: frozenset[str] = frozenset(),
    ) -> StreamingQuery:
        """Start the query of a stream that was claimed, and watch it. What the start raises is reported and raised."""
        try:
            query = start()
        except BaseException as error:
            self._registry.set_ended(name, "failed", _one_line(error, secrets))
            raise
        self._registry.set_running(name, str(query.id))
        deadline = math.inf if timeout_ms is None else time.monotonic() + timeout_ms / 1000
        with self._changed:
            self._jobs[name.lower()] = _Job(name, query, deadline, secrets)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._watch, name="headrace-streams", daemon=True)
                self._thread.start()
        return query

    def stop(self, name: str) -> bool:
        """Stop a stream of this session; tell whether it is one."""
        with self._changed:
            job = self._jobs.get(name.lower())
            if job is None or job.ended:
                return False
        self._registry.ask_to_stop(name)
        self._stop(job)
        return True

    def forget(self, name: str) -> None:
        """Do not speak of a stream that has ended any more: neither it nor its error is waited for."""
        with self._changed:
            self._jobs.pop(name.lower(), None)

    def stop_all(self) -> None:
        """Stop all streams of this session."""
        for name in list(self._jobs):
            self.stop(name)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until all streams of this session have ended; tell whether they have in time.

        Raises:
            StreamingQueryException: the error of the first that failed.
        """
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        with self._changed:
            while True:
                for job in self._jobs.values():
                    if job.error is not None:
                        raise job.error
                if all(job.ended for job in self._jobs.values()):
                    return True
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    return False
                self._changed.wait(min(remaining, threading.TIMEOUT_MAX))

    # -- the watching thread ------------------------------------------------------------------------------

    def _watch(self) -> None:
        while True:
            with self._changed:
                jobs = [job for job in self._jobs.values() if not job.ended]
                if not jobs:
                    self._thread = None
                    return
            try:
                stopping = self._registry.asked_to_stop()
                for job in jobs:
                    self._look_after(job, stopping)
            except Exception:
                # A busy workspace or a busy Spark: the streams go on, and so does watching them.
                log.exception("the streams could not be watched; trying again")
            time.sleep(_POLL_SECONDS)

    def _look_after(self, job: _Job, stopping: set[str]) -> None:
        failure: BaseException | None
        try:
            active = job.query.isActive
            failure = None if active else job.query.exception()
        except Exception as error:
            # Spark itself is gone, and the query with it.
            active, failure = False, error
        if not active:
            self._end(job, failure)
            return
        self._report_progress(job)
        if job.name.lower() in stopping or time.monotonic() > job.deadline:
            self._registry.ask_to_stop(job.name)
            self._stop(job)

    def _stop(self, job: _Job) -> None:
        job.query.stop()
        self._end(job, None)

    def _report_progress(self, job: _Job) -> None:
        progress = job.query.lastProgress
        if progress is None or (progress.batchId, progress.timestamp) == job.reported:
            return
        lags = [lag.total_rows_behind for lag in lag_of(progress) if lag is not None]
        rate = progress.processedRowsPerSecond
        self._registry.set_progress(
            job.name, progress.batchId, rate if math.isfinite(rate) else None, sum(lags) if lags else None
        )
        job.reported = (progress.batchId, progress.timestamp)

    def _end(self, job: _Job, error: BaseException | None) -> None:
        with self._changed:
            if job.ended:
                return
            if error is None:
                self._report_progress(job)
            stopped = job.name.lower() in self._registry.asked_to_stop()
            state = "failed" if error is not None else "stopped" if stopped else "finished"
            self._registry.set_ended(job.name, state, None if error is None else _one_line(error, job.secrets))
            job.ended, job.error = True, error
            self._changed.notify_all()


def _one_line(error: BaseException, secrets: frozenset[str]) -> str:
    text = hide(str(error), secrets)
    lines = [line for line in text.splitlines() if line.strip()]
    return f"{type(error).__name__}: {own_message(text) or (lines[0] if lines else '')}"[:1000]
