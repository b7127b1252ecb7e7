"""Tunnels of PostgreSQL: a slot to Arrow, base data through Spark, and changes through Spark into another table."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psycopg
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import headrace
from bench.measure import COLUMNS, Ratio, Result, batch_seconds, median_of, rate, seconds, spark_session
from bench.postgres_server import Server, commit_changes, commit_orders, create_orders, insert_orders, postgres_server
from bench.replication_protocol import stream_inserts
from headrace.batches.feeds.channel_reading import PAGE_ROWS

_TRANSACTION_ROWS = 100
# The driver of Spark's JDBC source, which Spark itself downloads.
_JDBC = "org.postgresql:postgresql:42.7.8"
_JDBC_FILE = "org.postgresql_postgresql-42.7.8.jar"
_JDBC_SHA256 = "2a32a9dcbc42d67a50ad3a0de5efd102c8d2be46720045f2cbd6689f160ab7c7"
_CACHE = Path.home() / ".cache" / "headrace-bench"


class Cost(NamedTuple):
    """The time of a run by the clock, and the CPU time of its clients and of the server, in seconds."""

    clock: float
    clients: float
    server: float

    def cores(self, rows: int) -> str:
        """Return the CPU time for a million rows as text."""
        return f"{self.clients * 1e6 / rows:.2f} s and {self.server * 1e6 / rows:.2f} s"


def cost(server: Server, run: Callable[[], object]) -> Cost:
    """Return the cost of a run."""
    clients, served = server.clients_cpu_seconds(), server.cpu_seconds()
    clock = seconds(run)
    return Cost(clock, server.clients_cpu_seconds() - clients, server.cpu_seconds() - served)


def postgres_slot(directory: Path, scale: float) -> Result:
    """A slot to Arrow, compared with the streaming replication protocol through psycopg."""
    rows, repeats = int(1_000_000 * scale), 5
    ours: list[Cost] = []
    theirs: list[Cost] = []
    with postgres_server() as server, headrace.open(server.url) as store, server.connect() as session:
        create_orders(store, "orders")
        tunnel = store.create_tunnel("orders", "slot", kind="Stream")
        slot = f"headrace_{tunnel.id}"
        commit_orders(session, "orders", 0, rows, size=_TRANSACTION_ROWS)
        schema = store.table("orders").schema

        def peeked() -> float:
            ours.append(cost(server, lambda: _read(server.url, rows)))
            return ours[-1].clock

        def streamed() -> float:
            served = 0.0

            def run() -> None:
                nonlocal served
                found = stream_inserts(server.url, slot, schema, rows)
                served = found.server_cpu
                assert found.rows == rows, f"{found.rows} rows instead of {rows}"

            theirs.append(cost(server, run)._replace(server=served))
            _wait_until_free(session, slot)
            return theirs[-1].clock

        clock, protocol = median_of(repeats, peeked, streamed)
    mine, other = (sorted(each, key=lambda one: one.clock)[repeats // 2] for each in (ours, theirs))
    return Result(
        f"PostgreSQL slot to Arrow: {rows:,} inserts, 4 columns, {_TRANSACTION_ROWS} rows a transaction",
        {
            "headrace tunnel": rate(rows, clock),
            "streaming replication protocol through psycopg, the same decoder": rate(rows, protocol),
            "CPU for a million rows, tunnel: client and server": mine.cores(rows),
            "CPU for a million rows, protocol: client and server": other.cores(rows),
        },
        [
            Ratio("thousands of rows per second", rows / clock / 1e3, 600.0),
            Ratio("tunnel / streaming protocol", protocol / clock, 4.0),
        ],
    )


def _read(url: str, expected: int) -> None:
    """Read all changes of the tunnel as a task does."""
    with headrace.open(url) as store:
        tunnel = store.tunnel("slot")
        (channel,) = tunnel.channels()
        position, until, rows = channel.committed, tunnel.latest_positions()[channel.id], 0
        while changes := (page := tunnel.read(channel.id, position, PAGE_ROWS, until)).changes.num_rows:
            rows, position = rows + changes, page.next
    assert rows == expected, f"{rows} rows instead of {expected}"


def _wait_until_free(session: psycopg.Connection, slot: str) -> None:
    """Wait until the server has noticed the end of a stream."""
    while session.execute("SELECT active FROM pg_replication_slots WHERE slot_name = %s", (slot,)).fetchone() != (
        False,
    ):
        time.sleep(0.05)


def postgres_snapshot(directory: Path, scale: float) -> Result:
    """Base data of a tunnel, and the table itself, through Spark into noop, compared with Spark's JDBC source."""
    rows, repeats, runs = int(3_000_000 * scale), 5, iter(range(1000))
    spent: dict[str, list[Cost]] = {}
    with postgres_server() as server, headrace.open(server.url) as store, server.connect() as session:
        create_orders(store, "orders")
        for first in range(0, rows, 100_000):
            insert_orders(session, "orders", first, min(100_000, rows - first))
        session.execute("VACUUM ANALYZE")
        with _session_with_jdbc() as spark:

            def tunnel() -> None:
                name = f"base-{next(runs)}"
                store.create_tunnel("orders", name, kind="BaseData")
                stream = spark.readStream.format("headrace").options(store=server.url, tunnel=name).load()
                query = stream.writeStream.format("noop").option("checkpointLocation", str(directory / name))
                running = query.trigger(availableNow=True).start()
                running.awaitTermination()
                found = batch_seconds(running)[1]
                assert found == rows, f"{found} rows instead of {rows}"
                store.drop_tunnel(name)

            def batch() -> None:
                reader = spark.read.format("headrace").options(store=server.url, table="orders")
                reader.load().write.format("noop").mode("overwrite").save()

            def jdbc(connections: int) -> None:
                reader = spark.read.format("jdbc").options(
                    url=server.url.replace("postgresql://postgres@", "jdbc:postgresql://"),
                    user="postgres",
                    dbtable="orders",
                    driver="org.postgresql.Driver",
                    fetchsize=10_000,
                )
                if connections > 1:
                    reader = reader.options(
                        partitionColumn="OrderId", lowerBound=0, upperBound=rows, numPartitions=connections
                    )
                reader.load().write.format("noop").mode("overwrite").save()

            def measured(name: str, run: Callable[[], None]) -> Callable[[], float]:
                run()

                def once() -> float:
                    spent.setdefault(name, []).append(cost(server, run))
                    return spent[name][-1].clock

                return once

            taken = median_of(
                repeats,
                measured("tunnel", tunnel),
                measured("batch", batch),
                measured("one", lambda: jdbc(1)),
                measured("two", lambda: jdbc(2)),
            )
    middle = {name: sorted(each, key=lambda one: one.clock)[repeats // 2] for name, each in spent.items()}
    return Result(
        f"PostgreSQL snapshot: base data of {rows:,} rows, 4 columns, through Spark into noop",
        {
            "headrace tunnel": rate(rows, taken[0]),
            "headrace table, without a tunnel": rate(rows, taken[1]),
            "Spark's JDBC source, one connection": rate(rows, taken[2]),
            "Spark's JDBC source, two connections": rate(rows, taken[3]),
            "CPU for a million rows, tunnel: Spark and server": middle["tunnel"].cores(rows),
            "CPU for a million rows, table: Spark and server": middle["batch"].cores(rows),
            "CPU for a million rows, JDBC with one connection: Spark and server": middle["one"].cores(rows),
        },
        [
            Ratio("tunnel / JDBC on one connection", taken[2] / taken[0], 5.0),
            Ratio("tunnel / JDBC on as many connections", taken[3] / taken[0], 1.5),
            Ratio("table / JDBC on as many connections", taken[3] / taken[1], 1.0),
        ],
        "The whole query, with its start, its checkpoint and the tunnel's creation and end. A tunnel keeps what it has "
        "read in the database until it is committed, so that a batch that is read again has the same rows; the JDBC "
        "source reads once. Its `fetchsize` is 10,000.",
    )


@contextmanager
def _session_with_jdbc() -> Iterator[SparkSession]:
    """Start Spark with PostgreSQL's JDBC driver, which it downloads unless the cache has it."""
    if SparkContext._gateway is not None:
        # Only a new Java process looks at the list of packages.
        SparkContext._gateway.shutdown()
        SparkContext._gateway = SparkContext._jvm = None
    with spark_session({"spark.jars.packages": _JDBC, "spark.jars.ivy": str(_CACHE)}) as spark:
        found = hashlib.sha256((_CACHE / "jars" / _JDBC_FILE).read_bytes()).hexdigest()
        if found != _JDBC_SHA256:
            raise RuntimeError(f"the JDBC driver in {_CACHE} is not the pinned one: SHA-256 {found}")
        yield spark


def postgres_stream(directory: Path, scale: float) -> Result:
    """Changes of a table through Spark into another table of the same database, exactly once."""
    existing, changed, batches = int(1_000_000 * scale), int(400_000 * scale), 4
    with postgres_server() as server, headrace.open(server.url) as store, server.connect() as session:
        create_orders(store, "orders", "copy")
        for first in range(0, existing, 100_000):
            insert_orders(session, "orders", first, min(100_000, existing - first))
        session.execute("INSERT INTO copy SELECT * FROM orders")
        session.execute("VACUUM ANALYZE")
        store.create_tunnel("orders", "copy", kind="Stream")
        with spark_session() as spark:

            def start() -> StreamingQuery:
                stream = spark.readStream.format("headrace").options(store=server.url, tunnel="copy")
                return headrace.write_stream(
                    stream.option("maxRowsPerTrigger", changed).load().select(*COLUMNS),
                    store=server.url,
                    table="copy",
                    checkpoint=directory / "checkpoint",
                    mode="update",
                    trigger={"availableNow": True},
                ).start()

            commit_changes(session, "orders", 0, changed // 10, existing=existing, size=_TRANSACTION_ROWS)
            start().awaitTermination()
            for number in range(1, batches + 1):
                commit_changes(session, "orders", number, changed, existing=existing, size=_TRANSACTION_ROWS)
            ran: list[StreamingQuery] = []

            def run() -> None:
                ran.append(start())
                ran[-1].awaitTermination()

            spent = cost(server, run)
            taken, rows = batch_seconds(ran[0])
            assert rows == batches * changed, f"{rows} rows instead of {batches * changed}"
        differences = session.execute("SELECT count(*) FROM (TABLE orders EXCEPT TABLE copy) d").fetchone()
        assert differences == (0,), differences
    return Result(
        f"PostgreSQL to PostgreSQL: changes of {changed:,} rows a batch, half of them updates, update mode, exactly "
        f"once, into a table of {existing:,} rows",
        {
            "tunnel, Spark and publication": rate(rows, taken),
            "CPU for a million rows: Spark and server": spent.cores(rows),
        },
        [Ratio("thousands of rows per second", rows / taken / 1e3, 150.0)],
        f"Source and target are in one database, on the machine of Spark. {batches} batches, after one that warms up.",
    )
