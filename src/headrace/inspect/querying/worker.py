"""The process of a query: DuckDB, within limits of the operating system, and without the store.

DuckDB's own limits do not cover all its functions: one call of ``repeat`` can take gigabytes, and one call of
``jaro_winkler_similarity`` minutes. So this process gets a limit of memory and of processor time, and can be killed.

DuckDB gets a database in memory that has a view for each table and queue of the statement, and nothing else: no files,
no network, no extensions, no Python variables. Its settings are locked before it sees the statement. Rows of tables
come from the process that has the store.
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
import signal
import sys
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import duckdb
import pyarrow as pa

from headrace.errors import HeadraceError, NotFoundError, SqlError
from headrace.inspect.querying.datasets import Scans, StoreDataset
from headrace.inspect.querying.messages import NEXT, THREADS, Find, Query, memory_error, packed
from headrace.inspect.querying.names import quoted
from headrace.inspect.querying.statements import Select, parse

_BATCH_ROWS = 2048
# Of the process, besides the memory of DuckDB: its threads, and batches of rows on their way.
_OTHER_BYTES = 192 << 20
_SETTINGS = (
    "SET TimeZone = 'UTC'",
    f"SET threads = {THREADS}",
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


def main(queries: int, rows: int) -> None:
    """Run queries until the process with the store has ended.

    Args:
        queries: the file descriptor of the connection for queries.
        rows: the file descriptor of the connection for rows of tables.
    """
    # Ctrl-C in a terminal reaches all its processes; the other one decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The tree of a statement is JSON, and an expression of DuckDB can have 1,000 levels.
    sys.setrecursionlimit(10_000)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with Connection(queries) as requests, Connection(rows) as tables:
        # Loads what the first query needs before it comes.
        duckdb.connect(":memory:").sql("SELECT 1").to_arrow_reader()
        while True:
            try:
                query = requests.recv()
            except EOFError:
                return
            try:
                with contextlib.closing(Scans(tables)) as scans:
                    _run(query, requests, scans)
                requests.send(None)
            except HeadraceError as error:
                requests.send(error)
            except MemoryError:
                requests.send(memory_error(query.memory_bytes))


def _end_with_parent() -> None:
    """End this process when the other one has ended, also amid a long call of DuckDB."""
    sys.stdin.buffer.read()
    os._exit(0)


def _run(query: Query, requests: Connection, scans: Scans) -> None:
    _limit(query)
    with contextlib.closing(duckdb.connect(":memory:")) as connection:
        with _errors(query):
            connection.execute(f"SET memory_limit = '{query.memory_bytes} bytes'")
            for setting in _SETTINGS:
                connection.execute(setting)
            _define_views(connection, scans, parse(connection, query.sql, query.expected_rows))
            reader = connection.sql(query.sql).to_arrow_reader(_BATCH_ROWS)
        schema = _with_unique_names(reader.schema)
        requests.send(schema)
        while requests.recv() == NEXT:
            with _errors(query):
                batch = next(reader, None)
            requests.send(None if batch is None else packed(pa.RecordBatch.from_arrays(batch.columns, schema=schema)))


def _limit(query: Query) -> None:
    """Set the limits of the operating system: data of the process (Linux only), and processor time."""
    status = Path("/proc/self/status")
    if status.exists():
        (used,) = [int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmData:")]
        limit = (used << 10) + query.memory_bytes + _OTHER_BYTES
        resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.RLIM_INFINITY))
    seconds = resource.RLIM_INFINITY
    if query.cpu_seconds is not None:
        used_time = resource.getrusage(resource.RUSAGE_SELF)
        seconds = math.ceil(used_time.ru_utime + used_time.ru_stime) + query.cpu_seconds
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.RLIM_INFINITY))


@contextlib.contextmanager
def _errors(query: Query) -> Iterator[None]:
    """Translate errors of DuckDB in a block."""
    try:
        yield
    except (duckdb.OutOfMemoryException, MemoryError):
        raise memory_error(query.memory_bytes) from None
    except (duckdb.Error, pa.ArrowException, OSError) as error:
        if "std::bad_alloc" in str(error):
            raise memory_error(query.memory_bytes) from None
        if "max_expression_depth" in str(error):
            # Its advice is a setting, and settings are locked.
            raise _too_deep() from None
        raise SqlError(str(error).strip() or type(error).__name__) from error
    except RecursionError:
        raise _too_deep() from None


def _too_deep() -> SqlError:
    return SqlError("the statement is nested too deeply", remedy="join operands by a list: x IN (…), list_sum([…])")


def _define_views(connection: duckdb.DuckDBPyConnection, scans: Scans, select: Select) -> None:
    """Create a view for each table and queue of a statement."""
    number = 0
    for name in select.tables:
        try:
            schema = scans.ask(Find(name))
        except NotFoundError:
            if name in select.maybe:
                continue
            raise
        dataset = quoted(f"headrace scan {number}")
        connection.register(dataset[1:-1], StoreDataset(scans, number, schema, limit=select.rows))
        number += 1
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
