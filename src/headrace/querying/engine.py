"""Runs a read-only statement with DuckDB, within limits.

DuckDB gets a database in memory that has a view for each table and queue of the statement, and nothing else: no files,
no network, no extensions, no Python variables. Its settings are locked before it sees the statement.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.errors import MissingDependencyError, NotFoundError, OptionError, QueryLimitError, SqlError
from headrace.ports import Store
from headrace.querying.names import find, quoted
from headrace.querying.statements import Select, parse

if TYPE_CHECKING:
    import duckdb

DEFAULT_MEMORY = 512 << 20
"""The memory of DuckDB for one query, in bytes: its hash tables, sorts and intermediate results."""
DEFAULT_SECONDS = 30.0
DEFAULT_ROWS = 1000
DEFAULT_RESULT_BYTES = 64 << 20
_BATCH_ROWS = 2048
_THREADS = 2
_MOST_SECONDS = 1_000_000
_SETTINGS = (
    "SET TimeZone = 'UTC'",
    f"SET threads = {_THREADS}",
    # DuckDB computes little more of the result than is read.
    "SET streaming_buffer_size = '64KiB'",
    # A query that needs more memory fails; it writes no temporary files.
    "SET temp_directory = ''",
    "SET autoinstall_known_extensions = false",
    "SET autoload_known_extensions = false",
    "SET allow_community_extensions = false",
    "SET python_enable_replacements = false",
    "SET enable_external_access = false",
    "SET lock_configuration = true",
)


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
) -> QueryResult:
    """Run a SELECT over the tables and queues of a store, and return its first rows.

    Args:
        sql: one SELECT in DuckDB's dialect, see docs/load-and-query.md. A queue is a table with two more columns at the
            beginning, ``$tablet_index`` and ``$row_index``.
        max_rows: the maximum number of rows of the result.
        timeout_seconds: the maximum duration, in seconds; None is no limit.
        memory_bytes: the memory of DuckDB; the result is not included.
        max_result_bytes: the maximum size of the result as Arrow. At least one batch of rows is returned.

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
        store, sql, timeout_seconds=timeout_seconds, memory_bytes=memory_bytes, expected_rows=max_rows + 1
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
    duckdb = _load_duckdb()
    watch = Watch(timeout_seconds, memory_bytes)
    with contextlib.closing(duckdb.connect(":memory:")) as connection:
        timer = threading.Timer(timeout_seconds or 0, connection.interrupt)
        timer.daemon = True
        if timeout_seconds is not None:
            timer.start()
        try:
            with watch.errors(duckdb):
                connection.execute(f"SET memory_limit = '{memory_bytes} bytes'")
                for setting in _SETTINGS:
                    connection.execute(setting)
                _define_views(connection, store, parse(connection, sql, expected_rows), watch)
                reader = connection.sql(sql).to_arrow_reader(_BATCH_ROWS)
            schema = _with_unique_names(reader.schema)
            yield pa.RecordBatchReader.from_batches(schema, _guarded(reader, schema, watch, duckdb))
        finally:
            timer.cancel()
            if timeout_seconds is not None:
                timer.join()


class Watch:
    """The limits of a running query, and the first error of its scans."""

    def __init__(self, seconds: float | None, memory_bytes: int) -> None:
        self._seconds = seconds
        self._memory_bytes = memory_bytes
        self._end = None if seconds is None else time.monotonic() + seconds
        self._failure: BaseException | None = None

    @contextlib.contextmanager
    def scan(self) -> Iterator[None]:
        """Keep the first error of a scan: DuckDB reports only a part of its text."""
        try:
            yield
        except BaseException as error:
            # A scan that DuckDB ends early is closed.
            if not isinstance(error, GeneratorExit):
                self._failure = self._failure or error
            raise

    def check(self) -> None:
        """Raise `QueryLimitError` after the time limit."""
        if self._end is not None and time.monotonic() > self._end:
            raise self._too_long()

    @contextlib.contextmanager
    def errors(self, duckdb: ModuleType) -> Iterator[None]:
        """Translate errors of DuckDB in a block."""
        try:
            yield
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            if self._failure is not None:
                raise self._failure from None
            if isinstance(error, duckdb.OutOfMemoryException):
                raise QueryLimitError(
                    "the query needs more memory than it may use",
                    received=f"{self._memory_bytes >> 20} MiB",
                    remedy="read fewer rows or columns: add a WHERE, or group by fewer columns",
                ) from error
            self.check()
            raise SqlError(_message(error)) from error

    def _too_long(self) -> QueryLimitError:
        return QueryLimitError(
            "the query takes longer than it may",
            received=f"{self._seconds:g} seconds",
            remedy="compare key columns with values in its WHERE, or allow more time",
        )


def _load_duckdb() -> ModuleType:
    try:
        import duckdb
    except ImportError as error:
        raise MissingDependencyError(
            "queries need a package that is not installed", received="duckdb", remedy="pip install 'headrace[query]'"
        ) from error
    return duckdb


def _define_views(connection: duckdb.DuckDBPyConnection, store: Store, select: Select, watch: Watch) -> None:
    """Create a view for each table and queue of a statement."""
    # Imported late: pyarrow.dataset takes a third of the time that `headrace --help` may take.
    from headrace.querying.datasets import StoreDataset

    for number, name in enumerate(select.tables):
        try:
            source = find(store, name)
        except NotFoundError:
            if name in select.maybe:
                continue
            raise
        dataset = quoted(f"headrace scan {number}")
        connection.register(dataset[1:-1], StoreDataset(source, limit=select.rows, watch=watch))
        if name.schema is not None:
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(name.schema)}")
        connection.execute(f"CREATE OR REPLACE VIEW {name.sql} AS SELECT * FROM {dataset}")


def _with_unique_names(schema: pa.Schema) -> pa.Schema:
    """Return the columns of a result with a number after each name that a column before it has, ``id_1``."""
    names: dict[str, None] = {}
    for name in schema.names:
        number, unique = 0, name
        while unique in names:
            number += 1
            unique = f"{name}_{number}"
        names[unique] = None
    return pa.schema([field.with_name(name) for field, name in zip(schema, names, strict=True)])


def _guarded(
    reader: pa.RecordBatchReader, schema: pa.Schema, watch: Watch, duckdb: ModuleType
) -> Iterator[pa.RecordBatch]:
    while True:
        with watch.errors(duckdb):
            watch.check()
            try:
                batch = reader.read_next_batch()
            except StopIteration:
                return
        yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)


def _message(error: Exception) -> str:
    """Return the text of an error of DuckDB."""
    return str(error).strip() or type(error).__name__
