"""The driver of followed queries that a storm kills, and its writers.

``python -m tests.chaos.followed_actors driver DIRECTORY`` runs the queries until the file ``written`` exists and they
have caught up. ``… writer DIRECTORY SEED`` writes until it is killed or the file ``stop`` exists.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import headrace
from tests.chaos import actors
from tests.chaos.driving import driver_session, run_until_told

TOTALS = {
    "UserId": "string", "n": "long", "s": "double", "a": "double", "low": "double", "high": "double", "d": "long",
}  # fmt: skip
LARGE = {"UserId": "string", "OrderId": "long", "double_price": "double"}
BEST = {"UserId": "string", "OrderId": "long", "price": "double"}
QUERIES = {
    "totals": "SELECT UserId, count(*) AS n, sum(price) AS s, avg(price) AS a, min(price) AS low, max(price) AS high, "
    "count(DISTINCT price) AS d FROM orders GROUP BY UserId HAVING count(*) > 2",
    "large": "SELECT UserId, OrderId, price * 2 AS double_price FROM orders WHERE price > 50",
    "best": "SELECT o.UserId, o.OrderId, o.price FROM orders o JOIN "
    "(SELECT UserId, max(price) AS most FROM orders GROUP BY UserId) t ON o.UserId = t.UserId AND o.price = t.most",
}


def create(directory: Path, **options: Any) -> headrace.Store:
    """Create the store, its tables and tunnels. The options are for the table that is followed."""
    store = headrace.open(actors.address(directory), create=True)
    store.create_table("orders", actors.COLUMNS, ["UserId", "OrderId"], pre_images=True, **options)
    store.create_table("totals", TOTALS, "UserId")
    store.create_table("large", LARGE, ["UserId", "OrderId"])
    store.create_table("best", BEST, ["UserId", "OrderId"])
    for name in QUERIES:
        store.create_tunnel("orders", name, kind="BaseAndStream", base_channels=2)
    return store


def drive(directory: Path) -> None:
    """Follow the orders by both queries until the file ``written`` exists and they have caught up."""
    spark = driver_session()
    store = actors.address(directory)

    def stream(name: str) -> Any:
        reader = spark.readStream.format("headrace").options(store=store, tunnel=name, readAs="table")
        return headrace.follow(
            spark,
            QUERIES[name],
            scans={"orders": reader.option("maxRowsPerTrigger", 2_000).load()},
            store=store,
            table=name,
            checkpoint=directory / "checkpoints" / name,
            name=name,
        )

    run_until_told(directory, spark, [stream(name).start() for name in QUERIES])


if __name__ == "__main__":
    role, where = sys.argv[1], Path(sys.argv[2])
    if role == "driver":
        drive(where)
    else:
        actors.write(where, *map(int, sys.argv[3:]))
