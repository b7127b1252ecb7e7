"""The running queries of one session, and the thread that watches them."""

from __future__ import annotations

import contextlib
import datetime
import json
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.batches.sinks.batch_figures import figures_of
from headrace.errors import HeadraceError, own_message, remedy_in
from headrace.model.tunnels.lag import Lag
from headrace.options.secrets import hide
from headrace.spark.listener import lag_of
from headrace.streaming_sql.stream_history import BatchRecord
from headrace.streaming_sql.stream_registry import StreamRegistry

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger("headrace")

_POLL_SECONDS = 0.5
# Spark keeps 100 reports. Reading them takes some milliseconds, so batches that are shorter than a poll wait for it.
_HISTORY_SECONDS = 3.0
# A query starts Python processes, which Spark gives 10 s. On a busy machine several queries at once would take longer.
_START_SECONDS = 30.0
_STARTS = 3
_SLOW_PROCESS = "Python worker failed to connect back"
_STARTING = ("Initializing", "Getting offsets")

_observers: list[Callable[[str, BatchRecord], None]] = []


@contextlib.contextmanager
def observe_batches(observer: Callable[[str, BatchRecord], None]) -> Iterator[None]:
    """Call a function with the stream and the record of each completed batch of this process, during the block."""
    _observers.append(observer)
    try:
        yield
    finally:
        _observers.remove(observer)


@dataclass
class _Job:
    """A query of this process.

    Attributes:
        deadline: the time of `time.monotonic` at which the query is stopped.
        secrets: texts that error messages must not contain.
        start: starts the query.
        starts: the number of times that it was started.
        reported: the batch and the timestamp of the last progress in the registry.
        recorded: the batch and the timestamp of the last batch in the history.
        seen: the batch and the timestamp of a report; the history has all batches up to it.
        read_reports: the time of `time.monotonic` at which all kept reports were read.
    """

    name: str
    query: StreamingQuery
    deadline: float
    secrets: frozenset[str]
    start: Callable[[], StreamingQuery]
    starts: int = 1
    reported: tuple[int, str] | None = None
    recorded: tuple[int, str] | None = None
    seen: tuple[int, str] | None = None
    read_reports: float = -math.inf
    ended: bool = False
    error: BaseException | None = None


class RunningStreams:
    """The running queries of one session. A thread writes their progress to the registry, and stops them on request."""

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
        """Start and watch the query of a stream that this process has recorded in the registry.

        Before, queries that were started by this object read their first offsets, or `_START_SECONDS` pass.

        Args:
            start: starts the query. Its errors are recorded in the registry and raised.
            timeout_ms: the time after which the query is stopped.
            secrets: texts that the registry must not contain.
        """
        self._wait_for_starts()
        try:
            query = start()
        except Exception as error:
            self._registry.set_ended(name, "failed", _one_line(error, secrets), _remedy(error, secrets))
            raise
        except BaseException:
            # The user has ended the process.
            self._registry.set_ended(name, "stopped")
            raise
        self._registry.set_running(name, str(query.id))
        deadline = math.inf if timeout_ms is None else time.monotonic() + timeout_ms / 1000
        with self._changed:
            self._jobs[name.lower()] = _Job(name, query, deadline, secrets, start)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._watch, name="headrace-streams", daemon=True)
                self._thread.start()
        return query

    def stop(self, name: str) -> bool:
        """Stop a stream; return False if it does not run in this session."""
        with self._changed:
            job = self._jobs.get(name.lower())
            if job is None or job.ended:
                return False
        self._registry.ask_to_stop(name)
        self._stop(job)
        return True

    def forget(self, name: str) -> None:
        """Forget a stream that has ended, so that `wait` ignores it and its error."""
        with self._changed:
            self._jobs.pop(name.lower(), None)

    def stop_all(self) -> None:
        """Stop all streams of this session."""
        for name in list(self._jobs):
            self.stop(name)

    def wait(self, timeout: float | None = None, *, fail_fast: bool = False) -> bool:
        """Wait until all streams of this session have ended; return False after ``timeout`` seconds.

        Args:
            fail_fast: do not wait for the others when one has failed.

        Raises:
            StreamingQueryException: the error of the first that failed, with a note that names the stream.
        """
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        with self._changed:
            while True:
                failed = [job for job in self._jobs.values() if job.error is not None]
                ended = all(job.ended for job in self._jobs.values())
                if failed and (ended or fail_fast):
                    assert failed[0].error is not None
                    raise failed[0].error
                if ended:
                    return True
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    return False
                self._changed.wait(min(remaining, threading.TIMEOUT_MAX))

    def _wait_for_starts(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        with self._changed:
            jobs = list(self._jobs.values())
        while time.monotonic() < deadline and any(not job.ended and _is_starting(job.query) for job in jobs):
            time.sleep(_POLL_SECONDS / 10)

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
                    self._check(job, stopping)
            except Exception:
                # The workspace or Spark is busy. The streams continue, and the next round tries again.
                log.exception("cannot watch the streams; trying again")
            time.sleep(_POLL_SECONDS)

    def _check(self, job: _Job, stopping: set[str]) -> None:
        failure: BaseException | None
        try:
            active = job.query.isActive
            failure = None if active else job.query.exception()
        except Exception as error:
            # Spark has stopped, and the query with it.
            active, failure = False, error
        if not active:
            if failure is None or not self._started_again(job, failure, stopping):
                self._end(job, failure)
            return
        self._report_progress(job)
        if job.name.lower() in stopping or time.monotonic() > job.deadline:
            self._registry.ask_to_stop(job.name)
            self._stop(job)

    def _started_again(self, job: _Job, failure: BaseException, stopping: set[str]) -> bool:
        """Start a query again that has failed because its Python processes were slow; return whether it runs."""
        slow = _SLOW_PROCESS in str(failure) and job.reported is None and not _has_progress(job.query)
        if not slow or job.starts == _STARTS or job.name.lower() in stopping:
            return False
        log.warning("stream %s is started again: its Python processes did not start in time", job.name)
        job.starts += 1
        try:
            job.query = job.start()
        except Exception as error:
            self._end(job, error)
            return True
        self._registry.set_running(job.name, str(job.query.id))
        return True

    def _stop(self, job: _Job) -> None:
        job.query.stop()
        self._end(job, None)

    def _report_progress(self, job: _Job, *, last: bool = False) -> None:
        """Write the progress of a stream to the registry, if there is any since the last call.

        Args:
            last: the stream has ended, so that this is the last call.
        """
        progress = job.query.lastProgress
        if progress is None:
            return
        report: dict[str, Any] = json.loads(progress.json)
        now = (int(report["batchId"]), str(report["timestamp"]))
        new = self._new_reports(job, report, last=last)
        if now == job.reported and not new:
            return
        completed = [batch_record(each) for each in new]
        rate = progress.processedRowsPerSecond
        self._registry.set_progress(
            job.name,
            progress.batchId,
            rate if math.isfinite(rate) else None,
            _total_lag(report),
            completed,
        )
        job.reported = now
        if new:
            job.recorded = (int(new[-1]["batchId"]), str(new[-1]["timestamp"]))
        for observer in _observers:
            for record in completed:
                observer(job.name, record)

    def _new_reports(self, job: _Job, report: dict[str, Any], *, last: bool) -> list[dict[str, Any]]:
        """Return the reports of batches that the history does not have yet; none if it is too early to read them."""
        now = (int(report["batchId"]), str(report["timestamp"]))
        if now == job.seen:
            return []
        if job.recorded is not None and now[0] == job.recorded[0] + 1:
            # Without new rows, Spark reports the number of the next batch.
            job.seen = now
            return [report] if has_batch(report) else []
        if not last and time.monotonic() - job.read_reports < _HISTORY_SECONDS:
            return []
        job.read_reports = time.monotonic()
        job.seen = now
        after = "" if job.recorded is None else job.recorded[1]
        reports = [json.loads(each.json) for each in job.query.recentProgress]
        return [each for each in reports if has_batch(each) and after < str(each["timestamp"]) <= now[1]]

    def _end(self, job: _Job, error: BaseException | None) -> None:
        with self._changed:
            if job.ended:
                return
            try:
                self._report_progress(job, last=True)
            except Exception:
                # After its failure or the end of Spark, a query may have no reports.
                log.debug("no last report of stream %s", job.name, exc_info=True)
            stopped = job.name.lower() in self._registry.asked_to_stop()
            state = "failed" if error is not None else "stopped" if stopped else "finished"
            if error is None:
                self._registry.set_ended(job.name, state)
            else:
                self._registry.set_ended(job.name, state, _one_line(error, job.secrets), _remedy(error, job.secrets))
                log.error("stream %s failed: %s", job.name, _one_line(error, job.secrets))
                error.add_note(f"the error is of stream {job.name}")
            job.ended, job.error = True, error
            self._changed.notify_all()


def _is_starting(query: StreamingQuery) -> bool:
    """Return whether a query has not read its first offsets yet."""
    try:
        return query.isActive and str(query.status["message"]).startswith(_STARTING) and query.lastProgress is None
    except Exception:
        # Spark has stopped.
        return False


def _has_progress(query: StreamingQuery) -> bool:
    """Return whether a query has planned a batch."""
    try:
        return query.lastProgress is not None
    except Exception:
        return False


def _one_line(error: BaseException, secrets: frozenset[str]) -> str:
    text = hide(str(error), secrets)
    lines = [line for line in text.splitlines() if line.strip()]
    return f"{type(error).__name__}: {own_message(text) or (lines[0] if lines else '')}"[:1000]


def _remedy(error: BaseException, secrets: frozenset[str]) -> str | None:
    if isinstance(error, HeadraceError):
        return None if error.remedy is None else hide(error.remedy, secrets)[:1000]
    message = own_message(hide(str(error), secrets))
    found = None if message is None else remedy_in(message)
    return None if found is None else found[:1000]


# -- Spark's reports of progress -----------------------------------------------------------------------------


def has_batch(report: Mapping[str, Any]) -> bool:
    """Return whether a batch has run. Without new rows, Spark reports the number of the next batch at times."""
    return "addBatch" in report.get("durationMs", {})


def _total_lag(report: Mapping[str, Any]) -> Lag | None:
    """Return the lag of all sources of a report; None if no source reports its lag."""
    lags = [source.lag for source in lag_of(dict(report)) if source is not None]
    return Lag.total(lags) if lags else None


def batch_record(report: Mapping[str, Any]) -> BatchRecord:
    """Return the record of the batch of a report."""
    state = report.get("stateOperators") or []
    written = int((report.get("sink") or {}).get("numOutputRows", -1))
    own = figures_of(report["id"], int(report["batchId"]))
    return BatchRecord(
        time=_seconds(report["timestamp"]),
        batch=int(report["batchId"]),
        rows_in=sum(int(source["numInputRows"]) for source in report["sources"]),
        # Spark reports -1 for a sink that does not count.
        rows_out=own.rows if written < 0 else written,
        durations={phase: millis / 1000 for phase, millis in report.get("durationMs", {}).items()} | own.seconds,
        lag=_total_lag(report),
        # Before the first row with a time, the watermark is the year 1970.
        watermark=_seconds((report.get("eventTime") or {}).get("watermark", "")) or None,
        state_rows=sum(int(operator["numRowsTotal"]) for operator in state) if state else own.state_rows,
        state_bytes=sum(int(operator["memoryUsedBytes"]) for operator in state) if state else own.state_bytes,
    )


def _seconds(text: str) -> float:
    return datetime.datetime.fromisoformat(text).timestamp() if text else 0.0
