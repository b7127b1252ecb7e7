"""A process that runs queries with checkpoints in the store that they read and write.

``python -m tests.spark.checkpoint_jobs STORE`` runs each query until it has read all rows, in `BATCHES` batches.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

import headrace
from headrace.ports import Store
from headrace.testing.effort import THOROUGH

STATE_STORE = "spark.sql.streaming.stateStore"
PROVIDERS = "org.apache.spark.sql.execution.streaming.state"
# The settings of each job's state store, in addition to those of `headrace.session`.
JOBS: dict[str, dict[str, str]] = {
    "copied": {},
    "hdfs": {f"{STATE_STORE}.providerClass": f"{PROVIDERS}.HDFSBackedStateStoreProvider"},
    "snapshots": {
        f"{STATE_STORE}.rocksdb.changelogCheckpointing.enabled": "false",
        f"{STATE_STORE}.minDeltasForSnapshot": "1",
    },
    "second_format": {f"{STATE_STORE}.checkpointFormatVersion": "2"},
    "own_state": {},
}
BATCHES = 2 if THOROUGH else 1


class Counting(StatefulProcessor):
    """Counts the rows of each key."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", "count long")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        (before,) = self._count.get() or (0,)
        after = before + sum(len(frame) for frame in rows)
        self._count.update((after,))
        yield pd.DataFrame({"key": [key[0]], "count": [after]})


def consumer(job: str) -> str:
    """Return the name of a job's consumer."""
    return f"//consumers/{job}"


def create(directory: Path) -> Store:
    """Create the store: a queue with a consumer for each job, and the targets of the jobs."""
    store = headrace.open(directory, create=True, synchronous="off")
    store.create_queue("clicks", {"key": "long"})
    store.create_queue("copied", {"key": "long"})
    for job in JOBS:
        store.create_consumer(consumer(job))
        store.register_consumer("clicks", consumer(job))
        if job != "copied":
            store.create_table(job, {"key": "long", "count": "long"}, "key")
    return store


def append(store: Store, keys: list[int]) -> None:
    store.queue("clicks").append([{"key": key} for key in keys])


def run(spark: SparkSession, store: Store, job: str, rows: int) -> None:
    """Run a job from its checkpoint until it has read all rows, in `BATCHES` batches."""
    before = {name: str(spark.conf.get(name)) for name in JOBS[job]}
    for name, value in JOBS[job].items():
        spark.conf.set(name, value)
    stream = spark.readStream.format("headrace").options(store=store.url, consumer=consumer(job))
    clicks = stream.option("maxRowsPerTrigger", -(-rows // BATCHES)).load("clicks")
    sink: dict[str, Any] = {"queue": job} if job == "copied" else {"table": job}
    headrace.write_stream(
        _result(clicks, job),
        store=store.url,
        checkpoint=f"headrace:///checkpoints/{job}",
        mode="append" if job == "copied" else "update",
        **sink,
    ).trigger(availableNow=True).start().awaitTermination()
    for name, earlier in before.items():
        spark.conf.set(name, earlier)


def _result(clicks: DataFrame, job: str) -> DataFrame:
    if job == "copied":
        return clicks
    if job == "own_state":
        return clicks.groupBy("key").transformWithStateInPandas(
            Counting(), outputStructType="key long, count long", outputMode="Update", timeMode="None"
        )
    return clicks.groupBy("key").count()


def main(directory: Path) -> None:
    spark = headrace.session(
        "jobs",
        master="local[2,4]",
        conf={
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": 2,
        },
    )
    spark.sparkContext.setLogLevel("ERROR")
    with headrace.open(directory, synchronous="off") as store:
        for job in JOBS:
            unread = store.queue("clicks").bounds()[0].upper - store.consumer(consumer(job)).offsets("clicks")[0]
            run(spark, store, job, unread)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
