"""Small batches: their time, its growth with history, and the CPU time of an idle stream."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import headrace
from bench.measure import Ratio, Result, orders, orders_table, spark_session
from headrace.batches.feeds.channel_reading import read_channel
from headrace.batches.feeds.tunnel_feed import TunnelFeed
from headrace.model.tunnels.records import INITIAL_BATCH

_ROWS = 100
_STATISTICS = {"begin": "string", "end": "string", "count": "long", "totalPrice": "double"}


def _statistics(orders_: DataFrame) -> DataFrame:
    """Return statistics of orders in windows of 30 seconds."""
    return (
        orders_.selectExpr("price", "window(to_timestamp(timestamp / 1000), '30 seconds') AS window")
        .groupBy("window")
        .agg({"price": "sum", "*": "count"})
        .selectExpr(
            "CAST(window.start AS STRING) AS begin",
            "CAST(window.end AS STRING) AS end",
            "`count(1)` AS count",
            "`sum(price)` AS totalPrice",
        )
    )


class _Job:
    """A query with its own store, which gets 100 rows at a time."""

    def __init__(self, spark: SparkSession, directory: Path, history: int) -> None:
        self.store = headrace.open(directory / "store", create=True)
        self.table = orders_table(directory / "store", history)
        self.store.create_table("statistics", _STATISTICS, ["begin", "end"])
        self.tunnel = self.store.create_tunnel("orders", "statistics", kind="Stream")
        self.directory, self.spark, self.number = directory, spark, 0
        self.query = self.start()

    def start(self) -> StreamingQuery:
        stream = self.spark.readStream.format("headrace").option("store", str(self.directory / "store"))
        return headrace.write_stream(
            _statistics(stream.option("tunnel", self.tunnel.id).load()),
            store=self.directory / "store",
            table="statistics",
            checkpoint=self.directory / "checkpoint",
            mode="update",
        ).start()

    def batch_ms(self) -> float:
        """Put 100 rows; return the time of their batch in milliseconds."""
        self.number += 1
        self.table.put(orders(1_000_000 + self.number * _ROWS, _ROWS))
        self.query.processAllAvailable()
        return _busy_ms([report for report in self.query.recentProgress if report["numInputRows"]][-1])


def _rate_query(spark: SparkSession, directory: Path) -> StreamingQuery:
    """Start the same query from Spark's own rate source into noop, with 100 rows in a batch."""
    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", _ROWS).option("numPartitions", 1).load()
    rows = rate.selectExpr("value / 4.0D AS price", "1700000000000 + value * 10 AS timestamp")
    query = _statistics(rows).writeStream.format("noop").outputMode("update")
    return query.option("checkpointLocation", str(directory / "rate-checkpoint")).start()


def _rate_batches(query: StreamingQuery, count: int) -> list[float]:
    while len(query.recentProgress) < count:
        time.sleep(0.2)
    return [_busy_ms(report) for report in query.recentProgress[-count:]]


def _busy_ms(report: Any) -> float:
    """Return the time of a batch in milliseconds, without `latestOffset`, in which a source can wait for data."""
    return float(report["durationMs"]["triggerExecution"] - report["durationMs"]["latestOffset"])


def small_batch(directory: Path, scale: float) -> Result:
    """A batch of 100 rows from the source to the publication, compared with the same query from rate to noop."""
    rounds, batches = 4, 25
    ours: list[float] = []
    theirs: list[float] = []
    with spark_session() as spark:
        job = _Job(spark, directory, 1000)
        for number in range(rounds):
            # One after the other: two queries at a time would compete for the cores.
            ours += [job.batch_ms() for _ in range(batches)][2:]
            query = _rate_query(spark, directory / str(number))
            theirs += _rate_batches(query, batches)[2:]
            query.stop()
        job.query.stop()
    # The first round warms up both.
    kept = (rounds - 1) * (batches - 2)
    mine, spark_alone = statistics.median(ours[-kept:]), statistics.median(theirs[-kept:])
    return Result(
        "small batch: 100 rows, 30-second windows, update mode, checkpoint in a local directory",
        {"headrace, tunnel to published": f"{mine:.0f} ms", "Spark alone, rate to noop": f"{spark_alone:.0f} ms"},
        [Ratio("headrace / Spark alone", mine / spark_alone, 1.5, at_most=True)],
        "Medians of a warm process, in alternating rounds, without the time in which a source waits for data.",
    )


def idle(directory: Path, scale: float) -> Result:
    """An idle stream: the number of its batches, and the CPU time of its Python processes."""
    watched = max(10.0, 30.0 * scale)
    with spark_session() as spark:
        job = _Job(spark, directory, 1000)
        job.batch_ms()
        commits = directory / "checkpoint" / "commits"
        python = [process for process in psutil.Process().children(recursive=True) if "python" in process.name()]
        batches = len([report for report in job.query.recentProgress if report["numInputRows"]])
        last = _batches(commits)
        before, begin = _cpu(python), time.monotonic()
        time.sleep(watched)
        share = (_cpu(python) - before) / (time.monotonic() - begin)
        ran = _batches(commits) - last
        job.query.stop()
    return Result(
        f"idle stream: {watched:.0f} s without new data, after {batches} batch",
        {"micro-batches run": str(ran), "CPU of the Python processes": f"{100 * share:.2f} % of a core"},
        [
            Ratio("micro-batches", float(ran), 0.0, at_most=True),
            Ratio("CPU, % of a core", 100 * share, 2.0, at_most=True),
        ],
    )


def _batches(commits: Path) -> int:
    return len([file for file in commits.iterdir() if file.name.isdigit()])


def _cpu(processes: list[psutil.Process]) -> float:
    total = 0.0
    for process in processes:
        if process.is_running():
            times = process.cpu_times()
            total += times.user + times.system
    return total


def history(directory: Path, scale: float) -> Result:
    """The time of a batch with 100 times the history, and after 100,000 batches."""
    rows, rounds, many = int(1_000_000 * scale), 15, int(100_000 * scale)
    with spark_session() as spark:
        young, old = _Job(spark, directory / "young", rows // 100), _Job(spark, directory / "old", rows)
        for job in (young, old):
            for _ in range(5):
                job.batch_ms()
        pairs = [(young.batch_ms(), old.batch_ms()) for _ in range(rounds)]
        young_ms, old_ms = (statistics.median(side) for side in zip(*pairs, strict=True))
        old.query.stop()
        young.query.stop()
    first, last = _many_batches(directory / "feed", many)
    return Result(
        f"history: 100 rows after {rows // 100:,} and after {rows:,} changes, and after {many:,} batches",
        {
            f"batch, {rows // 100:,} changes of history": f"{young_ms:.0f} ms",
            f"batch, {rows:,} changes of history": f"{old_ms:.0f} ms",
            "feed and publication, first 500 batches": f"{first:.2f} ms",
            f"feed and publication, last 500 of {many:,} batches": f"{last:.2f} ms",
        },
        [
            Ratio("100 × the history", old_ms / young_ms, 1.2, at_most=True),
            Ratio(f"after {many:,} batches", last / first, 1.2, at_most=True),
        ],
        "The earlier batches are run without Spark (planning, reading, recording, publishing and committing one row "
        "each), because Spark would need hours for them.",
    )


def _many_batches(path: Path, count: int) -> tuple[float, float]:
    table = orders_table(path, 1000, synchronous="off")
    store = headrace.open(path, synchronous="off")
    feed = TunnelFeed(store.create_tunnel("orders", "many", kind="Stream"))
    publisher = store.publisher("job", "orders")
    taken: list[float] = []
    batch = INITIAL_BATCH
    for number in range(count):
        table.put(orders(number % 1000, 1))
        begin = time.perf_counter()
        batch = feed.latest(batch)
        for part in feed.plan(batch):
            for changes in read_channel(feed.tunnel, batch, part):
                assert changes.num_rows
        publisher.publish(number, [])
        taken.append(1000 * (time.perf_counter() - begin))
    return statistics.median(taken[50:550]), statistics.median(taken[-500:])
