"""The delay of single rows: from a commit to the target of a stream that was idle, or to a worker.

Spark's own times of the phases of the batches show where the delay of a stream comes from, see `_PHASES`.
"""

from __future__ import annotations

import multiprocessing
import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

import headrace
from bench.measure import Ratio, Result, orders, orders_table, spark_session

# Java compiles the code of a stream while it runs: the delays fall for about 100 rows.
_WARM = 100
_WARM_WORKER = 15
_LONGEST_SECONDS = 60.0
_LOOK_SECONDS = 0.001
# The phases of a batch in Spark's reports, in their order.
_PHASES = {
    "latestOffset": "the wait for data, and the plan of the batch",
    "walCommit": "offsets into the checkpoint",
    "queryPlanning": "Spark's plan",
    "addBatch": "tasks, staging, publication",
    "commitBatch": "commit into the checkpoint",
    "commitOffsets": "commit in the source",
}


def latency_stream(directory: Path, scale: float) -> Result:
    """One row at a time through a stream without state."""
    return _through_spark(directory, scale, "a stream without state", _copy, (0.120, 0.350))


def latency_windows(directory: Path, scale: float) -> Result:
    """One row at a time through a windowed aggregate."""
    return _through_spark(directory, scale, "a windowed aggregate", _windows, (0.250, 0.700))


def latency_worker(directory: Path, scale: float) -> Result:
    """One row at a time from another process to a worker without Spark."""
    samples = max(50, int(500 * scale))
    orders_table(directory / "store", 1)
    # A fork would inherit the connections to the store.
    context = multiprocessing.get_context("spawn")
    received, sender = context.Pipe(duplex=False)
    taken: list[float] = []
    with headrace.open(directory / "store") as store:
        tunnel = store.create_tunnel("orders", "worker", kind="Stream")
        writer = context.Process(target=_write, args=(directory / "store", _WARM_WORKER + samples, sender))
        writer.start()
        with tunnel.consume() as worker:
            for batch in worker:
                seen = time.time()
                taken += [seen - received.recv() for _ in range(len(batch))]
                if len(taken) == _WARM_WORKER + samples:
                    break
        writer.join()
    return _result("a worker without Spark, which another process writes for", taken[_WARM_WORKER:], (0.010, 0.050), {})


def _write(path: Path, count: int, committed: Connection) -> None:
    """Put rows one by one; send the time of each commit, in seconds since 1970."""
    pauses = random.Random(1)
    with headrace.open(path) as store:
        table = store.table("orders")
        for number in range(1, count + 1):
            time.sleep(pauses.uniform(0.05, 0.3))
            table.put(orders(number, 1))
            committed.send(time.time())


def _copy(rows: DataFrame) -> DataFrame:
    return rows.select("OrderId", "price")


def _windows(rows: DataFrame) -> DataFrame:
    """Return the sums of windows that have the time of one order."""
    timed = rows.withColumn("time", F.timestamp_millis("timestamp")).withWatermark("time", "1 minute")
    sums = timed.groupBy(F.window("time", "10 milliseconds")).agg(F.sum("price").alias("price"))
    return sums.selectExpr("(unix_millis(window.start) - 1700000000000) DIV 10 AS OrderId", "price")


def _through_spark(
    directory: Path,
    scale: float,
    what: str,
    query: Callable[[DataFrame], DataFrame],
    bounds: tuple[float, float],
) -> Result:
    samples = max(20, int(200 * scale))
    pauses = random.Random(1)
    path = directory / "store"
    taken: list[float] = []
    with headrace.open(path, create=True) as store, spark_session() as spark:
        source = orders_table(path, 1)
        target = store.create_table("target", {"OrderId": "long", "price": "double"}, ["OrderId"])
        with _running(spark, store, query) as running:
            for number in range(1, _WARM + samples + 1):
                source.put(orders(number, 1))
                taken.append(_seconds_until_seen(target, number))
                time.sleep(pauses.uniform(0.3, 0.8))
            reports = [report for report in running.recentProgress if report["numInputRows"]][-samples:]
    first = {f"median of the {_WARM} rows before them": f"{1000 * statistics.median(taken[:_WARM]):.1f} ms"}
    return _result(what, taken[_WARM:], bounds, first | _phases(reports))


@contextmanager
def _running(
    spark: SparkSession, store: headrace.Store, query: Callable[[DataFrame], DataFrame]
) -> Iterator[StreamingQuery]:
    tunnel = store.create_tunnel("orders", "latency", kind="Stream")
    stream = spark.readStream.format("headrace").options(store=store.url, tunnel=tunnel.id).load()
    running = headrace.write_stream(
        query(stream), store=store.url, table="target", checkpoint="headrace:///latency", mode="update"
    ).start()
    try:
        yield running
    finally:
        running.stop()


def _seconds_until_seen(target: headrace.Table, number: int) -> float:
    begin = time.perf_counter()
    while target.get({"OrderId": number}) is None:
        if time.perf_counter() - begin > _LONGEST_SECONDS:
            raise RuntimeError(f"row {number} has not arrived")
        time.sleep(_LOOK_SECONDS)
    return time.perf_counter() - begin


def _phases(reports: list[Any]) -> dict[str, str]:
    """Return the median time of each phase of batches."""
    return {
        f"{phase} ({what})": f"{statistics.median(report['durationMs'].get(phase, 0) for report in reports):.0f} ms"
        for phase, what in _PHASES.items()
    }


def _result(what: str, taken: list[float], bounds: tuple[float, float], others: dict[str, str]) -> Result:
    """Return delays in seconds as a result; ``bounds`` are those of the median and of the 99th percentile."""
    ordered = sorted(taken)
    median, late = statistics.median(ordered), ordered[round(0.99 * (len(ordered) - 1))]
    figures = {"median": median, "99th percentile": late, "fastest": ordered[0], "slowest": ordered[-1]}
    return Result(
        f"from a commit to {what}: {len(taken)} rows one by one",
        {name: f"{1000 * seconds:.1f} ms" for name, seconds in figures.items()} | others,
        [
            Ratio("median, ms", 1000 * median, 1000 * bounds[0], at_most=True),
            Ratio("99th percentile, ms", 1000 * late, 1000 * bounds[1], at_most=True),
        ],
    )
