"""Queries whose inner groups are kept: totals of totals, and rows and totals that are compared with totals."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from headrace.derived.follow import gathered_batches
from headrace.derived.follow.gathered_batches import GatheredBatch
from headrace.derived.follow.gathered_in_tasks import Change, LargeChange
from headrace.derived.gathering.arrangements import Arranged, Gathering
from headrace.derived.gathering.gather import TableChange, TableViews
from headrace.ports import Table
from headrace.spark.sql_errors import QUERY_LOGGERS
from headrace.streaming_sql.session import StreamingSql
from headrace.support import failpoints
from headrace.testing.effort import THOROUGH
from tests.spark.followed_histories import prepare
from tests.spark.following import Following, rows_in_driver
from tests.spark.sql_scripts import sql_session
from tests.spark.test_following_kills import killing
from tests.spark.test_gathered_queries import QUERIES, Shop, shop, tables_in

__all__ = ["shop"]

ABOVE_THE_MEAN = QUERIES["above_the_mean"]
# The totals of nations with more than a share of all; the number of customers with each number of orders.
SHARES = (
    "SELECT c.nation, count(*) AS n FROM orders o JOIN customers c ON o.customer = c.id WHERE c.nation IS NOT NULL "
    "GROUP BY c.nation HAVING count(*) > (SELECT count(*) * 0.2 FROM orders)",
    {"nation": "long", "n": "long"},
    "nation",
)
# Inner sums of doubles.
TOTALS_OF_TOTALS = (
    "SELECT n, count(*) AS customers, max(s) AS most FROM (SELECT customer, count(*) AS n, "
    "sum(CAST(amount AS DOUBLE)) AS s FROM orders WHERE customer IS NOT NULL GROUP BY customer HAVING count(*) > 1) "
    "GROUP BY n",
    {"n": "long", "customers": "long", "most": "double"},
    "n",
)


BLOCKS = """
target: a row for each (id)
└─ SELECT: the rows of the result with a changed row
   │  joined by c.id = inner groups 1.customer
   ├─ customers_now c: 12 rows, key (id)
   │     kept by (id): id, name
   │     a change reads inner groups 1 by (customer), all rows of inner groups 2
   ├─ inner groups 1: key (customer)
   │  │  kept by (customer), (sum(amount)): customer, sum(amount)
   │  │  a change reads customers_now by (id), all rows of inner groups 2
   │  └─ SELECT: the rows of the result with a changed row
   │     └─ orders_now: 80 rows, key (id)
   │           kept: id, customer, amount
   │           a change reads nothing else
   └─ scalar subquery: all rows
      └─ inner groups 2: one row
         │  kept: avg(s)
         │  a change reads inner groups 1 by (sum(amount)) between the old and the new value, READS
         └─ SELECT: the rows of the result with a changed row
            └─ inner groups 1: key (customer)
                  kept by (customer), (sum(amount)): customer, sum(amount)
                  a change reads nothing else
""".replace("READS", "customers_now by (id), all rows of inner groups 2")


def following(spark: SparkSession, shop: Shop, query: tuple[str, Any, Any], place: Path, **arguments: Any) -> Following:
    sql, columns, key = query
    shop.store.create_table("target", columns, key)
    return Following(spark, shop.store, sql, tables_in(sql), "target", place, arguments=arguments)


@pytest.mark.parametrize(("query", "most"), [(ABOVE_THE_MEAN, None), (SHARES, 0)])
def test_inner_groups_are_right_after_every_batch(
    spark: SparkSession,
    tmp_path: Path,
    shop: Shop,
    monkeypatch: pytest.MonkeyPatch,
    query: tuple[str, Any, Any],
    most: int | None,
) -> None:
    """With a limit of 0, tasks evaluate all queries that read other rows."""
    prepare(spark)
    if most is not None:
        monkeypatch.setattr(gathered_batches, "_MOST_ROWS", most)
    with following(spark, shop, query, tmp_path) as running:
        for number in range(4 if THOROUGH else 3):
            assert running.advance() == running.expected(), number
            if number == 1:
                running.restart()
            shop.change()
        shop.orders.delete([{"id": number} for number in range(100)])
        assert running.advance() == running.expected()


def test_a_query_with_inner_groups_that_is_killed_at_any_step_continues(
    spark: SparkSession, tmp_path: Path, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(spark)

    def advance(query: Following, reach: Callable[[str], None]) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(failpoints, "reach", reach)
            query.advance()

    with following(spark, shop, SHARES, tmp_path) as query:
        with pytest.raises(StreamingQueryException, match="marker-written"):
            advance(query, killing("marker-written"))
        query.restart()
        assert query.advance() == query.expected()
        shop.change()
        steps: list[str] = []
        query.restart()
        advance(query, steps.append)
        for point in dict.fromkeys(steps) if THOROUGH else ("rows-written", "published"):
            query.restart()
            shop.change()
            with pytest.raises(StreamingQueryException, match=point):
                advance(query, killing(point))
            query.restart()
            assert query.advance() == query.expected(), point


class Recorded(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def test_parts_of_a_query_that_are_no_queries_leave_no_errors_in_the_log(
    spark: SparkSession, tmp_path: Path, shop: Shop
) -> None:
    """pyspark logs an error with its stack trace before it is caught."""
    prepare(spark)
    correlated = (
        "SELECT c.id, (SELECT count(*) FROM orders o WHERE o.customer = c.id) AS n FROM customers c "
        "WHERE c.id < (SELECT max(amount) FROM orders)"
    )
    handler = Recorded()
    loggers = [PySparkLogger.getLogger(name) for name in QUERY_LOGGERS]
    for each in loggers:
        each.addHandler(handler)
    try:
        with following(spark, shop, (correlated, {"id": "long", "n": "long"}, "id"), tmp_path) as query:
            assert query.advance() == query.expected()
        assert handler.records == []
        with pytest.raises(AnalysisException):
            spark.sql("SELECT nothing FROM VALUES (1) AS t (a)")
        assert len(handler.records) == 1
    finally:
        for each in loggers:
            each.removeHandler(handler)


def test_a_batch_reads_the_changed_groups_alone(
    spark: SparkSession, tmp_path: Path, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(spark)
    read: list[int] = []
    views = Gathering.views

    def counted(*arguments: Any) -> Mapping[str, TableViews] | None:
        found = views(*arguments)
        read.extend(each.rows.num_rows for each in (found or {}).values())
        return found

    monkeypatch.setattr(Gathering, "views", counted)
    with following(spark, shop, TOTALS_OF_TOTALS, tmp_path, allow_full_read=False) as query:
        assert query.advance() == query.expected()
        for number in range(2):
            shop.orders.put({"id": 1, "customer": 3, "amount": number, "note": ""})
            shop.orders.delete({"id": 2 + number})
            assert query.advance() == query.expected()
            # The old and the new form of two rows, and of the totals of up to three customers.
            assert 0 < sum(read) <= 10
            read.clear()
            query.restart()


def test_tasks_over_all_rows_touch_the_changed_groups_alone(
    spark: SparkSession, tmp_path: Path, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(spark)
    monkeypatch.setattr(gathered_batches, "_MOST_ROWS", 0)
    touched: list[int] = []
    of_groups = Arranged.of_groups

    def counted(arranged: Arranged, groups: pa.Table, tables: Mapping[str, Table] | None) -> TableChange:
        touched.append(groups.num_rows)
        return of_groups(arranged, groups, tables)

    with following(spark, shop, TOTALS_OF_TOTALS, tmp_path) as query:
        assert query.advance() == query.expected()
        monkeypatch.setattr(Arranged, "of_groups", counted)
        shop.orders.put({"id": 1, "customer": 3, "amount": 7, "note": ""})
        assert query.advance() == query.expected()
    # The customer of the old row and that of the new one.
    assert touched in ([1], [2])


@pytest.mark.parametrize("changed", ["one", "many"])
def test_changed_groups_that_tasks_have_computed_are_in_the_driver_only_if_they_are_few(
    spark: SparkSession, tmp_path: Path, shop: Shop, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    prepare(spark)
    monkeypatch.setattr(gathered_batches, "_MOST_ROWS", 2)
    shop.nations.put({"id": 7, "label": "n7"})
    shop.customers.put({"id": 20, "name": "c20", "nation": 7})
    shop.orders.put([{"id": number, "customer": 20, "amount": 1, "note": ""} for number in range(200, 205)])
    sql = (
        "SELECT l, count(*) AS customers, sum(n) AS orders FROM (SELECT o.customer, count(*) AS n, max(n.label) AS l "
        "FROM orders o JOIN customers c ON o.customer = c.id JOIN nations n ON c.nation = n.id GROUP BY o.customer) "
        "GROUP BY l"
    )
    columns = {"l": "string", "customers": "long", "orders": "long"}
    large: list[bool] = []
    small = GatheredBatch._small

    def noted(batch: GatheredBatch, *arguments: Any) -> Change | None:
        found = small(batch, *arguments)
        large.append(isinstance(found, LargeChange))
        return found

    with following(spark, shop, (sql, columns, "l"), tmp_path) as query:
        assert query.advance() == query.expected()
        monkeypatch.setattr(GatheredBatch, "_small", noted)
        counts = rows_in_driver(monkeypatch)
        # One nation has one customer, with five orders; the others have several.
        shop.nations.put([{"id": number, "label": "new"} for number in ([7] if changed == "one" else [0, 1, 2])])
        assert query.advance() == query.expected()
        assert large == [changed == "many"]
        # The old and the new form of what has changed.
        assert max(counts) <= 6
        # The kept groups are right.
        shop.nations.delete({"id": 1})
        shop.orders.delete([{"id": number} for number in range(40)])
        assert query.advance() == query.expected()
        shop.change()
        assert query.advance() == query.expected()


def test_a_changed_inner_query_is_computed_again(spark: SparkSession, tmp_path: Path, shop: Shop) -> None:
    with following(spark, shop, ABOVE_THE_MEAN, tmp_path) as query:
        query.advance()
        shop.change()
        query.advance()
        before = {name for name in shop.store.tables() if "state" in name}
        query.restart()
        shop.change()
        query.sql = query.sql.replace("avg(s)", "min(s) + 1")
        query.arguments = {"replace": True}
        assert query.advance() == query.expected()
        # Those with the rows of orders and customers.
        assert len(before & set(shop.store.tables())) == 2
        query.restart()
        query.arguments = {}
        shop.change()
        assert query.advance() == query.expected()


def test_the_blocks_of_inner_groups_are_shown(spark: SparkSession, tmp_path: Path, shop: Shop) -> None:
    shop.store.create_table("target", ABOVE_THE_MEAN[1], ABOVE_THE_MEAN[2])
    with sql_session(spark, tmp_path) as sql:
        explain(sql, shop)


def explain(sql: StreamingSql, shop: Shop) -> None:
    for name in ("orders", "customers"):
        sql.run(
            f'CREATE TABLE {name} USING headrace OPTIONS (store = "{shop.store.url}", table = "{name}");'
            f"CREATE TUNNEL means ON {name};"
            f'CREATE SCAN {name}_now ON {name} USING STREAM OPTIONS (tunnel = "means", readAs = "table")'
        )
    sql.run(f'CREATE TABLE target USING headrace OPTIONS (store = "{shop.store.url}", table = "target")')
    text = ABOVE_THE_MEAN[0].replace("FROM orders", "FROM orders_now").replace("FROM customers", "FROM customers_now")
    statement = "CREATE STREAM means {} INSERT INTO target " + text
    explained = sql.run("EXPLAIN " + statement.format(""))[0].fetch()
    assert [text for name, text in explained if name == "blocks"] == [BLOCKS.strip()]
    assert not [text for name, text in explained if name == "expensive"]
