"""Queries that follow tables: after each batch the target is the result over the current rows."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import headrace
from headrace.ports import Store, Table
from tests.spark.following import Following

COLUMNS = {"id": "long", "user": "string", "price": "double", "paid": "decimal(10,2)", "at": "timestamp"}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return headrace.open(tmp_path / "shop", create=True, synchronous="off")


@pytest.fixture
def orders(store: Store) -> Table:
    table = store.create_table("orders", COLUMNS, "id", pre_images=True)
    table.put([row(number, f"u{number % 3}", number * 1.5) for number in range(9)])
    return table


def row(number: int, user: str | None, price: float | None, paid: str | None = None) -> dict[str, Any]:
    at = datetime.datetime(2026, 1, 1, 0, number % 60, tzinfo=datetime.UTC)
    return {"id": number, "user": user, "price": price, "paid": None if paid is None else Decimal(paid), "at": at}


TOTALS = """
    SELECT user, count(*) AS n, count(price) AS c, sum(price) AS s, avg(price) AS a, min(price) AS low,
           max(price) AS high, count(DISTINCT price) AS d, sum(paid) AS p
    FROM orders WHERE user <> 'void' GROUP BY user HAVING count(*) > 1
"""


def test_groups_follow_inserts_updates_and_deletes(
    spark: SparkSession, store: Store, orders: Table, tmp_path: Path
) -> None:
    types = {"n": "long", "c": "long", "s": "double", "a": "double", "low": "double", "high": "double", "d": "long"}
    store.create_table("totals", {"user": "string", **types, "p": "decimal(20,2)"}, "user")
    with Following(spark, store, TOTALS, ["orders"], "totals", tmp_path) as following:
        assert following.advance() == following.expected()
        # A row moves to another group, the greatest value goes, and a group has too few rows.
        orders.put([row(1, "u0", 0.25, "0.10"), row(2, "u2", None, "0.20")])
        orders.delete([{"id": 8}, {"id": 5}])
        assert following.advance() == following.expected()
        assert [each["user"] for each in following.advance()] == ["u0", "u1"]
        following.restart()
        orders.put([row(20 + number, "u9", 0.5 * number, "0.10") for number in range(4)])
        orders.put([row(0, "void", 1.0)])
        assert following.advance() == following.expected()
        orders.delete([{"id": number} for number in range(30)])
        assert following.advance() == following.expected() == []


def test_rows_enter_and_leave_a_filter(spark: SparkSession, store: Store, orders: Table, tmp_path: Path) -> None:
    store.create_table("big", {"id": "long", "who": "string", "p2": "double"}, "id")
    sql = "SELECT id, upper(user) AS who, price * 2 AS p2 FROM orders WHERE price > 5"
    with Following(spark, store, sql, ["orders"], "big", tmp_path) as following:
        assert following.advance() == following.expected()
        orders.put([row(8, "u2", 1.0), row(0, "u0", 99.0), row(30, "u0", 6.0)])
        orders.put([row(30, "u0", 7.0)])
        orders.delete([{"id": 7}, {"id": 1}])
        assert following.advance() == following.expected()
        following.restart()
        orders.delete([{"id": 30}])
        orders.put([row(30, "u1", 8.0)])
        assert following.advance() == following.expected()
        assert "__headrace_followed__" in store.tables()
