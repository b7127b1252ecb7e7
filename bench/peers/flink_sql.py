"""Sums of a join of three tables of PostgreSQL, kept in a fourth one: by headrace, and by a job of Flink SQL."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import psycopg
from pyspark.sql import SparkSession

import headrace
from bench.joins import COLUMNS, SUMS
from bench.measure import Ratio, Result, rate, spark_session
from bench.peers.java_readers import JavaReader, port_of
from bench.peers.releases import FLINK, FLINK_CDC, FLINK_JDBC
from bench.peers.running import load
from bench.postgres_server import postgres_server

_SOURCE = Path(__file__).parent / "FlinkJoin.java"
_BACKENDS = ("hashmap", "rocksdb")
_SMALL, _REPEATS = 1_000, 7
_COLD = 2
_STATE = "__headrace_state"
_DIVISORS = {"facts": 1, "dims": 10, "kinds": 1_000}


class _Totals(NamedTuple):
    """The sums of the columns of a target, which each change moves to values that they have never had."""

    n: int
    s: int


@dataclass
class _Measured:
    """What one side took.

    Attributes:
        first: the seconds from its start to the first answer.
        small: the seconds from a commit of `_SMALL` changes until the target has them.
        large: the seconds from a commit of many changes until the target has them.
        between: how often the target was neither that of before a commit nor that of after it, of all looks at it.
        state: the bytes of the state.
    """

    first: float
    small: list[float]
    large: float
    between: tuple[int, int]
    state: float


def join(directory: Path, scale: float) -> Result:
    """First answer, latency, throughput and state of a join of 1 M, 100 k and 1 k rows."""
    rows, many = int(1_000_000 * scale), int(100_000 * scale)
    with postgres_server() as server, headrace.open(server.url) as store, server.connect() as session:
        _fill(store, session, rows)
        with spark_session() as spark:
            begin = time.perf_counter()
            with _headrace(spark, store):
                own = _measure(session, "sums", begin, many, partial(_state_bytes, store, session))
        flink: dict[str, _Measured] = {}
        for backend in _BACKENDS:
            checkpoints = directory / backend
            with JavaReader.started("Flink", "flink_sql", _SOURCE, directory) as process:
                begin, state = time.perf_counter(), partial(_checkpoint, checkpoints)
                process.read([backend, port_of(server), checkpoints])()
                flink[f"Flink SQL, {backend}"] = _measure(session, "flink_sums", begin, many, state)
                process.read(["end"])()
            session.execute("TRUNCATE flink_sums")
            for name in _DIVISORS:
                session.execute("SELECT pg_drop_replication_slot(%s)", (f"flink_{name}",))
    sides = {"headrace": own} | flink
    figures = {name: _text(each, many) for name, each in sides.items()}
    small = {name: statistics.median(each.small[_COLD:]) for name, each in sides.items()}
    large = {name: each.large for name, each in sides.items()}
    return Result(
        f"beside Flink SQL: count and sum of a join of {rows:,}, {rows // 10:,} and {rows // 1_000:,} rows, "
        "PostgreSQL on the same cores",
        {"versions": f"Flink {FLINK}, Flink CDC {FLINK_CDC}, JDBC {FLINK_JDBC}", "load of the machine": load()}
        | figures,
        [
            Ratio(f"{name} / headrace, {what}", of[name] / of["headrace"], 1.0)
            for name in flink
            for what, of in ((f"{_SMALL:,} changes", small), (f"{many:,} changes", large))
        ],
        "From the commit of a transaction until the target has all its changes. headrace publishes them in one "
        "transaction with the position, exactly once. Flink's sink writes rows as they come (here every 50 ms), at "
        "least once after a failure: its target is between two states for a while. Flink's state is that of its last "
        "checkpoint, each 5 s; headrace's is in tables of the target's database, with their indexes.",
    )


def _fill(store: headrace.Store, session: psycopg.Connection, rows: int) -> None:
    """Create the tables, with rows, and the targets."""
    selects = {
        "facts": f"SELECT i, i * 7919 % {rows // 10}, i % 97",
        "dims": f"SELECT i, i * 31 % {rows // 1_000}, 'name ' || i",
        "kinds": "SELECT i, 'kind ' || i",
    }
    for name, divisor in _DIVISORS.items():
        store.create_table(name, COLUMNS[name], "id")
        series = f"generate_series(0, {rows // divisor - 1}::bigint) i"
        session.execute(f"INSERT INTO {name} {selects[name]} FROM {series}".encode())
        # Flink and headrace need old rows, for columns that are no key.
        session.execute(f"ALTER TABLE {name} REPLICA IDENTITY FULL".encode())
    for name in ("sums", "flink_sums"):
        store.create_table(name, {"label": "string", "n": "long", "s": "long"}, "label")
    session.execute("CREATE PUBLICATION flink FOR TABLE facts, dims, kinds")
    session.execute("VACUUM ANALYZE")


@contextmanager
def _headrace(spark: SparkSession, store: headrace.Store) -> Iterator[None]:
    tunnel = store.create_tunnel(list(_DIVISORS), "sums").id
    reader = spark.readStream.format("headrace").options(store=store.url, tunnel=tunnel, readAs="table")
    scans = {table: reader.load(table) for table in _DIVISORS}
    checkpoint = headrace.checkpoint("headrace:///flink/sums", store=store, spark=spark)
    stream = headrace.follow(spark, SUMS, scans=scans, store=store.url, table="sums", checkpoint=checkpoint)
    query = stream.start()
    try:
        yield
    finally:
        query.stop()
        store.drop_tunnel(tunnel)


def _measure(
    session: psycopg.Connection, target: str, begin: float, many: int, state: Callable[[], float]
) -> _Measured:
    """Wait for the first answer of a job, then change the tables and wait for the answers.

    Args:
        begin: the time of the start of the job.
        many: the number of changes of the last transaction.
        state: returns the bytes of the state.
    """
    looks: list[_Totals] = []
    _wait(session, target, _expected(session), looks)
    first = time.perf_counter() - begin
    small, between, seen = list[float](), 0, 0
    for count in [*[_SMALL] * _REPEATS, many]:
        looks = []
        before = _totals(session, target)
        with session.transaction():
            _change(session, count)
            expected = _expected(session)
        begin = time.perf_counter()
        _wait(session, target, expected, looks)
        small.append(time.perf_counter() - begin)
        between += sum(each not in (before, expected) for each in looks)
        seen += len(looks)
    large = small.pop()
    return _Measured(first, small, large, (between, seen), state())


def _change(session: psycopg.Connection, count: int) -> None:
    """Change rows, in the caller's transaction: half of the facts are new, others get another dimension."""
    facts, dims = count - count // 50, count // 50 - 1
    ((rows, of_dims, of_kinds),) = session.execute(
        "SELECT (SELECT max(id) + 1 FROM facts), (SELECT count(*) FROM dims), (SELECT count(*) FROM kinds)"
    )
    step = rows // (facts // 2)
    session.execute(
        f"UPDATE facts SET dim = (dim + 1) % {of_dims}, amount = amount + 1"
        f" WHERE id IN (SELECT i * {step} FROM generate_series(0, {facts // 2 - 1}) i)".encode()
    )
    session.execute(
        f"INSERT INTO facts SELECT i, i * 7919 % {of_dims}, i % 97"
        f" FROM generate_series({rows}, {rows + facts - facts // 2 - 1}::bigint) i".encode()
    )
    session.execute(f"UPDATE dims SET kind = (kind + 1) % {of_kinds} WHERE id % {of_dims // dims} = 0".encode())
    session.execute(f"UPDATE kinds SET label = label || '.' WHERE id = {rows % of_kinds}".encode())


def _expected(session: psycopg.Connection) -> _Totals:
    (found,) = session.execute(f"SELECT sum(n), sum(s) FROM ({SUMS}) AS sums".encode())
    return _Totals(*map(int, found))


def _totals(session: psycopg.Connection, target: str) -> _Totals:
    (found,) = session.execute(f"SELECT coalesce(sum(n), 0), coalesce(sum(s), 0) FROM {target}".encode())
    return _Totals(*map(int, found))


def _wait(session: psycopg.Connection, target: str, expected: _Totals, looks: list[_Totals]) -> None:
    """Look at the target until it has what is expected."""
    end = time.monotonic() + 600
    while not looks or looks[-1] != expected:
        if time.monotonic() > end:
            raise TimeoutError(f"{target} has {looks[-1]} instead of {expected}")
        looks.append(_totals(session, target))
        time.sleep(0.002)


def _state_bytes(store: headrace.Store, session: psycopg.Connection) -> float:
    tables = [table for table in store.tables() if table.startswith(_STATE)]
    (found,) = session.execute(
        "SELECT sum(pg_total_relation_size(quote_ident(t)::regclass)) FROM unnest(%s::text[]) t", (tables,)
    )
    return float(found[0])


def _checkpoint(directory: Path) -> float:
    """Return the bytes of a checkpoint that begins now or later."""
    known = set(directory.glob("*/chk-*/_metadata"))
    for _ in range(2):
        # The first one may have begun before the last changes.
        while not (new := set(directory.glob("*/chk-*/_metadata")) - known):
            time.sleep(0.1)
        known |= new
    newest = max(new, key=lambda file: file.stat().st_mtime).parent
    # A file that was just written has no blocks on the disk yet.
    return sum(file.stat().st_size for file in newest.iterdir())


def _text(each: _Measured, many: int) -> str:
    small, (between, seen) = sorted(each.small[_COLD:]), each.between
    return (
        f"first answer {each.first:.1f} s; {_SMALL:,} changes {statistics.median(small) * 1000:.0f} ms "
        f"({small[0] * 1000:.0f} to {small[-1] * 1000:.0f}); {rate(many, each.large)} of {many:,}; "
        f"state {each.state / 1e6:.0f} MB; {between} of {seen} looks at the target saw a part of a transaction"
    )
