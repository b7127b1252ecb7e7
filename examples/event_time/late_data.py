"""Late data: the number of views of each page in windows of ten minutes, in each output mode.

The watermark is the latest event time of all earlier batches, minus ten minutes. A row is too late if the watermark has
reached the end of its window.

Run it with ``python examples/event_time/late_data.py``; ``update`` or ``complete`` can be its argument.
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


# Each item arrives at once.
ARRIVALS = [
    [{"time": at("12:04"), "page": "home"}, {"time": at("12:07"), "page": "help"}],
    [{"time": at("12:14"), "page": "home"}, {"time": at("12:09"), "page": "home"}],
    # The watermark is at 12:04. The row of 12:03 is older, but its window is open until 12:10.
    [{"time": at("12:21"), "page": "home"}, {"time": at("12:03"), "page": "help"}],
    # The watermark is at 12:11. The window of 12:08 is closed, the window of 12:10 is open.
    [{"time": at("12:08"), "page": "help"}, {"time": at("12:10"), "page": "help"}],
    [{"time": at("12:40"), "page": "home"}],
]


def create(store: headrace.Store) -> None:
    """Create the queue of page views and the table of counts."""
    store.create_queue("views", {"time": "timestamp", "page": "string"})
    store.create_table("counts", {"window": "string", "page": "string", "views": "long"}, ["window", "page"])


def count(views: DataFrame) -> DataFrame:
    """Count the views of each page in windows of ten minutes."""
    from pyspark.sql import functions as F

    windows = views.withWatermark("time", "10 minutes").groupBy(F.window("time", "10 minutes"), "page")
    counts = windows.agg(F.count("*").alias("views"))
    return counts.select(F.date_format("window.start", "HH:mm").alias("window"), "page", "views")


def build(spark: SparkSession, store: headrace.Store, checkpoint: Path, mode: str = "append") -> StreamWriter:
    """Return the query. Append writes a window when it closes, update when it changes; complete writes all windows."""
    views = spark.readStream.format("headrace").option("store", store.url).option("queue", "views").load()
    return headrace.write_stream(count(views), store=store.url, table="counts", checkpoint=checkpoint, mode=mode)


def main(directory: Path, mode: str = "append") -> None:
    """Append the rows in steps. Each run of the query continues where the last one stopped."""
    spark = headrace.session("late data")
    with headrace.open(directory / "store", create=True) as store:
        create(store)
        for rows in ARRIVALS:
            store.queue("views").append(rows)
            query = build(spark, store, directory / "checkpoint", mode).trigger(availableNow=True).start()
            query.awaitTermination()
        print(store.table("counts").scan().read_all().to_pandas().to_string(index=False))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="headrace-") as temporary:
        main(Path(temporary), *sys.argv[1:])
