"""TRUNCATE of tables that queries follow: their rows leave the result, in the batch of the TRUNCATE."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import headrace
from headrace.derived.follow import gathered_batches
from headrace.errors import OptionError
from headrace.ports import Store
from headrace.spark.checkpoint import BatchOffsets
from headrace.testing.effort import THOROUGH
from tests.conformance import serving
from tests.spark.following import Following, rows_in_driver, scan

TABLES = """
CREATE TABLE orders (id bigint PRIMARY KEY, buyer text, price bigint);
CREATE TABLE buyers (name text COLLATE "C" PRIMARY KEY, country text);
ALTER TABLE orders REPLICA IDENTITY FULL;
ALTER TABLE buyers REPLICA IDENTITY FULL;
CREATE TABLE totals (buyer text COLLATE "C" PRIMARY KEY, n bigint, prices bigint);
CREATE TABLE everything (k text COLLATE "C" PRIMARY KEY, n bigint, total bigint, high bigint);
CREATE TABLE large (id bigint PRIMARY KEY, price bigint);
CREATE TABLE joined (id bigint PRIMARY KEY, price bigint, country text);
CREATE TABLE countries (country text COLLATE "C" PRIMARY KEY, n bigint, total bigint);
INSERT INTO buyers VALUES ('a', 'fr'), ('b', 'de'), ('c', 'fr');
INSERT INTO orders SELECT n, chr(97 + n % 3), n FROM generate_series(1, 12) n;
"""
QUERIES = {
    "everything": "SELECT 'all' AS k, count(*) AS n, sum(price) AS total, max(price) AS high FROM orders",
    "large": "SELECT id, price FROM orders WHERE price > 5",
    "countries": "SELECT country, count(*) AS n, sum(price) AS total FROM orders JOIN buyers ON buyer = name "
    "GROUP BY country",
}
if THOROUGH:
    QUERIES["totals"] = "SELECT buyer, count(*) AS n, count(DISTINCT price) AS prices FROM orders GROUP BY buyer"
    QUERIES["joined"] = "SELECT id, price, country FROM orders JOIN buyers ON buyer = name"
TABLES_OF = {"joined": ["orders", "buyers"], "countries": ["orders", "buyers"]}


@pytest.fixture
def store() -> Iterator[Store]:
    with headrace.open(serving.postgres_database()) as opened:
        yield opened
        for tunnel in opened.tunnels():
            opened.drop_tunnel(tunnel.id)


@pytest.fixture
def server(store: Store) -> Iterator[psycopg.Connection[dict[str, Any]]]:
    with psycopg.connect(store.url, autocommit=True, row_factory=dict_row) as session:
        session.execute(TABLES)
        yield session


def check_results(followed: Mapping[str, Following], server: psycopg.Connection[dict[str, Any]]) -> None:
    """Compare the target of each query with the result of PostgreSQL."""
    for target, each in followed.items():
        key = each.store.table(target).schema.primary_key[0]
        rows = server.execute(f"{each.sql} ORDER BY {key}".encode()).fetchall()
        assert each.advance() == rows, target


def test_results_are_those_of_the_rows_behind_a_truncate(
    spark: SparkSession,
    store: Store,
    server: psycopg.Connection[dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "headrace")
    followed = {
        target: Following(spark, store, query, TABLES_OF.get(target, ["orders"]), target, tmp_path)
        for target, query in QUERIES.items()
    }
    with ExitStack() as running:
        for each in followed.values():
            running.enter_context(each)

        def check() -> None:
            check_results(followed, server)

        check()
        server.execute("INSERT INTO orders VALUES (20, 'a', 30); TRUNCATE orders")
        check()
        server.execute("INSERT INTO orders VALUES (1, 'a', 8), (2, 'c', 9); UPDATE orders SET price = 10 WHERE id = 2")
        check()
        for each in followed.values():
            each.restart()
        server.execute(
            "BEGIN; UPDATE orders SET price = 70; TRUNCATE orders; INSERT INTO orders VALUES (2, 'c', 7), (3, 'b', 6); "
            "DELETE FROM orders WHERE id = 3; COMMIT; TRUNCATE orders; INSERT INTO orders VALUES (2, 'b', 7); "
            "TRUNCATE buyers; INSERT INTO buyers VALUES ('b', 'it')"
        )
        check()
        # The plan of a batch says that it begins with a TRUNCATE.
        assert "begins with a TRUNCATE" not in caplog.text
        # Otherwise it fails once, and not again with its net changes.
        monkeypatch.setattr(BatchOffsets, "truncates", frozenset())
        server.execute("TRUNCATE orders; INSERT INTO orders VALUES (4, 'a', 5)")
        check()
    assert "begins with a TRUNCATE" in caplog.text
    assert "net changes" not in caplog.text


def test_truncations_of_tables_of_one_tunnel_are_followed_at_whole_transactions(
    spark: SparkSession, store: Store, server: psycopg.Connection[dict[str, Any]], tmp_path: Path
) -> None:
    """One query reads both tables; two read one of them, and a TRUNCATE of the other one does not concern them."""
    server.execute(
        "DROP TABLE orders; CREATE TABLE orders (id bigint PRIMARY KEY, buyer text REFERENCES buyers, price bigint) "
        "PARTITION BY RANGE (id); CREATE TABLE low PARTITION OF orders FOR VALUES FROM (0) TO (6); "
        "CREATE TABLE high PARTITION OF orders DEFAULT; "
        "INSERT INTO orders SELECT n, chr(97 + n % 3), n FROM generate_series(1, 12) n"
    )
    store.table("orders").set_options(pre_images=True)
    both = ["orders", "buyers"]
    with ExitStack() as running:
        followed = {
            target: running.enter_context(
                Following(spark, store, query, TABLES_OF.get(target, ["orders"]), target, tmp_path, together=target)
            )
            for target, query in QUERIES.items()
        }
        for target in followed:
            store.create_tunnel(both, target)

        def check() -> None:
            check_results(followed, server)

        check()
        server.execute(
            "BEGIN; INSERT INTO buyers VALUES ('d', 'it'); INSERT INTO orders VALUES (20, 'd', 30); "
            "TRUNCATE buyers CASCADE; INSERT INTO buyers VALUES ('a', 'fr'), ('d', 'it'); "
            "INSERT INTO orders VALUES (1, 'a', 8), (2, 'd', 9); UPDATE orders SET price = 10 WHERE id = 2; COMMIT"
        )
        check()
        for each in followed.values():
            each.restart()
        server.execute("ALTER TABLE orders DROP CONSTRAINT orders_buyer_fkey")
        server.execute("INSERT INTO orders VALUES (3, 'd', 11); TRUNCATE buyers")
        server.execute("INSERT INTO buyers VALUES ('d', 'es')")
        check()
        server.execute("TRUNCATE orders, buyers")
        check()
        server.execute("INSERT INTO orders VALUES (1, 'b', 7); INSERT INTO buyers VALUES ('b', 'pt')")
        check()


def test_a_truncate_of_a_large_joined_table_is_read_by_tasks(
    spark: SparkSession,
    store: Store,
    server: psycopg.Connection[dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kept rows of orders are more than the driver may have, those of buyers are not."""
    monkeypatch.setattr(gathered_batches, "_MOST_ROWS", 4)
    queries = {"joined": "SELECT id, price, country FROM orders JOIN buyers ON buyer = name"}
    queries["countries"] = QUERIES["countries"]
    with ExitStack() as running:
        followed = {
            target: running.enter_context(Following(spark, store, query, ["orders", "buyers"], target, tmp_path))
            for target, query in queries.items()
        }

        def check() -> None:
            check_results(followed, server)

        check()
        counts = rows_in_driver(monkeypatch)
        # Row 2 is as before, and row 3 has come and gone.
        server.execute(
            "BEGIN; TRUNCATE orders; INSERT INTO orders VALUES (2, 'c', 2), (3, 'b', 6), (4, 'a', 40); "
            "DELETE FROM orders WHERE id = 3; COMMIT; UPDATE buyers SET country = 'it' WHERE name = 'c'"
        )
        check()
        # The changes of the batch. The kept rows are 12.
        assert 4 < max(counts) <= 8
        # The kept rows are right.
        server.execute("INSERT INTO orders SELECT n, 'a', n FROM generate_series(5, 10) n")
        server.execute("UPDATE buyers SET country = 'es' WHERE name = 'a'; DELETE FROM orders WHERE id = 2")
        check()
        server.execute("TRUNCATE orders")
        check()
        server.execute("INSERT INTO orders VALUES (1, 'b', 7); TRUNCATE buyers; INSERT INTO buyers VALUES ('b', 'pt')")
        check()


def test_a_new_text_waits_for_a_truncate_that_is_not_read(
    spark: SparkSession, store: Store, server: psycopg.Connection[dict[str, Any]], tmp_path: Path
) -> None:
    with Following(spark, store, QUERIES["large"], ["orders"], "large", tmp_path) as following:
        following.advance()
        following.restart()
        server.execute("TRUNCATE orders; INSERT INTO orders VALUES (1, 'a', 8)")
        new = "SELECT id, price FROM orders WHERE price > 6"
        following.sql, following.arguments = new, {"replace": True}
        with pytest.raises(OptionError, match="was truncated after the last batch"):
            following.start()
        following.sql, following.arguments = QUERIES["large"], {}
        following.advance()
        following.restart()
        following.sql, following.arguments = new, {"replace": True}
        assert following.advance() == [{"id": 1, "price": 8}]


def test_readers_that_do_not_follow_a_truncate_end_before_it(
    spark: SparkSession, store: Store, server: psycopg.Connection[dict[str, Any]], tmp_path: Path
) -> None:
    store.create_tunnel("orders", "own")
    seen: list[str] = []
    frame = scan(spark, store, "own")

    def run() -> None:
        query = frame.writeStream.foreachBatch(
            lambda rows, _: seen.extend(row["_change_type"] for row in rows.collect())
        )
        query.option("checkpointLocation", str(tmp_path / "own")).trigger(availableNow=True).start().awaitTermination()

    run()
    server.execute("TRUNCATE orders")
    with pytest.raises(StreamingQueryException, match="a followed table was truncated"):
        run()
    assert seen == ["insert"] * 12


def test_a_truncate_of_one_of_several_tables_in_a_union_is_refused_by_name(
    spark: SparkSession, store: Store, server: psycopg.Connection[dict[str, Any]], tmp_path: Path
) -> None:
    server.execute('CREATE TABLE united (k text COLLATE "C" PRIMARY KEY, n bigint)')
    query = "SELECT k, count(*) AS n FROM (SELECT buyer AS k FROM orders UNION ALL SELECT name FROM buyers) GROUP BY k"
    with Following(spark, store, query, ["orders", "buyers"], "united", tmp_path) as following:
        following.advance()
        server.execute("TRUNCATE buyers")
        with pytest.raises(StreamingQueryException, match=r"buyers, orders.*new tunnels and overwrite"):
            following.advance()
