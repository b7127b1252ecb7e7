"""Debezium's engine beside workers of PostgreSQL tunnels: changes, what a table has already, and a copy of a table."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import psutil
import psycopg
from tests.postgres_server import PROGRAMS

import headrace
from bench.measure import Ratio, Result, seconds
from bench.peers.java_readers import JavaReader, consume, consume_base, fill, port_of, result
from bench.peers.releases import DEBEZIUM
from bench.peers.running import Cost, alternately, load
from bench.postgres_server import (
    Server,
    commit_changes,
    cpu_seconds,
    create_orders,
    insert_orders,
    postgres_server,
)

_SOURCE = Path(__file__).parent / "DebeziumReader.java"
_TRANSACTION_ROWS = 100
_REPEATS = 3
_COLUMNS = ('"UserId" text', '"OrderId" bigint', "price double precision", '"timestamp" bigint')
_LONGEST_SECONDS = 60.0
# Debezium's documentation names larger batches and queues, and larger fetches, for throughput.
_PROPERTIES = """
name=bench
connector.class=io.debezium.connector.postgresql.PostgresConnector
offset.storage=org.apache.kafka.connect.storage.FileOffsetBackingStore
offset.storage.file.filename={offsets}
offset.flush.interval.ms=5000
database.hostname=127.0.0.1
database.port={port}
database.user=postgres
database.password=unused
database.dbname=postgres
topic.prefix=bench
table.include.list=public.orders
plugin.name=pgoutput
slot.name={slot}
publication.name=debezium
publication.autocreate.mode=disabled
snapshot.mode={snapshot}
bench.target=jdbc:postgresql://127.0.0.1:{target}/postgres?user=postgres&reWriteBatchedInserts=true
bench.upsert=INSERT INTO orders VALUES (?, ?, ?, ?) ON CONFLICT ("UserId", "OrderId") \\
 DO UPDATE SET price = EXCLUDED.price, timestamp = EXCLUDED.timestamp
snapshot.fetch.size=20000
max.batch.size=16384
max.queue.size=131072
poll.interval.ms=10
tombstones.on.delete=false
"""


@dataclass(frozen=True)
class _Debezium:
    """A Java process that runs Debezium's engine on demand."""

    directory: Path
    port: int
    target: int
    reader: JavaReader

    @classmethod
    @contextmanager
    def started(cls, directory: Path, source: Server, target: Server | None = None) -> Iterator[_Debezium]:
        with JavaReader.started("Debezium", "debezium", _SOURCE, directory) as reader:
            yield cls(directory, port_of(source), port_of(target or source), reader)

    def start(self, form: str, events: int, slot: str, snapshot: str) -> Callable[[], float]:
        """Start the engine; return a function that waits for the last event, and returns the seconds until it."""
        offsets = self.directory / f"{slot}.offsets"
        file = self.directory / f"{slot}.properties"
        file.write_text(
            _PROPERTIES.format(offsets=offsets, port=self.port, target=self.target, slot=slot, snapshot=snapshot)
        )
        return self.reader.read([form, events, file])


def changes(directory: Path, scale: float) -> Result:
    """Changes, half of them updates, in transactions of 100 rows, by a worker of a tunnel and by Debezium's engine."""
    rows = int(1_000_000 * scale)
    runs = 2 * (1 + _REPEATS)
    with (
        postgres_server() as server,
        headrace.open(server.url) as store,
        server.connect() as session,
        _Debezium.started(directory, server) as debezium,
    ):
        create_orders(store, "orders")
        insert_orders(session, "orders", 0, rows)
        session.execute("CREATE PUBLICATION debezium FOR TABLE orders")
        _prepare(session, debezium, rows)
        # Each run has a slot at the same position, so that all read the same log.
        for number in range(runs):
            session.execute("SELECT pg_copy_logical_replication_slot('debezium', %s)", (f"debezium_{number}",))
            shutil.copy(directory / "debezium.offsets", directory / f"debezium_{number}.offsets")
        for number in range(1 + _REPEATS):
            store.create_tunnel("orders", f"tunnel-{number}", kind="Stream")
        commit_changes(session, "orders", 0, rows, existing=rows, size=_TRANSACTION_ROWS)
        tunnels, slots = count(), count()

        def tunnel() -> float:
            return consume(server.url, f"tunnel-{next(tunnels)}", rows)

        def engine(form: str) -> Callable[[], float]:
            return lambda: debezium.start(form, rows, f"debezium_{next(slots)}", "no_data")()

        spent = alternately(_REPEATS, {"tunnel": tunnel, "connect": engine("connect"), "json": engine("json")})
    return _result(
        f"beside Debezium, changes: {rows:,} of them, half updates, {_TRANSACTION_ROWS} in a transaction", rows, spent
    )


def snapshot(directory: Path, scale: float) -> Result:
    """The rows of a table, by a worker of a tunnel with base data and by Debezium's engine."""
    rows = int(2_000_000 * scale)
    with (
        postgres_server() as server,
        headrace.open(server.url) as store,
        server.connect() as session,
        _Debezium.started(directory, server) as debezium,
    ):
        fill(store, session, rows, "debezium")
        runs = count()

        def tunnel() -> float:
            return consume_base(store, server.url, f"base-{next(runs)}", rows)

        def engine(form: str) -> Callable[[], float]:
            return lambda: debezium.start(form, rows, f"snapshot_{next(runs)}", "initial_only")()

        spent = alternately(_REPEATS, {"tunnel": tunnel, "connect": engine("connect"), "json": engine("json")})
    return _result(f"beside Debezium, snapshot: a table of {rows:,} rows", rows, spent)


def copy(directory: Path, scale: float) -> Result:
    """The rows of a table into another server, by a mirror without Spark, Debezium's engine, and PostgreSQL's dump."""
    rows = int(10_000_000 * scale)
    with (
        postgres_server() as source,
        postgres_server() as target,
        headrace.open(source.url) as store,
        source.connect() as writer,
        target.connect() as reader,
        _Debezium.started(directory, source, target) as debezium,
    ):
        fill(store, writer, rows, "debezium")

        def mirror() -> float:
            worker = headrace.mirror_worker(source.url, "orders", target.url)
            copied, taken = 0, 0.0

            def published(changes: int) -> None:
                nonlocal copied, taken
                copied += changes
                if copied == rows:
                    taken = time.perf_counter() - begin
                    worker.stop()

            begin = time.perf_counter()
            worker.run(published)
            return taken

        def engine() -> float:
            reader.execute("CREATE TABLE orders (" + ", ".join(_COLUMNS) + ', PRIMARY KEY ("UserId", "OrderId"))')
            return debezium.start("upserts", rows, "copy", "initial_only")()

        def dump() -> float:
            command = f"{PROGRAMS}/pg_dump -d {source.url} -t orders | {PROGRAMS}/psql -q -d {target.url}"
            return seconds(lambda: subprocess.run(["bash", "-o", "pipefail", "-c", command], check=True))

        spent = {}
        for name, run in {"mirror": mirror, "engine": engine, "dump": dump}.items():
            before = cpu_seconds(psutil.Process())
            spent[name] = Cost(run(), cpu_seconds(psutil.Process()) - before)
            assert reader.execute("SELECT count(*) FROM orders").fetchone() == (rows,)
            reader.execute("DROP TABLE orders")
    return Result(
        f"beside Debezium, copy: a table of {rows:,} rows into another PostgreSQL on the same cores",
        {
            "versions": f"Debezium {DEBEZIUM}, its engine in a process of its own",
            "load of the machine": load(),
            "headrace mirror, exactly once": spent["mirror"].text(rows),
            "Debezium, upserts by JDBC, a transaction for each of its batches": spent["engine"].text(rows),
            "pg_dump | psql, the limit": spent["dump"].text(rows),
        },
        [Ratio("mirror / Debezium", spent["engine"].clock / spent["mirror"].clock, 3.0)],
        "One run each, from its start to the commit of the last row. The JDBC driver sends the upserts of a batch "
        "together (reWriteBatchedInserts).",
    )


def _prepare(session: psycopg.Connection, debezium: _Debezium, rows: int) -> None:
    """Create Debezium's slot and its offsets by a run that reads one row."""
    finished = debezium.start("connect", 1, "debezium", "no_data")
    _wait_until(session, debezium, active=True)
    insert_orders(session, "orders", 10 * rows, 1)
    finished()
    _wait_until(session, debezium, active=False)


def _wait_until(session: psycopg.Connection, debezium: _Debezium, *, active: bool) -> None:
    """Wait until Debezium reads its slot, or no longer reads it."""
    query = "SELECT 1 FROM pg_replication_slots WHERE slot_name = 'debezium' AND active"
    ends = time.monotonic() + _LONGEST_SECONDS
    while (session.execute(query).fetchone() is not None) != active:
        if debezium.reader.process.poll() is not None or time.monotonic() > ends:
            raise RuntimeError(f"Debezium's slot is not {'read' if active else 'released'}; its output above says why")
        time.sleep(0.05)


def _result(title: str, rows: int, spent: dict[str, Cost]) -> Result:
    return result(
        title,
        rows,
        spent,
        "Debezium",
        f"Debezium {DEBEZIUM}, its engine in a process of its own",
        {"connect": "events as objects", "json": "events as JSON, as Debezium Server sends them"},
        "max.batch.size 16,384, max.queue.size 131,072, snapshot.fetch.size 20,000. Debezium Server is this engine "
        "with a sink.",
    )
