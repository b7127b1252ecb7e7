"""Kills of Spark's processes at each step of a batch: the query fails, a restart continues it, and the sink has every
row once."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import headrace
from headrace.failpoints import VARIABLE
from headrace.feeds.tunnel_feed import TunnelFeed
from headrace.tables.changes import ChangeOp
from tests.conformance.reading import run_to_the_end
from tests.effort import THOROUGH
from tests.spark_session import processes_with

# Failpoints in the process of a source, in tasks, and in the process that commits the batches of a native sink.
POINTS = ["rows-staged", "marker-written"]
if THOROUGH:
    POINTS += ["plan-unsaved", "plan-saved", "rows-read", "end-recorded"]
    POINTS += ["rows-written", "published", "uncommitted", "committed"]
ROWS = 40


@pytest.mark.parametrize("point", POINTS)
def test_a_restart_continues_a_query_whose_process_was_killed(
    spark: SparkSession, tmp_path: Path, checkpoint: str, point: str
) -> None:
    store = headrace.open(tmp_path / "shop", create=True, synchronous="off")
    orders = store.create_table("orders", {"id": "long", "price": "long"}, "id")
    store.create_table("copy", {"id": "long", "price": "long"}, "id")
    store.create_tunnel("orders", "all", kind="Stream")
    store.create_tunnel("copy", "log", kind="Stream")
    orders.put([{"id": number, "price": number} for number in range(ROWS)])

    def run() -> None:
        changes = spark.readStream.format("headrace").options(store=store.url, tunnel="all", maxRowsPerTrigger=15)
        copied = changes.load().select("id", "price").writeStream.format("headrace")
        query = copied.options(store=store.url, table="copy", checkpointLocation=checkpoint)
        query.trigger(availableNow=True).start().awaitTermination()

    # After the record of an end, the repeated task reads up to it and does not reach the failpoint.
    fails = nullcontext() if point == "end-recorded" else pytest.raises(StreamingQueryException)
    with processes_with(spark, **{VARIABLE: point}), fails:
        run()
    run()
    changes = [change for _, batch in run_to_the_end(TunnelFeed(store.tunnel("log"))) for change in batch]
    assert sorted((change.op, change.key[0]) for change in changes) == [(ChangeOp.INSERT, n) for n in range(ROWS)]
