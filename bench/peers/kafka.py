"""Kafka with Spark's source and sink, beside queues of an embedded store: reading and copying."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

import headrace
from bench.measure import COLUMNS, Ratio, Result, batch_seconds, drain_all
from bench.peers.kafka_broker import Broker
from bench.peers.kafka_topics import (
    PARTITIONS,
    PRODUCER,
    both,
    create_topic,
    decoded,
    delete_topic,
    fill,
    queue_stream,
    topic_stream,
)
from bench.peers.releases import KAFKA
from bench.peers.running import alternately, load, megabytes, versions

_PROMISES = (
    "Promises: a queue's copy is exactly once, with rows, markers and the consumer's offsets in one transaction, which "
    "is on the disk before the batch ends. Spark's Kafka sink is at least once: a repeated batch repeats its rows. "
    "The broker acknowledges before its rows are on the disk, as Kafka does by default. "
)
_TUNING = (
    "headrace: Arrow batches without a limit of bytes. Producer: acks=all, lz4, batches of 512 kB, linger 20 ms. "
    "Consumer: polls of 20,000 records, fetches up to 16 MB. "
    "Spark's Avro functions have no release for this Spark on Maven Central, so they are left out. "
)


def source(directory: Path, scale: float) -> Result:
    """A queue into noop, and a topic of the same rows into noop: as bytes, and in columns."""
    rows, runs = int(5_000_000 * scale), count()
    path = directory / "store"
    store = headrace.open(path, create=True, synchronous="off")
    with both(directory) as (spark, broker):
        fill(spark, broker, store, path, rows)

        def drained(stream: Callable[[], DataFrame]) -> Callable[[], float]:
            return lambda: drain_all(stream(), directory / f"checkpoint-{next(runs)}", rows)

        spent = alternately(
            3,
            {
                "queue": drained(
                    lambda: queue_stream(spark, path, startingPosition="earliest", includeRowAddress="true")
                ),
                "bytes": drained(lambda: topic_stream(spark, broker, "json")),
                "json": drained(lambda: decoded(topic_stream(spark, broker, "json"), "json")),
                "csv": drained(lambda: decoded(topic_stream(spark, broker, "csv"), "csv")),
            },
        )
        disk = {topic: sum(map(megabytes, broker.topic_directories(topic))) for topic in ("json", "csv")}
    store.close()
    return Result(
        f"beside Kafka, source: {rows:,} rows, 4 columns, {PARTITIONS} partitions, into noop",
        {
            "versions": versions(Kafka=KAFKA),
            "load of the machine": load(),
            "headrace queue, in columns": spent["queue"].text(rows),
            "Kafka, bytes that nobody decodes": spent["bytes"].text(rows),
            "Kafka, in columns, from JSON": spent["json"].text(rows),
            "Kafka, in columns, from CSV": spent["csv"].text(rows),
            "on the disk: queue, topic of JSON, topic of CSV": (
                f"{megabytes(path):.0f} MB, {disk['json']:.0f} MB, {disk['csv']:.0f} MB"
            ),
        },
        [
            Ratio(f"queue / Kafka, {form}", spent[name].clock / spent["queue"].clock, 3.0)
            for name, form in (("json", "JSON"), ("csv", "CSV"), ("bytes", "bytes"))
        ],
        _TUNING + "Seconds are Spark's `triggerExecution`; CPU seconds are those of Spark, its Python and the broker.",
    )


def copy(directory: Path, scale: float) -> Result:
    """Queue to queue exactly once, and topic to topic at least once: with a new price, and as bytes."""
    rows, runs = int(3_000_000 * scale), count()
    path = directory / "store"
    store = headrace.open(path, create=True, synchronous="off")
    with both(directory) as (spark, broker):
        fill(spark, broker, store, path, rows)

        def queue() -> float:
            name = f"copy-{next(runs)}"
            store.create_queue(name, COLUMNS, partitions=PARTITIONS)
            store.create_consumer(f"//{name}")
            store.register_consumer("orders", f"//{name}")
            stream = headrace.write_stream(
                queue_stream(spark, path, consumer=f"//{name}").withColumn("price", F.col("price") * 1.25),
                store=path,
                queue=name,
                checkpoint=directory / f"checkpoint-{name}",
                trigger={"availableNow": True},
            )
            taken = _finished(stream.start(), rows)
            copied = sum(bounds.rows for bounds in store.queue(name).bounds().values())
            assert copied == rows, f"{copied} rows instead of {rows}"
            store.drop_queue(name)
            return taken

        def topic(form: str) -> Callable[[], float]:
            def run() -> float:
                name = f"copy-{next(runs)}"
                create_topic(spark, broker, name)
                taken = _finished(_write_topic(_new_price(spark, broker, form), broker, name, directory), rows)
                written = spark.read.format("kafka").options(subscribe=name)
                copied = written.option("kafka.bootstrap.servers", broker.address).load().count()
                assert copied == rows, f"{copied} rows instead of {rows}"
                delete_topic(spark, broker, name)
                return taken

            return run

        spent = alternately(3, {"queue": queue, "bytes": topic("bytes"), "json": topic("json"), "csv": topic("csv")})
    store.close()
    return Result(
        f"beside Kafka, copy: {rows:,} rows, 4 columns, {PARTITIONS} partitions, one batch",
        {
            "versions": versions(Kafka=KAFKA),
            "load of the machine": load(),
            "headrace, queue to queue with a new price, exactly once": spent["queue"].text(rows),
            "Kafka to Kafka, bytes that nobody decodes, at least once": spent["bytes"].text(rows),
            "Kafka to Kafka with a new price, JSON, at least once": spent["json"].text(rows),
            "Kafka to Kafka with a new price, CSV, at least once": spent["csv"].text(rows),
        },
        [
            Ratio(f"queue to queue / Kafka to Kafka, {form}", spent[name].clock / spent["queue"].clock, 3.0)
            for name, form in (("json", "JSON"), ("csv", "CSV"), ("bytes", "bytes"))
        ],
        _PROMISES + _TUNING,
    )


def _new_price(spark: SparkSession, broker: Broker, form: str) -> DataFrame:
    """Return rows for Kafka's sink: the bytes of a topic as they are, or each order with a new price."""
    if form == "bytes":
        return topic_stream(spark, broker, "json").select("value", "partition")
    rows = decoded(topic_stream(spark, broker, form), form).withColumn("price", F.col("price") * 1.25)
    row = F.struct(*COLUMNS)
    return rows.select((F.to_json(row) if form == "json" else F.to_csv(row)).alias("value"), "partition")


def _write_topic(rows: DataFrame, broker: Broker, topic: str, directory: Path) -> StreamingQuery:
    writer = rows.writeStream.format("kafka").options(**PRODUCER, topic=topic)
    writer = writer.option("kafka.bootstrap.servers", broker.address)
    return writer.option("checkpointLocation", str(directory / f"topic-{topic}")).trigger(availableNow=True).start()


def _finished(query: StreamingQuery, rows: int) -> float:
    query.awaitTermination()
    taken, seen = batch_seconds(query)
    assert seen == rows, f"{seen} rows instead of {rows}"
    return taken
