"""PostgreSQL for benchmarks: a server on this machine, the CPU time of its processes, and transactions of orders."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psutil
import psycopg
from tests.postgres_server import USER, PostgresServer

import headrace
from bench.measure import COLUMNS

KEY = ["UserId", "OrderId"]
_ORDER = "'user-' || lpad(i::text, 8, '0'), i, (i % 400) / 4.0 + {more}, 1700000000000 + i * 10"
_UPSERT = 'ON CONFLICT ("UserId", "OrderId") DO UPDATE SET price = EXCLUDED.price'


@dataclass(frozen=True)
class Server:
    """A server that syncs its log, with wal_level logical.

    Attributes:
        url: the address of its database.
        process: its first process.
    """

    url: str
    process: psutil.Process

    def connect(self) -> psycopg.Connection:
        """Return a connection in autocommit mode."""
        return psycopg.connect(self.url, autocommit=True)

    def cpu_seconds(self) -> float:
        """Return the CPU time of all its processes so far."""
        return cpu_seconds(self.process)

    def clients_cpu_seconds(self) -> float:
        """Return the CPU time of this process and of all that it has started, without the server."""
        return cpu_seconds(psutil.Process()) - self.cpu_seconds()


@contextmanager
def postgres_server(**settings: str) -> Iterator[Server]:
    """Start a server with an empty database; ``settings`` are settings of the server."""
    durable = {"fsync": "on", "full_page_writes": "on", "shared_buffers": "512MB", "max_wal_size": "16GB"}
    started = PostgresServer.start(**(durable | settings))
    try:
        url = f"postgresql://{USER}@127.0.0.1:{started.port}/postgres"
        yield Server(url, psutil.Process(started.process.pid))
    finally:
        started.remove()


def cpu_seconds(process: psutil.Process) -> float:
    """Return the CPU time of a process and of its descendants, also of those that have ended."""
    total = 0.0
    for each in (process, *process.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            total += sum(each.cpu_times()[:4])
    return total


def create_orders(store: headrace.Store, *names: str) -> None:
    """Create empty tables of orders."""
    for name in names:
        store.create_table(name, COLUMNS, KEY)


def insert_orders(session: psycopg.Connection, table: str, first: int, count: int) -> None:
    """Insert orders with keys from ``first`` on in one transaction."""
    session.execute(
        f"INSERT INTO {table} SELECT {_ORDER.format(more=0)} FROM generate_series({first}, {first + count - 1}) i"
    )


def commit_orders(session: psycopg.Connection, table: str, first: int, count: int, *, size: int) -> None:
    """Insert orders with keys from ``first`` on in transactions of ``size`` rows."""
    _commit(session, count // size, f"INSERT INTO {table} SELECT {_ORDER.format(more=0)} FROM {_series(first, size)} i")


def commit_changes(
    session: psycopg.Connection, table: str, number: int, count: int, *, existing: int, size: int
) -> None:
    """Change a table whose keys are 0 to ``existing`` in transactions of ``size`` rows: half inserts, half updates.

    No key is changed twice in one call. ``number`` counts the calls for one table.
    """
    half = size // 2
    # The factor has no divisor in common with a power of 10, so the keys of the updates differ.
    keys = (
        f"(SELECT {existing + number * count // 2} + i FROM {_series(0, half)} i"
        f" UNION ALL SELECT (i::bigint * 7919) % {existing} FROM {_series(number * count // 2, half)} i) AS keys(i)"
    )
    _commit(
        session, count // size, f"INSERT INTO {table} SELECT {_ORDER.format(more=number + 1)} FROM {keys} {_UPSERT}"
    )


def _series(first: int, size: int) -> str:
    """Return the keys of transaction ``n``."""
    return f"generate_series({first} + n * {size}, {first} + (n + 1) * {size} - 1)"


def _commit(session: psycopg.Connection, transactions: int, statement: str) -> None:
    """Run a statement in transactions of its own, and sync the log once, after all of them."""
    session.execute("SET synchronous_commit = off")
    session.execute(f"DO $$ BEGIN FOR n IN 0 .. {transactions - 1} LOOP {statement}; COMMIT; END LOOP; END $$")
    session.execute("SET synchronous_commit = on")
    session.execute("SELECT pg_logical_emit_message(true, 'bench', '')")
