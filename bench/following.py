"""Queries that follow a table, compared with Spark's own aggregation and with the plain sink."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headrace
from bench.measure import Ratio, Result, rate, spark_session
from headrace.batches.sinks.targets import TableTarget
from headrace.model.tables.changes import RowChange
from headrace.spark.batch_tasks import BatchContent, BatchTasks, LocatedSink, PublishedBatches, Receipts
from headrace.stores.registry import StoreAddress

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_COLUMNS = {"id": "long", "k": "long", "price": "double"}
_TOTALS = {"k": "long", "n": "long", "s": "double"}
_SIGN = "CASE WHEN _change_type IN ('insert', 'update_postimage') THEN 1 ELSE -1 END"
_BATCHES = 5
Start: TypeAlias = "Callable[[str], StreamingQuery]"
"""Starts the query with a name, which is also that of its tunnel and its target."""


def following(directory: Path, scale: float) -> Result:
    """Count and sum by key, kept by headrace, by Spark over inserts, and by Spark over signed rows."""
    keys = int(100_000 * scale)
    groups = 10 * keys
    store = headrace.open(directory / "store", create=True, synchronous="off")
    for name in ("followed", "inserts", "signed"):
        store.create_table(name, _TOTALS, "k")

    def change(table: headrace.Table, number: int) -> None:
        chosen = np.random.default_rng(number).permutation(groups)[:keys]
        half = keys // 2
        new = np.arange(keys - half) + groups + keys * number
        table.put(_rows(np.concatenate([chosen[:half], new]), chosen, 1.0 + number))

    with spark_session() as spark:
        queries: dict[str, Start] = {
            "followed": partial(
                _follow, spark, directory, "SELECT k, count(*) AS n, sum(price) AS s FROM o GROUP BY k"
            ),
            "inserts": partial(_sum_of_inserts, spark, directory),
            "signed": partial(_sum_of_signed_rows, spark, directory),
        }
        taken = _batch_seconds(directory, groups, queries, change)
    followed, inserts, signed = (taken[name] for name in queries)
    return Result(
        f"following: count and sum by key, {keys:,} distinct keys a batch, half of them updates, into a table "
        f"of {groups:,} groups",
        {
            "headrace.follow: state in tables of the store": rate(keys, followed),
            "the same changes as inserts, by Spark's aggregation, state in RocksDB": rate(keys, inserts),
            "signed rows by Spark's aggregation, state in RocksDB": rate(keys, signed),
        },
        [Ratio("followed / Spark's aggregation of inserts", inserts / followed, 2.0)],
    )


def following_rows(directory: Path, scale: float) -> Result:
    """A projection and filter, half updates and half deletes, compared with the plain sink of the same rows."""
    keys = int(100_000 * scale)
    store = headrace.open(directory / "store", create=True, synchronous="off")
    for name in ("followed", "plain"):
        store.create_table(name, {"id": "long", "p2": "double"}, "id")

    def change(table: headrace.Table, number: int) -> None:
        ids = np.random.default_rng(number).permutation(2 * keys)[:keys] + 2 * keys * number
        half = keys // 2
        table.put(_rows(ids[:half], ids[:half], 100.0 + number))
        table.delete(pa.table({"id": ids[half:]}))

    with spark_session() as spark:
        queries: dict[str, Start] = {
            "followed": partial(_follow, spark, directory, "SELECT id, price * 2 AS p2 FROM o WHERE price >= 0"),
            "plain": partial(_plain, spark, directory),
        }
        taken = _batch_seconds(directory, 2 * keys * _BATCHES, queries, change)
    return Result(
        f"following: projection and filter, {keys:,} changes a batch, half updates and half deletes",
        {
            "headrace.follow: puts and deletes": rate(keys, taken["followed"]),
            "the plain sink: a put for each change": rate(keys, taken["plain"]),
        },
        [Ratio("followed / plain", taken["plain"] / taken["followed"], 0.8)],
    )


def following_size(directory: Path, scale: float) -> Result:
    """The time of a batch into targets with few and with many groups. It touches the same number, at random."""
    keys = int(1_000 * scale)
    groups = {"few": 10 * keys, "many": 1_000 * keys}
    store = headrace.open(directory / "store", create=True, synchronous="off")
    sql = "SELECT k, count(*) AS n, sum(price) AS s, max(price) AS m FROM o GROUP BY k"
    tables: dict[str, headrace.Table] = {}
    running: dict[str, StreamingQuery] = {}
    taken: dict[str, list[float]] = {name: [] for name in groups}
    with spark_session() as spark:
        for name, count in groups.items():
            tables[name] = _table(store, count, f"{name}_orders")
            store.create_table(name, {**_TOTALS, "m": "double"}, "k")
            store.create_tunnel(f"{name}_orders", name, kind="BaseAndStream")
            running[name] = _follow(spark, directory, sql, name)
            running[name].processAllAvailable()
        for number in range(_BATCHES):
            for name, count in groups.items():
                chosen = np.random.default_rng(number).permutation(count)[:keys]
                tables[name].put(_rows(chosen, chosen, 1.0 + number))
                running[name].processAllAvailable()
                taken[name].append(_last_batch(running[name]))
        for query in running.values():
            query.stop()
    small, large = (statistics.median(taken[name][1:]) for name in ("few", "many"))
    return Result(
        f"following: a batch of {keys:,} updated groups, chosen at random, by count, sum and max",
        {
            f"into a target of {groups['few']:,} groups": f"{small * 1000:.0f} ms",
            f"into a target of {groups['many']:,} groups": f"{large * 1000:.0f} ms",
        },
        [Ratio("time with 100 times as many groups", large / small, 1.3, at_most=True)],
    )


def _table(store: headrace.Store, rows: int, name: str) -> headrace.Table:
    """Return a table of ``rows`` rows, each with its own key ``k``."""
    table = store.create_table(name, _COLUMNS, "id", pre_images=True)
    for first in range(0, rows, 100_000):
        ids = np.arange(first, min(first + 100_000, rows))
        table.put(_rows(ids, ids, 0.5))
    return table


def _rows(ids: Any, keys: Any, price: float) -> pa.Table:
    return pa.table({"id": ids, "k": keys, "price": price + (np.asarray(ids) % 97) / 8})


def _batch_seconds(
    directory: Path, rows: int, queries: dict[str, Start], change: Callable[[headrace.Table, int], None]
) -> dict[str, float]:
    """Return the median time of a batch of each query. Each follows its own table, and they run in turn.

    Args:
        rows: the rows of each table before the first batch.
        change: changes a table before a batch with a number.
    """
    store = headrace.open(directory / "store", create=True, synchronous="off")
    running: dict[str, StreamingQuery] = {}
    tables: dict[str, headrace.Table] = {}
    for name, start in queries.items():
        tables[name] = _table(store, rows, f"{name}_orders")
        store.create_tunnel(f"{name}_orders", name, kind="BaseAndStream")
        running[name] = start(name)
        running[name].processAllAvailable()
    taken: dict[str, list[float]] = {name: [] for name in queries}
    for number in range(_BATCHES):
        for name, query in running.items():
            change(tables[name], number)
            query.processAllAvailable()
            taken[name].append(_last_batch(query))
    for query in running.values():
        query.stop()
    # The first batch also compiles.
    return {name: statistics.median(times[1:]) for name, times in taken.items()}


def _last_batch(query: StreamingQuery) -> float:
    """Return the time of the last batch with rows, from reading to publication."""
    times = [each["durationMs"]["addBatch"] for each in query.recentProgress if each["numInputRows"]]
    return float(times[-1]) / 1000.0


def _stream(spark: SparkSession, directory: Path, tunnel: str, **options: Any) -> DataFrame:
    reader = spark.readStream.format("headrace").options(store=str(directory / "store"), tunnel=tunnel, **options)
    return reader.load()


def _follow(spark: SparkSession, directory: Path, sql: str, name: str) -> StreamingQuery:
    scan = _stream(spark, directory, name, readAs="table")
    stream = headrace.follow(
        spark,
        sql,
        scans={"o": scan},
        store=directory / "store",
        table=name,
        checkpoint=directory / f"checkpoint-{name}",
    )
    return stream.start()


def _write(directory: Path, rows: DataFrame, name: str) -> StreamingQuery:
    stream = headrace.write_stream(
        rows, store=directory / "store", table=name, checkpoint=directory / f"checkpoint-{name}", mode="update"
    )
    return stream.start()


def _plain(spark: SparkSession, directory: Path, name: str) -> StreamingQuery:
    changes = _stream(spark, directory, name, preImages="false")
    return _write(directory, changes.selectExpr("id", "price * 2 AS p2"), name)


def _sum_of_inserts(spark: SparkSession, directory: Path, name: str) -> StreamingQuery:
    changes = _stream(spark, directory, name, preImages="false")
    return _write(directory, changes.groupBy("k").agg(F.count("*").alias("n"), F.sum("price").alias("s")), name)


@dataclass(frozen=True)
class _Groups(BatchContent):
    """Groups with rows are put, and groups without are deleted."""

    rereads_published = True

    table: str

    @property
    def targets(self) -> tuple[TableTarget, ...]:
        return TableTarget(self.table), TableTarget(self.table, RowChange.DELETE)

    def run(self, batch: DataFrame, tasks: BatchTasks) -> Receipts:
        return tasks.stage_routed(batch, _puts_and_deletes)


def _puts_and_deletes(_: headrace.Store, parts: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
    for part in parts:
        stays = pc.greater(part.column("n"), 0)
        yield 0, part.filter(stays)
        yield 1, part.filter(pc.invert(stays)).select(["k"])


def _sum_of_signed_rows(spark: SparkSession, directory: Path, name: str) -> StreamingQuery:
    """Signed rows through Spark's aggregation. It keeps groups without rows for ever, and sums of doubles drift."""
    changes = _stream(spark, directory, name, readAs="table").withColumn("sign", F.expr(_SIGN))
    sums = changes.groupBy("k").agg(F.sum("sign").alias("n"), F.sum(F.col("sign") * F.col("price")).alias("s"))
    checkpoint = str(directory / f"checkpoint-{name}")
    with headrace.open(directory / "store") as store:
        sink = LocatedSink(StoreAddress(store.url).of(store), checkpoint)
    write = PublishedBatches(sink, _Groups(name))
    return sums.writeStream.outputMode("update").option("checkpointLocation", checkpoint).foreachBatch(write).start()
