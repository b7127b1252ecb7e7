"""Throughput of the source and of the sink, compared with rows in memory and with bare puts."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headrace
from bench.measure import COLUMNS, Ratio, Result, drain, median_of, orders, orders_table, rate, spark_session
from bench.memory import MemorySource
from bench.tables import bare_put_rate

# The batches of a sink until Java has compiled what is hot, and the store's pages are in memory.
_WARMING = 5


def source(directory: Path, scale: float) -> Result:
    """Changes of a tunnel into noop, compared with the same rows from memory."""
    rows = int(10_000_000 * scale)
    tuple_rows = rows // 10
    store = headrace.open(directory / "store", create=True, synchronous="off")
    table = store.create_table("orders", COLUMNS, ["UserId", "OrderId"])
    middle = orders(rows // 2, 1).to_pylist()[0]
    table.split(at={"UserId": middle["UserId"], "OrderId": middle["OrderId"]})
    tunnel = store.create_tunnel("orders", "all", kind="Stream")
    for first in range(0, rows, 100_000):
        table.put(orders(first, min(100_000, rows - first)))
    with spark_session() as spark:
        spark.dataSource.register(MemorySource)
        runs = iter(range(1000))

        def per_row(df: Any, expected: int) -> float:
            taken, seen = drain(df, directory / f"checkpoint-{next(runs)}")
            assert seen == expected, f"{seen} rows instead of {expected}"
            return taken / seen

        def ours() -> float:
            stream = spark.readStream.format("headrace").option("store", str(directory / "store"))
            return per_row(stream.option("tunnel", tunnel.id).option("startingPosition", "earliest").load(), rows)

        def memory(count: int, tuples: str) -> float:
            stream = (
                spark.readStream.format("bench_memory")
                .option("rows", count)
                .option("tuples", tuples)
                .option("changes", "true")
            )
            return per_row(stream.load(), count)

        ours()
        memory(rows, "false")
        taken = median_of(3, ours, lambda: memory(rows, "false"), lambda: memory(tuple_rows, "true"))
    return Result(
        f"source: a tunnel of {rows:,} changes, 4 columns and the 3 change columns, into noop, 2 channels",
        {
            "headrace tunnel": rate(1, taken[0]),
            "the same rows from memory, as Arrow": rate(1, taken[1]),
            f"the same rows as Python tuples ({tuple_rows:,})": rate(1, taken[2]),
        },
        [
            Ratio("tunnel / Arrow from memory", taken[1] / taken[0], 0.4),
            Ratio("tunnel / tuples", taken[2] / taken[0], 5.0),
        ],
    )


def sink(directory: Path, scale: float) -> Result:
    """`write_stream` in update mode, compared with a bare put of as many keys."""
    keys = int(100_000 * scale)
    columns = {"UserId": "string", "OrderId": "long", "price": "double"}
    table = orders_table(directory / "store", 10 * keys)
    store = headrace.open(directory / "store")
    for name in ("plain", "summed"):
        sums = store.create_table(name, columns, ["UserId", "OrderId"])
        for first in range(0, 10 * keys, 100_000):
            sums.put(orders(first, min(100_000, 10 * keys - first)).select(list(columns)))
        store.create_tunnel("orders", name, kind="Stream")
    bare = bare_put_rate(sums, keys, 5)
    with spark_session() as spark:
        plain = _sink_seconds(spark, directory, table, "plain", keys, lambda df: df.select(*columns))
        summed = _sink_seconds(
            spark,
            directory,
            table,
            "summed",
            keys,
            lambda df: df.groupBy("UserId", "OrderId").agg(F.sum("price").alias("price")),
        )
    return Result(
        f"sink: update mode, {keys:,} distinct keys a batch, into a table of {10 * keys:,} rows",
        {
            "a batch, read from a tunnel and published": rate(keys, plain),
            "the same with an aggregation by key, state in RocksDB": rate(keys, summed),
            "bare put of as many keys": rate(keys, bare),
        },
        [Ratio("sink / put", bare / plain, 0.3)],
        "The ratio is without the aggregation, because Spark's state takes most of the time of such a batch.",
    )


def _sink_seconds(
    spark: SparkSession,
    directory: Path,
    table: headrace.Table,
    name: str,
    keys: int,
    query: Callable[[DataFrame], DataFrame],
) -> float:
    """Return the median time of a warm batch with ``keys`` keys, from reading to publication."""
    stream = spark.readStream.format("headrace").option("store", str(directory / "store")).option("tunnel", name)
    running = headrace.write_stream(
        query(stream.load()),
        store=directory / "store",
        table=name,
        checkpoint=directory / f"checkpoint-{name}",
        mode="update",
    ).start()
    for number in range(_WARMING + 10):
        table.put(orders(500 + number, keys, shuffled=10 * keys))
        running.processAllAvailable()
    adding = [r["durationMs"]["addBatch"] for r in running.recentProgress if r["numInputRows"] >= keys]
    running.stop()
    return float(statistics.median(adding[_WARMING:])) / 1000.0
