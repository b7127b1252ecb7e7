"""Session windows: a visit ends after five minutes without a click.

A row within five minutes of a session extends it, and a row between two sessions can join them. Append mode writes a
session once, when the watermark has passed its end. Spark has no update mode for sessions.

Run it with ``python examples/event_time/session_windows.py``.
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
    [{"time": at("12:00"), "user": "ada"}, {"time": at("12:08"), "user": "ada"}, {"time": at("12:01"), "user": "bob"}],
    # Joins ada's two sessions into one, from 12:00 to 12:13.
    [{"time": at("12:04"), "user": "ada"}],
    # The watermark moves to 12:11. Bob's first session ends, ada's session does not.
    [{"time": at("12:21"), "user": "bob"}],
    # 12:05 is too late, because its session would end at 12:10. 12:12 extends ada's session.
    [{"time": at("12:05"), "user": "bob"}, {"time": at("12:12"), "user": "ada"}],
    [{"time": at("12:50"), "user": "ada"}],
]


def create(store: headrace.Store) -> None:
    """Create the queue of clicks and the queue of visits."""
    store.create_queue("clicks", {"time": "timestamp", "user": "string"})
    store.create_queue("visits", {"user": "string", "start": "timestamp", "end": "timestamp", "clicks": "long"})


def visits(clicks: DataFrame) -> DataFrame:
    """Group the clicks of each user into visits."""
    from pyspark.sql import functions as F

    sessions = clicks.withWatermark("time", "10 minutes").groupBy(F.session_window("time", "5 minutes"), "user")
    counts = sessions.agg(F.count("*").alias("clicks"))
    start, end = F.col("session_window.start").alias("start"), F.col("session_window.end").alias("end")
    return counts.select("user", start, end, "clicks")


def build(spark: SparkSession, store: headrace.Store, checkpoint: Path) -> StreamWriter:
    """Return the query."""
    clicks = spark.readStream.format("headrace").option("store", store.url).option("queue", "clicks").load()
    return headrace.write_stream(visits(clicks), store=store.url, queue="visits", checkpoint=checkpoint)


def main(directory: Path) -> None:
    """Append the clicks in steps. Each run of the query continues where the last one stopped."""
    spark = headrace.session("session windows")
    with headrace.open(directory / "store", create=True) as store:
        create(store)
        for rows in ARRIVALS:
            store.queue("clicks").append(rows)
            query = build(spark, store, directory / "checkpoint").trigger(availableNow=True).start()
            query.awaitTermination()
        print(store.queue("visits").read(0, 0).rows.to_pandas().to_string(index=False))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="headrace-") as temporary:
        main(Path(temporary))
