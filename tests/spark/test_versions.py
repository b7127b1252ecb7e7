"""What every version of Spark does: the triggers of headrace's queries, and a restart of one that was limited."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import headrace
from headrace.ports import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = headrace.open(tmp_path / "shop", create=True, synchronous="off")
    orders = store.create_table("orders", {"id": "long", "price": "double"}, "id")
    store.create_table("copy", {"id": "long", "price": "double"}, "id")
    orders.put(rows(0, 25))
    store.create_tunnel("orders", "all", kind="BaseAndStream")
    orders.put(rows(25, 25))
    store.create_queue("clicks", {"id": "long", "price": "double"}).append(rows(0, 25))
    return store


def rows(first: int, count: int) -> list[dict[str, Any]]:
    return [{"id": n, "price": n / 4} for n in range(first, first + count)]


def written(spark: SparkSession, store: Store, options: dict[str, str], checkpoint: str) -> int:
    """Run a query with availableNow, and return the number of rows in its table."""
    source = spark.readStream.format("headrace").options(store=store.url, maxRowsPerTrigger="10", **options).load()
    query = headrace.write_stream(
        source.select("id", "price"),
        store=store.url,
        table="copy",
        checkpoint=checkpoint,
        trigger={"availableNow": True},
    )
    query.start().awaitTermination()
    return int(store.table("copy").scan().read_all().num_rows)


@pytest.mark.parametrize(
    ("options", "count"), [({"tunnel": "all"}, 50), ({"path": "clicks", "startingPosition": "earliest"}, 25)]
)
def test_available_now_reads_all_rows_in_several_batches(
    spark: SparkSession, store: Store, checkpoint: str, options: dict[str, str], count: int
) -> None:
    assert written(spark, store, options, checkpoint) == count
    (store.table("orders").put if "tunnel" in options else store.queue("clicks").append)(rows(100, 15))
    assert written(spark, store, options, checkpoint) == count + 15


def test_native_sinks_take_streams(spark: SparkSession, store: Store, checkpoint: str) -> None:
    source = spark.readStream.format("headrace").options(store=store.url, tunnel="all").load().select("id", "price")
    sink = source.writeStream.format("headrace").options(store=store.url, table="copy", checkpointLocation=checkpoint)
    query = sink.start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    assert store.table("copy").scan().read_all().num_rows == 50
