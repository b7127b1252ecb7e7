"""The processes that are killed around queues: a driver with two streaming queries, producers, and a trimmer.

``python -m tests.chaos.queue_actors driver DIRECTORY`` runs the queries until it is told to end by a file ``stop``;
``… writer DIRECTORY NAME`` pushes rows through a producer, going on behind the last one that is there;
``… trimmer DIRECTORY`` removes rows that both consumers have read, all the time; ``… sweeper DIRECTORY`` keeps the
sinks small too, for a soak.
"""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import headrace
from tests.chaos.driving import driver_session, run_until_told

QUEUES, PARTITIONS, KEYS, BATCH_ROWS, MOST_WAITING = ("left", "right"), 3, 20, 5_000, 30_000
COLUMNS = {"writer": "string", "n": "long", "key": "long", "price": "double", "tags": "array<string>"}
ADDRESSED = {"queue": "string", "partition": "int", "row": "long", **COLUMNS}
COPIER, SUMMER = "//consumers/copier", "//consumers/summer"


def row(writer: str, number: int) -> dict[str, Any]:
    """Return the row that a writer pushes under a number; its price sums without rounding."""
    return {
        "writer": writer,
        "n": number,
        "key": number % KEYS,
        "price": number % 400 / 4,
        "tags": [str(number % 7)] * (number % 3),
    }


def create(directory: Path, **options: Any) -> headrace.Store:
    """Create the store: two queues with vital consumers, and the sinks, whose tables get the options."""
    store = headrace.open(directory / "store", create=True)
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
    """Push numbered rows into a queue, from the first that is not there yet."""
    chance = random.Random(f"{name}{os.getpid()}")
    store = headrace.open(directory / "store")
    producer, queue = store.producer("//producer"), store.queue(QUEUES[int(name) % len(QUEUES)])
    session = producer.open_session(queue.name, name)
    last = session.sequence_number
    while not (directory / "stop").exists():
        if sum(bounds.rows for bounds in queue.bounds().values()) > MOST_WAITING:
            # Nobody reads at the moment, or the machine is slow: the test ends when all of it has been read.
            time.sleep(0.1)
            continue
        # Some rows again, as somebody does who does not know whether a push arrived.
        first = max(0, last + 1 - chance.randrange(20))
        rows = [row(name, number) for number in range(first, last + 1 + chance.choice([1, 10, 300, 2000]))]
        last = producer.push(
            session, rows, sequence_number=first, partition=chance.randrange(PARTITIONS)
        ).last_sequence_number
        time.sleep(chance.uniform(0.02, 0.2))


def trim(directory: Path) -> None:
    """Trim the queues again and again, beside what they do by themselves."""
    store = headrace.open(directory / "store")
    while not (directory / "stop").exists():
        for name in QUEUES:
            store.queue(name).trim()
        time.sleep(0.05)


def sweep(directory: Path, keep: int = 20_000) -> None:
    """Trim the queues and the sinks again and again, so that the store has a bounded number of rows."""
    store = headrace.open(directory / "store")
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


def drive(directory: Path) -> None:
    """Run the two queries until told to stop; end when they have caught up."""
    spark = driver_session()
    store = str(directory / "store")

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
    checkpoints = directory / "checkpoints"
    queries = [
        headrace.write_stream(
            addressed,
            store=store,
            outputs=[
                headrace.Output(queue="copied", key=["queue", "partition"]),
                headrace.Output(table="prices", select=lambda df: df.select("writer", "n", "price")),
            ],
            checkpoint=checkpoints / "copied",
            name="copied",
        ).start(),
        headrace.write_stream(
            sums.selectExpr("key", "`count(1)` AS count", "`sum(price)` AS total"),
            store=store,
            table="sums",
            checkpoint=checkpoints / "sums",
            mode="update",
            name="sums",
        ).start(),
    ]
    run_until_told(directory, spark, queries)


if __name__ == "__main__":
    role, where = sys.argv[1], Path(sys.argv[2])
    if role == "driver":
        drive(where)
    elif role == "trimmer":
        trim(where)
    elif role == "sweeper":
        sweep(where)
    else:
        write(where, sys.argv[3])
