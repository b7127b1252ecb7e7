"""Deduplication: repeated payments count once.

``ever``: each id counts once; the state grows with the number of ids.
``exact``: id and event time are the key; keys older than the watermark are removed from the state.
``within``: an id counts once within the delay of the watermark, even if the repeated row has another time.
With a watermark, all rows older than it are dropped.

Run it with ``python examples/event_time/deduplicate.py``; ``exact`` or ``within`` can be its argument.
"""

from __future__ import annotations

import sys
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
    [{"id": 1, "time": at("12:00"), "amount": 5.0}, {"id": 1, "time": at("12:00"), "amount": 5.0}],
    # The same row again, and the same id with a new time.
    [{"id": 1, "time": at("12:00"), "amount": 5.0}, {"id": 1, "time": at("12:02"), "amount": 5.0}],
    [{"id": 2, "time": at("12:09"), "amount": 7.0}],
    # The watermark is at 11:59, and then moves to 12:11.
    [{"id": 3, "time": at("12:21"), "amount": 1.0}, {"id": 2, "time": at("12:10"), "amount": 7.0}],
    # 12:08 is too late. Id 1 left the state at 12:10, ten minutes after its event time.
    [{"id": 4, "time": at("12:08"), "amount": 2.0}, {"id": 1, "time": at("12:22"), "amount": 5.0}],
]


def create(store: headrace.Store) -> None:
    """Create the queue with duplicates and the queue without them."""
    payment = {"id": "long", "time": "timestamp", "amount": "double"}
    store.create_queue("received", payment)
    store.create_queue("payments", payment)


def once(received: DataFrame, how: str) -> DataFrame:
    """Drop duplicates in one of the three ways that the module describes."""
    if how == "ever":
        return received.dropDuplicates(["id"])
    timed = received.withWatermark("time", "10 minutes")
    return timed.dropDuplicates(["id", "time"]) if how == "exact" else timed.dropDuplicatesWithinWatermark(["id"])


def build(spark: SparkSession, store: headrace.Store, checkpoint: Path, how: str = "ever") -> StreamWriter:
    """Return the query."""
    received = spark.readStream.format("headrace").option("store", store.url).option("queue", "received").load()
    return headrace.write_stream(once(received, how), store=store.url, queue="payments", checkpoint=checkpoint)


def main(directory: Path, how: str = "ever") -> None:
    """Append the rows in steps. Each run of the query continues where the last one stopped."""
    spark = headrace.session("deduplication")
    with headrace.open(directory / "store", create=True) as store:
        create(store)
        for rows in ARRIVALS:
            store.queue("received").append(rows)
            query = build(spark, store, directory / "checkpoint", how).trigger(availableNow=True).start()
            query.awaitTermination()
        print(store.queue("payments").read(0, 0).rows.to_pandas().to_string(index=False))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="headrace-") as temporary:
        main(Path(temporary), *sys.argv[1:])
