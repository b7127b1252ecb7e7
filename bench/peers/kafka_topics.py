"""Queues and topics with the same rows, and their streams."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headrace
from bench.measure import COLUMNS, orders
from bench.peers.kafka_broker import Broker, kafka_broker
from bench.peers.releases import jars
from bench.peers.running import peers_session

PARTITIONS = 2
_APPEND_ROWS = 100_000
SCHEMA = "UserId string, OrderId long, price double, timestamp long"
# Kafka's documentation names these for throughput: larger batches that wait a little, compression, larger fetches.
PRODUCER: dict[str, int | str] = {
    "kafka.acks": "all",
    "kafka.compression.type": "lz4",
    "kafka.batch.size": 524_288,
    "kafka.linger.ms": 20,
    "kafka.buffer.memory": 134_217_728,
}
CONSUMER: dict[str, int | str] = {
    "kafka.max.poll.records": 20_000,
    "kafka.max.partition.fetch.bytes": 16_777_216,
    "kafka.fetch.min.bytes": 1_048_576,
    "kafka.fetch.max.wait.ms": 100,
    "kafka.receive.buffer.bytes": 1_048_576,
}


@contextmanager
def both(directory: Path) -> Iterator[tuple[SparkSession, Broker]]:
    """Start a broker, and a session with Kafka's source and sink."""
    with kafka_broker(directory / "kafka") as broker, peers_session(jars("kafka_spark")) as spark:
        yield spark, broker


def fill(spark: SparkSession, broker: Broker, store: headrace.Store, directory: Path, rows: int) -> None:
    """Fill a queue, and topics ``json`` and ``csv`` with the same rows in the same partitions."""
    queue = store.create_queue("orders", COLUMNS, partitions=PARTITIONS)
    for first in range(0, rows, _APPEND_ROWS):
        queue.append(orders(first, min(_APPEND_ROWS, rows - first)), partition=first // _APPEND_ROWS % PARTITIONS)
    reader = spark.read.format("headrace").options(store=str(directory), queue="orders", includeRowAddress="true")
    filled = reader.load().withColumnRenamed("_partition", "partition")
    for topic, value in (("json", F.to_json(F.struct(*COLUMNS))), ("csv", F.to_csv(F.struct(*COLUMNS)))):
        create_topic(spark, broker, topic)
        writer = filled.select(value.alias("value"), F.col("partition").cast("int")).write.format("kafka")
        writer.options(**PRODUCER, **{"kafka.bootstrap.servers": broker.address, "topic": topic}).save()


def create_topic(spark: SparkSession, broker: Broker, topic: str) -> None:
    """Create a topic with `PARTITIONS` partitions."""
    java = java_of(spark)
    optional = java.java.util.Optional
    with _admin(java, broker) as admin:
        new = java.org.apache.kafka.clients.admin.NewTopic(topic, optional.of(PARTITIONS), optional.empty())
        admin.createTopics(java.java.util.List.of(new)).all().get()


def delete_topic(spark: SparkSession, broker: Broker, topic: str) -> None:
    """Delete a topic with its rows."""
    java = java_of(spark)
    with _admin(java, broker) as admin:
        admin.deleteTopics(java.java.util.List.of(topic)).all().get()


@contextmanager
def _admin(java: Any, broker: Broker) -> Iterator[Any]:
    settings = java.java.util.HashMap()
    settings.put("bootstrap.servers", broker.address)
    admin = java.org.apache.kafka.clients.admin.Admin.create(settings)
    try:
        yield admin
    finally:
        admin.close()


def java_of(spark: SparkSession) -> Any:
    """Return the Java process of a session, which has Kafka's clients."""
    return spark.sparkContext._jvm


def topic_stream(spark: SparkSession, broker: Broker, topic: str, **options: int | str) -> DataFrame:
    """Return a stream of a topic from its start."""
    reader = spark.readStream.format("kafka").options(**CONSUMER, **{"kafka.bootstrap.servers": broker.address})
    return reader.options(subscribe=topic, startingOffsets="earliest", **options).load()


def decoded(stream: DataFrame, form: str) -> DataFrame:
    """Return the columns of the orders, with the partition and the offset of each, from a topic of JSON or CSV."""
    text = F.col("value").cast("string")
    value = F.from_json(text, SCHEMA) if form == "json" else F.from_csv(text, F.lit(SCHEMA))
    return stream.select(value.alias("row"), "partition", "offset").select("row.*", "partition", "offset")


def queue_stream(spark: SparkSession, directory: Path, **options: int | str) -> DataFrame:
    """Return a stream of queue ``orders``."""
    stream = spark.readStream.format("headrace").options(store=str(directory), queue="orders", **options)
    return stream.load()
