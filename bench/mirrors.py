"""Mirrors: the base data and the changes of a table into a table of another store, compared with a plain sink."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import headrace
from bench.measure import COLUMNS, Ratio, Result, batch_seconds, orders, orders_table, rate, spark_session


def mirror(directory: Path, scale: float) -> Result:
    """Base data, then as many changes, half of them updates and a quarter each deletes and new rows."""
    rows = int(1_000_000 * scale)
    table = orders_table(directory / "shop", rows, synchronous="off")
    store = headrace.open(directory / "shop")
    for name in ("plain", "latest", "history"):
        headrace.open(directory / name, create=True, synchronous="off").close()
    store.create_tunnel("orders", "plain")
    with spark_session() as spark:
        queries: dict[str, Callable[[], Any]] = {
            "plain": lambda: _plain(spark, directory),
            "latest": lambda: _mirror(spark, directory, "latest", history=False),
            "history": lambda: _mirror(spark, directory, "history", history=True),
        }
        headrace.open(directory / "plain").create_table("orders", COLUMNS, ["UserId", "OrderId"])
        # The first query of a session takes longer.
        store.create_table("small", COLUMNS, ["UserId", "OrderId"]).put(orders(0, 10))
        _seconds(lambda: _mirror(spark, directory, "latest", history=False, table="small"))
        # The first start of each creates its tunnel before the changes.
        base = {name: _seconds(query) for name, query in queries.items()}
        changed = _change(table, rows)
        changes = {name: _seconds(query) for name, query in queries.items()}
    expected = table.describe().rows
    assert headrace.open(directory / "latest").table("orders").describe().rows == expected
    figures = {}
    for name, what in (("plain", "plain sink"), ("latest", "mirror"), ("history", "mirror with history")):
        figures[f"{what}, base data"] = rate(rows, base[name])
        figures[f"{what}, changes"] = rate(changed, changes[name])
    total = {name: base[name] + changes[name] for name in queries}
    return Result(
        f"mirror: a table of {rows:,} rows, and {changed:,} changes of it, into another embedded store",
        figures,
        [
            Ratio("mirror / plain sink", total["plain"] / total["latest"], 0.6),
            Ratio("mirror with history / plain sink", total["plain"] / total["history"], 0.2),
        ],
        "The plain sink puts the new row of each change, also for a delete. A history writes two rows for an update, "
        "and the table of current versions.",
    )


def _change(table: headrace.Table, rows: int) -> int:
    """Change the table, in commits of 50,000 rows; return the number of changes."""
    step = max(1, rows // 20)
    for number in range(10):
        # The seed of the random keys.
        table.put(orders(number, step, shuffled=rows))
    for number in range(5):
        table.delete(orders(number * step, step))
        table.put(orders(rows + number * step, step))
    return 20 * step


def _plain(spark: SparkSession, directory: Path) -> Any:
    reader = spark.readStream.format("headrace").option("store", str(directory / "shop")).option("tunnel", "plain")
    changes = reader.option("maxRowsPerTrigger", 1_000_000).load().select(*COLUMNS)
    return headrace.write_stream(
        changes, store=directory / "plain", table="orders", checkpoint=directory / "checkpoint-plain"
    )


def _mirror(spark: SparkSession, directory: Path, name: str, *, history: bool, table: str = "orders") -> Any:
    return headrace.mirror(
        spark,
        source=directory / "shop",
        table=table,
        to=directory / name,
        checkpoint=directory / f"checkpoint-{name}-{table}",
        name=f"{name}-{table}",
        history=history,
    )


def _seconds(query: Callable[[], Any]) -> float:
    running = query().trigger(availableNow=True).start()
    running.awaitTermination()
    return batch_seconds(running)[0]
