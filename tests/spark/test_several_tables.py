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
from headrace.errors import OptionError
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
    url = serving.postgres_database()
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


def test_scans_of_sql_share_a_tunnel(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    orders, customers = store.table("orders"), store.table("customers")
    orders.put([{"id": number, "customer": "ab"[number % 2], "price": Decimal(number)} for number in range(4)])
    customers.put([{"id": "a", "tags": ["x", "y"]}, {"id": "b", "tags": []}])
    # A tunnel of one table with the same name is not meant by scans of another table.
    store.create_tunnel("orders", "prices")
    streams = headrace.sql(spark, tmp_path / "workspace")
    at = f"USING headrace OPTIONS (store = '{store.url}'"
    streams.run(f"""
    CREATE TABLE orders (ID BIGINT, customer STRING) {at}, table = 'orders');
    CREATE TABLE customers {at}, table = 'customers');
    CREATE TABLE tagged (order LONG, customer STRING, tags LONG, PRIMARY KEY (order)) {at});
    CREATE TUNNEL sales ON orders, customers;
    CREATE SCAN orders_now ON orders USING STREAM OPTIONS (tunnel = 'sales', readAs = 'table');
    CREATE SCAN customers_now ON customers USING STREAM OPTIONS (tunnel = 'sales', readAs = 'table');
    """)
    create = """CREATE STREAM tagged OPTIONS (triggerType = 'AvailableNow') INSERT INTO tagged
        SELECT o.id AS order, o.customer, size(c.tags) AS tags
        FROM orders_now o JOIN customers_now c ON c.id = o.customer
    """
    explained = streams.run(f"EXPLAIN {create}")[0].fetch()
    assert [value for name, value in explained if name == "one tunnel"] == [
        "sales: orders_now, customers_now; a batch has whole transactions of its tables"
    ]
    assert [row[0] for row in streams.run("DESCRIBE orders_now")[0].fetch()] == [
        "ID", "customer", "_change_type", "_commit_version", "_commit_timestamp",
    ]  # fmt: skip
    with pytest.raises(OptionError, match="takes its changes for rows"):
        headrace.write_stream(spark.table("orders_now").select("ID"), store=store.url, table="tagged", name="x").start()

    def tagged() -> list[tuple[Any, ...]]:
        assert streams.wait(120)
        return [tuple(row.values()) for row in store.table("tagged").scan().read_all().to_pylist()]

    streams.run(create)
    assert tagged() == [(0, "a", 2), (1, "b", 0), (2, "a", 2), (3, "b", 0)]
    customers.put({"id": "b", "tags": ["z"]})
    orders.delete([{"id": 0}, {"id": 1}])
    streams.run("START STREAM tagged")
    assert tagged() == [(2, "a", 2), (3, "b", 1)]
    streams.stop()
    for tunnel in store.tunnels():
        store.drop_tunnel(tunnel.id)


def test_the_rows_of_one_table_are_merged(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    orders, customers = store.table("orders"), store.table("customers")
    store.create_tunnel(["orders", "customers"], "sales")
    store.create_table("copy", {"id": "long", "customer": "string"}, "id")
    text = """MERGE INTO copy t
        USING (SELECT orders.*, _change_type, _commit_version FROM changes WHERE _table = 'orders') s ON t.id = s.id
        WHEN MATCHED AND s._change_type = 'delete' THEN DELETE
        WHEN MATCHED THEN UPDATE SET customer = s.customer
        WHEN NOT MATCHED AND s._change_type <> 'delete' THEN INSERT (id, customer) VALUES (s.id, s.customer)"""

    def merged() -> list[tuple[Any, ...]]:
        scans = {"changes": stream(spark, store, "sales", rows="typed")}
        started = headrace.merge(spark, text, scans=scans, store=store.url, checkpoint=tmp_path / "checkpoint")
        started.trigger(availableNow=True).start().awaitTermination()
        return [tuple(row.values()) for row in store.table("copy").scan().read_all().to_pylist()]

    orders.put([{"id": 1, "customer": "a"}, {"id": 2, "customer": "b"}])
    customers.put({"id": "a"})
    assert merged() == [(1, "a"), (2, "b")]
    orders.put({"id": 2, "customer": "c"})
    orders.delete({"id": 1})
    customers.delete({"id": "a"})
    assert merged() == [(2, "c")]
    store.drop_tunnel("sales")
