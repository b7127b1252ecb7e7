"""Followed queries into each kind of store: batches that are repeated half done, and streams of SQL."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import headrace
from headrace.batches.sinks.jobs import TargetJob, TargetJobs, state_name
from headrace.errors import NotFoundError
from headrace.ports import Claim, Store
from headrace.support.failpoints import VARIABLE
from headrace.testing.effort import THOROUGH
from tests.conformance import serving
from tests.spark.following import Following
from tests.spark.sql_scripts import sql_session
from tests.spark_session import processes_with

TOTALS = """
    SELECT user, count(*) AS n, sum(price) AS s, max(price) AS high, count(DISTINCT price) AS d
    FROM orders GROUP BY user
"""
COLUMNS = {"user": "string", "n": "long", "s": "double", "high": "double", "d": "long"}
# Of the stores with transactions, and of those without. The conformance suite tests the claims of every store.
CLAIMING = ["embedded", "tablestore"] + (["ytsaurus"] if THOROUGH else [])
# `tests.spark.test_following_kills` has the others, too.
STAGING = ["postgres", "ytsaurus"] + (["embedded", "tablestore"] if THOROUGH else [])


@dataclass
class Sink:
    """A store for targets, and the options that open it."""

    store: Store
    options: dict[str, str]


@contextmanager
def sink(kind: str, directory: Path) -> Iterator[Sink]:
    options: dict[str, str] = {}
    if kind == "tablestore":
        url = f"tablestore+{serving.tablestore_endpoint()}/t{uuid.uuid4().hex[:15]}"
        options = {"accessKeyId": serving.KEY_ID, "accessKeySecret": serving.KEY_SECRET}
        opened = headrace.open(url, access_key_id=serving.KEY_ID, access_key_secret=serving.KEY_SECRET)
    elif kind == "ytsaurus":
        options = {"token": serving.TOKEN}
        opened = headrace.open(f"yt://{serving.ytsaurus_endpoint().removeprefix('http://')}", token=serving.TOKEN)
    elif kind == "postgres":
        opened = headrace.open(serving.postgres_database())
    else:
        opened = headrace.open(directory / "sink", create=True, synchronous="off")
    with opened as store:
        yield Sink(store, options)


@pytest.mark.parametrize("kind", STAGING)
def test_a_batch_whose_task_died_after_staging_is_repeated_from_the_same_state(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    store = headrace.open(tmp_path / "shop", create=True, synchronous="off")
    orders = store.create_table("orders", {"id": "long", "user": "string", "price": "double"}, "id", pre_images=True)
    orders.put([{"id": n, "user": f"u{n % 3}", "price": float(n)} for n in range(12)])
    with sink(kind, tmp_path) as to:
        target = f"totals_{uuid.uuid4().hex[:8]}" if kind != "ytsaurus" else f"//home/totals_{uuid.uuid4().hex[:8]}"
        to.store.create_table(target, COLUMNS, "user")
        arguments = {"options": to.options}
        following = Following(spark, store, TOTALS, ["orders"], target, tmp_path, sink=to.store, arguments=arguments)
        with following:
            assert following.advance() == following.expected()
            following.restart()
            orders.put([{"id": 0, "user": "u1", "price": 50.0}, {"id": 20, "user": "u3", "price": 1.0}])
            orders.delete([{"id": n} for n in (2, 5, 8, 11)])
            with processes_with(spark, **{VARIABLE: "rows-staged"}), pytest.raises(StreamingQueryException):
                following.advance()
            following.restart()
            assert following.advance() == following.expected()
            orders.delete([{"id": 0}])
            assert following.advance() == following.expected()


@contextmanager
def two_queries(spark: SparkSession, kind: str, directory: Path, **second: Any) -> Iterator[tuple[Following, ...]]:
    """Yield two queries with one target, over one table with rows; ``second`` are arguments of the second one."""
    store = headrace.open(directory / "shop", create=True, synchronous="off")
    orders = store.create_table("orders", {"id": "long", "user": "string", "price": "double"}, "id", pre_images=True)
    orders.put([{"id": n, "user": f"u{n % 3}", "price": float(n)} for n in range(12)])
    with sink(kind, directory) as to:
        target = f"totals_{uuid.uuid4().hex[:8]}" if kind != "ytsaurus" else f"//home/totals_{uuid.uuid4().hex[:8]}"
        to.store.create_table(target, COLUMNS, "user")

        def query(name: str, **arguments: Any) -> Following:
            return Following(
                spark,
                store,
                TOTALS,
                ["orders"],
                target,
                directory / name,
                sink=to.store,
                arguments={"options": to.options, **arguments},
                tunnels=name,
            )

        with query("first") as one, query("second", **second) as other:
            yield one, other


def existing(store: Store, names: Iterable[str]) -> list[str]:
    """Return the names that are tables of a store."""
    found = []
    for name in names:
        with contextlib.suppress(NotFoundError):
            store.table(name)
            found.append(name)
    return found


@pytest.mark.parametrize("kind", CLAIMING)
def test_of_two_queries_that_begin_at_the_same_time_one_has_the_target(
    spark: SparkSession, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_free = TargetJobs._check_free
    both_found_it_free = threading.Barrier(2, timeout=120)

    def waiting(self: TargetJobs, known: TargetJob | None, wanted: TargetJob) -> None:
        check_free(self, known, wanted)
        # A job without an id is checked before the start of its query.
        if wanted.job:
            both_found_it_free.wait()

    monkeypatch.setattr(TargetJobs, "_check_free", waiting)
    with two_queries(spark, kind, tmp_path) as queries:
        running = [(query, query.start()) for query in queries]
        failed, whole = [], []
        for query, started in running:
            try:
                started.processAllAvailable()
                whole.append(query)
            except StreamingQueryException as error:
                failed.append((str(error), started.id))
        (winner,), ((message, loser),) = whole, failed
        assert "another query follows a table into" in message
        assert winner.advance() == winner.expected()
        winner.store.table("orders").delete([{"id": 3}])
        assert winner.advance() == winner.expected()
        to = winner.sink or winner.store
        job = TargetJobs(to).find(winner.target)
        assert job is not None
        assert existing(to, job.state_tables) == list(job.state_tables)
        own, other = state_name(to, job.target, job.job), state_name(to, job.target, loser)
        assert existing(to, [name.replace(own, other) for name in job.state_tables]) == []


@pytest.mark.parametrize("kind", CLAIMING)
def test_a_query_whose_target_was_taken_writes_nothing_more(
    spark: SparkSession, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = TargetJobs.begin
    begun, taken = threading.Event(), threading.Event()

    def waiting(self: TargetJobs, wanted: TargetJob, batch: int) -> tuple[TargetJob, Claim]:
        found = begin(self, wanted, batch)
        if batch == 1 and not taken.is_set():
            begun.set()
            assert taken.wait(120)
        return found

    with two_queries(spark, kind, tmp_path, overwrite=True) as (first, second):
        assert first.advance() == first.expected()
        orders = first.store.table("orders")
        running = kind != "tablestore"
        if running:
            # The batch of the first query begins before the second query, and ends after it.
            monkeypatch.setattr(TargetJobs, "begin", waiting)
            orders.put([{"id": 20, "user": "u3", "price": 1.0}])
            assert begun.wait(120)
        assert second.advance() == second.expected()
        second.stop()
        orders.delete([{"id": 3}])
        rows = (second.sink or second.store).table(second.target).scan().read_all().to_pylist()
        taken.set()
        with pytest.raises(StreamingQueryException, match="another query follows a table into"):
            first.advance()
        assert (second.sink or second.store).table(second.target).scan().read_all().to_pylist() == rows
        assert second.advance() == second.expected()


_SCRIPT = """
CREATE TABLE orders USING headrace OPTIONS (store = '{store}', table = 'orders');
CREATE TABLE totals USING headrace OPTIONS (store = '{store}', table = 'totals');
CREATE SCAN orders_now ON orders USING STREAM OPTIONS (tunnel = 'stats', readAs = 'table');
CREATE STREAM sums OPTIONS (checkpointLocation = '{directory}/c', outputMode = '{mode}', triggerType = 'AvailableNow')
INSERT INTO totals (user, n, s) SELECT user, count(*), sum(price) FROM orders_now WHERE price > 1 GROUP BY user;
"""


def test_create_stream_follows_a_table(spark: SparkSession, tmp_path: Path) -> None:
    store = headrace.open(tmp_path / "shop", create=True, synchronous="off")
    orders = store.create_table("orders", {"id": "long", "user": "string", "price": "double"}, "id", pre_images=True)
    totals = store.create_table("totals", {"user": "string", "n": "long", "s": "double"}, "user")
    store.create_tunnel("orders", "stats", kind="BaseAndStream")
    orders.put([{"id": n, "user": f"u{n % 2}", "price": float(n)} for n in range(6)])
    script = _SCRIPT.format(store=store.url, directory=tmp_path, mode="update")
    with sql_session(spark, tmp_path / "workspace") as session:
        with pytest.raises(headrace.HeadraceError, match="append cannot remove rows"):
            session.run(_SCRIPT.format(store=store.url, directory=tmp_path, mode="append"))
        session.run(script)
        session.wait()
        assert totals.scan().read_all().to_pylist() == [
            {"user": "u0", "n": 2, "s": 6.0},
            {"user": "u1", "n": 2, "s": 8.0},
        ]
        orders.delete([{"id": 3}, {"id": 5}])
        session.run("START STREAM sums")
        session.wait()
        assert totals.scan().read_all().to_pylist() == [{"user": "u0", "n": 2, "s": 6.0}]
        rows = session.run("EXPLAIN STREAM sums")[0].rows
        shown = {name: value for name, value in rows if name != "aggregate"}
        assert shown["followed"] == "orders_now, by its key (id)"
        assert shown["guarantee"] == "exactly once"
        assert "__headrace_state_totals_" in shown["state tables"]
        assert [value.split(":")[0] for name, value in rows if name == "aggregate"] == ["count(*)", "sum(price)"]
        assert session.run("DESCRIBE STREAM sums")[0].rows[1] == ("state", "finished")
