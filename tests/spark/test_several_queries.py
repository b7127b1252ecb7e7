"""Several queries in one session, and several outputs of one query."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import headrace
from headrace.ports import Store
from tests.spark.oracles import (
    Row,
    assert_same,
    example,
    flat,
    forget_last_commit,
    in_queue,
    in_table,
    play,
)

several_queries, fan_out = example("several_queries"), example("fan_out")


def check_queries(store: Store) -> None:
    orders = flat(several_queries.ARRIVALS)
    prices: dict[str, list[float]] = defaultdict(list)
    for row in orders:
        prices[row["user"]].append(row["price"])
    totals = [{"user": user, "orders": len(given), "total": sum(given)} for user, given in prices.items()]
    assert_same(in_table(store, "totals"), totals)
    large = [{"order": row["order"], "price": row["price"]} for row in orders if row["price"] >= 100]
    assert in_queue(store, "large") == large
    assert [store.consumer(name).offsets("orders") for name in several_queries.CONSUMERS] == [{0: len(orders)}] * 2


def test_queries_of_one_session_do_not_disturb_each_other(spark: SparkSession, tmp_path: Path) -> None:
    several_queries.main(tmp_path)
    with headrace.open(tmp_path / "store") as store:
        check_queries(store)


def test_one_query_can_stop_while_another_continues(spark: SparkSession, tmp_path: Path) -> None:
    with headrace.open(tmp_path / "store", create=True, synchronous="off") as store:
        several_queries.create(store)
        feed = [partial(store.queue("orders").append, rows) for rows in several_queries.ARRIVALS]
        totals, large = (
            partial(make, spark, store, tmp_path) for make in (several_queries.totals, several_queries.large)
        )
        going_on = totals().start()
        play(large, feed[:1])
        for write in feed[1:]:
            write()
        going_on.processAllAvailable()
        assert store.consumer("//home/large").offsets("orders") == {0: 2}
        play(large, [lambda: None])
        going_on.stop()
        check_queries(store)


@pytest.mark.parametrize("way", ["once", "by_hand"])
def test_repeating_a_batch_with_two_outputs_changes_nothing(spark: SparkSession, tmp_path: Path, way: str) -> None:
    orders: list[Row] = flat(fan_out.ARRIVALS)
    with headrace.open(tmp_path / "store", create=True, synchronous="off") as store:
        fan_out.create(store)
        build = partial(getattr(fan_out, way), spark, store, tmp_path / "checkpoint")
        feed = [partial(store.queue("orders").append, rows) for rows in fan_out.ARRIVALS]
        play(build, feed[:2])
        forget_last_commit(tmp_path / "checkpoint")
        play(build, feed[2:])
        latest = {row["order"]: row["state"] for row in orders}
        assert_same(in_table(store, "states"), [{"order": order, "state": state} for order, state in latest.items()])
        large = in_queue(store, "large") if way == "once" else in_table(store, "large_by_key")
        assert_same(large, [row for row in orders if row["price"] >= 100])


def test_the_fan_out_example_runs(spark: SparkSession, tmp_path: Path) -> None:
    fan_out.main(tmp_path)
    with headrace.open(tmp_path / "store") as store:
        assert len(in_queue(store, "large")) == 3
