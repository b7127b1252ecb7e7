"""YTsaurus' protocol over HTTP: `headrace serve` in another process, Spark and headrace's store in this one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import headrace
from bench.measure import COLUMNS, Ratio, Result, batch_seconds, drain, median_of, orders, rate, spark_session
from headrace.ports import Store

TOKEN = "not-a-secret"
_PARTITIONS = 2
_APPEND_ROWS = 50_000
# SPYT's own figures for jobs that write exactly once, one executor with one core: a plain copy through its
# transactional mode, and its fastest published job, a join. Source: SPYT's documentation of streaming.
_PUBLISHED_COPY, _PUBLISHED_FASTEST = 2_600.0, 26_200.0


@contextmanager
def cluster(directory: Path) -> Iterator[str]:
    """Serve a directory as a cluster; yield its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace.cli.main", "serve", "--ytsaurus", "0", "--root", str(directory), "--json"],
        env=os.environ | {"HEADRACE_YT_TOKEN": TOKEN},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield f"127.0.0.1:{json.loads(process.stdout.readline())['port']}"
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


def _filled(store: Store, name: str, rows: int) -> None:
    """Create a queue with ``rows`` rows, spread evenly, and a consumer for it."""
    queue = store.create_queue(name, COLUMNS, partitions=_PARTITIONS)
    each = min(_APPEND_ROWS, rows // _PARTITIONS)
    for number in range(rows // each):
        queue.append(orders(number * each, each), partition=number % _PARTITIONS)


def _consumer(store: Store, queue: str, name: str) -> None:
    store.create_consumer(name)
    store.register_consumer(queue, name, vital=True)


def _stream(spark: SparkSession, proxy: str, queue: str, consumer: str, **options: object) -> DataFrame:
    stream = spark.readStream.format("yt").option("proxy", f"http://{proxy}").option("token", TOKEN)
    given = {name: str(value) for name, value in options.items()}
    return stream.option("consumer_path", consumer).options(**given).load(queue)


def ytsaurus_queue(directory: Path, scale: float) -> Result:
    """A queue of a cluster into noop, through Spark."""
    rows = max(100_000, int(3_000_000 * scale))
    with cluster(directory / "root") as proxy, spark_session() as spark:
        store = headrace.open(f"yt+http://{proxy}", token=TOKEN)
        _filled(store, "//tmp/orders", rows)
        runs = iter(range(1000))

        def ours() -> float:
            run = next(runs)
            _consumer(store, "//tmp/orders", f"//tmp/consumer-{run}")
            taken, seen = drain(
                _stream(spark, proxy, "//tmp/orders", f"//tmp/consumer-{run}"), directory / f"checkpoint-{run}"
            )
            assert seen == rows, f"{seen} rows instead of {rows}"
            return taken

        ours()
        (taken,) = median_of(3, ours)
    return Result(
        f"YTsaurus queue over HTTP: {rows:,} rows of 4 columns, {_PARTITIONS} partitions, into noop",
        {"format yt, from `headrace serve`": rate(rows, taken)},
        [Ratio("thousands of rows per second", rows / taken / 1000, 300.0)],
        "Spark, the store and the server share the machine.",
    )


def ytsaurus_exactly_once(directory: Path, scale: float) -> Result:
    """A queue into a sorted table and into queues, with the consumer's advance."""
    rows = max(100_000, int(800_000 * scale))
    # A batch of up to 100,000 rows is one transaction. A larger batch is published in parts.
    rows_of_batches = {"table": 100_000, "table in parts": rows, "queue": 100_000, "queue in parts": rows}
    taken: dict[str, float] = {}
    with cluster(directory / "root") as proxy, spark_session() as spark:
        store = headrace.open(f"yt+http://{proxy}", token=TOKEN)
        _filled(store, "//tmp/orders", rows)
        runs = iter(range(1000))

        def copied(kind: str) -> float:
            target, consumer = f"//tmp/target-{next(runs)}", f"//tmp/consumer-{next(runs)}"
            _consumer(store, "//tmp/orders", consumer)
            if kind.startswith("table"):
                store.create_table(target, COLUMNS, ["UserId", "OrderId"])
            else:
                store.create_queue(target, COLUMNS, partitions=_PARTITIONS)
            each = rows_of_batches[kind] // _PARTITIONS
            stream = headrace.write_stream(
                _stream(spark, proxy, "//tmp/orders", consumer, max_rows_per_partition=each),
                format="yt",
                options={"proxy": f"http://{proxy}", "token": TOKEN, "path": target},
                checkpoint=directory / f"checkpoint-{next(runs)}",
                trigger={"availableNow": True},
            )
            query = stream.start()
            query.awaitTermination()
            seconds, seen = batch_seconds(query)
            assert seen == rows, f"{seen} rows instead of {rows}"
            return seconds

        for kind in rows_of_batches:
            copied(kind)
            (taken[kind],) = median_of(3, lambda kind=kind: copied(kind))  # type: ignore[misc]
    figures = {
        f"queue to {kind}, {rows_of_batches[kind]:,} rows a batch": rate(rows, seconds)
        for kind, seconds in taken.items()
    }
    ratios = [
        Ratio(f"queue to {kind} / SPYT's published copy, exactly once", rows / seconds / _PUBLISHED_COPY, 10.0)
        for kind, seconds in taken.items()
    ]
    fastest = {
        f"queue to {kind} / the fastest that SPYT has published": f"{rows / seconds / _PUBLISHED_FASTEST:.1f}"
        for kind, seconds in taken.items()
    }
    return Result(
        f"YTsaurus exactly once: {rows:,} rows of 4 columns over HTTP, a batch in one transaction or in parts",
        figures | fastest,
        ratios,
        f"SPYT's documentation gives {_PUBLISHED_COPY:,.0f} rows a second for a copy in its transactional mode, and "
        f"{_PUBLISHED_FASTEST:,.0f} for its fastest job, with one core for Spark. This benchmark uses two cores for "
        "Spark and for the cluster, which is `headrace serve`. So the ratios compare with a published figure.",
    )
