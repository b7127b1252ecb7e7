"""The processes of storms around queues: a driver with two streaming queries, producers, and a trimmer.

``python -m tests.chaos.queue_actors driver DIRECTORY [CHECKPOINTS]`` runs the queries until the file ``stop`` exists.
``CHECKPOINTS`` is a directory of the store for their checkpoints; by default they are next to the store.
``… writer DIRECTORY NAME`` pushes rows through a producer, starting after the last accepted row.
``… trimmer DIRECTORY`` repeatedly removes rows that both consumers have read. ``… sweeper DIRECTORY`` also trims the
sinks, for a soak test. ``… server DIRECTORY PORT`` is a YTsaurus cluster with its data in the directory. The file
``address``, if it exists, has the URL of the store.
"""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import headrace
from tests.chaos.actors import address
from tests.chaos.driving import driver_session, run_until_told

QUEUES, PARTITIONS, KEYS, BATCH_ROWS, MOST_WAITING = ("left", "right"), 3, 20, 5_000, 30_000
COLUMNS = {"writer": "string", "n": "long", "key": "long", "price": "double", "tags": "array<string>"}
ADDRESSED = {"queue": "string", "partition": "int", "row": "long", **COLUMNS}
COPIER, SUMMER = "//consumers/copier", "//consumers/summer"


def row(writer: str, number: int) -> dict[str, Any]:
    """Return the row of a writer with a number. Its price can be summed without rounding."""
    return {
        "writer": writer,
        "n": number,
        "key": number % KEYS,
        "price": number % 400 / 4,
        "tags": [str(number % 7)] * (number % 3),
    }


def create(directory: Path, **options: Any) -> headrace.Store:
    """Create the store: two queues with vital consumers, and the sinks. The options are for the tables."""
    store = headrace.open(address(directory), create=True)
    for consumer in (COPIER, SUMMER):
        store.create_consumer(consumer)
    for name in QUEUES:
        store.create_queue(name, COLUMNS, partitions=PARTITIONS, auto_trim=True)
        for consumer in (COPIER, SUMMER):
            store.register_consumer(name, consumer, vital=True)
    store.create_producer("//producer")
    store.create_queue("copied", ADDRESSED, partitions=2)
    store.create_table("prices", {"writer": "string", "n": "long", "price": "double"}, ["writer", "n"], **options)
    store.create_table("sums", {"key": "long", "count": "long", "total": "double"}, ["key"], **options)
    return store


def write(directory: Path, name: str) -> None:
    """Push numbered rows into a queue, starting after the last accepted row."""
    chance = random.Random(f"{name}{os.getpid()}")
    store = headrace.open(address(directory))
    producer, queue = store.producer("//producer"), store.queue(QUEUES[int(name) % len(QUEUES)])
    session = producer.open_session(queue.name, name)
    last = session.sequence_number
    while not (directory / "stop").exists():
        if sum(bounds.rows for bounds in queue.bounds().values()) > MOST_WAITING:
            # The readers are slow or dead. The test ends when they have read all rows, so wait for them.
            time.sleep(0.1)
            continue
        # Push some rows again, like a program that does not know whether its push arrived.
        first = max(0, last + 1 - chance.randrange(20))
        rows = [row(name, number) for number in range(first, last + 1 + chance.choice([1, 10, 300, 2000]))]
        last = producer.push(
            session, rows, sequence_number=first, partition=chance.randrange(PARTITIONS)
        ).last_sequence_number
        time.sleep(chance.uniform(0.02, 0.2))


def trim(directory: Path) -> None:
    """Trim the queues repeatedly, in addition to automatic trimming."""
    store = headrace.open(address(directory))
    while not (directory / "stop").exists():
        for name in QUEUES:
            store.queue(name).trim()
        time.sleep(0.05)


def sweep(directory: Path, keep: int = 20_000) -> None:
    """Trim the queues and the sinks repeatedly, so that the store has a bounded number of rows."""
    store = headrace.open(address(directory))
    copied, prices = store.queue("copied"), store.table("prices")
    while not (directory / "stop").exists():
        for name in QUEUES:
            store.queue(name).trim()
        for number, bounds in copied.bounds().items():
            copied.trim(number, before=max(bounds.lower, bounds.upper - keep))
        for session in store.producer("//producer").sessions():
            old = {"writer": session.session, "n": session.sequence_number - keep}
            condition = [("writer", "=", old["writer"]), ("n", "<", old["n"])]
            prices.delete(prices.scan(["writer", "n"], condition).read_all())
        time.sleep(1)


def drive(directory: Path, in_store: str = "") -> None:
    """Run the two queries until the file ``stop`` exists and they have caught up."""
    spark = driver_session()
    store = address(directory)

    def rows(consumer: str) -> Any:
        stream = spark.readStream.format("headrace").option("store", store).option("queues", ",".join(QUEUES))
        return (
            stream.option("consumer", consumer)
            .option("maxRowsPerTrigger", BATCH_ROWS)
            .option("includeRowAddress", True)
            .load()
        )

    addressed = rows(COPIER).selectExpr("_queue AS queue", "_partition AS partition", "_row_index AS row", *COLUMNS)
    sums = rows(SUMMER).groupBy("key").agg({"*": "count", "price": "sum"})
    checkpoints = f"headrace:///{in_store}" if in_store else str(directory / "checkpoints")
    queries = [
        headrace.write_stream(
            addressed,
            store=store,
            outputs=[
                headrace.Output(queue="copied", key=["queue", "partition"]),
                headrace.Output(table="prices", select=lambda df: df.select("writer", "n", "price")),
            ],
            checkpoint=f"{checkpoints}/copied",
            name="copied",
        ).start(),
        headrace.write_stream(
            sums.selectExpr("key", "`count(1)` AS count", "`sum(price)` AS total"),
            store=store,
            table="sums",
            checkpoint=f"{checkpoints}/sums",
            mode="update",
            name="sums",
        ).start(),
    ]
    run_until_told(directory, spark, queries)


def serve(directory: Path, port: str) -> None:
    """Serve a YTsaurus cluster until killed."""
    from headrace.cli.main import main

    sys.argv = ["headrace", "serve", "--ytsaurus", port, "--root", str(directory / "cluster")]
    main()


if __name__ == "__main__":
    role, where = sys.argv[1], Path(sys.argv[2])
    if role == "driver":
        drive(where, *sys.argv[3:])
    elif role == "trimmer":
        trim(where)
    elif role == "sweeper":
        sweep(where)
    elif role == "server":
        serve(where, sys.argv[3])
    else:
        write(where, sys.argv[3])
