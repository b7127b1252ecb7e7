"""Streams from PostgreSQL to PostgreSQL that have little to do: the delay of single rows, and an idle table."""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import psycopg
from pyspark.sql import SparkSession

import headrace
from bench.measure import COLUMNS, Ratio, Result, spark_session
from bench.postgres_server import Server, create_orders, insert_orders, postgres_server

# Java compiles the code of a stream while it runs.
_WARM = 100
_MEGABYTE = 1_000_000
_OTHER = "CREATE TABLE other (id bigint, text text)"
# About 1 kB of log for a row.
_OTHER_ROWS = "INSERT INTO other SELECT i, repeat(md5(i::text), 29) FROM generate_series(1, %s) i"
# bgwriter logs the running transactions every 15 s. Only there the server can forget older log.
_SNAPSHOT_SECONDS = 15


@contextmanager
def _stream(spark: SparkSession, server: Server) -> Iterator[None]:
    """Run a query from table ``orders`` into table ``copy``, with its checkpoint in their database."""
    with headrace.open(server.url) as store:
        create_orders(store, "orders", "copy")
        store.create_tunnel("orders", "copy")
    stream = spark.readStream.format("headrace").options(store=server.url, tunnel="copy").load()
    query = headrace.write_stream(
        stream.select(*COLUMNS), store=server.url, table="copy", checkpoint="postgresql:///latency", mode="update"
    ).start()
    try:
        yield
    finally:
        query.stop()


def postgres_latency(directory: Path, scale: float) -> Result:
    """The time from a commit until another connection sees the row in the target, one row at a time."""
    samples = max(20, int(200 * scale))
    pauses = random.Random(1)
    taken: list[float] = []
    with (
        postgres_server() as server,
        spark_session() as spark,
        server.connect() as session,
        _stream(spark, server),
    ):
        for number in range(_WARM + samples):
            insert_orders(session, "orders", number, 1)
            taken.append(_seconds_until_seen(session, number))
            time.sleep(pauses.uniform(0.3, 0.8))
    ordered = sorted(taken[_WARM:])
    median, late = statistics.median(ordered), ordered[int(0.99 * (len(ordered) - 1))]
    return Result(
        f"PostgreSQL to PostgreSQL: from a commit to its row in the target, {samples} rows one by one",
        {
            "median": f"{1000 * median:.0f} ms",
            "99th percentile": f"{1000 * late:.0f} ms",
            "fastest": f"{1000 * ordered[0]:.0f} ms",
            "slowest": f"{1000 * ordered[-1]:.0f} ms",
        },
        [
            Ratio("median, seconds", median, 0.12, at_most=True),
            Ratio("99th percentile, seconds", late, 0.25, at_most=True),
        ],
        "The stream is idle for 0.3 to 0.8 s before each row. Its checkpoint is in the database.",
    )


def _seconds_until_seen(session: psycopg.Connection, number: int) -> float:
    begin = time.perf_counter()
    while not session.execute('SELECT 1 FROM copy WHERE "OrderId" = %s', (number,)).fetchone():
        if time.perf_counter() - begin > 60:
            raise RuntimeError(f"row {number} has not arrived")
        time.sleep(0.002)
    return time.perf_counter() - begin


@dataclass
class _Slot:
    """Looks at the only slot of a server twice a second, in a thread.

    Attributes:
        kept: bytes of the log from ``restart_lsn`` on, which the server keeps for the slot.
        unread: bytes of the log after the slot's position.
    """

    url: str
    kept: list[int] = field(default_factory=list)
    unread: list[int] = field(default_factory=list)
    _done: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> _Slot:
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        with psycopg.connect(self.url, autocommit=True) as session:
            while not self._done.wait(0.5):
                found = session.execute(
                    "SELECT (pg_current_wal_flush_lsn() - restart_lsn)::bigint,"
                    " (pg_current_wal_flush_lsn() - confirmed_flush_lsn)::bigint FROM pg_replication_slots"
                ).fetchone()
                assert found is not None
                self.kept.append(found[0])
                self.unread.append(found[1])


def postgres_idle(directory: Path, scale: float) -> Result:
    """A followed table without changes, while another table of the server writes 1 GB of log."""
    size = int(1000 * scale) * _MEGABYTE
    watched = max(40.0, 60.0 * scale)
    with postgres_server() as server, spark_session() as spark, server.connect() as session:
        session.execute(_OTHER)
        with _stream(spark, server):
            insert_orders(session, "orders", 0, 1)
            _seconds_until_seen(session, 0)
            idle = _python_share(lambda: time.sleep(10))
            with _Slot(server.url) as slot:
                busy = _python_share(lambda: _write(session, size, watched))
                most_kept, most_unread = max(slot.kept), max(slot.unread)
                time.sleep(_SNAPSHOT_SECONDS + 5)
                left = slot.kept[-1]
    per_second = size / watched
    return Result(
        f"PostgreSQL, idle table: {size // _MEGABYTE:,} MB of other log in {watched:.0f} s",
        {
            "CPU of headrace without other log": f"{100 * idle:.2f} % of a core",
            "CPU of headrace with other log": f"{100 * busy:.2f} % of a core",
            "most log that the slot kept": f"{most_kept / _MEGABYTE:.0f} MB",
            "most log after the slot's position": f"{most_unread / _MEGABYTE:.0f} MB",
            f"log that the slot kept {_SNAPSHOT_SECONDS + 5} s after the last write": f"{left / _MEGABYTE:.1f} MB",
        },
        [
            Ratio("CPU of headrace, % of a core", 100 * busy, 5.0, at_most=True),
            Ratio("log that the slot kept, seconds of writing", most_kept / per_second, 30.0, at_most=True),
        ],
        "The server can forget log at each record of running transactions, which it writes every 15 s and at "
        "checkpoints. So a slot keeps the log of these 15 s, of the time until headrace looks at the slot, and of the "
        "oldest open transaction.",
    )


def _write(session: psycopg.Connection, size: int, duration: float) -> None:
    """Write log of about ``size`` bytes to another table, evenly in ``duration`` seconds."""
    begin = time.monotonic()
    for number in range(size // _MEGABYTE):
        session.execute(_OTHER_ROWS, (1000,))
        time.sleep(max(0.0, begin + duration * (number + 1) * _MEGABYTE / size - time.monotonic()))


def _python_share(run: Callable[[], object]) -> float:
    """Return the CPU time of Spark's Python processes during a run, as a share of a core.

    Processes that end during the run do not count: Spark ends those that have nothing to do.
    """
    before, begin = _python_seconds(), time.monotonic()
    run()
    after = _python_seconds()
    return sum(spent - before.get(process, 0.0) for process, spent in after.items()) / (time.monotonic() - begin)


def _python_seconds() -> dict[int, float]:
    """Return the CPU time of Spark's Python processes, by process id."""
    found = {}
    for each in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if "python" in each.name():
                times = each.cpu_times()
                found[each.pid] = float(times.user + times.system)
    return found
