"""Queries that follow tables of PostgreSQL into PostgreSQL: their targets equal the SELECT that the server runs."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from pyspark.sql import SparkSession

import headrace
from headrace.model.own_names import is_internal
from headrace.ports import Store
from headrace.testing.effort import thorough
from tests.conformance import serving
from tests.postgres_server import client_program
from tests.spark.following import Following

TOTALS = """
    SELECT user, count(*) AS n, sum(price) AS s, max(price) AS high, count(DISTINCT price) AS prices,
        sum(length(note)) AS letters
    FROM orders GROUP BY user
"""
LARGE = "SELECT id, user, note FROM orders WHERE price > 5"
# Text that the server does not compress, so that it is stored out of line.
ORDERS = """
CREATE SCHEMA sales;
CREATE TABLE orders (id bigint PRIMARY KEY, "user" text, price double precision, note text);
ALTER TABLE orders REPLICA IDENTITY FULL;
ALTER TABLE orders ALTER note SET STORAGE EXTERNAL;
CREATE TABLE sales.totals ("user" text COLLATE "C" PRIMARY KEY, n bigint, s double precision, high double precision,
    prices bigint, letters bigint);
CREATE TABLE sales.large (id bigint PRIMARY KEY, "user" text, note text);
"""
# A fact and a dimension, whose keys are neither longs nor texts.
STAR = """
CREATE TABLE shops (shop smallint PRIMARY KEY, city text, open boolean);
CREATE TABLE sold (no int, day date, code numeric(6,2), at timestamptz, shop smallint, amount numeric(12,2),
    clock timestamp, PRIMARY KEY (no, day, code, at));
ALTER TABLE shops REPLICA IDENTITY FULL;
ALTER TABLE sold REPLICA IDENTITY FULL;
CREATE TABLE open_sold (LIKE sold, open boolean, PRIMARY KEY (no, day, code, at));
INSERT INTO shops SELECT n, 'c' || n, n % 2 = 0 FROM generate_series(1, 4) n;
INSERT INTO sold SELECT n % 5, date '2026-01-30' + n % 3, n / 4.0, timestamptz '2026-03-29 00:30Z' + n * interval '1 h',
    n % 5, n / 8.0, timestamp '2026-10-25 02:30:00.000001' FROM generate_series(1, 20) n;
"""
OF_SHOPS = "SELECT s.*, h.open FROM sold s JOIN shops h ON h.shop = s.shop"
OF_DAYS = "SELECT day, open, count(*) AS n, sum(amount) AS amount FROM sold JOIN shops USING (shop) GROUP BY day, open"
ADDED = """
INSERT INTO orders SELECT n, 'u' || n % 4, n / 2.0, repeat(chr(97 + n % 5), CASE n % 3 WHEN 0 THEN 10000 ELSE 5 END)
FROM generate_series({}, {}) n
"""


@pytest.fixture
def url() -> str:
    return serving.postgres_database()


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with headrace.open(url) as opened:
        yield opened


@pytest.fixture
def server(url: str) -> Iterator[psycopg.Connection[dict[str, Any]]]:
    with psycopg.connect(url, autocommit=True, row_factory=dict_row) as session:
        yield session


def selected(server: psycopg.Connection[dict[str, Any]], query: str, key: str) -> list[dict[str, Any]]:
    """Return what the server gives for a query, in the order of the target's key."""
    text = query.replace("user", '"user"')
    return server.execute(f'SELECT * FROM ({text}) found ORDER BY {key} COLLATE "C"'.encode()).fetchall()


def test_targets_equal_the_servers_select_through_every_kind_of_change(
    spark: SparkSession, store: Store, server: psycopg.Connection[dict[str, Any]], tmp_path: Path
) -> None:
    server.execute(ORDERS)
    server.execute(ADDED.format(1, 40))
    totals = Following(spark, store, TOTALS, ["orders"], "sales.totals", tmp_path)
    large = Following(spark, store, LARGE, ["orders"], "sales.large", tmp_path, tunnels="large")
    with totals, large:

        def check(what: str) -> None:
            assert totals.advance() == selected(server, TOTALS, '"user"'), what
            found = large.advance()
            assert found == server.execute(LARGE.replace("user", '"user"') + " ORDER BY id").fetchall(), what

        check("base data")
        server.execute(ADDED.format(41, 60))
        check("inserts")
        server.execute("UPDATE orders SET price = price + 100 WHERE id % 3 = 0")
        check("updates without the large values")
        server.execute("UPDATE orders SET note = note || 'z' WHERE id % 6 = 0")
        check("updates of large values")
        totals.restart()
        server.execute("DELETE FROM orders WHERE id % 5 = 0")
        server.execute("DELETE FROM orders WHERE \"user\" = 'u3'")
        check("deletes, one group as a whole, over a restart")
        server.execute("UPDATE orders SET id = id + 1000 WHERE id % 2 = 0")
        server.execute("UPDATE orders SET \"user\" = 'u9' WHERE id < 9")
        check("changes of the key and of the group")
        large.restart()
        with server.transaction():
            server.execute(ADDED.format(61, 70))
            server.execute("UPDATE orders SET id = -id, price = NULL, note = NULL WHERE id > 65 AND id < 100")
            server.execute("DELETE FROM orders WHERE id = 61")
            server.execute("INSERT INTO orders VALUES (61, 'u1', 7, 'again')")
        check("rows that one transaction changes twice")
        server.execute("DELETE FROM orders")
        check("no rows")
        server.execute(ADDED.format(1, 5))
        check("the first keys again")
    for name in ("sales.totals_orders", "large_orders"):
        store.drop_tunnel(name)


def test_state_is_in_the_schema_of_the_target(
    spark: SparkSession, store: Store, server: psycopg.Connection[dict[str, Any]], tmp_path: Path
) -> None:
    server.execute(ORDERS)
    server.execute(ADDED.format(1, 10))
    # Since PostgreSQL 15, only the owner of a database can create tables in schema public.
    server.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    with Following(spark, store, TOTALS, ["orders"], "sales.totals", tmp_path) as totals:
        assert totals.advance() == selected(server, TOTALS, '"user"')
    internal = [name for name in store.tables() if is_internal(name)]
    assert [name.partition("_totals_")[0] for name in internal] == [
        "sales.__headrace_followed__",
        "sales.__headrace_state_sales",
        "sales.__headrace_state_sales",
    ]
    assert [name for name in store.tables() if not is_internal(name)] == ["orders", "sales.large", "sales.totals"]
    store.drop_tunnel("sales.totals_orders")


def test_sums_are_right_after_a_load_of_pgbench(
    spark: SparkSession, store: Store, server: psycopg.Connection[dict[str, Any]], url: str, tmp_path: Path
) -> None:
    subprocess.run([client_program("pgbench"), "--initialize", "--quiet", url], check=True, capture_output=True)
    server.execute("ALTER TABLE pgbench_accounts REPLICA IDENTITY FULL")
    columns = {"branch": "long", "accounts": "long", "balance": "long", "highest": "int"}
    store.create_table("balances", columns, "branch")
    # pgbench updates accounts up to 100,000. Those above it come and go.
    branch = "CAST(CASE WHEN aid > 100000 THEN 10 ELSE aid % 10 END AS BIGINT)"
    query = f"""
        SELECT {branch} AS branch, count(*) AS accounts, sum(abalance) AS balance, max(abalance) AS highest
        FROM pgbench_accounts GROUP BY {branch}
    """
    load = [str(client_program("pgbench")), "--client=2", f"--transactions={thorough(3000)}", "--no-vacuum", url]
    with Following(spark, store, query, ["pgbench_accounts"], "balances", tmp_path) as balances:
        # Base data of more than 50,000 rows is read chunk by chunk, beside the load.
        balances.start()
        with subprocess.Popen(load, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as running:
            chance = random.Random(1)
            while running.poll() is None:
                first, second = chance.sample(range(100_001, 100_100), 2)
                server.execute(
                    "INSERT INTO pgbench_accounts VALUES (%s, 1, %s, '') ON CONFLICT DO NOTHING", (first, first)
                )
                server.execute("UPDATE pgbench_accounts SET aid = aid + 100 WHERE aid = %s", (second,))
                server.execute("DELETE FROM pgbench_accounts WHERE aid = %s", (second + 100,))
            assert running.stdout is not None
            assert running.returncode == 0, running.stdout.read()
        found = balances.advance()
        assert found == server.execute(query.encode() + b" ORDER BY branch").fetchall()
        (history,) = server.execute("SELECT sum(delta) AS delta FROM pgbench_history").fetchall()
        assert sum(row["balance"] for row in found if row["branch"] < 10) == history["delta"]
    store.drop_tunnel("balances_pgbench_accounts")


def test_keys_of_dates_numbers_and_booleans_are_joined_and_written(
    spark: SparkSession, store: Store, server: psycopg.Connection[dict[str, Any]], tmp_path: Path
) -> None:
    server.execute(STAR)
    days = headrace.open(tmp_path / "days", create=True, synchronous="off")
    columns = {"day": "date", "open": "boolean", "n": "long", "amount": "decimal(22,2)"}
    days.create_table("days", columns, ["day", "open"])
    rows = Following(spark, store, OF_SHOPS, ["sold", "shops"], "open_sold", tmp_path)
    groups = Following(spark, store, OF_DAYS, ["sold", "shops"], "days", tmp_path, sink=days)
    with rows, groups:
        for change in (
            "SELECT",
            "UPDATE shops SET open = NOT open WHERE shop < 3",
            "UPDATE sold SET code = code + 1, day = day + 1, at = at + interval '1 day' WHERE no = 2; DELETE FROM shops"
            " WHERE shop = 4; INSERT INTO sold SELECT 7, day, code, at, shop, -amount, clock FROM sold WHERE no = 1",
        ):
            server.execute(change.encode())
            expected = server.execute(f"{OF_SHOPS} ORDER BY no, day, code, at".encode()).fetchall()
            assert rows.advance() == expected
            assert groups.advance() == server.execute(f"{OF_DAYS} ORDER BY day, open".encode()).fetchall()
            rows.restart()
    for tunnel in store.tunnels():
        store.drop_tunnel(tunnel.id)
