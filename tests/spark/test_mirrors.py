"""Mirrors in Spark: copies and histories of tables in other stores, restarts, kills, new columns."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import headrace
from headrace.failpoints import VARIABLE
from headrace.ports import Store, Table
from tests.conformance import serving
from tests.spark_session import processes_with

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
        defaults = {"source": tmp_path / "shop", "table": "orders", "checkpoint": checkpoint}
        mirror = headrace.mirror(spark, **(defaults | options))
        mirror.trigger(availableNow=True).start().awaitTermination()

    return run_mirror


def test_a_mirror_has_the_rows_of_its_source_after_each_run(
    run: Run, spark: SparkSession, tmp_path: Path, orders: Table, copy: Store
) -> None:
    target = {"to": tmp_path / "copy", "options": {"maxRowsPerTrigger": 25}}
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


@pytest.mark.parametrize("history", [False, True])
def test_a_mirror_whose_task_or_driver_was_killed_continues(
    run: Run, spark: SparkSession, tmp_path: Path, orders: Table, copy: Store, history: bool
) -> None:
    target = {"to": tmp_path / "copy", "options": {"maxRowsPerTrigger": 40}, "history": history}
    run(**target)
    change_much(orders)
    with processes_with(spark, **{VARIABLE: "rows-staged"}), pytest.raises(StreamingQueryException):
        run(**target)
    run(**target)
    rows = content(copy.table("orders"))
    if history:
        rows = [{name: row[name] for name in COLUMNS} for row in rows if row["is_current"]]
    assert rows == content(orders)


def test_no_value_of_a_new_column_is_lost(run: Run, tmp_path: Path, orders: Table, copy: Store) -> None:
    target = {"to": tmp_path / "copy", "to_table": "items"}
    run(**target)
    # The column is added while the mirror is stopped.
    orders.add_columns({"note": "string"})
    orders.update({"id": 1, "note": "first"})
    run(**target)
    assert content(copy.table("items")) == content(orders)


def test_a_column_that_is_added_during_a_query_stops_it_before_a_value_is_lost(
    spark: SparkSession, tmp_path: Path, orders: Table, copy: Store, checkpoint: str
) -> None:
    mirror = headrace.mirror(
        spark, source=tmp_path / "shop", table="orders", to=tmp_path / "copy", checkpoint=checkpoint
    )
    query = mirror.start()
    query.processAllAvailable()
    orders.add_columns({"note": "string"})
    orders.update({"id": 1, "note": "first"})
    with pytest.raises(StreamingQueryException, match="note string"):
        query.processAllAvailable()
    assert content(copy.table("orders"))[1] == {"id": 1, "name": "item 1", "price": 1.0}
    query = mirror.start()
    query.processAllAvailable()
    query.stop()
    assert content(copy.table("orders")) == content(orders)


def test_a_mirror_in_a_tablestore_instance_also_keeps_a_history(run: Run, orders: Table) -> None:
    url = f"tablestore+{serving.tablestore_endpoint()}/t{uuid.uuid4().hex[:15]}"
    keys = {"accessKeyId": serving.KEY_ID, "accessKeySecret": serving.KEY_SECRET}
    run(to=url, to_options=keys, history=True)
    change_much(orders)
    run(to=url, to_options=keys, history=True)
    orders.add_columns({"note": "string"})
    orders.update({"id": 1, "note": "first"})
    run(to=url, to_options=keys, history=True)
    with headrace.open(url, access_key_id=serving.KEY_ID, access_key_secret=serving.KEY_SECRET) as store:
        columns = dict(zip(orders.schema.arrow.names, orders.schema.arrow.types, strict=True))
        history = store.table("orders", {**columns, "is_current": "boolean", "valid_to": "timestamp"})
        names = [*orders.schema.names, "is_current"]
        current = history.scan(names).read_all().to_pylist()
    rows = [{name: row[name] for name in orders.schema.names} for row in current if row["is_current"]]
    assert rows == content(orders)


def test_a_mirror_is_a_sorted_table_of_a_ytsaurus_cluster(run: Run, orders: Table) -> None:
    path = f"//tests/{uuid.uuid4().hex}/orders"
    target = {"to": f"yt+{serving.ytsaurus_endpoint()}", "to_table": path, "to_options": {"token": serving.TOKEN}}
    run(**target)
    change_much(orders)
    run(**target)
    with headrace.open(target["to"], token=serving.TOKEN) as store:
        assert content(store.table(path)) == content(orders)
        store.drop_table(path)


def test_pa_is_used() -> None:
    assert pa
