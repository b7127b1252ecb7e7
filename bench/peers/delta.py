"""Delta Lake beside tables of an embedded store: MERGE as a sink, and the change feed as a source."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import headrace
from bench.measure import COLUMNS, Ratio, Result, batch_seconds, drain_all, orders, orders_table
from bench.peers.releases import DELTA, jars
from bench.peers.running import Cost, alternately, load, megabytes, peers_session, versions

_SCHEMA = "UserId string, OrderId long, price double, timestamp long"
_SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Delta's documentation names deletion vectors for MERGE, and automatic compaction for small files.
    "spark.databricks.delta.properties.defaults.enableDeletionVectors": "true",
    "spark.databricks.delta.properties.defaults.autoOptimize.autoCompact": "true",
    # The log of a small table needs no 50 tasks.
    "spark.databricks.delta.snapshotPartitions": "2",
}
_REPEATS = 3


@contextmanager
def _session() -> Iterator[SparkSession]:
    with peers_session(jars("delta"), _SETTINGS) as spark:
        yield spark


def merge(directory: Path, scale: float) -> Result:
    """Batches of 100, 100,000 and 1,000,000 changes, half updates and half new rows, into 1,000,000 rows."""
    existing = int(1_000_000 * scale)
    sizes = (100, existing // 10, existing)
    store = directory / "store"
    base = directory / "base.parquet"
    pq.write_table(orders_table(store, existing).scan().read_all(), base)
    spent: dict[int, dict[str, Cost]] = {}
    with _session() as spark:
        for name in ("delta", "delta with feed"):
            _create(spark, directory / name, feed=name != "delta")
            spark.read.parquet(str(base)).write.format("delta").mode("append").save(str(directory / name))
        known = existing
        for size in sizes:
            files = _changes(directory / f"changes-{size}", 1 + _REPEATS, size, known)
            runs = {
                name: _batches(spark, directory / f"{name}-{size}", iter(files), sink)
                for name, sink in _sinks(directory).items()
            }
            spent[size] = alternately(_REPEATS, runs)
            known += len(files) * (size - size // 2)
        _check_equal(spark, directory, known)
    figures = {"versions": versions(**{"Delta Lake": DELTA}), "load of the machine": load()}
    for size, costs in spent.items():
        for name, what in (
            ("headrace", "headrace, update mode, with change log"),
            ("delta", "Delta MERGE"),
            ("delta with feed", "Delta MERGE, with change feed"),
        ):
            taken = f"{1000 * costs[name].clock:.0f} ms" if size == 100 else costs[name].text(size)
            figures[f"a batch of {size:,}: {what}"] = taken
    figures["on the disk: headrace, Delta, Delta with feed"] = ", ".join(
        f"{megabytes(directory / name):.0f} MB" for name in ("store", "delta", "delta with feed")
    )
    return Result(
        f"beside Delta Lake, MERGE: batches of changes, half of them updates, into a table of {existing:,} rows",
        figures,
        [
            Ratio(
                f"update mode / MERGE{' with feed' if 'feed' in name else ''}, batches of {size:,}",
                costs[name].clock / costs["headrace"].clock,
                2.0,
            )
            for size, costs in spent.items()
            for name in ("delta", "delta with feed")
        ],
        "Both get the changes from Parquet files by Spark's file source. Promises: headrace publishes rows, change log "
        "and marker in one transaction that is on the disk, once for each batch. A repeated MERGE with the same keys "
        "gives the same rows, so the table is right, but its change feed has the updates again; Hadoop's local file "
        "system does not wait for the disk. Files of earlier versions stay until VACUUM. headrace: Arrow batches "
        "without a limit of bytes. Delta: deletion vectors and automatic compaction are on.",
    )


def _create(spark: SparkSession, path: Path, *, feed: bool) -> None:
    """Create an empty Delta table of orders."""
    properties = f"delta.enableChangeDataFeed = {str(feed).lower()}"
    spark.sql(f"CREATE TABLE delta.`{path}` ({_SCHEMA}) USING delta TBLPROPERTIES ({properties})")


def _sinks(directory: Path) -> dict[str, Callable[[DataFrame, Path], Any]]:
    """Return functions that write a stream of changes with a checkpoint, by the names of the sides."""

    def headrace_sink(rows: DataFrame, checkpoint: Path) -> Any:
        return headrace.write_stream(
            rows, store=directory / "store", table="orders", checkpoint=checkpoint, mode="update"
        )

    def delta_sink(name: str) -> Callable[[DataFrame, Path], Any]:
        def merge_batch(batch: DataFrame, _: int) -> None:
            _merge(batch, directory / name)

        def sink(rows: DataFrame, checkpoint: Path) -> Any:
            return rows.writeStream.foreachBatch(merge_batch).option("checkpointLocation", str(checkpoint))

        return sink

    return {"headrace": headrace_sink, "delta": delta_sink("delta"), "delta with feed": delta_sink("delta with feed")}


def _merge(changes: DataFrame, target: Path) -> None:
    """Update the rows of a Delta table whose keys are in ``changes``, and insert the others."""
    changes.createOrReplaceTempView("changes")
    changes.sparkSession.sql(
        f"MERGE INTO delta.`{target}` t USING changes s ON t.UserId = s.UserId AND t.OrderId = s.OrderId"
        " WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )


def _changes(directory: Path, files: int, rows: int, known: int) -> list[Path]:
    """Write Parquet files of changes: half of the keys are of the ``known`` first ones, at random, and half new."""
    directory.mkdir()
    half = rows // 2
    for number in range(files):
        old = np.sort(np.random.default_rng(number).choice(known, half, replace=False))
        updated = orders(0, known).take(pa.array(old))
        updated = updated.set_column(2, "price", pc.add(updated["price"], 1.0 + number))
        new = orders(known + number * (rows - half), rows - half)
        pq.write_table(pa.concat_tables([updated, new]).combine_chunks(), directory / f"{number:03}.parquet")
    return sorted(directory.iterdir())


def _batches(
    spark: SparkSession, directory: Path, files: Iterator[Path], start: Callable[[DataFrame, Path], Any]
) -> Callable[[], float]:
    """Return a function that runs the next file as a batch of a stream, and returns its seconds."""
    (directory / "input").mkdir(parents=True)

    def run() -> float:
        shutil.copy(next(files), directory / "input")
        rows = spark.readStream.schema(_SCHEMA).parquet(str(directory / "input"))
        query = start(rows, directory / "checkpoint").trigger(availableNow=True).start()
        query.awaitTermination()
        return batch_seconds(query)[0]

    return run


def _check_equal(spark: SparkSession, directory: Path, rows: int) -> None:
    """Check that all sides have the same number of rows and the same prices."""
    expected = headrace.open(directory / "store").table("orders").scan(columns=["price"]).read_all()
    assert expected.num_rows == rows, f"{expected.num_rows} rows instead of {rows}"
    total = pc.sum(expected["price"]).as_py()
    for name in ("delta", "delta with feed"):
        found = spark.read.format("delta").load(str(directory / name)).selectExpr("count(*)", "sum(price)").first()
        assert found is not None
        assert found[0] == rows, f"{name}: {found[0]} rows instead of {rows}"
        assert abs(found[1] - total) < 1, f"{name}: {found[1]} instead of {total}"


def feed(directory: Path, scale: float) -> Result:
    """The changes of a table into noop: a tunnel of a table with pre-images, and Delta's change feed."""
    rows, runs = int(1_000_000 * scale), count()
    path = directory / "store"
    store = headrace.open(path, create=True, synchronous="off")
    table = store.create_table("orders", COLUMNS, ["UserId", "OrderId"], pre_images=True)
    store.create_tunnel("orders", "all", kind="Stream")
    delta = directory / "delta"
    with _session() as spark:
        _create(spark, delta, feed=True)
        inserted = directory / "inserted.parquet"
        pq.write_table(orders(0, rows), inserted)
        known = rows
        for first in range(0, rows, 100_000):
            table.put(orders(first, min(100_000, rows - first)))
        spark.read.parquet(str(inserted)).write.format("delta").mode("append").save(str(delta))
        for file in _changes(directory / "changes", 10, rows // 10, known):
            table.put(pq.read_table(file))
            _merge(spark.read.parquet(str(file)), delta)
        # The inserts, and the changes: an insert is one row, an update two.
        expected = rows + 10 * (rows // 20 + 2 * (rows // 20))

        def drained(stream: Callable[[], DataFrame]) -> Callable[[], float]:
            return lambda: drain_all(stream(), directory / f"checkpoint-{next(runs)}", expected)

        def tunnel() -> DataFrame:
            reader = spark.readStream.format("headrace").options(store=str(path), tunnel="all")
            return reader.option("startingPosition", "earliest").load()

        def change_feed() -> DataFrame:
            reader = spark.readStream.format("delta").options(readChangeFeed="true", startingVersion="0")
            return reader.option("maxFilesPerTrigger", 1_000_000).load(str(delta))

        spent = alternately(_REPEATS, {"headrace": drained(tunnel), "delta": drained(change_feed)})
        disk = f"{megabytes(path):.0f} MB, {megabytes(delta):.0f} MB"
    store.close()
    return Result(
        f"beside Delta Lake, change feed: {expected:,} rows with pre-images of {2 * rows:,} changes, into noop",
        {
            "versions": versions(**{"Delta Lake": DELTA}),
            "load of the machine": load(),
            "headrace tunnel": spent["headrace"].text(expected),
            "Delta's change feed": spent["delta"].text(expected),
            "on the disk: headrace, Delta": disk,
        },
        [Ratio("tunnel / change feed", spent["delta"].clock / spent["headrace"].clock, 1.0)],
        "Both give Spark's change columns and pre-images. Promises: both replay a batch as it was. A tunnel gives the "
        "changes of a key in their order; the change feed gives the version of each change, and rows of a version in "
        "any order.",
    )
