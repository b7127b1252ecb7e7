"""Tunnels of several tables in Spark: typed rows, one table of them, whole transactions, and SQL."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import headrace
from headrace.ports import Store
from headrace.spark.several_tables import of_table
from tests.conformance import serving

COLUMNS = {
    "orders": {"id": "long", "customer": "string", "price": "decimal(10,2)", "at": "timestamp"},
    "customers": {"id": "string", "tags": "array<string>"},
}


@pytest.fixture(params=["embedded", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A store with the two tables, which keep pre-images."""
    if request.param == "embedded":
        with headrace.open(tmp_path / "shop", create=True, synchronous="off") as opened:
            for name, columns in COLUMNS.items():
                opened.create_table(name, columns, "id", pre_images=True)
            yield opened
        return
    url = serving.postgres_database("spark_typed")
    with headrace.open(url) as opened, psycopg.connect(url, user="postgres", autocommit=True) as server:
        for name, columns in COLUMNS.items():
            opened.create_table(name, columns, "id")
            server.execute(f"ALTER TABLE {name} REPLICA IDENTITY FULL")
        yield opened


def stream(spark: SparkSession, store: Store, tunnel: str, **options: Any) -> DataFrame:
    return spark.readStream.format("headrace").options(store=store.url, tunnel=tunnel, **options).load()


def test_the_rows_of_one_table_are_those_of_a_stream_of_that_table(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    orders, customers = store.table("orders"), store.table("customers")
    orders.put([{"id": number, "customer": "a", "price": Decimal("2.5")} for number in range(3)])
    customers.put({"id": "a", "tags": ["new", None]})
    store.create_tunnel(["orders", "customers"], "sales")
    store.create_tunnel("orders", "alone")
    alone = stream(spark, store, "alone", readAs="table")
    both = stream(spark, store, "sales", readAs="table", rows="typed", maxRowsPerTrigger=1)
    schema = of_table(both, "orders").schema
    assert schema.json() == alone.schema.json()

    batches: list[dict[str, list[Any]]] = []
    versions: list[set[int]] = []

    def collect(batch: DataFrame, _: int) -> None:
        rows = {name: [row.asDict(True) for row in of_table(batch, name).collect()] for name in COLUMNS}
        batches.append(rows)
        versions.append({row["_commit_version"] for each in rows.values() for row in each})

    options = {"checkpointLocation": str(tmp_path / "checkpoint")}
    query = both.writeStream.foreachBatch(collect).options(**options).start()
    query.processAllAvailable()
    base = len(batches)
    orders.put([{"id": 1, "customer": "b", "price": Decimal(3)}, {"id": 9, "customer": "b", "price": Decimal(4)}])
    orders.delete({"id": 0})
    customers.put([{"id": "b"}, {"id": "c"}])
    query.processAllAvailable()
    query.stop()
    assert sum(len(batch["orders"]) for batch in batches[:base]) == 3
    # Each transaction is a batch, though it has more rows than the limit.
    assert [[len(rows) for rows in batch.values()] for batch in batches[base:]] == [[3, 0], [1, 0], [0, 2]]
    assert [len(each) for each in versions[base:]] == [1, 1, 1]
    first = [row["_change_type"] for row in batches[base]["orders"]]
    assert sorted(first) == ["insert", "update_postimage", "update_preimage"]
    found: list[Any] = []
    single = alone.writeStream.foreachBatch(lambda batch, _: found.extend(batch.collect()))
    single.option("checkpointLocation", str(tmp_path / "single")).trigger(availableNow=True).start().awaitTermination()
    untimed = [{**row.asDict(), "_commit_timestamp": None, "_commit_version": None} for row in found]
    together = [row for batch in batches for row in batch["orders"]]
    assert untimed == [{**row, "_commit_timestamp": None, "_commit_version": None} for row in together]
    for name in ("sales", "alone"):
        store.drop_tunnel(name)
    with pytest.raises(PySparkException, match="no such tunnel"):
        stream(spark, store, "sales")
