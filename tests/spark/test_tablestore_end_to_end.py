"""The vendor's quick start on an instance, over HTTP, while the table splits and merges."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import headrace
from headrace.demo.orders import COLUMNS, PRIMARY_KEY, OrderBook
from headrace.demo.proof import compare, read_all, recompute, sink_content
from headrace.demo.script import INSTANCE, SINK, SINK_COLUMNS, SINK_KEY, SOURCE, script
from headrace.model.tables.changes import Changes
from headrace.ports import Store, Table
from tests.conformance import serving

BEGIN = 1_700_000_000_000


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """`headrace serve` in another process. The environment has its access key."""
    url = serving.tablestore_endpoint()
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("HEADRACE_ACCESS_KEY_ID", serving.KEY_ID)
        environment.setenv("HEADRACE_ACCESS_KEY_SECRET", serving.KEY_SECRET)
        yield url


@pytest.fixture
def instance(endpoint: str) -> Iterator[Store]:
    """The instance over HTTP, with the tables of the script."""
    with headrace.open(f"tablestore+{endpoint}/{INSTANCE}") as store:
        store.create_table(SOURCE, COLUMNS, PRIMARY_KEY)
        store.create_table(SINK, SINK_COLUMNS, SINK_KEY)
        yield store


@pytest.fixture
def server_store(instance: Store) -> Iterator[Store]:
    """The embedded store of the endpoint, with the same tables."""
    with headrace.open(serving.tablestore_root() / INSTANCE) as store:
        yield store


def reshape(table: Table, *, merge: bool) -> None:
    """Split the largest partition of a table, or merge its first two."""
    if not merge:
        table.split()
        return
    first, second, *_ = sorted(
        (partition for partition in table.describe().partitions if partition.open), key=lambda p: p.keys.low or ()
    )
    table.merge(first.id, second.id)


def wait_for(condition: Callable[[], bool], seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.1)


def test_the_vendors_script_runs_over_http_while_the_table_splits_and_merges(
    spark: SparkSession, endpoint: str, instance: Store, server_store: Store, tmp_path: Path
) -> None:
    orders, sink, book = instance.table(SOURCE), instance.table(SINK), OrderBook("alice", seed=2)
    orders.put(book.place(2000, BEGIN))
    tunnel, oracle = instance.create_tunnel(SOURCE, "statistics"), server_store.create_tunnel(SOURCE, "oracle")
    text = script(endpoint=endpoint, tunnel_id=tunnel.id, checkpoint=tmp_path / "checkpoint")
    changes: list[Changes] = []

    def change(steps: range) -> None:
        for number in steps:
            step = book.step(BEGIN + number * 10_000, 60)
            orders.put(step.new)
            orders.update(step.changed)
            orders.delete(step.deleted)
            reshape(server_store.table(SOURCE), merge=number % 4 == 3)

    def is_right() -> bool:
        changes.extend(read_all(oracle))
        return compare(sink_content(sink), recompute(changes).windows) == []

    streams = headrace.sql(spark, tmp_path)
    streams.run(text)
    change(range(6))
    wait_for(is_right)
    streams.stop()
    change(range(6, 12))
    assert not is_right()

    again = headrace.sql(spark, tmp_path)
    again.run(text)
    wait_for(is_right)
    change(range(12, 16))
    wait_for(is_right)
    ((windows,),) = again.run("SELECT count(*) FROM order_stream_sink")[0].fetch()
    assert windows == len(recompute(changes).windows)
    again.stop()
    # 2000 orders, then 54 puts and updates and 6 deletions in each step.
    result = recompute(changes)
    assert (result.events, result.deletions) == (2000 + 16 * 54, 16 * 6)
    assert [status.state for status in again.streams()] == ["stopped"]
    assert (
        len([partition for partition in server_store.table(SOURCE).describe().partitions if not partition.open]) == 20
    )
