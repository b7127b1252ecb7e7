"""Kills of a process at one step of a batch: a restart continues the query, and the sink has every row once.

The process is one of Spark's Python processes, or the driver, which is Python and Java.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import headrace
from headrace.batches.feeds.tunnel_feed import TunnelFeed
from headrace.model.tables.changes import ChangeOp
from headrace.ports import Store
from headrace.spark.versions import ENVIRONMENT, STARTS
from headrace.support.failpoints import VARIABLE
from headrace.testing.effort import THOROUGH
from headrace.testing.reading import run_to_the_end
from tests.conformance import serving
from tests.documents import ROOT
from tests.spark_session import processes_with
from tests.spark_versions import needs

# Failpoints in the process of a source, in tasks, and in the process that commits the batches of a native sink.
POINTS = ["rows-staged", "marker-written"]
if THOROUGH:
    POINTS += ["plan-unsaved", "plan-saved", "rows-read", "end-recorded"]
    POINTS += ["rows-written", "published", "uncommitted", "committed"]
# In PostgreSQL, the source and the sink of each query are in one database.
CASES = [("embedded", point) for point in POINTS]
# There, the process that reads the columns of a source also has transactions, but fewer than that of the query.
LATER = {"uncommitted": "uncommitted:10", "committed": "committed:10"}
CASES += [("postgres", LATER.get(point, point)) for point in (POINTS if THOROUGH else ["marker-written"])]
# Stores, and the locations of checkpoints in them. In a quick run, the demo kills a driver in PostgreSQL.
KILLED_DRIVERS = [("embedded", None)] + ([("postgres", "postgresql:///jobs/copy")] if THOROUGH else [])
ROWS = 40
BATCH = 15
_DRIVER = """
import os, sys
import headrace
from headrace.support.failpoints import arm
from tests.spark.test_failpoints import publish

store, checkpoint = sys.argv[1:]
conf = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": 2}
spark = headrace.session("driver", master="local[2,4]", conf=conf)
# Java is in this process group.
arm(f"published:2@{os.getpgrp()}")
publish(spark, store, checkpoint)
"""


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A store with a table of orders, a tunnel of them, and a table for their copy."""
    if request.param == "postgres":
        opened = headrace.open(serving.postgres_database())
    else:
        opened = headrace.open(tmp_path / "shop", create=True, synchronous="off")
    with opened:
        _fill(opened)
        yield opened
        for tunnel in opened.tunnels():
            opened.drop_tunnel(tunnel.id)


def _fill(store: Store) -> None:
    orders = store.create_table("orders", {"id": "long", "price": "long"}, "id")
    store.create_table("copy", {"id": "long", "price": "long"}, "id")
    store.create_tunnel("orders", "all", kind="Stream")
    store.create_tunnel("copy", "log", kind="Stream")
    orders.put([{"id": number, "price": number} for number in range(ROWS)])


def changes_of(spark: SparkSession, store: str) -> DataFrame:
    reader = spark.readStream.format("headrace").options(store=store, tunnel="all", maxRowsPerTrigger=BATCH)
    return reader.load().select("id", "price")


def publish(spark: SparkSession, store: str, checkpoint: str) -> None:
    """Copy the orders with `headrace.write_stream`, whose batches the driver publishes."""
    writer = headrace.write_stream(changes_of(spark, store), store=store, table="copy", checkpoint=checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()


def assert_copied_once(store: Store) -> None:
    """Check the log of the copy: a row that was published twice is there as a replacement."""
    changes = [change for _, batch in run_to_the_end(TunnelFeed(store.tunnel("log"))) for change in batch]
    assert sorted((change.op, change.key[0]) for change in changes) == [(ChangeOp.INSERT, n) for n in range(ROWS)]


@needs(ENVIRONMENT)
@needs(ENVIRONMENT)
@pytest.mark.parametrize(("store", "point"), CASES, indirect=["store"])
def test_a_restart_continues_a_query_whose_process_was_killed(
    spark: SparkSession, store: Store, checkpoint: str, point: str
) -> None:
    def run() -> None:
        writer = changes_of(spark, store.url).writeStream.format("headrace")
        query = writer.options(store=store.url, table="copy", checkpointLocation=checkpoint)
        query.trigger(availableNow=True).start().awaitTermination()

    # After the record of an end, the repeated task reads up to it and does not reach the failpoint.
    fails = nullcontext() if point == "end-recorded" else pytest.raises(StreamingQueryException)
    with processes_with(spark, **{VARIABLE: point}), fails:
        run()
    # Old versions read one batch in a run.
    for _ in range(1 if STARTS.present else ROWS // BATCH + 1):
        run()
    assert_copied_once(store)


def entries(store: Store, checkpoint: str, log: str) -> set[str]:
    """Return the batches in a log of a checkpoint, which is in the store or in a directory."""
    if ":" in checkpoint:
        path = f"{checkpoint.partition('://')[2]}/{log}"
        names = {status.path.rpartition("/")[2] for status in store.files().list(path)}
    else:
        names = {path.name for path in Path(checkpoint, log).iterdir()}
    return {name for name in names if name.isdecimal()}


@pytest.mark.parametrize(("store", "place"), KILLED_DRIVERS, indirect=["store"])
def test_a_driver_killed_between_publication_and_sparks_commit_publishes_nothing_twice(
    spark: SparkSession, store: Store, checkpoint: str, place: str | None
) -> None:
    checkpoint = place or checkpoint
    command = [sys.executable, "-W", "ignore", "-c", _DRIVER, store.url, checkpoint]
    driver = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, start_new_session=True)
    assert driver.returncode == -signal.SIGKILL, driver.stderr[-4000:]
    assert store.table("copy").scan().read_all().num_rows == 2 * BATCH
    assert entries(store, checkpoint, "offsets") == {"0", "1"}
    assert entries(store, checkpoint, "commits") == {"0"}
    publish(spark, store.url, checkpoint)
    assert_copied_once(store)
