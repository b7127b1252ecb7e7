"""Queries that join changing tables: small batches by the size of the tables, large ones beside Spark's own join."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import headrace
from bench.measure import Ratio, Result, batch_seconds, rate, spark_session

if TYPE_CHECKING:
    import numpy.typing as npt
    from pyspark.sql.streaming.query import StreamingQuery

COLUMNS = {
    "facts": {"id": "long", "dim": "long", "amount": "long"},
    "dims": {"id": "long", "kind": "long", "name": "string"},
    "kinds": {"id": "long", "label": "string"},
}
SUMS = """
    SELECT label, count(*) AS n, sum(amount) AS s
    FROM facts JOIN dims ON dim = dims.id JOIN kinds ON kind = kinds.id
    GROUP BY label
"""
_JOINED = "SELECT facts.id, amount, name FROM facts JOIN dims ON dim = dims.id"
_BATCHES = 6
_COLD = 2
# All changes are committed between two looks of the stream, so that they are one batch.
_SETTINGS = {"spark.sql.streaming.pollingDelay": "1s"}
_PART = 100_000


def joins_small(directory: Path, scale: float) -> Result:
    """1,000 changes a batch into the sums of a join of 1 M, 100 k and 1 k rows; and of tables ten times as large."""
    facts = {"plain": int(1_000_000 * scale), "large": int(10_000_000 * scale)}
    changes = 1_000
    running: dict[str, StreamingQuery] = {}
    loads: dict[str, float] = {}
    with ExitStack() as opened:
        stores = {name: opened.enter_context(_store(directory / name)) for name in facts}
        spark = opened.enter_context(spark_session(_SETTINGS))
        for name, store in stores.items():
            sizes = {"facts": facts[name], "dims": facts[name] // 10, "kinds": facts[name] // 1_000}
            _fill(store, sizes)
            store.create_table("sums", {"label": "string", "n": "long", "s": "long"}, "label")
            running[name] = _follow(spark, store, "sums", SUMS, list(sizes))
            running[name].processAllAvailable()
            loads[name] = batch_seconds(running[name])[0]
        plain, large = _alternately(running, lambda name, number: _change(stores[name], facts[name], changes, number))
        for name, store in stores.items():
            running[name].stop()
            _check(store, spark)
    return Result(
        f"joins: {changes:,} changes a batch into count and sum of a join of {facts['plain']:,}, "
        f"{facts['plain'] // 10:,} and {facts['plain'] // 1_000:,} rows",
        {
            "a batch": f"{plain * 1000:.0f} ms",
            "with tables ten times as large": f"{large * 1000:.0f} ms",
            "the first answers": ", ".join(f"{each:.1f} s" for each in loads.values()),
        },
        [Ratio("time with tables ten times as large", large / plain, 1.2, at_most=True)],
        "Of the changes, 980 are of facts, half of them new, 19 of dimensions, which get other kinds, and 1 is of a "
        "kind, which has 1,000 facts. Times of triggers, from looking for changes to publication and commit.",
    )


def joins_large(directory: Path, scale: float) -> Result:
    """100,000 new rows a batch into a join with 1 M rows, kept by headrace, and by Spark's join of two streams."""
    sizes, rows = {"facts": 0, "dims": int(1_000_000 * scale)}, int(100_000 * scale)
    starts = {"followed": _follow, "streams": _join_streams}
    running: dict[str, StreamingQuery] = {}
    with ExitStack() as opened:
        stores = {name: opened.enter_context(_store(directory / name)) for name in starts}
        spark = opened.enter_context(spark_session(_SETTINGS))
        for name, store in stores.items():
            _fill(store, sizes)
            store.create_table("joined", {"id": "long", "amount": "long", "name": "string"}, "id")
            running[name] = starts[name](spark, store, "joined", _JOINED, list(sizes))
            running[name].processAllAvailable()

        def insert(name: str, number: int) -> None:
            ids = np.arange(number * rows, (number + 1) * rows)
            stores[name].table("facts").put(_facts(ids, sizes["dims"], number))

        followed, streams = _alternately(running, insert)
        for query in running.values():
            query.stop()
        counts = {store.table("joined").describe().rows for store in stores.values()}
    assert counts == {_BATCHES * rows}, f"{counts} joined rows instead of {_BATCHES * rows}"
    return Result(
        f"joins: {rows:,} new rows a batch into a join with {sizes['dims']:,} rows",
        {
            "headrace.follow: both tables may change": rate(rows, followed),
            "Spark's join of two streams of inserts, state in RocksDB": rate(rows, streams),
        },
        [Ratio("followed / Spark's join of two streams", streams / followed, 3.0)],
        "Both keep all rows of both tables, and write a row of the target for each fact. Spark's join would take a "
        "changed row for another one.",
    )


def _store(directory: Path) -> headrace.Store:
    return headrace.open(directory, create=True, synchronous="off")


def _fill(store: headrace.Store, sizes: Mapping[str, int]) -> None:
    make: Mapping[str, Callable[[Any], pa.Table]] = {
        "facts": lambda ids: _facts(ids, sizes["dims"], 0),
        "dims": lambda ids: _dims(ids, sizes.get("kinds", 1), 0),
        "kinds": lambda ids: _kinds(ids, "kind"),
    }
    for name, rows in sizes.items():
        table = store.create_table(name, COLUMNS[name], "id", pre_images=True)
        for first in range(0, rows, _PART):
            table.put(make[name](np.arange(first, min(first + _PART, rows))))


def _change(store: headrace.Store, rows: int, changes: int, number: int) -> None:
    chance = np.random.default_rng(number)
    of_dims = changes // 50 - 1
    of_facts = changes - of_dims - 1
    old = chance.choice(rows, of_facts // 2, replace=False)
    new = rows + number * changes + np.arange(of_facts - len(old))
    store.table("facts").put(_facts(np.concatenate([old, new]), rows // 10, number + 1))
    store.table("dims").put(_dims(chance.choice(rows // 10, of_dims, replace=False), rows // 1_000, number + 1))
    store.table("kinds").put(_kinds(chance.choice(rows // 1_000, 1), f"kind of {number}"))


def _facts(ids: npt.NDArray[np.int64], dims: int, number: int) -> pa.Table:
    """Return rows whose dimensions are all over the table, and others for each number."""
    return pa.table({"id": ids, "dim": (ids * 7919 + number) % dims, "amount": ids % 97 + number})


def _dims(ids: npt.NDArray[np.int64], kinds: int, number: int) -> pa.Table:
    return pa.table({"id": ids, "kind": (ids * 31 + number) % kinds, "name": [f"name {each}" for each in ids]})


def _kinds(ids: npt.NDArray[np.int64], label: str) -> pa.Table:
    return pa.table({"id": ids, "label": [f"{label} {each}" for each in ids]})


def _alternately(running: Mapping[str, StreamingQuery], change: Callable[[str, int], None]) -> list[float]:
    """Return the median seconds of the batches of each query after changes of its tables, in turns.

    Args:
        change: changes the tables of a query before a batch with a number.
    """
    taken: dict[str, list[float]] = {name: [] for name in running}
    for number in range(_BATCHES):
        for name, query in running.items():
            before, _ = batch_seconds(query)
            change(name, number)
            query.processAllAvailable()
            taken[name].append(batch_seconds(query)[0] - before)
    return [statistics.median(times[_COLD:]) for times in taken.values()]


def _follow(spark: SparkSession, store: headrace.Store, target: str, sql: str, tables: list[str]) -> StreamingQuery:
    """Follow the tables by one tunnel."""
    tunnel = store.create_tunnel(tables, target).id
    reader = spark.readStream.format("headrace").options(store=store.url, tunnel=tunnel, readAs="table")
    scans = {table: reader.load(table) for table in tables}
    checkpoint = headrace.checkpoint(f"headrace:///joins/{target}", store=store, spark=spark)
    return headrace.follow(spark, sql, scans=scans, store=store.url, table=target, checkpoint=checkpoint).start()


def _join_streams(
    spark: SparkSession, store: headrace.Store, target: str, sql: str, tables: list[str]
) -> StreamingQuery:
    """Join a stream of the changes of each table."""
    for table in tables:
        tunnel = store.create_tunnel(table, target).id
        changes: DataFrame = spark.readStream.format("headrace").options(store=store.url, tunnel=tunnel).load()
        changes.select(*COLUMNS[table]).createOrReplaceTempView(table)
    checkpoint = headrace.checkpoint(f"headrace:///joins/{target}", store=store, spark=spark)
    return headrace.write_stream(spark.sql(sql), store=store.url, table=target, checkpoint=checkpoint).start()


def _check(store: headrace.Store, spark: SparkSession) -> None:
    """Compare the sums with those of a batch query."""
    for table in COLUMNS:
        reader = spark.read.format("headrace").options(store=store.url, table=table)
        reader.load().createOrReplaceTempView(table)
    found = store.table("sums").scan().read_all().sort_by("label")
    expected = spark.sql(SUMS).toArrow().sort_by("label").cast(found.schema)
    assert found == expected, "the sums differ from those of a batch query"
