"""What streams into lake tables of all formats read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.ports import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ONCE = {"availableNow": True}


def change(shop: Store) -> None:
    """Change, add and delete rows of the source."""
    orders = shop.table("orders")
    orders.put([{"id": 1, "user": "u0", "n": 10}, {"id": 6, "user": "u2", "n": 6}])
    orders.delete([{"id": 0}])


def reader(spark: SparkSession, shop: Store, tunnel: str, **options: str) -> Any:
    return spark.readStream.format("headrace").options(store=shop.url, tunnel=tunnel, **options).load()
