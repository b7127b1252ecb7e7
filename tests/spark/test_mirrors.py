"""Mirrors in Spark: copies and histories of tables in other stores, restarts, kills, new columns."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import headrace
from headrace.derived.mirror import batches
from headrace.derived.mirror.history import HISTORY_COLUMNS
from headrace.errors import UnsupportedError
from headrace.model.tables.alterations import Alteration
from headrace.ports import Store, Table
from headrace.spark.batch_tasks import BatchTasks, publish_batch
from headrace.support import failpoints
from tests.conformance import serving
from tests.spark.sql_scripts import sql_session

COLUMNS = {"id": "long", "name": "string", "price": "double"}


@pytest.fixture
def orders(tmp_path: Path) -> Table:
    """A table of 30 rows in two partitions."""
    store = headrace.open(tmp_path / "shop", create=True, synchronous="off")
    orders = store.create_table("orders", COLUMNS, "id")
    put(orders, 0, 30)
    orders.split(at={"id": 15})
    return orders


@pytest.fixture
def copy(tmp_path: Path) -> Store:
    return headrace.open(tmp_path / "copy", create=True, synchronous="off")


def put(table: Table, first: int, count: int, price: float = 1.0) -> None:
    table.put([{"id": n, "name": f"item {n}", "price": price} for n in range(first, first + count)])


def change_much(orders: Table) -> None:
    """Change rows so that the order of changes matters: puts after deletes, and deletes after puts."""
    put(orders, 20, 20, 2.0)
    orders.delete([{"id": n} for n in range(5, 25)])
    put(orders, 10, 5, 3.0)
    orders.update([{"id": n, "price": None} for n in (0, 29)])
    orders.delete({"id": 39})


def content(table: Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.scan().read_all().to_pylist()
    return rows


Run = Callable[..., None]


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path, checkpoint: str) -> Run:
    """Run the mirror of the orders to its end."""

    def run_mirror(**options: Any) -> None:
        defaults: dict[str, Any] = {"source": tmp_path / "shop", "table": "orders", "checkpoint": checkpoint}
        mirror = headrace.mirror(spark, **(defaults | options))
        mirror.trigger(availableNow=True).start().awaitTermination()

    return run_mirror


def test_a_mirror_has_the_rows_of_its_source_after_each_run(
    run: Run, spark: SparkSession, tmp_path: Path, orders: Table, copy: Store
) -> None:
    target = {"to": tmp_path / "copy"}
    run(**target)
    assert content(copy.table("orders")) == content(orders)
    change_much(orders)
    orders.split()
    put(orders, 3, 4, 5.0)
    run(**target)
    assert content(copy.table("orders")) == content(orders)
    # A new checkpoint continues at the tunnel's position: also the rows that are deleted before it starts vanish.
    orders.delete([{"id": n} for n in range(4)])
    run(**target, checkpoint=tmp_path / "another")
    assert content(copy.table("orders")) == content(orders)


class Killed(Exception):
    """A failpoint was reached. In the driver of these tests it raises an error instead of killing the process."""


@pytest.mark.parametrize("point", ["marker-written", "published"])
def test_a_history_whose_batch_failed_before_or_after_its_publication_continues(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, orders: Table, copy: Store, point: str
) -> None:
    run(to=tmp_path / "copy", history=True)
    change_much(orders)

    def kill() -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(failpoints, "_count", kill)
        patched.setattr(failpoints, "_wanted", point)
        with pytest.raises(StreamingQueryException, match="Killed"):
            run(to=tmp_path / "copy", history=True)
    run(to=tmp_path / "copy", history=True)
    history = content(copy.table("orders"))
    assert [without_history(row) for row in history if row["is_current"]] == content(orders)
    # 30 rows of base data, 20 + 5 puts and 2 updates; each version but the current ones has an end.
    assert len(history) == 57
    assert all((row["valid_to"] is None) == row["is_current"] for row in history)


def without_history(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in HISTORY_COLUMNS}


def test_no_value_of_a_new_column_is_lost(
    spark: SparkSession, tmp_path: Path, orders: Table, copy: Store, checkpoint: str
) -> None:
    mirror = headrace.mirror(
        spark, source=tmp_path / "shop", table="orders", to=tmp_path / "copy", to_table="items", checkpoint=checkpoint
    )
    query = mirror.start()
    query.processAllAvailable()
    orders.add_columns({"note": "string"})
    orders.update({"id": 1, "note": "first"})
    query.processAllAvailable()
    assert content(copy.table("items")) == content(orders)
    query.stop()
    # Another column is added while the mirror is stopped.
    orders.add_columns({"rank": "long"})
    orders.update({"id": 2, "rank": 7})
    query = mirror.start()
    query.processAllAvailable()
    query.stop()
    assert content(copy.table("items")) == content(orders)


def test_a_column_that_is_dropped_and_added_again_while_a_batch_is_read_has_its_own_values(
    run: Run,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    orders: Table,
    copy: Store,
    checkpoint: str,
) -> None:
    run(to=tmp_path / "copy")
    put(orders, 0, 3, 2.0)
    changed: list[int] = []

    def publish(store: Store, tasks: BatchTasks, *arguments: Any, **options: Any) -> None:
        if not changed:
            # The batch knows the columns of the source, and its tasks have read nothing.
            orders.alter(Alteration(dropped=["name"]))
            orders.add_columns({"name": "string"})
            orders.put([{"id": 1, "name": "new", "price": 3.0}])
        changed.append(tasks.batch)
        publish_batch(store, tasks, *arguments, **options)

    monkeypatch.setattr(batches, "publish_batch", publish)
    mirror = headrace.mirror(
        spark, source=tmp_path / "shop", table="orders", to=tmp_path / "copy", checkpoint=checkpoint
    )
    query = mirror.start()
    query.processAllAvailable()
    query.stop()
    # The first batch has begun again.
    assert changed[0] == changed[1]
    assert headrace.diff_tables(orders, copy.table("orders")).equal


def test_a_mirror_in_a_tablestore_instance_also_keeps_a_history(run: Run, tmp_path: Path, orders: Table) -> None:
    url = f"tablestore+{serving.tablestore_endpoint()}/t{uuid.uuid4().hex[:15]}"
    keys = {"accessKeyId": serving.KEY_ID, "accessKeySecret": serving.KEY_SECRET}
    run(to=url, to_options=keys, history=True)
    change_much(orders)
    run(to=url, to_options=keys, history=True)
    orders.add_columns({"note": "string"})
    orders.update({"id": 1, "note": "first"})
    run(to=url, to_options=keys, history=True)
    with headrace.open(url, access_key_id=serving.KEY_ID, access_key_secret=serving.KEY_SECRET) as store:
        columns = {**COLUMNS, "note": "string", "is_current": "boolean", "valid_from": "long", "valid_to": "long"}
        history = content(store.table("orders", columns))
    assert [without_history(row) for row in history if row["is_current"]] == content(orders)
    assert all((row["valid_to"] is None) == row["is_current"] for row in history)
    with pytest.raises(UnsupportedError, match="only the cells that were set"):
        run(source=url, options=keys, to=tmp_path / "shop", to_table="back")


def test_a_mirror_is_a_sorted_table_of_a_ytsaurus_cluster(run: Run, tmp_path: Path, orders: Table) -> None:
    path = f"//tests/{uuid.uuid4().hex}/orders"
    url, token = f"yt+{serving.ytsaurus_endpoint()}", {"token": serving.TOKEN}
    run(to=url, to_table=path, to_options=token)
    change_much(orders)
    run(to=url, to_table=path, to_options=token)
    with headrace.open(url, token=serving.TOKEN) as store:
        assert content(store.table(path)) == content(orders)
    orders.add_columns({"note": "string"})
    with pytest.raises(UnsupportedError, match=r"cannot add columns.*note string"):
        run(to=url, to_table=path, to_options=token)
    with pytest.raises(UnsupportedError, match="keep no changes"):
        run(source=url, table=path, options=token, to=tmp_path / "shop", to_table="back")


def test_a_history_in_sql_shows_the_table_of_each_time(
    spark: SparkSession, tmp_path: Path, orders: Table, checkpoint: str
) -> None:
    headrace.open(tmp_path / "copy", create=True).close()
    mirror = f"CREATE STREAM past OPTIONS (checkpointLocation = '{checkpoint}')"
    mirror += " MIRROR changes INTO orders_past WITH HISTORY"
    with sql_session(spark, tmp_path) as session:
        session.run(f"""
            CREATE TABLE orders USING headrace OPTIONS (store = '{tmp_path}/shop', table = 'orders');
            CREATE TABLE orders_past USING headrace OPTIONS (store = '{tmp_path}/copy', table = 'past');
            CREATE SCAN changes ON orders USING STREAM""")
        explained = dict(session.run(f"EXPLAIN {mirror}")[0].rows)
        assert explained["tunnel"] == "mirror-past"
        assert explained["guarantee"] == "exactly once"
        session.run(mirror, available_now=True)
        session.wait()
        times, tables = [], []
        for change in (lambda: put(orders, 20, 20, 2.0), lambda: orders.delete([{"id": n} for n in range(25)])):
            times.append(datetime.datetime.now(datetime.UTC))
            tables.append(content(orders))
            change()
        session.run("START STREAM past", available_now=True)
        session.wait()
        times.append(datetime.datetime.now(datetime.UTC))
        tables.append(content(orders))
        for time, table in zip(times, tables, strict=True):
            query = f"SELECT * FROM orders_past TIMESTAMP AS OF '{time.isoformat()}' ORDER BY id"
            assert session.run(query)[0].fetch() == [tuple(row.values()) for row in table]
        session.run("CREATE SCAN past_now ON orders_past USING BATCH")
        scanned = "SELECT count(*) AS n FROM past_now FOR SYSTEM_TIME AS OF '2000-01-01' AS p WHERE p.id > 0"
        assert session.run(scanned)[0].fetch() == [(0,)]
