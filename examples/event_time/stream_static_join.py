"""Stream–static join: each order gets the current name and price of its product.

The static side is a table that is read again for each batch. A changed row applies to later orders; orders that are
already written stay the same. The query has no state and needs no watermark.

Run it with ``python examples/event_time/stream_static_join.py``.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import headrace

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.spark.write_stream import StreamWriter

# In each step, the new products, and the orders that arrive after them.
ARRIVALS = [
    ([{"product": 1, "name": "lamp", "price": 30.0}, {"product": 2, "name": "desk", "price": 90.0}],
     [{"order": 10, "product": 1, "pieces": 2}, {"order": 11, "product": 2, "pieces": 1}]),
    ([{"product": 1, "name": "lamp", "price": 25.0}],
     [{"order": 12, "product": 1, "pieces": 4}, {"order": 13, "product": 3, "pieces": 1}]),
]  # fmt: skip


def create(store: headrace.Store) -> None:
    """Create the queue of orders, the table of products, and the table of priced orders."""
    store.create_queue("orders", {"order": "long", "product": "long", "pieces": "long"})
    store.create_table("products", {"product": "long", "name": "string", "price": "double"}, "product")
    store.create_table("priced", {"order": "long", "name": "string", "total": "double"}, "order")


def price(orders: DataFrame, products: DataFrame) -> DataFrame:
    """Join orders to products. The columns of a missing product are null."""
    joined = orders.join(products, "product", "left")
    return joined.select("order", "name", (joined.pieces * joined.price).alias("total"))


def build(spark: SparkSession, store: headrace.Store, checkpoint: Path) -> StreamWriter:
    """Return the query."""
    orders = spark.readStream.format("headrace").option("store", store.url).option("queue", "orders").load()
    products = spark.read.format("headrace").option("store", store.url).option("table", "products").load()
    return headrace.write_stream(price(orders, products), store=store.url, table="priced", checkpoint=checkpoint)


def main(directory: Path) -> None:
    """Change the products and append orders in steps while the query runs."""
    spark = headrace.session("stream-static join")
    with headrace.open(directory / "store", create=True) as store:
        create(store)
        query = build(spark, store, directory / "checkpoint").start()
        for products, orders in ARRIVALS:
            store.table("products").put(products)
            store.queue("orders").append(orders)
            query.processAllAvailable()
        query.stop()
        print(store.table("priced").scan().read_all().to_pandas().to_string(index=False))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="headrace-") as temporary:
        main(Path(temporary))
