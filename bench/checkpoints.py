"""The time of a micro-batch with its checkpoint in a store, compared with a checkpoint in a local directory."""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path
from unittest.mock import patch

from pyspark.sql import DataFrame, SparkSession

import headrace
from bench.measure import Ratio, Result, spark_session
from bench.ytsaurus import TOKEN, cluster

_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_STATE = "org.apache.spark.sql.execution.streaming.state"
# The state store of each query; None for a query without state.
_QUERIES = {
    "without state": None,
    "a count by key, RocksDB with changelog": f"{_STATE}.RocksDBStateStoreProvider",
    "a count by key, HDFSBackedStateStore": f"{_STATE}.HDFSBackedStateStoreProvider",
}
_BOUND = 2.0
# Spark opens the location itself, through Hadoop's views of file systems.
_BARE_BOUND = 1.1
_LOCAL = "local directory"
_STORE, _BARE = "embedded store", "embedded store, bare location"


def checkpoints(directory: Path, scale: float) -> Result:
    """Batches of 10 rows from Spark's own source into noop, so that the checkpoint takes most of their time."""
    rounds, batches = 4, max(8, int(40 * scale))
    figures: dict[str, str] = {}
    ratios = []
    with (
        # Before the session, which takes the store of bare locations from the environment.
        patch.dict(os.environ, HEADRACE_STORE=str(directory / "store")),
        spark_session() as spark,
        headrace.open(directory / "store", create=True) as embedded,
        cluster(directory / "cluster") as proxy,
        headrace.open(f"yt+http://{proxy}", token=TOKEN) as ytsaurus,
    ):
        stores = {_STORE: embedded, "YTsaurus over HTTP": ytsaurus}
        # The queries are stopped during a batch, which Spark would log with stack traces.
        spark.sparkContext.setLogLevel("OFF")
        for query, (what, provider) in enumerate(_QUERIES.items()):
            taken: dict[str, list[float]] = {place: [] for place in (_LOCAL, *stores, _BARE)}
            for number in range(rounds):
                # One after the other: two queries at a time would compete for the cores.
                name = f"{query}-{number}"
                served = {
                    place: headrace.checkpoint(f"headrace:///bench/{name}", store=store, spark=spark)
                    for place, store in stores.items()
                }
                served |= {_LOCAL: str(directory / name), _BARE: f"headrace:///bench/bare-{name}"}
                for place, checkpoint in served.items():
                    measured = _batch_ms(spark, provider, checkpoint, batches)
                    # The first round warms up the process.
                    taken[place] += measured if number else []
            medians = {place: statistics.median(each) for place, each in taken.items()}
            figures |= {f"{what}: {place}": f"{median:.0f} ms" for place, median in medians.items()}
            ratios += [
                Ratio(f"{what}: {place} / {_LOCAL}", medians[place] / medians[_LOCAL], _BOUND, at_most=True)
                for place in stores
            ]
            bare = medians[_BARE] / medians[_STORE]
            ratios.append(Ratio(f"{what}: bare location / headrace.checkpoint", bare, _BARE_BOUND, at_most=True))
    return Result(
        "checkpoint in a store: a micro-batch of 10 rows, 2 shuffle partitions",
        figures,
        ratios,
        "Medians of Spark's `triggerExecution`, in alternating rounds in one warm process. Stores force each file to "
        "the disk. Spark does not, but forks processes for each local file, because pip's Spark does not contain "
        "Hadoop's native library. The cluster is `headrace serve` on the same two cores.",
    )


def _batch_ms(spark: SparkSession, provider: str | None, checkpoint: str, batches: int) -> list[float]:
    """Run a query for ``batches`` batches; return the time of each in milliseconds, except of the first three."""
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).option("numPartitions", 2).load()
    if provider is not None:
        spark.conf.set(_PROVIDER, provider)
    writer = _query(rows, provider).writeStream.format("noop").outputMode("append" if provider is None else "update")
    query = writer.option("checkpointLocation", checkpoint).start()
    try:
        while len(query.recentProgress) < batches:
            time.sleep(0.1)
        return [float(report["durationMs"]["triggerExecution"]) for report in query.recentProgress[3:batches]]
    finally:
        query.stop()


def _query(rows: DataFrame, provider: str | None) -> DataFrame:
    return rows if provider is None else rows.groupBy((rows.value % 5).alias("key")).count()
