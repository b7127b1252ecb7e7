"""A driver that reads and writes as its input says, and prints the error of each attempt: see `test_failures.py`.

Each line of the input is JSON, and so is each line of the output. One driver serves all attempts, because Spark takes
ten seconds to start.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import SparkSession

import headrace


def main(given: dict[str, Any]) -> None:
    """Make the attempts of all lines."""
    spark = headrace.session("attempts", master=given["master"], conf=given["conf"])
    print("ready", flush=True)
    for line in sys.stdin:
        attempt = json.loads(line)
        try:
            result = {"result": ATTEMPTS[attempt.pop("kind")](spark, **attempt)}
        except Exception as error:
            result = {"error": str(error)}
        print(json.dumps(result), flush=True)
    spark.stop()


def create(spark: SparkSession, store: str) -> int:
    """Create a store with the tables of the attempts."""
    del spark
    with headrace.open(store, create=True) as opened:
        opened.create_table("source", {"id": "long", "n": "long"}, "id").put([{"id": n, "n": n} for n in range(20)])
        opened.create_table("sink", {"id": "long", "n": "long"}, "id")
        opened.create_queue("queue", {"id": "long", "n": "long"}).append([{"id": n, "n": n} for n in range(20)])
    return 20


def read(spark: SparkSession, store: str, table: str) -> int:
    """Read a table or queue as a batch."""
    return len(spark.read.format("headrace").options(store=store, splits=2).load(table).collect())


def write(spark: SparkSession, store: str) -> int:
    """Write a batch by the native sink."""
    rows = spark.range(100, 110).selectExpr("id", "id AS n")
    rows.write.format("headrace").options(store=store, table="sink").mode("append").save()
    return 10


def stream(spark: SparkSession, store: str, checkpoint: str) -> int:
    """Write a stream of Spark's own rows."""
    rows = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=10, numPartitions=2).load()
    stream = headrace.write_stream(
        rows.selectExpr("value AS id", "value AS n"), store=store, table="sink", checkpoint=checkpoint
    )
    stream.trigger(availableNow=True).start().awaitTermination()
    return 10


def follow(spark: SparkSession, store: str, checkpoint: str) -> int:
    """Read a queue as a stream."""
    rows = spark.readStream.format("headrace").options(store=store, startingPosition="earliest").load("queue")
    location = headrace.checkpoint(checkpoint, store=store)
    writer = rows.writeStream.format("noop").option("checkpointLocation", location).trigger(availableNow=True)
    writer.start().awaitTermination()
    return 20


ATTEMPTS: dict[str, Any] = {"create": create, "read": read, "write": write, "stream": stream, "follow": follow}

main(json.loads(sys.argv[1]))
