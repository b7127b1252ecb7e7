"""Queries that Structured Streaming does not support. Spark refuses them before it reads the first row.

``write_stream`` raises Spark's own error for them.

Run it with ``python examples/event_time/unsupported.py``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import headrace

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.spark.write_stream import StreamWriter


def sort(clicks: DataFrame) -> DataFrame:
    """Sort rows without an aggregation, although a stream has no last row."""
    return clicks.orderBy("time")


def limit(clicks: DataFrame) -> DataFrame:
    """Take the first rows of a stream in update mode."""
    return clicks.limit(3)


def outer_join_without_watermark(clicks: DataFrame) -> DataFrame:
    """Left join without a time limit, so a match can always follow."""
    other = clicks.selectExpr("user AS other", "time AS other_time")
    return clicks.join(other, clicks.user == other.other, "leftOuter")


def outer_join_in_update_mode(clicks: DataFrame) -> DataFrame:
    """Left join of streams with watermarks in update mode."""
    late = clicks.selectExpr("user AS other", "time AS other_time").withWatermark("other_time", "1 minute")
    early = clicks.withWatermark("time", "1 minute")
    return early.join(late, (early.user == late.other) & (early.time == late.other_time), "leftOuter")


def append_without_watermark(clicks: DataFrame) -> DataFrame:
    """Aggregate in append mode without a watermark, so no group is ever final."""
    return clicks.groupBy("user").count()


def two_aggregations_in_update_mode(clicks: DataFrame) -> DataFrame:
    """Aggregate an aggregation in update mode."""
    from pyspark.sql import functions as F

    minutes = clicks.withWatermark("time", "1 minute").groupBy(F.window("time", "1 minute"), "user").count()
    hours = minutes.groupBy(F.window("window", "1 hour"), "user").agg(F.sum("count").alias("count"))
    return hours.select("user", "count")


def complete_without_aggregation(clicks: DataFrame) -> DataFrame:
    """Complete mode without an aggregation."""
    return clicks.where("user IS NOT NULL")


def distinct_count(clicks: DataFrame) -> DataFrame:
    """Count distinct values exactly."""
    from pyspark.sql import functions as F

    return clicks.groupBy("user").agg(F.count_distinct("time").alias("times"))


# The refused queries with their output modes.
REFUSED: list[tuple[Callable[[DataFrame], DataFrame], str]] = [
    (sort, "append"),
    (limit, "update"),
    (outer_join_without_watermark, "append"),
    (outer_join_in_update_mode, "update"),
    (append_without_watermark, "append"),
    (two_aggregations_in_update_mode, "update"),
    (complete_without_aggregation, "complete"),
    (distinct_count, "update"),
]


def create(store: headrace.Store) -> None:
    """Create the queue of clicks, and a table with the columns of all results."""
    store.create_queue("clicks", {"time": "timestamp", "user": "string"})
    result = {"user": "string", "time": "timestamp", "other": "string", "other_time": "timestamp", "count": "long"}
    store.create_table("result", result | {"times": "long"}, "user")


def read(spark: SparkSession, store: headrace.Store) -> DataFrame:
    """Return the clicks as a stream."""
    return spark.readStream.format("headrace").option("store", store.url).option("queue", "clicks").load()


def build(spark: SparkSession, store: headrace.Store, checkpoint: Path, number: int) -> StreamWriter:
    """Return one of the refused queries. Spark checks it at the start."""
    query, mode = REFUSED[number]
    rows = query(read(spark, store))
    return headrace.write_stream(rows, store=store.url, table="result", checkpoint=checkpoint, mode=mode)


def main(directory: Path) -> None:
    """Start each query, and print Spark's error."""
    from pyspark.errors import AnalysisException

    spark = headrace.session("unsupported")
    with headrace.open(directory / "store", create=True) as store:
        create(store)
        for number, (query, mode) in enumerate(REFUSED):
            try:
                build(spark, store, directory / "checkpoint", number).start()
            except AnalysisException as error:
                print(f"{query.__name__} ({mode}): {str(error).partition(';')[0]}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="headrace-") as temporary:
        main(Path(temporary))
