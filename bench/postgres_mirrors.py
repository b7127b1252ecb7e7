"""Mirrors from PostgreSQL to PostgreSQL: without Spark, beside the same mirror with Spark."""

from __future__ import annotations

import multiprocessing
import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import psycopg
from pyspark.sql import SparkSession

import headrace
from bench.measure import Ratio, Result, rate, spark_session
from bench.postgres_server import Server, create_orders, insert_orders, postgres_server

_SPARK, _WORKER = "with Spark", "without Spark"
# Rows before the measured ones.
_WARM = 10


@contextmanager
def _worker(source: Server, target: Server, copy: str) -> Iterator[None]:
    """Run a worker in a process of its own: the queries that look for its rows would take its time."""
    process = multiprocessing.get_context("spawn").Process(target=_run, args=(source.url, target.url, copy))
    process.start()
    try:
        yield
    finally:
        process.terminate()
        process.join()


def _run(source: str, target: str, copy: str) -> None:
    headrace.mirror_worker(source, "orders", target, copy).run()


@contextmanager
def _query(spark: SparkSession, source: Server, target: Server, copy: str, directory: Path) -> Iterator[None]:
    """Run a mirror of Spark."""
    query = headrace.mirror(
        spark, source=source.url, table="orders", to=target.url, to_table=copy, checkpoint=directory / copy
    ).start()
    try:
        yield
    finally:
        query.stop()


def postgres_mirror(directory: Path, scale: float) -> Result:
    """Base data, and the time from a commit until another connection sees the row in the copy."""
    rows, samples = int(10_000_000 * scale), max(20, int(200 * scale))
    seconds, delays = dict[str, float](), dict[str, list[float]]()
    with postgres_server() as source, postgres_server() as target, spark_session() as spark:
        with headrace.open(source.url) as store:
            create_orders(store, "orders")
        with source.connect() as writer, target.connect() as reader:
            insert_orders(writer, "orders", 0, rows)
            writer.execute("ANALYZE orders")
            mirrors: dict[str, Callable[[], AbstractContextManager[None]]] = {
                _SPARK: lambda: _query(spark, source, target, "spark", directory),
                _WORKER: lambda: _worker(source, target, "worker"),
            }
            for (name, mirror), copy in zip(mirrors.items(), ("spark", "worker"), strict=True):
                present = rows + len(delays) * (samples + _WARM)
                begin = time.perf_counter()
                with mirror():
                    _wait_for_rows(writer, reader, copy, present)
                    seconds[name] = time.perf_counter() - begin
                    delays[name] = _delays(writer, reader, copy, present, samples)
    figures = {}
    for name in mirrors:
        ordered = delays[name]
        late = ordered[int(0.99 * (len(ordered) - 1))]
        figures[f"{name}, base data"] = rate(rows, seconds[name])
        figures[f"{name}, median delay"] = f"{1000 * statistics.median(ordered):.0f} ms"
        figures[f"{name}, 99th percentile"] = f"{1000 * late:.0f} ms"
    return Result(
        f"mirror from PostgreSQL to PostgreSQL: {rows:,} rows, and {samples} rows one by one",
        figures,
        [
            Ratio("base data, without Spark / with Spark", seconds[_SPARK] / seconds[_WORKER], 1.0),
            Ratio(
                "median delay, with Spark / without Spark",
                statistics.median(delays[_SPARK]) / statistics.median(delays[_WORKER]),
                5.0,
            ),
        ],
        "One worker, one query on local cores, and two servers on one machine. The mirror is idle for 0.1 to 0.5 s "
        "before each row.",
    )


def _wait_for_rows(writer: psycopg.Connection, reader: psycopg.Connection, copy: str, rows: int) -> None:
    """Wait until a copy of table ``orders`` has all rows."""
    size = writer.execute("SELECT pg_relation_size('orders')").fetchone()
    assert size is not None
    # Counting takes the time of the machine: it begins when the copy is almost as large.
    while not _exists(reader, copy, "SELECT pg_relation_size('{}') > 0.9 * %s", int(size[0])):
        time.sleep(0.05)
    while not _exists(reader, copy, 'SELECT count(*) = %s FROM "{}"', rows):
        time.sleep(0.2)


def _delays(writer: psycopg.Connection, reader: psycopg.Connection, copy: str, first: int, samples: int) -> list[float]:
    """Return the seconds from a commit until its row is in a copy, sorted."""
    pauses, taken = random.Random(1), list[float]()
    find = 'SELECT count(*) > 0 FROM "{}" WHERE "UserId" = %s'
    for number in range(first, first + _WARM + samples):
        insert_orders(writer, "orders", number, 1)
        begin = time.perf_counter()
        while not _exists(reader, copy, find, f"user-{number:08}"):
            time.sleep(0.001)
        taken.append(time.perf_counter() - begin)
        time.sleep(pauses.uniform(0.1, 0.5))
    return sorted(taken[_WARM:])


def _exists(reader: psycopg.Connection, copy: str, query: str, value: int | str) -> bool:
    try:
        row = reader.execute(query.format(copy).encode(), (value,)).fetchone()
    except psycopg.errors.UndefinedTable:
        return False
    return row is not None and bool(row[0])
