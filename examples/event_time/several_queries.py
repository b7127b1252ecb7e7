"""Several queries in one session: running totals and a copy of the large orders, both from one queue.

Each query has its own checkpoint and its own consumer, and can be stopped and started without the other. A consumer's
offset is always the end of the rows that its query has published.

Run it with ``python examples/event_time/several_queries.py``.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import headrace

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.spark.write_stream import StreamWriter

CONSUMERS = ["//home/totals", "//home/large"]
ARRIVALS = [
    [{"order": 1, "user": "ada", "price": 20.0}, {"order": 2, "user": "bob", "price": 150.0}],
    [{"order": 3, "user": "ada", "price": 300.0}],
    [{"order": 4, "user": "bob", "price": 5.0}, {"order": 5, "user": "eve", "price": 70.0}],
]


def create(store: headrace.Store) -> None:
    """Create the queue of orders with a consumer for each query, and the tables of their results."""
    store.create_queue("orders", {"order": "long", "user": "string", "price": "double"})
    for consumer in CONSUMERS:
        store.create_consumer(consumer)
        store.register_consumer("orders", consumer, vital=True)
    store.create_table("totals", {"user": "string", "orders": "long", "total": "double"}, "user")
    store.create_queue("large", {"order": "long", "price": "double"})


def orders(spark: SparkSession, store: headrace.Store, consumer: str) -> DataFrame:
    """Return a stream of the orders through a consumer."""
    stream = spark.readStream.format("headrace").option("store", store.url)
    return stream.option("queue", "orders").option("consumer", consumer).load()


def totals(spark: SparkSession, store: headrace.Store, checkpoint: Path) -> StreamWriter:
    """Return the query that keeps the sum of each user's orders."""
    from pyspark.sql import functions as F

    users = orders(spark, store, "//home/totals").groupBy("user")
    sums = users.agg(F.count("*").alias("orders"), F.sum("price").alias("total"))
    return headrace.write_stream(
        sums, store=store.url, table="totals", checkpoint=checkpoint / "totals", mode="update", name="totals"
    )


def large(spark: SparkSession, store: headrace.Store, checkpoint: Path) -> StreamWriter:
    """Return the query that copies orders of 100 and more."""
    copies = orders(spark, store, "//home/large").where("price >= 100").select("order", "price")
    return headrace.write_stream(copies, store=store.url, queue="large", checkpoint=checkpoint / "large", name="large")


def main(directory: Path) -> None:
    """Run both queries while orders arrive."""
    spark = headrace.session("several queries")
    with headrace.open(directory / "store", create=True) as store:
        create(store)
        queries = [build(spark, store, directory).start() for build in (totals, large)]
        for rows in ARRIVALS:
            store.queue("orders").append(rows)
        for query in queries:
            query.processAllAvailable()
            query.stop()
        print(store.table("totals").scan().read_all().to_pandas().to_string(index=False))
        print(store.queue("large").read(0, 0).rows.to_pandas().to_string(index=False))
        for consumer in CONSUMERS:
            print(consumer, "has read to row", store.consumer(consumer).offsets("orders")[0])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="headrace-") as temporary:
        main(Path(temporary))
