"""Several sources in one query: visits on the web, in the app and in the shops.

The visits on the web and in the app are rows of queues, the visits of the shops are rows of a table with a tunnel. Each
source has its own watermark. The smallest one is the query's watermark, so a slow source does not lose rows.

Run it with ``python examples/event_time/several_sources.py``.
"""

from __future__ import annotations

import tempfile
from datetime import datetime
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import headrace

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.spark.write_stream import StreamWriter


def at(time: str) -> datetime:
    """Return a time of the example's day."""
    return datetime.fromisoformat(f"2026-05-01T{time}+00:00")


# Each item arrives at once: rows by source.
ARRIVALS: list[tuple[str, list[dict[str, Any]]]] = [
    ("web", [{"time": at("12:01")}, {"time": at("12:03")}]),
    ("app", [{"time": at("12:04")}]),
    ("shop", [{"visit": 1, "time": at("12:02")}]),
    # The web is far ahead, but the rows of the other sources are not late.
    ("web", [{"time": at("12:45")}]),
    ("shop", [{"visit": 2, "time": at("12:09")}]),
    ("app", [{"time": at("12:31")}]),
    ("shop", [{"visit": 3, "time": at("12:28")}]),
    # All sources have reached 12:28, so the watermark is at 12:23: 12:09 is too late, the window of 12:21 is open.
    ("app", [{"time": at("12:09")}, {"time": at("12:21")}]),
    ("shop", [{"visit": 4, "time": at("12:50")}]),
    ("app", [{"time": at("12:51")}]),
    ("web", [{"time": at("12:52")}]),
]


def create(store: headrace.Store) -> None:
    """Create the sources (two queues, and a table with a tunnel) and the queue of results."""
    for name in ("web", "app"):
        store.create_queue(name, {"time": "timestamp"})
    store.create_table("shop", {"visit": "long", "time": "timestamp"}, "visit")
    store.create_tunnel("shop", "shop visits", kind="Stream")
    store.create_queue("counts", {"start": "timestamp", "source": "string", "visits": "long"})


def count(sources: dict[str, DataFrame]) -> DataFrame:
    """Count the visits of each source in windows of ten minutes."""
    from pyspark.sql import functions as F

    visits = [rows.withWatermark("time", "5 minutes").select("time", F.lit(name).alias("source"))
              for name, rows in sources.items()]  # fmt: skip
    windows = reduce(lambda one, other: one.union(other), visits).groupBy(F.window("time", "10 minutes"), "source")
    return windows.agg(F.count("*").alias("visits")).select(F.col("window.start").alias("start"), "source", "visits")


def build(spark: SparkSession, store: headrace.Store, checkpoint: Path) -> StreamWriter:
    """Return the query."""

    def stream(option: str, name: str) -> DataFrame:
        return spark.readStream.format("headrace").option("store", store.url).option(option, name).load()

    sources = {"web": stream("queue", "web"), "app": stream("queue", "app"), "shop": stream("tunnel", "shop visits")}
    return headrace.write_stream(count(sources), store=store.url, queue="counts", checkpoint=checkpoint)


def write(store: headrace.Store, source: str, rows: list[dict[str, Any]]) -> None:
    """Write rows to a source."""
    if source == "shop":
        store.table("shop").put(rows)
    else:
        store.queue(source).append(rows)


def main(directory: Path) -> None:
    """Append the visits in steps while the query runs."""
    spark = headrace.session("several sources")
    with headrace.open(directory / "store", create=True) as store:
        create(store)
        query = build(spark, store, directory / "checkpoint").start()
        for source, rows in ARRIVALS:
            write(store, source, rows)
            query.processAllAvailable()
        query.stop()
        print(store.queue("counts").read(0, 0).rows.to_pandas().to_string(index=False))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="headrace-") as temporary:
        main(Path(temporary))
