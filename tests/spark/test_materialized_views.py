"""Materialized views: a statement creates the table, the tunnels and the stream of a query."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import headrace
from headrace.errors import AlreadyExistsError, NotFoundError, OptionError, SqlError
from headrace.ports import Store
from headrace.streaming_sql.session import StreamingSql
from tests.spark.sql_scripts import sql_session

# Views with their keys: of groups, of the table, of the joined table that determines the row, of a window, of rows
# without others.
VIEWS = {
    "totals": ("SELECT city, count(*) AS n FROM orders JOIN users USING (user) GROUP BY city", ("city",)),
    "large": ("SELECT price * 2 AS twice, id FROM orders WHERE price > 1", ("id",)),
    "places": ("SELECT u.city, o.id, u.user FROM orders o JOIN users u ON o.user = u.user", ("id",)),
    "so_far": ("SELECT id, sum(price) OVER (PARTITION BY user ORDER BY id) AS so_far FROM orders", ("id",)),
    "alone": ("SELECT city, user FROM users WHERE user NOT IN (SELECT user FROM orders)", ("user",)),
}


@pytest.fixture
def shop(tmp_path: Path) -> Store:
    store = headrace.open(tmp_path / "shop", create=True, synchronous="off")
    orders = store.create_table("orders", {"id": "long", "user": "string", "price": "long"}, "id", pre_images=True)
    users = store.create_table("users", {"user": "string", "city": "string"}, "user", pre_images=True)
    store.create_table("plain", {"id": "long"}, "id")
    orders.put([{"id": n, "user": f"u{n % 3}", "price": n} for n in range(6)])
    users.put([{"user": f"u{n}", "city": f"c{n % 2}"} for n in range(4)])
    return store


def define(sql: StreamingSql, store: Store) -> None:
    sql.run(f"""
        CREATE TABLE orders USING headrace OPTIONS (store = '{store.url}', table = 'orders');
        CREATE TABLE users USING headrace OPTIONS (store = '{store.url}', table = 'users');
        CREATE TABLE plain USING headrace OPTIONS (store = '{store.url}', table = 'plain');
    """)


def test_a_view_has_the_columns_the_key_and_the_rows_of_its_query(
    spark: SparkSession, shop: Store, tmp_path: Path
) -> None:
    with sql_session(spark, tmp_path) as sql:
        define(sql, shop)
        for name, (query, key) in VIEWS.items():
            sql.run(f"CREATE MATERIALIZED VIEW {name} AS {query}", available_now=True)
            sql.wait()
            assert shop.table(name).schema.primary_key == key
            rows = sorted(tuple(row) for row in sql.run(query)[0].fetch())
            assert sorted(sql.run(f"SELECT * FROM {name}")[0].fetch()) == rows
        shown = sql.run("SHOW MATERIALIZED VIEWS")[0].fetch()
        assert [(row[0], row[-1]) for row in shown] == sorted((name, query) for name, (query, _) in VIEWS.items())
        described = sql.run("DESCRIBE MATERIALIZED VIEW totals")[0].fetch()
        assert ("column", "n long") in described
        assert ("primary key", "city") in described


def test_a_view_continues_and_is_dropped_with_all_that_it_has(spark: SparkSession, shop: Store, tmp_path: Path) -> None:
    before = shop.tables()
    with sql_session(spark, tmp_path) as sql:
        define(sql, shop)
        create = "CREATE MATERIALIZED VIEW totals AS SELECT user, sum(price) AS spent FROM orders GROUP BY user"
        sql.run(create, available_now=True)
        sql.wait()
        shop.table("orders").put({"id": 7, "user": "u1", "price": 100})
        (again,) = sql.run(create.replace("VIEW", "VIEW IF NOT EXISTS").replace("sum", "max"), available_now=True)
        sql.wait()
        assert again.message == "stream totals started again from its checkpoint"
        assert shop.table("totals").get({"user": "u1"}) == {"user": "u1", "spent": 105}
        with pytest.raises(AlreadyExistsError, match="CREATE OR REPLACE MATERIALIZED VIEW totals"):
            sql.run(create.replace("sum", "max"))
        sql.run(create.replace("CREATE", "CREATE OR REPLACE").replace("sum", "max"), available_now=True)
        sql.wait()
        assert shop.table("totals").get({"user": "u1"}) == {"user": "u1", "spent": 100}
        sql.run("DROP MATERIALIZED VIEW totals")
        assert [name for name in shop.tables() if "followed" not in name] == before
        assert shop.tunnels("orders") == []
        assert sql.streams() == []
        # The checkpoint and the tunnel of the next one are new.
        sql.run(create, available_now=True)
        sql.wait()
        assert shop.table("totals").get({"user": "u1"}) == {"user": "u1", "spent": 105}


def test_a_column_that_others_determine_is_not_in_the_key(spark: SparkSession, shop: Store, tmp_path: Path) -> None:
    query = "SELECT user, city, count(*) AS n FROM orders JOIN users USING (user) GROUP BY user, city"
    with sql_session(spark, tmp_path) as sql:
        define(sql, shop)
        for city in ("c0", None, "c9"):
            shop.table("users").put({"user": "u1", "city": city})
            sql.run(f"CREATE MATERIALIZED VIEW v AS {query}", available_now=True)
            sql.wait()
            assert shop.table("v").get({"user": "u1"}) == {"user": "u1", "city": city, "n": 2}
        assert shop.table("v").schema.primary_key == ("user",)
        assert len(list(shop.table("v"))) == 3


def test_explain_shows_a_view_and_creates_nothing(spark: SparkSession, shop: Store, tmp_path: Path) -> None:
    before = shop.tables()
    query = "SELECT city, count(*) AS n FROM orders JOIN users USING (user) GROUP BY city"
    with sql_session(spark, tmp_path) as sql:
        define(sql, shop)
        (explained,) = sql.run(f"EXPLAIN CREATE MATERIALIZED VIEW totals AS {query}")
        assert (shop.tables(), shop.tunnels("orders"), sql.streams()) == (before, [], [])
        sql.run(f"CREATE MATERIALIZED VIEW totals AS {query}", available_now=True)
        sql.wait()
        assert shop.table("totals").schema.primary_key == ("city",)
        rows = explained.fetch()
        assert ("column", "n long") in rows
        assert ("primary key", "city") in rows
        # What is kept, and the guarantee, are those of the stream that then runs.
        kept = [row for row in sql.run("EXPLAIN STREAM totals")[0].fetch() if row[0] in ("state tables", "guarantee")]
        assert set(kept) <= set(rows)
        blocks = dict(rows)["blocks"]
        assert "groups by (city): count(*), merged with the changed rows" in blocks
        assert "orders: 6 rows, key (id)" in blocks


REFUSED: list[tuple[str, type[Exception], str]] = [
    ("CREATE MATERIALIZED VIEW v AS SELECT price FROM orders", SqlError, r"primaryKey = 'a, b'"),
    ("CREATE MATERIALIZED VIEW v AS SELECT sum(price) AS s FROM orders", SqlError, "'all' AS key"),
    ("CREATE MATERIALIZED VIEW v AS SELECT 1 AS a", SqlError, "names no table that it could follow"),
    ("CREATE MATERIALIZED VIEW v AS SELECT id FROM orders WHERE user IN (TABLE users)", SqlError, "FROM users"),
    ("CREATE MATERIALIZED VIEW v AS SELECT id FROM orders VERSION AS OF 1", SqlError, "cannot have time travel"),
    ("CREATE MATERIALIZED VIEW v OPTIONS (primaryKey = 'b') AS SELECT id FROM orders", OptionError, "received: b"),
    ("CREATE MATERIALIZED VIEW v OPTIONS (overwrite = true) AS SELECT id FROM orders", OptionError, "overwrites"),
    ("CREATE MATERIALIZED VIEW orders AS SELECT id FROM users", AlreadyExistsError, "has a table with the name"),
    ("EXPLAIN CREATE MATERIALIZED VIEW v AS SELECT price FROM orders", SqlError, r"primaryKey = 'a, b'"),
    ("EXPLAIN CREATE MATERIALIZED VIEW v AS SELECT id FROM plain", OptionError, "plain pre_images=true"),
    (
        "EXPLAIN CREATE MATERIALIZED VIEW v OPTIONS (allowFullRead = false) AS "
        "SELECT o.id, u.user FROM orders o JOIN users u ON o.price > length(u.city)",
        SqlError,
        "join without an equality",
    ),
    ("CREATE MATERIALIZED VIEW v AS SELECT id FROM unnamed", OptionError, "option table is missing"),
    ("CREATE TUNNEL t ON unnamed", OptionError, "option table is missing; received: table unnamed"),
    ("DROP MATERIALIZED VIEW v", NotFoundError, "no such materialized view"),
]


def test_a_refused_view_leaves_nothing(spark: SparkSession, shop: Store, tmp_path: Path) -> None:
    before = shop.tables()
    with sql_session(spark, tmp_path) as sql:
        define(sql, shop)
        sql.run(f"CREATE TABLE unnamed USING headrace OPTIONS (store = '{shop.url}')")
        for statement, error, message in REFUSED:
            with pytest.raises(error, match=message):
                sql.run(statement)
            assert sql.run("SHOW SCANS")[0].fetch() == [], statement
    assert shop.tables() == before
    assert shop.tunnels("orders") == []


def test_the_user_can_name_the_key(spark: SparkSession, shop: Store, tmp_path: Path) -> None:
    with sql_session(spark, tmp_path) as sql:
        define(sql, shop)
        query = "SELECT user, price % 2 AS odd FROM orders WHERE id < 3"
        options = f"OPTIONS (primaryKey = 'user, odd', store = '{shop.url}', table = 'shown')"
        # Without a key of the table, the rows are gathered.
        sql.run(f"CREATE MATERIALIZED VIEW v {options} AS SELECT DISTINCT * FROM ({query})", available_now=True)
        sql.wait()
        assert shop.table("shown").schema.primary_key == ("user", "odd")
        assert len(list(shop.table("shown"))) == 3
