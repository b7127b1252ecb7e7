"""What a micro-batch costs with its checkpoint in a store, beside the same with its checkpoint in a local directory."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import headrace
from bench.measure import Ratio, Result, spark_session
from bench.ytsaurus import TOKEN, cluster

_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_STATE = "org.apache.spark.sql.execution.streaming.state"
# What is measured → the state store, None for a query without state.
_QUERIES = {
    "without state": None,
    "a count by key, RocksDB with changelog": f"{_STATE}.RocksDBStateStoreProvider",
    "a count by key, HDFSBackedStateStore": f"{_STATE}.HDFSBackedStateStoreProvider",
}
_BOUND = 2.0
_LOCAL = "local directory"


def checkpoints(directory: Path, scale: float) -> Result:
    """Batches of 10 rows from Spark's own source into nothing, so that the checkpoint is most of what they do."""
    rounds, batches = 4, max(8, int(40 * scale))
    figures: dict[str, str] = {}
    ratios = []
    with (
        spark_session() as spark,
        headrace.open(directory / "store", create=True) as embedded,
        cluster(directory / "cluster") as proxy,
        headrace.open(f"yt+http://{proxy}", token=TOKEN) as ytsaurus,
    ):
        stores = {"embedded store": embedded, "YTsaurus over HTTP": ytsaurus}
        # Queries are stopped in the middle of a batch, and Spark says so at length.
        spark.sparkContext.setLogLevel("OFF")
        for query, (what, provider) in enumerate(_QUERIES.items()):
            taken: dict[str, list[float]] = {place: [] for place in (_LOCAL, *stores)}
            for number in range(rounds):
                # In turn, never at once: two queries on two cores would measure each other.
                name = f"{query}-{number}"
                served = {
                    place: headrace.checkpoint(f"headrace:///bench/{name}", store=store, spark=spark)
                    for place, store in stores.items()
                }
                for place, checkpoint in {_LOCAL: str(directory / name), **served}.items():
                    measured = _batch_ms(spark, provider, checkpoint, batches)
                    # The first round warms all up.
                    taken[place] += measured if number else []
            medians = {place: statistics.median(each) for place, each in taken.items()}
            figures |= {f"{what}: {place}": f"{median:.0f} ms" for place, median in medians.items()}
            ratios += [
                Ratio(f"{what}: {place} / {_LOCAL}", medians[place] / medians[_LOCAL], _BOUND, at_most=True)
                for place in stores
            ]
    return Result(
        "checkpoint in a store: a micro-batch of 10 rows, 2 shuffle partitions",
        figures,
        ratios,
        "Medians of Spark's `triggerExecution`, rounds of all in turn in one warm process. Stores write each file "
        "through to the disk; Spark's local files are not, but cost processes to be forked, because pip's Spark is "
        "without Hadoop's native library. The cluster is `headrace serve` on the same two cores.",
    )


def _batch_ms(spark: SparkSession, provider: str | None, checkpoint: str, batches: int) -> list[float]:
    """Run a query for so many batches; return how long each took, without the first ones."""
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
