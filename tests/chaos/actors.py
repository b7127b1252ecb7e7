"""The processes that a storm kills: a driver with three streaming queries, and writers.

``python -m tests.chaos.actors driver DIRECTORY [QUERY…]`` runs the given queries, or all of them, until the file
``written`` exists. ``… writer DIRECTORY SEED [RESHAPES]`` writes until it is killed or the file ``stop`` exists.
``… server DIRECTORY PORT`` serves the store as an instance of Tablestore. The file ``address``, if it exists, has the
URL of the store.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

import headrace
from headrace.errors import HeadraceError, StoreError
from headrace.spark.checkpoint import clear_unfinished_start
from tests.chaos.driving import driver_session, run_until_told

COLUMNS = {"UserId": "string", "OrderId": "long", "price": "double", "timestamp": "long"}
WINDOWS = {"begin": "string", "end": "string", "count": "long", "totalPrice": "double"}
FIRST_SEEN = {"UserId": "string", "OrderId": "long", "price": "double"}
COPY = {"version": "long", "UserId": "string", "OrderId": "long", "kind": "string", "price": "double"}
BEGIN = 1_700_000_000_000


def address(directory: Path) -> str:
    """Return the address of the store."""
    file = directory / "address"
    return file.read_text() if file.exists() else str(directory / "store")


def create(directory: Path) -> headrace.Store:
    """Create the store, its tables and tunnels."""
    store = headrace.open(address(directory), create=True)
    orders = store.create_table("orders", COLUMNS, ["UserId", "OrderId"])
    tunnels = ["windows", "first_seen", "copy", "oracle"]
    if store.url.startswith("postgresql:"):
        # There, base data has another version in each tunnel, and these two tunnels are compared.
        for name in ("copy", "oracle"):
            store.create_tunnel("orders", name, kind="Stream")
            tunnels.remove(name)
    orders.put([order(random.Random(n), n) for n in range(500)])
    store.create_table("windows", WINDOWS, ["begin", "end"])
    store.create_table("first_seen", FIRST_SEEN, ["UserId", "OrderId"])
    store.create_table("copy", COPY, ["version", "UserId", "OrderId"])
    for name in tunnels:
        store.create_tunnel("orders", name, kind="BaseAndStream", base_channels=2)
    return store


def order(chance: random.Random, number: int) -> dict[str, Any]:
    """Return an order with a price that can be summed without rounding."""
    return {
        "UserId": f"user-{number % 50}",
        "OrderId": number,
        "price": chance.randrange(400) / 4,
        "timestamp": BEGIN + chance.randrange(600_000),
    }


def write(directory: Path, seed: int, reshapes: int = 3, *, name: str = "orders") -> None:
    """Put, update and delete orders of a table, and split or merge it ``reshapes`` times.

    The rate is limited so that a driver on two busy cores can catch up.
    """
    # A restarted writer makes other changes.
    chance = random.Random(seed + os.getpid())
    table = headrace.open(address(directory)).table(name)
    while not (directory / "stop").exists():
        numbers = [chance.randrange(5_000) for _ in range(chance.choice([1, 5, 50, 400]))]
        rows = [order(chance, number) for number in numbers]
        action = chance.random()
        try:
            if action < 0.6:
                table.put(rows)
            elif action < 0.8:
                table.update([{key: row[key] for key in ("UserId", "OrderId", "price", "timestamp")} for row in rows])
            elif action < 0.98 or reshapes == 0:
                table.delete([{key: row[key] for key in ("UserId", "OrderId")} for row in rows])
            else:
                reshapes -= 1
                # Clients of an instance cannot split and merge, so this uses the store of the server.
                _reshape(headrace.open(directory / "store").table(name), chance)
        except StoreError as error:
            # A server that is killed does not say whether it has committed. Either is right here.
            if "unknown" not in str(error):
                raise
        time.sleep(chance.uniform(0.05, 0.3))


def _reshape(table: headrace.Table, chance: random.Random) -> None:
    partitions = sorted(
        (partition for partition in table.describe().partitions if partition.open), key=lambda p: p.keys.low or ()
    )
    try:
        if len(partitions) < 3:
            table.split(chance.choice(partitions).id)
        else:
            place = chance.randrange(len(partitions) - 1)
            table.merge(partitions[place].id, partitions[place + 1].id)
    except HeadraceError:
        # The other writer has changed the partitions, or the partition is too small.
        return


def windows(orders: DataFrame) -> DataFrame:
    """Count the orders of each half minute, and add up their prices."""
    return (
        orders.selectExpr("price", "window(to_timestamp(timestamp / 1000), '30 seconds') AS window")
        .groupBy("window")
        .agg({"*": "count", "price": "sum"})
        .selectExpr(
            "CAST(window.start AS STRING) AS begin",
            "CAST(window.end AS STRING) AS end",
            "`count(1)` AS count",
            "`sum(price)` AS totalPrice",
        )
    )


def drive(directory: Path, names: Sequence[str]) -> None:
    """Run the given queries, or all three, until the file ``written`` exists and they have caught up."""
    spark = driver_session()
    store = address(directory)

    def changes(tunnel: str) -> Any:
        stream = spark.readStream.format("headrace").option("store", store).option("tunnel", tunnel)
        return stream.option("maxRowsPerTrigger", 5_000).load()

    windowed = windows(changes("windows").where("_change_type <> 'delete'"))
    first_seen = (
        changes("first_seen")
        .where("_change_type <> 'delete'")
        .dropDuplicates(["UserId", "OrderId"])
        .select("UserId", "OrderId", "price")
    )
    copy = changes("copy").selectExpr(
        "_commit_version AS version", "UserId", "OrderId", "_change_type AS kind", "price"
    )
    checkpoints = directory / "checkpoints"
    # Of a query of Spark's own, a person must do this after a kill; see docs/operations.md.
    clear_unfinished_start(str(checkpoints / "copy"))
    queries: dict[str, Callable[[], StreamingQuery]] = {
        "windows": headrace.write_stream(
            windowed, store=store, table="windows", checkpoint=checkpoints / "windows", mode="update", name="windows"
        ).start,
        "first_seen": headrace.write_stream(
            first_seen, store=store, table="first_seen", checkpoint=checkpoints / "first_seen", name="first_seen"
        ).start,
        "copy": copy.writeStream.format("headrace")
        .queryName("copy")
        .options(store=store, table="copy", checkpointLocation=str(checkpoints / "copy"))
        .start,
    }
    run_until_told(directory, spark, [queries[name]() for name in names or queries])


def serve(directory: Path, port: str) -> None:
    """Serve the directory; the store is the instance ``store``. The environment has the access key."""
    command = [sys.executable, "-m", "headrace.cli.main", "serve", "--tablestore", port, "--root", str(directory)]
    os.execv(sys.executable, command)


if __name__ == "__main__":
    role, where = sys.argv[1], Path(sys.argv[2])
    if role == "driver":
        drive(where, sys.argv[3:])
    elif role == "server":
        serve(where, sys.argv[3])
    else:
        write(where, *map(int, sys.argv[3:]))
