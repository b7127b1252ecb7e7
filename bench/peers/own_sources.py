"""Spark's own sources of files and of generated rows, beside queues of an embedded store."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pyarrow.parquet as pq
import pyspark
from pyspark.sql import DataFrame, SparkSession

import headrace
from bench.measure import COLUMNS, Ratio, Result, drain_all, orders, spark_session
from bench.peers.kafka_topics import PARTITIONS, queue_stream
from bench.peers.running import alternately, load, megabytes

_FILES = 10


def own_sources(directory: Path, scale: float) -> Result:
    """A queue, files of the same rows, and generated rows, into noop."""
    part, runs = int(500_000 * scale), count()
    rows = _FILES * part
    path, parquet, text = directory / "store", directory / "parquet", directory / "json"
    parquet.mkdir()
    with headrace.open(path, create=True, synchronous="off") as store, spark_session() as spark:
        queue = store.create_queue("orders", COLUMNS, partitions=PARTITIONS)
        for number in range(_FILES):
            made = orders(number * part, part)
            pq.write_table(made, parquet / f"{number}.parquet", compression="lz4")
            queue.append(made, partition=number % PARTITIONS)
        spark.read.parquet(str(parquet)).write.json(str(text))
        schema = spark.read.parquet(str(parquet)).schema

        def drained(stream: Callable[[], DataFrame]) -> Callable[[], float]:
            return lambda: drain_all(stream(), directory / f"checkpoint-{next(runs)}", rows)

        def files(form: str, where: Path) -> Callable[[], float]:
            return drained(lambda: spark.readStream.schema(schema).format(form).load(str(where)))

        spent = alternately(
            3,
            {
                "queue": drained(lambda: queue_stream(spark, path, startingPosition="earliest")),
                "parquet": files("parquet", parquet),
                "json": files("json", text),
                "rate": lambda: _generated(spark, rows, directory / f"checkpoint-{next(runs)}"),
            },
        )
    return Result(
        f"beside Spark's own sources: {rows:,} rows, 4 columns, into noop",
        {
            "versions": f"Spark {pyspark.__version__}",
            "load of the machine": load(),
            "headrace queue": spent["queue"].text(rows),
            f"{_FILES} files of Parquet": spent["parquet"].text(rows),
            "files of JSON": spent["json"].text(rows),
            "rows of 2 columns that nobody stores (rate-micro-batch)": spent["rate"].text(rows),
            "on the disk: queue, Parquet, JSON": (
                f"{megabytes(path):.0f} MB, {megabytes(parquet):.0f} MB, {megabytes(text):.0f} MB"
            ),
        },
        [
            Ratio(f"queue / {what}", spent[name].clock / spent["queue"].clock, 1.0)
            for name, what in (("parquet", "Parquet"), ("json", "JSON"))
        ],
        "Promises: a row of a queue has an address, consumers have durable offsets, and an append is atomic. The "
        "source of files reads each complete file once, in an order that the times of the files give.",
    )


def _generated(spark: SparkSession, rows: int, checkpoint: Path) -> float:
    """Return the seconds of one batch of rows from Spark's generator."""
    stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows)
    query = stream.option("numPartitions", PARTITIONS).load().writeStream.format("noop")
    running = query.option("checkpointLocation", str(checkpoint)).start()
    try:
        while not [report for report in running.recentProgress if report["numInputRows"]]:
            time.sleep(0.05)
        (report, *_) = [each for each in running.recentProgress if each["numInputRows"]]
        return float(report["durationMs"]["triggerExecution"]) / 1000.0
    finally:
        running.stop()
