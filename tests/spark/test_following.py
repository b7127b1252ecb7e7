"""Queries that follow tables: after each batch the target is the result over the current rows."""

from __future__ import annotations

import datetime
from contextlib import ExitStack
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import headrace
from headrace.derived.follow import static_tables
from headrace.errors import HeadraceError, OptionError
from headrace.ports import Store, Table
from tests.spark.following import Following, scan

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


REGIONS = "CREATE TEMPORARY VIEW regions AS SELECT * FROM VALUES ('u0', 'north'), ('u1', 'south') AS (user, region)"
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


def test_joins_windows_unions_and_aggregates_are_followed(
    spark: SparkSession, store: Store, orders: Table, tmp_path: Path
) -> None:
    spark.sql(
        "CREATE TEMPORARY VIEW regions AS SELECT * FROM VALUES ('u0', 'north'), ('u1', 'south') AS (user, region)"
    )
    visits = store.create_table("visits", {**COLUMNS, "id": "int"}, "id", pre_images=True)
    visits.put([row(number, "u1", 2.0) for number in range(4)])
    store.create_table("per_region", {"region": "string", "n": "long", "s": "double"}, "region")
    store.create_table("per_window", {"start": "string", "n": "long", "low": "double"}, "start")
    store.create_table("all_rows", {"key": "string", "n": "long", "s": "double"}, "key")
    store.create_table("both", {"origin": "string", "id": "long", "price": "double"}, ["origin", "id"])
    store.create_table("with_region", {"id": "long", "region": "string"}, "id")
    queries = {
        "per_region": "SELECT region, count(*) AS n, sum(price) AS s FROM orders o LEFT JOIN regions r "
        "ON o.user = r.user WHERE region IS NOT NULL GROUP BY region",
        "per_window": "SELECT CAST(window.start AS STRING) AS start, count(*) AS n, min(price) AS low FROM orders "
        "GROUP BY window(at, '4 minutes')",
        "all_rows": "SELECT 'all' AS key, count(*) AS n, sum(price) AS s FROM orders WHERE price > 3",
        "both": "SELECT 'orders' AS origin, id, price FROM orders UNION ALL SELECT 'visits', id, price FROM visits",
        "with_region": "SELECT id, region FROM orders JOIN regions ON orders.user = regions.user",
    }
    with ExitStack() as stack:
        running = [
            stack.enter_context(
                Following(spark, store, sql, ["orders", "visits"] if target == "both" else ["orders"], target, tmp_path)
            )
            for target, sql in queries.items()
        ]
        for change in (
            lambda: None,
            lambda: (orders.put([row(0, "u1", 7.0), row(4, "u0", 2.5)]), orders.delete([{"id": 1}, {"id": 3}])),
            lambda: orders.delete([{"id": number} for number in range(9)]),
        ):
            change()
            for following in running:
                assert following.advance() == following.expected(), following.target


def test_queries_that_cannot_be_followed_are_refused_before_they_start(
    spark: SparkSession, store: Store, orders: Table, tmp_path: Path
) -> None:
    spark.sql("CREATE TEMPORARY VIEW regions AS SELECT 'u0' AS user, 'north' AS region")
    for name, key in {"by_user": "user", "by_id": "id"}.items():
        store.create_table(name, {"user": "string", "id": "long", "n": "long"}, key)
    store.table("by_user").put([{"user": "old", "id": 1, "n": 1}])
    store.create_tunnel("orders", "changes", kind="BaseAndStream")
    followed = scan(spark, store, "changes")
    changes = spark.readStream.format("headrace").options(store=store.url, tunnel="changes").load()
    changes.createOrReplaceTempView("changes")

    def refused(sql: str, table: str, df: DataFrame = followed) -> str:
        try:
            headrace.follow(
                spark, sql, scans={"o": df}, store=store.url, table=table, checkpoint=tmp_path / "c"
            ).start()
        except HeadraceError as error:
            return str(error)
        return "started"

    count = "SELECT user, count(*) AS n FROM o GROUP BY user"
    assert "table 'by_user' has rows" in refused(count, "by_user")
    assert "overwrite" in refused(count, "by_user")
    assert "does not have readAs" in refused(count, "by_user", changes)
    assert "key column 'id'" in refused("SELECT count(*) AS id, user FROM o GROUP BY user", "by_id")
    assert "valid: also user" in refused("SELECT id, user, count(*) AS n FROM o GROUP BY id, user", "by_id")
    assert "key of scan 'o'" in refused("SELECT user, id + 1 AS id FROM o", "by_user")
    assert "no column for a key column" in refused("SELECT user, count(*) AS n FROM o GROUP BY user", "by_id")
    assert "changes is a stream" in refused("SELECT o.id, c.user FROM o JOIN changes c ON o.id = c.id", "by_id")
    assert "a column of the query" in refused("SELECT user, count(*) AS other FROM o GROUP BY user", "by_user")
    windows = "SELECT CAST(window.start AS STRING) AS user, count(*) AS n FROM o GROUP BY window(at, '1 hour')"
    assert "table 'by_user' has rows" in refused(windows, "by_user")
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    assert "two groups can have the same text in key column 'user'" in refused(windows, "by_user")


def test_a_new_query_replaces_the_rows_and_the_state_of_an_earlier_one(
    spark: SparkSession, store: Store, orders: Table, tmp_path: Path
) -> None:
    store.create_table("totals", {"user": "string", "n": "long"}, "user")
    sql = "SELECT user, count(*) AS n FROM orders GROUP BY user"
    with Following(spark, store, sql, ["orders"], "totals", tmp_path) as first:
        first.advance()
    (state,) = [name for name in store.tables() if name.startswith("__headrace_state_totals_")]
    orders.delete([{"id": number} for number in (0, 3, 6)])
    store.drop_tunnel("totals_orders", "orders")
    with Following(
        spark, store, sql, ["orders"], "totals", tmp_path / "again", arguments={"overwrite": True}
    ) as second:
        assert second.advance() == [{"user": "u1", "n": 3}, {"user": "u2", "n": 3}]
    assert state not in store.tables()
    # The first query has lost its state.
    with pytest.raises(StreamingQueryException, match=r"another query follows a table|no record of this batch"):
        first.advance()


def test_a_restart_needs_the_same_query_functions_and_static_tables(
    spark: SparkSession, store: Store, orders: Table, tmp_path: Path
) -> None:
    spark.sql(
        "CREATE TEMPORARY VIEW regions AS SELECT * FROM VALUES ('u0', 'north'), ('u1', 'south') AS (user, region)"
    )
    store.create_table("totals", {"region": "string", "n": "long"}, "region")
    spark.sql("CREATE TEMPORARY FUNCTION wanted(price DOUBLE) RETURNS BOOLEAN RETURN price > 0")
    sql = "SELECT region, count(*) AS n FROM orders JOIN regions USING (user) WHERE wanted(price) GROUP BY region"
    following = Following(spark, store, sql, ["orders"], "totals", tmp_path)
    with following:
        assert following.advance() == following.expected()
    with pytest.raises(OptionError, match="another query"):
        replace(following, sql=sql.replace("count(*)", "count(DISTINCT price)")).start()
    spark.sql("CREATE OR REPLACE TEMPORARY FUNCTION wanted(price DOUBLE) RETURNS BOOLEAN RETURN price > 1")
    with pytest.raises(OptionError, match="another function wanted"):
        following.start()
    spark.sql("CREATE OR REPLACE TEMPORARY FUNCTION wanted(price DOUBLE) RETURNS BOOLEAN RETURN price > 0")
    spark.sql("CREATE OR REPLACE TEMPORARY VIEW regions AS SELECT 'u0' AS user, 'south' AS region")
    with pytest.raises(OptionError, match=r"another static table regions.*overwrite"):
        following.start()
    spark.sql("DROP TEMPORARY FUNCTION wanted")


def test_rows_of_a_static_table_that_executors_lose_are_read_again(
    spark: SparkSession, store: Store, orders: Table, tmp_path: Path
) -> None:
    file = tmp_path / "regions.json"
    file.write_text('{"user": "u0", "region": "north"}\n{"user": "u1", "region": "south"}\n')
    spark.read.schema("user string, region string").json(str(file)).createOrReplaceTempView("lost_regions")
    store.create_table("totals", {"region": "string", "n": "long"}, "region")
    sql = "SELECT region, count(*) AS n FROM orders JOIN lost_regions USING (user) GROUP BY region"
    with Following(spark, store, sql, ["orders"], "totals", tmp_path) as following:
        for number in (100, 101):
            orders.put([{"id": number, "user": "u1"}])
            assert following.advance() == following.expected()
            lose_kept_rows(spark)
        file.write_text('{"user": "u1", "region": "north"}\n')
        orders.put([{"id": 102, "user": "u1"}])
        with pytest.raises(StreamingQueryException, match=r"static table lost_regions, and it has other rows now"):
            following.advance()


def test_a_static_table_whose_rows_are_not_lost_can_change(
    spark: SparkSession, store: Store, orders: Table, tmp_path: Path
) -> None:
    for name, value in (("first", "user"), ("second", "price")):
        (tmp_path / f"{name}.json").write_text(f'{{"user": "u1", "{name}": "{value}"}}\n')
        kept = spark.read.schema(f"user string, {name} string").json(str(tmp_path / f"{name}.json"))
        kept.createOrReplaceTempView(f"kept_{name}")
    store.create_table("totals", {"first": "string", "second": "string", "n": "long"}, ["first", "second"])
    sql = (
        "SELECT first, second, count(*) AS n FROM orders JOIN kept_first USING (user) JOIN kept_second USING (user)"
        " GROUP BY first, second"
    )
    before = kept_rows(spark)
    with Following(spark, store, sql, ["orders"], "totals", tmp_path) as following:
        expected = following.advance()
        (tmp_path / "first.json").write_text('{"user": "u1", "first": "changed"}\n')
        first, second = sorted(kept_rows(spark).keys() - before.keys())
        kept_rows(spark)[second].unpersist(True)
        orders.put([{"id": 100, "user": "u1"}])
        assert following.advance() == [{**row, "n": row["n"] + 1} for row in expected]
        assert first in kept_rows(spark)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id, user FROM orders WHERE user IN (TABLE wanted)",
        "FROM orders |> JOIN wanted USING (user) |> SELECT id, user",
    ],
)
def test_a_static_table_is_the_same_in_each_batch_wherever_it_is_named(
    spark: SparkSession, store: Store, orders: Table, tmp_path: Path, sql: str
) -> None:
    (tmp_path / "wanted.json").write_text('{"user": "u1"}\n')
    spark.read.schema("user string").json(str(tmp_path / "wanted.json")).createOrReplaceTempView("wanted")
    store.create_table("chosen", {"id": "long", "user": "string"}, "id")
    with Following(spark, store, sql, ["orders"], "chosen", tmp_path) as following:
        expected = following.advance()
        (tmp_path / "wanted.json").write_text('{"user": "u2"}\n')
        orders.put([{"id": 100, "user": "u1"}, {"id": 101, "user": "u2"}])
        assert following.advance() == [*expected, {"id": 100, "user": "u1"}]


def test_rows_of_static_tables_are_on_two_executors_of_other_machines(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark.sql("CREATE OR REPLACE TEMPORARY VIEW replicated AS SELECT 1 AS id")
    for is_local, copies in ((True, 1), (False, 2)):
        monkeypatch.setattr(static_tables, "is_this_machine", lambda _, is_local=is_local: is_local)
        before = kept_rows(spark)
        with static_tables.read_static_tables(spark, ["replicated"]) as (table,):
            (made,) = kept_rows(spark).keys() - before.keys()
            assert kept_rows(spark)[made].getStorageLevel().replication() == copies
        spark.catalog.dropTempView(table.view)


def lose_kept_rows(spark: SparkSession) -> None:
    """Delete the rows that executors keep for the driver, as the loss of an executor does."""
    for rows in kept_rows(spark).values():
        rows.unpersist(True)


def kept_rows(spark: SparkSession) -> dict[int, Any]:
    """Return what executors keep for the driver, by the ids that Spark gives in order."""
    context: Any = spark.sparkContext._jsc
    return dict(context.getPersistentRDDs())
