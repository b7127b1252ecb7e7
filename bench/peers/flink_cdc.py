"""Flink CDC's incremental source for PostgreSQL in a local Flink job, beside a worker of headrace's tunnel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import psycopg

import headrace
from bench.measure import Result
from bench.peers.java_readers import JavaReader, consume, consume_base, fill, port_of, result
from bench.peers.releases import FLINK, FLINK_CDC
from bench.peers.running import alternately
from bench.postgres_server import Server, commit_changes, create_orders, insert_orders, postgres_server

_SOURCE = Path(__file__).parent / "FlinkCdcReader.java"
_TRANSACTION_ROWS = 100
_REPEATS = 3
_FORMS = {"count": "events that are counted", "json": "events as JSON"}
_VERSIONS = f"Flink {FLINK}, Flink CDC {FLINK_CDC}, a local cluster in a process of its own, parallelism 2"
_NOTE = (
    "A job's start is in its seconds. Checkpoints every 5 seconds, splits of 100,000 rows, fetch size 20,000, "
    "max.batch.size 16,384, max.queue.size 131,072."
)


@contextmanager
def _servers(directory: Path) -> Iterator[tuple[Server, headrace.Store, psycopg.Connection, JavaReader]]:
    with (
        postgres_server() as server,
        headrace.open(server.url) as store,
        server.connect() as session,
        JavaReader.started("Flink", "flink_cdc", _SOURCE, directory) as flink,
    ):
        yield server, store, session, flink


def changes(directory: Path, scale: float) -> Result:
    """Changes, half of them updates, in transactions of 100 rows."""
    rows = int(1_000_000 * scale)
    with _servers(directory) as (server, store, session, flink):
        create_orders(store, "orders")
        insert_orders(session, "orders", 0, rows)
        session.execute("CREATE PUBLICATION flink FOR TABLE orders")
        # Each run has a slot at the same position, so that all read the same log.
        for number in range(2 * (1 + _REPEATS)):
            session.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (f"flink_{number}",))
        for number in range(1 + _REPEATS):
            store.create_tunnel("orders", f"tunnel-{number}", kind="Stream")
        commit_changes(session, "orders", 0, rows, existing=rows, size=_TRANSACTION_ROWS)
        tunnels, slots = count(), count()

        def tunnel() -> float:
            return consume(server.url, f"tunnel-{next(tunnels)}", rows)

        def job(form: str) -> Callable[[], float]:
            return lambda: flink.read([form, "committed", rows, f"flink_{next(slots)}", port_of(server)])()

        spent = alternately(_REPEATS, {"tunnel": tunnel, **{form: job(form) for form in _FORMS}})
    title = f"beside Flink CDC, changes: {rows:,} of them, half updates, {_TRANSACTION_ROWS} in a transaction"
    return result(title, rows, spent, "Flink CDC", _VERSIONS, _FORMS, _NOTE)


def snapshot(directory: Path, scale: float) -> Result:
    """The rows of a table: base data of a tunnel, and a job that ends after the snapshot."""
    rows = int(2_000_000 * scale)
    with _servers(directory) as (server, store, session, flink):
        fill(store, session, rows, "flink")
        runs = count()

        def tunnel() -> float:
            return consume_base(store, server.url, f"base-{next(runs)}", rows)

        def job(form: str) -> Callable[[], float]:
            return lambda: flink.read([form, "snapshot", rows, f"snapshot_{next(runs)}", port_of(server)])()

        spent = alternately(_REPEATS, {"tunnel": tunnel, **{form: job(form) for form in _FORMS}})
    return result(
        f"beside Flink CDC, snapshot: a table of {rows:,} rows", rows, spent, "Flink CDC", _VERSIONS, _FORMS, _NOTE
    )
