"""Statements that change tables of headrace and their rows, and Spark's errors in the dialect's words."""

from __future__ import annotations

import datetime
import decimal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import headrace
from headrace.errors import AlreadyExistsError, NotFoundError, OptionError, SqlError
from headrace.ports import Store, Table
from headrace.streaming_sql.session import StreamingSql
from tests.spark.sql_scripts import sql_session, unexpected
from tests.spark.test_following_stores import sink

DAY = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
COLUMNS = {"id": "long", "user": "string", "price": "double", "tags": "array<string>", "at": "timestamp"}
ROWS = [{"id": n, "user": f"u{n % 3}", "price": n / 2, "tags": ["a"], "at": DAY} for n in range(6)]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return headrace.open(tmp_path / "shop", create=True, synchronous="off")


@pytest.fixture
def orders(store: Store) -> Table:
    table = store.create_table("Orders", COLUMNS, "id", pre_images=True)
    table.put(ROWS)
    return table


@pytest.fixture
def session(spark: SparkSession, tmp_path: Path, orders: Table) -> Iterator[StreamingSql]:
    with sql_session(spark, tmp_path) as session:
        session.run(f"CREATE TABLE orders USING headrace OPTIONS (store = '{tmp_path / 'shop'}', table = 'Orders')")
        yield session


def rows_of(table: Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.scan().read_all().to_pylist()
    return rows


def test_rows_are_updated_with_expressions_over_the_old_row(session: StreamingSql, orders: Table) -> None:
    (result,) = session.run("UPDATE orders AS o SET price = o.price + id, o.user = NULL WHERE id < 2")
    assert result.message == "2 rows of orders updated"
    session.run("UPDATE orders SET tags = array('x', 'y'), at = timestamp'2026-02-01 00:00:00' WHERE id = 5")
    session.run("UPDATE orders SET price = 9 WHERE id = (SELECT max(id) FROM orders WHERE user = 'u1')")
    expected = [dict(row) for row in ROWS]
    expected[0] |= {"user": None}
    expected[1] |= {"user": None, "price": 1.5}
    expected[5] |= {"tags": ["x", "y"], "at": datetime.datetime(2026, 2, 1, tzinfo=datetime.UTC)}
    expected[4] |= {"price": 9.0}
    assert rows_of(orders) == expected
    (result,) = session.run("UPDATE orders SET user = 'all' WHERE false")
    assert result.message == "0 rows of orders updated"
    session.run("UPDATE orders SET user = 'all'")
    assert {row["user"] for row in rows_of(orders)} == {"all"}


def test_a_change_of_several_rows_is_one_commit(session: StreamingSql, store: Store, orders: Table) -> None:
    tunnel = store.create_tunnel("Orders", "changes", "Stream")
    session.run("UPDATE orders SET price = 1 WHERE id < 3; DELETE FROM orders WHERE id < 3")
    (channel,) = tunnel.channels()
    changes = tunnel.read(channel.id, channel.committed, 100).changes
    assert len(set(changes.versions.to_pylist())) == 2
    # Each update has its old row.
    assert changes.num_rows == 9


def test_rows_are_deleted(session: StreamingSql, orders: Table) -> None:
    (result,) = session.run("DELETE FROM orders WHERE user = 'u2' OR price < 0.5")
    assert result.message == "3 rows of orders deleted"
    assert [row["id"] for row in rows_of(orders)] == [1, 3, 4]
    session.run("DELETE FROM orders")
    assert rows_of(orders) == []
    orders.put(ROWS)
    session.run("TRUNCATE TABLE orders")
    assert rows_of(orders) == []


def test_columns_are_added_and_shown(session: StreamingSql, orders: Table, tmp_path: Path) -> None:
    session.run("ALTER TABLE orders ADD COLUMNS (city STRING, n INT); ALTER TABLE orders ADD COLUMN z DATE")
    session.run("UPDATE orders SET city = 'Bern' WHERE id = 1")
    assert session.run("SELECT city, n, z FROM orders WHERE id = 1")[0].fetch() == [("Bern", None, None)]
    session.run("ALTER TABLE orders ADD COLUMN IF NOT EXISTS city STRING")
    with pytest.raises(AlreadyExistsError, match="IF NOT EXISTS"):
        session.run("ALTER TABLE orders ADD COLUMN City STRING")
    ((text,),) = session.run("SHOW CREATE TABLE orders")[0].fetch()
    # The statement creates the same table elsewhere.
    session.run(f"DROP TABLE orders; {text.replace(str(tmp_path / 'shop'), str(tmp_path / 'other'))}")
    with headrace.open(tmp_path / "other") as other:
        assert other.table("Orders").schema == orders.schema
        assert other.table("Orders").describe().options == orders.describe().options


def test_a_script_with_added_columns_runs_again(session: StreamingSql, tmp_path: Path) -> None:
    script = (
        f"CREATE TABLE more (id BIGINT, PRIMARY KEY (id)) USING headrace OPTIONS (store = '{tmp_path / 'shop'}');"
        "ALTER TABLE more ADD COLUMN IF NOT EXISTS n INT"
    )
    session.run(script)
    session.run(script)
    with pytest.raises(AlreadyExistsError, match="headrace table drop more"):
        session.run(script.replace("(id BIGINT", "(id STRING"))


def test_inserted_values_become_those_of_the_columns_or_are_refused(
    spark: SparkSession, session: StreamingSql, store: Store, tmp_path: Path
) -> None:
    session.run(
        "CREATE TABLE kinds (id BIGINT, d DOUBLE, f FLOAT, day DATE, s VARCHAR, i INT, at TIMESTAMP, m DECIMAL(5,2), "
        f"PRIMARY KEY (id)) USING headrace OPTIONS (store = '{tmp_path / 'shop'}');"
        "INSERT INTO kinds (id, d, f, day, s, i, at, m) "
        "VALUES (1, 2.5, 2.5, TIMESTAMP '2026-01-02 03:00:00', 2.5, 2.5, DATE '2026-01-01', 2.567);"
        "UPDATE kinds SET d = 3.5, s = id, i = 7L"
    )
    expected = {"id": 1, "d": 3.5, "f": 2.5, "day": datetime.date(2026, 1, 2), "s": "1", "i": 7, "at": DAY}
    expected |= {"m": decimal.Decimal("2.57")}
    assert rows_of(store.table("kinds")) == [expected]
    for ansi in ("true", "false"):
        spark.conf.set("spark.sql.ansi.enabled", ansi)
        for statement, value in (
            ("INSERT INTO kinds (id, i) VALUES (1, 5000000000L)", "5000000000"),
            ("INSERT INTO kinds (id, m) SELECT id, id + 1000 FROM kinds", "1001"),
            ("UPDATE kinds SET i = 5000000000L", "5000000000"),
        ):
            with pytest.raises(SqlError, match=f"a value does not fit column .*; received: {value}; valid: (int|dec)"):
                session.run(statement)
    assert rows_of(store.table("kinds")) == [expected]


def test_secrets_of_set_are_not_shown(session: StreamingSql) -> None:
    shown = session.run(
        "SET password=pa$$; SET spark.app.passphrase = 'pass phrase'; SET spark.app.url=postgresql://u:wordpass@h/d;"
        "SET spark.sql.shuffle.partitions=3; SET; SET -v"
    )
    rows = [row for result in shown for row in result.fetch()]
    assert ("password", "***") in rows
    assert ("spark.sql.shuffle.partitions", "3") in rows
    assert not any(secret in str(rows) for secret in ("pa$$", "pass phrase", "wordpass"))
    assert [row[:2] for row in rows if row[1] == "***" and "spark.sql." in row[0]] == []


REFUSED = [
    ("UPDATE orders SET prise = 1", "did you mean price"),
    ("UPDATE orders SET id = 1", "INSERT the row with its new key"),
    ("UPDATE orders SET price = 1, price = 2", "set twice"),
    ("UPDATE orders SET price = 1 FROM other WHERE true", "UPDATE has no FROM"),
    ("UPDATE orders SET price = DEFAULT", "columns have no DEFAULT"),
    (
        "UPDATE orders SET price = 'abc' WHERE false",
        r"column 'price'.*received: string; valid: double; CAST\(price",
    ),
    ("UPDATE orders SET price = user_prise(1)", "no such function; received: user_prise; [^`]*$"),
    ("UPDATE orders SET price = CAST('abc' AS DOUBLE)", r"value 'abc' .* received: CAST\('abc' AS DOUBLE\)\nin"),
    ("INSERT INTO orders SELECT 9 AS id, 'x' AS price", "^column 'price' .*received: string; valid: double"),
    ("INSERT INTO orders SELECT 9 AS id, 1 AS prize", "does not have a column of the query; received: 'prize'"),
    ("DELETE orders WHERE id = 1", "line 1, column 1: DELETE needs FROM.*write DELETE FROM orders WHERE"),
    ("REPLACE INTO orders VALUES (1)", "INSERT INTO a table with a primary key replaces"),
    ("REPLACE TABLE orders (id BIGINT) USING parquet", "INSERT OVERWRITE orders SELECT"),
    ("CREATE OR REPLACE TABLE fresh (id BIGINT) USING headrace", "table fresh cannot be replaced"),
    ("SELECT sume(price) FROM orders", "line 1, column 8: no such function; received: sume; did you mean sum"),
    ("SELECT id\nFRM orders o", r"^line 2, column 5: Syntax error at or near 'orders'\n  FRM"),
    ("SELECT price + array(1) FROM orders", r"^line 1, column 8: Cannot resolve [^\n]*\)\n  SELECT"),
    ("SELECT 1 / (id - id) FROM orders", r"^Division by zero.*received: 1 / \(id - id\)$"),
    ("UPDATE changes SET price = 1", "changes is a scan.*name its table, orders"),
    ("DELETE FROM views", "a queue, whose rows never change"),
    ("DELETE FROM files WHERE id = 1", "INSERT OVERWRITE files"),
    ("ALTER TABLE orders DROP COLUMN price", "can only add columns"),
    ("ALTER TABLE orders ADD COLUMN z strin", "unknown column type"),
    ("ALTER TABLE orders ADD COLUMN z INT DEFAULT 1", "the end of the statement"),
    ("ALTER TABLE orders ADD COLUMNS (z INT PRIMARY KEY)", "a column of the key cannot be added"),
    (
        "MERGE INTO orders USING changes ON orders.id = changes.id WHEN MATCHED THEN DELETE",
        "CREATE STREAM name MERGE",
    ),
    ("CREATE MATERIALIZED VIEW v AS SELECT 1", "readAs = 'table'"),
    ("CREATE OR REFRESH STREAMING TABLE v AS SELECT 1", "CREATE STREAM"),
    ("SELECT * FROM changes", "SELECT … FROM orders"),
    ("SELECT usr FROM orders", r"line 1, column 8: no such column; received: usr; .*did you mean user"),
    (
        "SELECT user FROM orders o WHERE NOT EXISTS (SELECT 1 FROM orders p WHERE NOT EXISTS "
        "(SELECT 1 FROM orders q WHERE q.id = o.id AND q.price = p.price))",
        r"no such column; received: o\.id; valid: .*q\.id.*; name a table of this FROM",
    ),
    ("SELECT user FROM ordes", "no such table or scan; received: ordes; .*did you mean orders"),
    ("CREATE STREAM s INSERT INTO ordes SELECT id FROM changes", "INSERT INTO ordes; .*did you mean orders"),
    (
        "CREATE STREAM s OPTIONS (checkpointLocation = 'cp') INSERT INTO ordes SELECT id FROM changes",
        "did you mean orders",
    ),
    (
        "CREATE STREAM s INSERT INTO copies SELECT id, usr FROM now WHERE price > 1",
        "no such column; received: usr; .*did you mean user[^+]*$",
    ),
    (
        "EXPLAIN CREATE STREAM s INSERT INTO copies SELECT id, usr FROM now",
        "no such column; received: usr; .*did you mean user[^+]*$",
    ),
    (
        "CREATE STREAM s INSERT INTO copies SELECT id, sume(price) AS price FROM now GROUP BY id",
        "no such function; received: sume; did you mean sum[^+]*$",
    ),
    (
        "CREATE STREAM s MERGE INTO copies USING changes ON copies.id = changes.id "
        "WHEN MATCHED THEN UPDATE SET price = changes.prise",
        "no such column; received: prise; .*did you mean price[^+]*$",
    ),
    ("CREATE STREAM s INSERT INTO copies SELECT id FROM changes ORDER BY id LIMIT 3", "a top n of groups"),
    ("CREATE TABLE d USING delta LOCATION '/nowhere'", "spark.jars.packages=io.delta"),
    ("CREATE TABLE d (id INT) USING delta", "spark.jars.packages=io.delta"),
    ("CREATE TABLE d USING avro LOCATION '/nowhere'", "spark.jars.packages=org.apache.spark:spark-avro"),
]


def test_refused_statements_say_what_to_write(
    session: StreamingSql, orders: Table, store: Store, tmp_path: Path
) -> None:
    store.create_tunnel("Orders", "changes")
    session.run(
        "CREATE SCAN changes ON orders USING STREAM OPTIONS (tunnel = 'changes');"
        "CREATE SCAN now ON orders USING STREAM OPTIONS (tunnel = 'changes', readAs = 'table');"
        "CREATE TABLE copies (id BIGINT, price DOUBLE, PRIMARY KEY (id)) "
        f"USING headrace OPTIONS (store = '{tmp_path / 'shop'}');"
        f"CREATE QUEUE views (id INT) OPTIONS (store = '{tmp_path / 'shop'}');"
        f"CREATE TABLE files (id INT) USING parquet LOCATION '{tmp_path / 'files'}'"
    )
    assert unexpected(session, REFUSED) == {}
    assert rows_of(orders) == ROWS


def test_a_top_n_of_groups_is_kept_in_complete_mode(session: StreamingSql, store: Store, tmp_path: Path) -> None:
    store.create_tunnel("Orders", "changes")
    session.run(
        "CREATE SCAN changes ON orders USING STREAM OPTIONS (tunnel = 'changes');"
        "CREATE TABLE top (user STRING, spent DOUBLE, PRIMARY KEY (user)) "
        f"USING headrace OPTIONS (store = '{tmp_path / 'shop'}');"
        "CREATE STREAM keep OPTIONS (outputMode = 'complete') INSERT INTO top "
        "SELECT user, sum(price) AS spent FROM changes GROUP BY user ORDER BY spent DESC LIMIT 2",
        available_now=True,
    )
    assert session.wait(120)
    assert rows_of(store.table("top")) == [{"user": "u1", "spent": 2.5}, {"user": "u2", "spent": 3.5}]


def test_a_failed_script_leaves_no_table_that_stops_the_corrected_one(
    session: StreamingSql, store: Store, tmp_path: Path
) -> None:
    script = (
        f"CREATE TABLE totals (user STRING, n BIGINT, PRIMARY KEY (user)) USING headrace "
        f"OPTIONS (store = '{tmp_path / 'shop'}'); INSERT INTO totals SELECT usr, 1 AS n FROM orders"
    )
    with pytest.raises(SqlError, match="did you mean user") as caught:
        session.run(script)
    assert caught.value.__notes__[0].startswith("in statement 2 of 2")
    assert store.tables() == ["Orders"]
    session.run(script.replace("usr", "user").replace("BIGINT", "INT"))
    assert len(rows_of(store.table("totals"))) == 3
    # A table with rows stays.
    with pytest.raises(NotFoundError):
        session.run("INSERT INTO totals SELECT 'x' AS user, 1 AS n; SELECT * FROM nothing")
    assert len(rows_of(store.table("totals"))) == 4


def test_a_script_is_checked_before_its_first_statement_runs(
    session: StreamingSql, store: Store, tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match="did you mean tunnel") as caught:
        session.run(
            f"CREATE TABLE t (id BIGINT, PRIMARY KEY (id)) USING headrace OPTIONS (store = '{tmp_path / 'shop'}');"
            "CREATE SCAN s ON t USING STREAM OPTIONS (tunel = 'x')"
        )
    assert caught.value.__notes__[0].startswith("in statement 2 of 2")
    assert store.tables() == ["Orders"]


@pytest.mark.parametrize("kind", ["postgres", "tablestore", "ytsaurus"])
def test_rows_change_in_every_store(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    with sink(kind, tmp_path) as place, sql_session(spark, tmp_path) as session:
        name = f"{'//home/' if kind == 'ytsaurus' else ''}rows_{uuid.uuid4().hex[:8]}"
        table = place.store.create_table(name, {"id": "long", "user": "string", "price": "double"}, "id")
        table.put([{"id": n, "user": "u", "price": n / 2} for n in range(4)])
        options = {"store": place.store.url, "table": name, **place.options}
        given = ", ".join(f"{option} = '{value}'" for option, value in options.items())
        session.run(f"CREATE TABLE t USING headrace OPTIONS ({given})")
        session.run("UPDATE t SET user = NULL, price = price + 1 WHERE id > 2; DELETE FROM t WHERE id IN (0, 1)")
        assert rows_of(table) == [{"id": 2, "user": "u", "price": 1.0}, {"id": 3, "user": None, "price": 2.5}]
        session.run("TRUNCATE TABLE t")
        assert rows_of(table) == []
