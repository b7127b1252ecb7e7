"""Fan-out: one query writes the latest state of each order into a table and every large order into a queue.

``once`` publishes both outputs and the query's progress in one transaction: exactly once, and readers see both outputs
or neither. ``by_hand`` uses Spark's ``foreachBatch`` with two writes. A batch that runs again after a crash writes
again: a table with a key stays the same, a queue gets the rows twice.

Run it with ``python examples/event_time/fan_out.py``.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import headrace

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from headrace.spark.write_stream import StreamWriter

ARRIVALS = [
    [{"order": 1, "state": "placed", "price": 20.0}, {"order": 2, "state": "placed", "price": 150.0}],
    [{"order": 1, "state": "paid", "price": 20.0}],
    [{"order": 3, "state": "placed", "price": 300.0}, {"order": 2, "state": "paid", "price": 150.0}],
]


def create(store: headrace.Store) -> None:
    """Create the queue of orders, and the targets."""
    order = {"order": "long", "state": "string", "price": "double"}
    store.create_queue("orders", order)
    store.create_table("states", {"order": "long", "state": "string"}, "order")
    store.create_queue("large", order)
    store.create_table("large_by_key", order, ["order", "state"])


def states(orders: DataFrame) -> DataFrame:
    """Return the columns of the table of states."""
    return orders.select("order", "state")


def large(orders: DataFrame) -> DataFrame:
    """Return the large orders."""
    return orders.where("price >= 100")


def read(spark: SparkSession, store: headrace.Store) -> DataFrame:
    """Return the orders as a stream."""
    return spark.readStream.format("headrace").option("store", store.url).option("queue", "orders").load()


def once(spark: SparkSession, store: headrace.Store, checkpoint: Path) -> StreamWriter:
    """Return the query that publishes both outputs together."""
    outputs = [headrace.Output(table="states", select=states), headrace.Output(queue="large", select=large)]
    return headrace.write_stream(read(spark, store), store=store.url, outputs=outputs, checkpoint=checkpoint)


def by_hand(spark: SparkSession, store: headrace.Store, checkpoint: Path) -> DataStreamWriter:
    """Return the query that writes one output after the other."""

    def write(batch: DataFrame, number: int) -> None:
        batch.persist()
        for rows, table in ((states(batch), "states"), (large(batch), "large_by_key")):
            rows.write.format("headrace").option("store", store.url).option("table", table).mode("append").save()
        batch.unpersist()

    return read(spark, store).writeStream.foreachBatch(write).option("checkpointLocation", str(checkpoint))


def main(directory: Path) -> None:
    """Append the orders in steps while the query runs."""
    spark = headrace.session("fan-out")
    with headrace.open(directory / "store", create=True) as store:
        create(store)
        query = once(spark, store, directory / "checkpoint").start()
        for rows in ARRIVALS:
            store.queue("orders").append(rows)
            query.processAllAvailable()
        query.stop()
        print(store.table("states").scan().read_all().to_pandas().to_string(index=False))
        print(store.queue("large").read(0, 0).rows.to_pandas().to_string(index=False))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="headrace-") as temporary:
        main(Path(temporary))
