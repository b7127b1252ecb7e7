"""Results, repetitions, and Spark queries with Spark's own times, for all benchmarks."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import headrace

COLUMNS = {"UserId": "string", "OrderId": "long", "price": "double", "timestamp": "long"}


@dataclass
class Result:
    """The result of a benchmark: figures by name, and ratios with bounds."""

    title: str
    figures: dict[str, str]
    ratios: list[Ratio] = field(default_factory=list)
    note: str = ""


@dataclass
class Ratio:
    """A ratio with its lower bound, or its upper bound if ``at_most`` is set."""

    what: str
    value: float
    bound: float
    at_most: bool = False

    @property
    def kept(self) -> bool:
        return self.value <= self.bound if self.at_most else self.value >= self.bound


def seconds(run: Callable[[], Any]) -> float:
    """Return the duration of a call in seconds."""
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def samples_of(repeats: int, *runs: Callable[[], float]) -> list[list[float]]:
    """Run several measurements alternately, so that changes of the machine's load affect all; return their results."""
    samples: list[list[float]] = [[] for _ in runs]
    for _ in range(repeats):
        for run, taken in zip(runs, samples, strict=True):
            taken.append(run())
    return samples


def median_of(repeats: int, *runs: Callable[[], float]) -> list[float]:
    """Return the medians of `samples_of`."""
    return [statistics.median(taken) for taken in samples_of(repeats, *runs)]


def orders(first: int, count: int, *, shuffled: int | None = None) -> pa.Table:
    """Return orders with keys from ``first`` on, or with random keys below ``shuffled``."""
    if shuffled is None:
        ids = np.arange(first, first + count, dtype=np.int64)
    else:
        ids = np.random.default_rng(first).choice(shuffled, count, replace=False).astype(np.int64)
    users = pa.array(np.char.add("user-", np.char.zfill(ids.astype(str), 8)))
    return pa.table(
        {
            "UserId": users.cast(pa.string()),
            "OrderId": ids,
            "price": (ids % 400) / 4.0 + first % 7,
            "timestamp": 1_700_000_000_000 + ids * 10,
        }
    )


def orders_table(directory: Path, rows: int, name: str = "orders", **options: Any) -> headrace.Table:
    """Create a table of orders with ``rows`` rows."""
    store = headrace.open(directory, create=True, **options)
    table = store.create_table(name, COLUMNS, ["UserId", "OrderId"], exist_ok=True)
    for first in range(0, rows, 100_000):
        table.put(orders(first, min(100_000, rows - first)))
    return table


@contextmanager
def spark_session(conf: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """Start a Spark session on two cores, without the UI; ``conf`` has more settings."""
    settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": 2, "spark.driver.memory": "4g"}
    settings.update(conf or {})
    spark = headrace.session("bench", master="local[2,4]", conf=settings)
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


def drain(df: DataFrame, checkpoint: Path) -> tuple[float, int]:
    """Run a stream into noop with availableNow; return the seconds of its batches, and their rows."""
    query = df.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    running = query.trigger(availableNow=True).start()
    running.awaitTermination()
    return batch_seconds(running)


def drain_all(df: DataFrame, checkpoint: Path, rows: int) -> float:
    """Run a stream into noop as `drain` does; return the seconds. The stream must have this number of rows."""
    taken, seen = drain(df, checkpoint)
    assert seen == rows, f"{seen} rows instead of {rows}"
    return taken


def batch_seconds(query: Any) -> tuple[float, int]:
    """Return the seconds of a query's batches with rows, by Spark's report, and their rows."""
    progress = [report for report in query.recentProgress if report["numInputRows"]]
    return (
        sum(report["durationMs"]["triggerExecution"] for report in progress) / 1000.0,
        sum(report["numInputRows"] for report in progress),
    )


def rate(rows: float, taken: float) -> str:
    """Return a rate as text."""
    value = rows / taken
    return f"{value / 1e6:.2f} M rows/s" if value >= 1e6 else f"{value / 1e3:.0f} k rows/s"
