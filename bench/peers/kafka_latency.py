"""Kafka beside queues of an embedded store: the delay of single rows."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import headrace
from bench.measure import COLUMNS, Ratio, Result, orders
from bench.peers.kafka_broker import Broker
from bench.peers.kafka_topics import PARTITIONS, both, create_topic, java_of, queue_stream, topic_stream
from bench.peers.releases import KAFKA
from bench.peers.running import load, versions


def latency(directory: Path, scale: float) -> Result:
    """The time from the commit of a row until it is readable in the copy, for streams that were idle before."""
    samples = max(10, int(60 * scale))
    path = directory / "store"
    store = headrace.open(path, create=True)
    origin, target = (store.create_queue(name, COLUMNS) for name in ("orders", "copy"))
    row = orders(0, 1)
    taken: dict[str, list[float]] = {}
    with both(directory) as (spark, broker):
        query = headrace.write_stream(
            queue_stream(spark, path, startingPosition="earliest"),
            store=path,
            queue="copy",
            checkpoint=headrace.checkpoint("headrace:///checkpoint", path, spark),
        ).start()
        seen = count(1)

        def append() -> Callable[[], bool]:
            origin.append(row)
            expected = next(seen)
            return lambda: target.bounds()[0].rows >= expected

        taken["queue"] = _delays(samples, append, query)
        for name in ("kafka", "asynchronous", "real-time"):
            for topic in (f"from-{name}", f"to-{name}"):
                create_topic(spark, broker, topic)
            copying = _topic_to_topic(spark, broker, name, directory)
            with _Probe.started(spark, broker, f"from-{name}", f"to-{name}") as probe:
                taken[name] = _delays(samples, probe.send, copying)
    store.close()
    middle = {name: statistics.median(delays) for name, delays in taken.items()}
    return Result(
        f"beside Kafka, latency: {samples} rows one by one, from a commit to its row in the copy, idle before",
        {
            "versions": versions(Kafka=KAFKA),
            "load of the machine": load(),
            "headrace, queue to queue, exactly once, checkpoint in the store": _times(taken["queue"]),
            "Kafka to Kafka, at least once": _times(taken["kafka"]),
            "the same with asynchronous progress tracking": _times(taken["asynchronous"]),
            "the same in Spark's real-time mode": _times(taken["real-time"]),
        },
        [Ratio("Kafka to Kafka / queue to queue, median", middle["kafka"] / middle["queue"], 1.0)],
        "Real-time mode keeps a task running for each partition and commits every five minutes: it is Kafka's own "
        "ground, and it wins there. It refuses sources in Python, and after a failure it repeats up to five minutes.",
    )


def _times(delays: list[float]) -> str:
    ordered = sorted(delays)
    late = ordered[int(0.99 * (len(ordered) - 1))]
    return f"median {1000 * statistics.median(ordered):.0f} ms, 99th percentile {1000 * late:.0f} ms"


def _delays(samples: int, send: Callable[[], Callable[[], bool]], query: StreamingQuery) -> list[float]:
    """Send rows at random moments; return the seconds until each has arrived. The first ten warm up."""
    pauses, taken = random.Random(1), []
    for _ in range(10 + samples):
        arrived = send()
        begin = time.perf_counter()
        while not arrived():
            if query.exception() is not None or time.perf_counter() - begin > 60:
                raise RuntimeError(f"a row has not arrived: {query.exception()}")
            time.sleep(0.001)
        taken.append(time.perf_counter() - begin)
        time.sleep(pauses.uniform(0.3, 0.8))
    query.stop()
    return taken[10:]


def _topic_to_topic(spark: SparkSession, broker: Broker, name: str, directory: Path) -> StreamingQuery:
    """Start a stream from topic ``from-…`` to topic ``to-…``, in one of Spark's three ways."""
    rows = topic_stream(spark, broker, f"from-{name}", **{"kafka.fetch.min.bytes": 1}).select("value")
    writer: Any = rows.writeStream.format("kafka").outputMode("update").option("topic", f"to-{name}")
    writer = writer.option("kafka.bootstrap.servers", broker.address)
    writer = writer.option("checkpointLocation", str(directory / f"latency-{name}"))
    if name == "asynchronous":
        writer = writer.outputMode("append").option("asyncProgressTrackingEnabled", "true")
    if name == "real-time":
        writer = writer.trigger(realTime="5 minutes")
    started: StreamingQuery = writer.start()
    return started


@dataclass
class _Probe:
    """Sends single rows into a topic, and sees them arrive in another one.

    Attributes:
        java: the Java process with Kafka's clients.
        origin: the topic of the rows.
    """

    java: Any
    origin: str
    producer: Any
    consumer: Any
    sent: int = 0
    arrived: int = 0

    @classmethod
    @contextmanager
    def started(cls, spark: SparkSession, broker: Broker, origin: str, target: str) -> Iterator[_Probe]:
        java = java_of(spark)
        texts = "org.apache.kafka.common.serialization.String"
        settings = java.java.util.HashMap()
        for name, value in {
            "bootstrap.servers": broker.address,
            "key.serializer": f"{texts}Serializer",
            "value.serializer": f"{texts}Serializer",
            "key.deserializer": f"{texts}Deserializer",
            "value.deserializer": f"{texts}Deserializer",
            "fetch.max.wait.ms": "5",
        }.items():
            settings.put(name, value)
        producer = java.org.apache.kafka.clients.producer.KafkaProducer(settings)
        consumer = java.org.apache.kafka.clients.consumer.KafkaConsumer(settings)
        partitions = java.java.util.ArrayList()
        for number in range(PARTITIONS):
            partitions.add(java.org.apache.kafka.common.TopicPartition(target, number))
        consumer.assign(partitions)
        consumer.seekToBeginning(partitions)
        try:
            yield cls(java, origin, producer, consumer)
        finally:
            producer.close()
            consumer.close()

    def send(self) -> Callable[[], bool]:
        """Send a row, and wait for its acknowledgement; return a check whether it has arrived."""
        self.producer.send(self.java.org.apache.kafka.clients.producer.ProducerRecord(self.origin, "{}")).get()
        self.sent += 1
        return self._has_arrived

    def _has_arrived(self) -> bool:
        self.arrived += self.consumer.poll(self.java.java.time.Duration.ofMillis(5)).count()
        return self.arrived >= self.sent
