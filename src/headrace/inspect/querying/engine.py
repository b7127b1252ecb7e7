"""Runs a read-only statement with DuckDB in a process of its own, within limits."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from headrace.errors import OptionError
from headrace.inspect.querying.process import QueryProcesses
from headrace.ports import Store

DEFAULT_MEMORY = 512 << 20
"""The memory of DuckDB for one query, in bytes: its hash tables, sorts and intermediate results."""
DEFAULT_SECONDS = 30.0
DEFAULT_ROWS = 1000
DEFAULT_RESULT_BYTES = 64 << 20
_MOST_SECONDS = 1_000_000


@dataclass(frozen=True)
class QueryResult:
    """The result of a query.

    Attributes:
        rows: the rows.
        cut: whether the query has more rows than the limits allow.
        seconds: the duration of the query.
    """

    rows: pa.Table
    cut: bool
    seconds: float

    @property
    def schema(self) -> pa.Schema:
        """The columns of the rows."""
        return self.rows.schema


def run(
    store: Store,
    sql: str,
    *,
    max_rows: int = DEFAULT_ROWS,
    timeout_seconds: float | None = DEFAULT_SECONDS,
    memory_bytes: int = DEFAULT_MEMORY,
    max_result_bytes: int = DEFAULT_RESULT_BYTES,
    processes: QueryProcesses | None = None,
) -> QueryResult:
    """Run a SELECT over the tables and queues of a store, and return its first rows.

    Args:
        sql: one SELECT in DuckDB's dialect, see docs/load-and-query.md. A queue is a table with two more columns at the
            beginning, ``$tablet_index`` and ``$row_index``.
        max_rows: the maximum number of rows of the result.
        timeout_seconds: the maximum duration, in seconds; None is no limit.
        memory_bytes: the memory of DuckDB; the result is not included. A process that needs much more is ended.
        max_result_bytes: the maximum size of the result as Arrow. At least one batch of rows is returned.
        processes: the processes of queries, of which one is kept for the next query. Without, the query has a process
            of its own, whose start takes about 0.3 seconds.

    Raises:
        SqlError: the statement is not one SELECT, or cannot be parsed or run.
        NotFoundError: the store has neither a table nor a queue of a name in the statement.
        QueryLimitError: the query needs more time or memory.
        MissingDependencyError: DuckDB is not installed.
    """
    if max_rows < 0:
        raise OptionError("max_rows must be at least 0", received=max_rows)
    started = time.monotonic()
    found: list[pa.RecordBatch] = []
    missing, size, cut = max_rows, 0, False
    with open_query(
        store,
        sql,
        timeout_seconds=timeout_seconds,
        memory_bytes=memory_bytes,
        expected_rows=max_rows + 1,
        processes=processes,
    ) as reader:
        for batch in reader:
            if batch.num_rows > missing or size > max_result_bytes:
                cut = True
                found.append(batch.slice(0, missing if size <= max_result_bytes else 0))
                break
            found.append(batch)
            missing -= batch.num_rows
            size += batch.nbytes
        rows = pa.Table.from_batches(found, reader.schema)
    return QueryResult(rows, cut, time.monotonic() - started)


@contextlib.contextmanager
def open_query(
    store: Store,
    sql: str,
    *,
    timeout_seconds: float | None = None,
    memory_bytes: int = DEFAULT_MEMORY,
    expected_rows: int | None = None,
    processes: QueryProcesses | None = None,
) -> Iterator[pa.RecordBatchReader]:
    """Run a SELECT, see `run`; its rows are computed while they are read, inside the ``with`` block.

    Args:
        expected_rows: the number of rows after which the caller reads no more; None for all rows. The caller gets at
            least so many rows if there are so many.
    """
    if timeout_seconds is not None and not 0 < timeout_seconds <= _MOST_SECONDS:
        raise OptionError(
            "invalid time limit of a query", received=timeout_seconds, valid=f"up to {_MOST_SECONDS} seconds, above 0"
        )
    own = QueryProcesses() if processes is None else processes
    try:
        with own.open(store, sql, timeout_seconds, memory_bytes, expected_rows) as reader:
            yield reader
    finally:
        if processes is None:
            own.close()
