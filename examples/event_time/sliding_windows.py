"""Sliding windows: the mean temperature of the last ten minutes, every five minutes.

Each reading belongs to two windows. A late reading can be too late for the first window and in time for the second;
then it counts only in the second. Append mode writes each window once, when it is closed.

Run it with ``python examples/event_time/sliding_windows.py``.
"""

from __future__ import annotations

import tempfile
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import headrace

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.spark.write_stream import StreamWriter


def at(time: str) -> datetime:
    """Return a time of the example's day."""
    return datetime.fromisoformat(f"2026-05-01T{time}+00:00")


ARRIVALS = [
    [
        {"time": at("12:01"), "sensor": "roof", "celsius": 20.0},
        {"time": at("12:08"), "sensor": "roof", "celsius": 22.0},
    ],
    [{"time": at("12:14"), "sensor": "roof", "celsius": 24.0}],
    # The watermark is at 12:12. The windows that end by 12:10 are closed, the window from 12:05 to 12:15 is open.
    [
        {"time": at("12:06"), "sensor": "roof", "celsius": 30.0},
        {"time": at("12:03"), "sensor": "roof", "celsius": 99.0},
    ],
    [{"time": at("12:30"), "sensor": "roof", "celsius": 21.0}],
]


def create(store: headrace.Store) -> None:
    """Create the queue of readings and the queue of means."""
    store.create_queue("readings", {"time": "timestamp", "sensor": "string", "celsius": "double"})
    store.create_queue("means", {"start": "timestamp", "sensor": "string", "celsius": "double", "readings": "long"})


def mean(readings: DataFrame) -> DataFrame:
    """Return the mean of each sensor in windows of ten minutes that begin every five minutes."""
    from pyspark.sql import functions as F

    windows = F.window("time", "10 minutes", "5 minutes")
    groups = readings.withWatermark("time", "2 minutes").groupBy(windows, "sensor")
    means = groups.agg(F.avg("celsius").alias("celsius"), F.count("*").alias("readings"))
    return means.select(F.col("window.start").alias("start"), "sensor", "celsius", "readings")


def build(spark: SparkSession, store: headrace.Store, checkpoint: Path) -> StreamWriter:
    """Return the query."""
    readings = spark.readStream.format("headrace").option("store", store.url).option("queue", "readings").load()
    return headrace.write_stream(mean(readings), store=store.url, queue="means", checkpoint=checkpoint)


def main(directory: Path) -> None:
    """Append the readings in steps. Each run of the query continues where the last one stopped."""
    spark = headrace.session("sliding windows")
    with headrace.open(directory / "store", create=True) as store:
        create(store)
        for rows in ARRIVALS:
            store.queue("readings").append(rows)
            query = build(spark, store, directory / "checkpoint").trigger(availableNow=True).start()
            query.awaitTermination()
        print(store.queue("means").read(0, 0).rows.to_pandas().to_string(index=False))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="headrace-") as temporary:
        main(Path(temporary))
