"""A driver with a checkpoint in a store, which several drivers use at the same time.

``python -m tests.chaos.checkpoint_actors driver DIRECTORY NAME`` publishes numbered rows of Spark's own source into a
queue, batch by batch, until the file ``stop`` exists. It creates the file ``NAME`` after its third batch, and the file
``NAME.later`` after its tenth.

``python -m tests.chaos.checkpoint_actors counter DIRECTORY NAME`` counts such rows by their remainder, with the state
in RocksDB. Spark itself opens its checkpoint location, ``yt:///tmp/sample/cp``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame

import headrace
from headrace.model.tables.changes import RowChange
from headrace.ports import Append, Store, Write
from tests.chaos.driving import driver_session

ROWS, JOB, RESTS = 10, "job", 7


def create(directory: Path) -> Store:
    store = headrace.open(directory / "store", create=True)
    store.create_queue("numbers", {"n": "long"})
    store.create_table("counts", {"rest": "long", "count": "long"}, "rest")
    return store


def drive(directory: Path, name: str) -> None:
    spark = driver_session()
    store = headrace.open(directory / "store")
    ran = 0

    def publish(rows: DataFrame, batch: int) -> None:
        nonlocal ran
        numbers = sorted(row.value for row in rows.collect())
        publisher = store.publisher(JOB)
        staged = publisher.stage_append(batch, "numbers", [pa.RecordBatch.from_pydict({"n": numbers})])
        publisher.publish(batch, [Append("numbers", tuple(staged))])
        ran += 1
        if ran == 3:
            (directory / name).touch()
        if ran == 10:
            (directory / f"{name}.later").touch()

    numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).load()
    # A query with state, so that the checkpoint has state files.
    query = (
        numbers.dropDuplicates(["value"]).writeStream.foreachBatch(publish).trigger(processingTime="100 milliseconds")
    )
    location = headrace.checkpoint("headrace:///checkpoint", store=store, spark=spark)
    running = query.option("checkpointLocation", location).start()
    while not (directory / "stop").exists():
        running.awaitTermination(1)
    running.stop()


def count(directory: Path, name: str) -> None:
    os.environ["HEADRACE_STORE"] = str(directory / "store")
    os.environ.pop("YT_PROXY", None)
    spark = driver_session()
    store = headrace.open(directory / "store")
    ran = 0

    def publish(rows: DataFrame, batch: int) -> None:
        nonlocal ran
        found = [row.asDict() for row in rows.collect()]
        publisher = store.publisher(JOB)
        columns = {name: [row[name] for row in found] for name in ("rest", "count")}
        staged = publisher.stage(batch, [pa.RecordBatch.from_pydict(columns)])
        publisher.publish(batch, [Write("counts", RowChange.PUT, tuple(staged))])
        ran += 1
        if ran == 3:
            (directory / name).touch()

    numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", ROWS).load()
    counts = numbers.groupBy((numbers.value % RESTS).alias("rest")).count()
    query = counts.writeStream.outputMode("update").foreachBatch(publish)
    running = query.option("checkpointLocation", "yt:///tmp/sample/cp").start()
    while not (directory / "stop").exists():
        running.awaitTermination(1)
    running.stop()


if __name__ == "__main__":
    {"driver": drive, "counter": count}[sys.argv[1]](Path(sys.argv[2]), sys.argv[3])
