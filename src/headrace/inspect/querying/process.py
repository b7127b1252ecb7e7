"""The processes in which queries run, as the process that has the store sees them."""

from __future__ import annotations

import contextlib
import itertools
import math
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from multiprocessing.connection import Pipe, wait
from typing import Any

import pyarrow as pa

from headrace.errors import HeadraceError, NotFoundError, QueryLimitError, SqlError
from headrace.inspect.querying.messages import (
    CLOSE,
    NEXT,
    THREADS,
    EndScan,
    Find,
    NextRows,
    Query,
    Scan,
    memory_error,
    unpacked,
)
from headrace.inspect.querying.names import find
from headrace.inspect.querying.queue_rows import queue_rows, queue_schema
from headrace.ports import Queue, Store, Table
from headrace.support.extras import QUERIES, check_extras

# Small, because a query with a LIMIT may need only a few rows.
_BATCH_ROWS = 8192
# After a query, DuckDB ends its scans.
_CLOSE_SECONDS = 2.0
_MOST_RUNNING = 4


class QueryProcesses:
    """Processes for queries: a process without work is kept for the next query, which then begins at once.

    Threads can share it.
    """

    def __init__(self) -> None:
        self._idle: deque[_QueryProcess] = deque()
        self._running = threading.BoundedSemaphore(_MOST_RUNNING)

    def prepare(self) -> None:
        """Start a process for the next query, and do not wait for it."""
        check_extras("queries", QUERIES)
        if not self._idle:
            self._idle.append(_QueryProcess())

    @contextlib.contextmanager
    def open(
        self, store: Store, sql: str, seconds: float | None, memory_bytes: int, expected_rows: int | None
    ) -> Iterator[pa.RecordBatchReader]:
        """Run a query; its rows are computed while they are read, inside the ``with`` block.

        Args:
            seconds: the maximum duration; None for no limit.
            memory_bytes: the memory of DuckDB.
            expected_rows: the number of rows after which the caller reads no more; None for all rows.

        Raises:
            QueryLimitError: the query needs more time or memory, or too many queries run.
        """
        check_extras("queries", QUERIES)
        if not self._running.acquire(timeout=seconds):
            raise QueryLimitError("other queries run", received=f"{_MOST_RUNNING} queries", remedy="try it again later")
        try:
            process = self._taken()
            try:
                running = _Running(process, store, sql, seconds, memory_bytes, expected_rows)
                yield running.reader()
                running.close()
            finally:
                if process.busy or self._idle:
                    process.kill()
                else:
                    self._idle.append(process)
        finally:
            self._running.release()

    def _taken(self) -> _QueryProcess:
        with contextlib.suppress(IndexError):
            return self._idle.popleft()
        return _QueryProcess()

    def close(self) -> None:
        """End the processes that have no work."""
        with contextlib.suppress(IndexError):
            while True:
                self._idle.pop().kill()


class _QueryProcess:
    """One process; see `headrace.inspect.querying.worker`. While it is busy, it cannot run another query."""

    def __init__(self) -> None:
        self.busy = False
        self.queries, queries = Pipe()
        self.rows, rows = Pipe()
        with queries, rows:
            ends = queries.fileno(), rows.fileno()
            code = (
                f"import sys; sys.path[:] = {sys.path!r};"
                "from headrace.support.start_up import keep_pandas_out; keep_pandas_out();"
                f"from headrace.inspect.querying.worker import main; main{ends}"
            )
            # The process ends with its standard input: when this one has ended, in whatever way.
            self._process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, pass_fds=ends)

    def kill(self) -> int:
        """End the process, if it runs; return its exit code, or the negative number of the signal that ended it."""
        with self._process, self.queries, self.rows:
            if self._process.poll() is None:
                self._process.kill()
        return self._process.wait()


class _Running:
    """A query that runs in a process."""

    def __init__(
        self,
        process: _QueryProcess,
        store: Store,
        sql: str,
        seconds: float | None,
        memory_bytes: int,
        expected_rows: int | None,
    ) -> None:
        self._process = process
        self._seconds = seconds
        self._memory_bytes = memory_bytes
        self._end = None if seconds is None else time.monotonic() + seconds
        self._tables = _Tables(store)
        process.busy = True
        cpu_seconds = None if seconds is None else THREADS * math.ceil(seconds) + 1
        self._schema: pa.Schema = self._ask(Query(sql, cpu_seconds, memory_bytes, expected_rows))

    def reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self._schema, self._batches())

    def close(self) -> None:
        """End the query; the process can run another one."""
        self._end = time.monotonic() + _CLOSE_SECONDS
        self._ask(CLOSE)
        self._process.busy = False

    def _batches(self) -> Iterator[pa.RecordBatch]:
        while (data := self._ask(NEXT)) is not None:
            yield unpacked(data)

    def _ask(self, request: Query | str) -> Any:
        """Return the answer of the process, and meanwhile read the rows of tables that it asks for."""
        queries, rows = self._process.queries, self._process.rows
        try:
            queries.send(request)
            while True:
                left = None if self._end is None else max(0.0, self._end - time.monotonic())
                ready = wait([queries, rows], left)
                if queries in ready:
                    answer = queries.recv()
                    break
                if not ready:
                    raise self._too_long()
                rows.send(self._tables.answer(rows.recv()))
        except (EOFError, ConnectionError):
            raise self._died(self._process.kill()) from None
        if isinstance(answer, BaseException):
            self._process.busy = False
            raise self._tables.failure or answer
        return answer

    def _died(self, code: int) -> HeadraceError:
        if code == -signal.SIGXCPU:
            return self._too_long()
        if code < 0:
            # DuckDB ends when it cannot get memory.
            return memory_error(self._memory_bytes)
        return SqlError("the process of the query has ended", received=f"exit code {code}")

    def _too_long(self) -> QueryLimitError:
        return QueryLimitError(
            "the query takes longer than it may",
            received=f"{self._seconds:g} seconds",
            remedy="compare key columns with values in its WHERE, or allow more time",
        )


class _Tables:
    """The tables and queues of a query, and its scans of them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._sources: list[Table | Queue] = []
        self._scans: dict[int, Iterator[pa.RecordBatch]] = {}
        self._numbers = itertools.count()
        self.failure: Exception | None = None
        """The first error of a scan: DuckDB reports only a part of its text."""

    def answer(self, request: Find | Scan | NextRows | EndScan) -> Any:
        """Return the answer to a request of the query's process; an error is an answer, too."""
        try:
            return self._answer(request)
        except NotFoundError as error:
            return error
        except Exception as error:
            self.failure = self.failure or error
            return SqlError("a scan has failed")

    def _answer(self, request: Find | Scan | NextRows | EndScan) -> Any:
        match request:
            case Find(name):
                source = find(self._store, name)
                self._sources.append(source)
                return source.schema.arrow if isinstance(source, Table) else queue_schema(source)
            case Scan(number, columns, where, limit):
                source = self._sources[number]
                scan = next(self._numbers)
                self._scans[scan] = (
                    source.scan(list(columns), list(where), limit=limit, batch_rows=_BATCH_ROWS, read_ahead=False)
                    if isinstance(source, Table)
                    else (batch.select(columns) for batch in queue_rows(source, where))
                )
                return scan
            case NextRows(scan):
                batch = next(self._scans[scan], None)
                return None if batch is None else batch.serialize().to_pybytes()
            case EndScan(scan):
                self._scans.pop(scan, None)
        return None
