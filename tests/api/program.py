"""A program of a user. It is not run: tests/unit/test_api_types.py checks it with pyright in strict mode."""

from __future__ import annotations

from datetime import datetime

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import headrace
from headrace import ChangeBatch, Consumer, Queue, Store, Table, Tunnel


def fill(path: str) -> Table:
    store: Store = headrace.open(path, create=True, synchronous="full")
    columns = {"id": "string", "price": "double", "at": "timestamp"}
    orders = store.create_table("orders", columns, primary_key="id", exist_ok=True, pre_images=True)
    version: int = orders.put([{"id": "o1", "price": 10.0, "at": datetime(2026, 1, 1)}])
    orders.update({"id": "o1", "price": 12.5})
    orders.put(pa.table({"id": ["o2"], "price": [4.0]}))
    row = orders.get({"id": "o1"})
    if row is not None:
        print(version, row["price"])
    reader: pa.RecordBatchReader = orders.scan(columns=["price"], where={"id": "o1"}, limit=10)
    print(reader.read_all().num_rows, [each["id"] for each in orders])
    found: pa.Table = store.query("SELECT count(*) AS n FROM orders", timeout_seconds=5)
    print(found.num_rows)
    return orders


def read_changes(store: Store) -> int:
    tunnel: Tunnel = store.create_tunnel("orders", "audit", kind="BaseAndStream")
    rows = 0
    with tunnel.consume(client="audit", batch_rows=1000, idle="stop") as worker:
        for batch in worker:
            rows += count(batch)
    print(tunnel.describe().stage, tunnel.describe().backlog_rows)
    store.drop_tunnel("audit", missing_ok=True)
    return rows


def count(batch: ChangeBatch) -> int:
    changes: pa.RecordBatch = batch.to_arrow()
    rows: int = changes.num_rows
    batch.done()
    return rows


def use_queue(store: Store) -> dict[int, int]:
    clicks: Queue = store.create_queue("clicks", {"user": "string"}, partitions=2)
    for address in clicks.append([{"user": "u1"}], key="user"):
        print(address.partition, address.first, address.next)
    print(clicks.bounds()[0].upper, clicks.read(0, 0, max_rows=10).rows.num_rows)
    reader: Consumer = store.create_consumer("reader")
    store.register_consumer("clicks", "reader", vital=True)
    reader.advance("clicks", {0: 1}, expected={0: 0})
    return reader.offsets("clicks")


def compare(a: Table, b: Table) -> bool:
    diff = headrace.diff_tables(a, b, limit=10)
    for difference in diff.differences:
        print(difference.key)
    return diff.equal and headrace.checksum_table(a).checksum == headrace.checksum_table(b).checksum


def stream(spark: SparkSession) -> StreamingQuery:
    changes: DataFrame = spark.readStream.format("headrace").options(store="shop", tunnel="stats").load()
    outputs = [headrace.Output(table="large", select=lambda rows: rows.where("price > 5"))]
    return headrace.write_stream(changes, checkpoint="checkpoints/large", store="shop", outputs=outputs).start()


def follow(spark: SparkSession, orders: DataFrame) -> StreamingQuery:
    query = headrace.follow(
        spark,
        "SELECT id, sum(price) AS spent FROM orders GROUP BY id",
        scans={"orders": orders},
        store="shop",
        table="totals",
        name="totals",
        trigger={"processingTime": "1 second"},
    )
    return query.start()


def copy(spark: SparkSession, orders: DataFrame) -> list[StreamingQuery]:
    merge = "MERGE INTO copy t USING orders s ON t.id = s.id WHEN NOT MATCHED THEN INSERT *"
    return [
        headrace.mirror(spark, source="shop", table="orders", to="archive", name="archive", history=True).start(),
        headrace.merge(spark, merge, scans={"orders": orders}, store="shop", name="copy").start(),
    ]


def run_script(text: str) -> None:
    spark = headrace.session("job", conf={"spark.sql.shuffle.partitions": 4})
    publish = headrace.LagListener(lambda name, lags: print(name, [lag.total_rows_behind for lag in lags if lag]))
    spark.streams.addListener(publish)
    sql = headrace.sql(spark, "workspace")
    for result in sql.run(text, available_now=True):
        print(result.columns, result.fetch())
    print([status.name for status in sql.streams()], sql.wait(timeout=60))


def handle(store: Store) -> str:
    try:
        return store.table("missing").name
    except headrace.NotFoundError as error:
        return f"{error.problem}: {error.remedy}" if not error.retryable else str(error)
