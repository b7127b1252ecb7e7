"""Columns of followed tables that change: a running query stops at a column that it uses, and at no other one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import headrace
from headrace.errors import OptionError
from headrace.ports import Store
from tests.conformance import serving
from tests.spark.following import Following, scan

Server = psycopg.Connection[Any]
QUERIES = {
    "totals": ("SELECT buyer, count(*) AS n, sum(price) AS total FROM orders GROUP BY buyer", ["orders"]),
    "joined": ("SELECT id, price, country FROM orders JOIN buyers ON buyer = name", ["orders", "buyers"]),
}
MERGE = """MERGE INTO copy t USING orders s ON t.id = s.id
WHEN MATCHED AND s._change_type = 'delete' THEN DELETE
WHEN MATCHED THEN UPDATE SET price = s.price
WHEN NOT MATCHED AND s._change_type <> 'delete' THEN INSERT (id, price) VALUES (s.id, s.price)"""


@pytest.fixture
def store() -> Iterator[Store]:
    with headrace.open(serving.postgres_database()) as opened:
        yield opened
        for tunnel in opened.tunnels():
            opened.drop_tunnel(tunnel.id)


@pytest.fixture
def server(store: Store) -> Iterator[Server]:
    with psycopg.connect(store.url, autocommit=True) as session:
        session.execute(
            """
            CREATE TABLE orders (id bigint PRIMARY KEY, buyer text, price bigint, note text, size int, x int);
            CREATE TABLE buyers (name text COLLATE "C" PRIMARY KEY, country text, note text);
            ALTER TABLE orders REPLICA IDENTITY FULL;
            ALTER TABLE buyers REPLICA IDENTITY FULL;
            CREATE TABLE totals (buyer text COLLATE "C" PRIMARY KEY, n bigint, total bigint);
            CREATE TABLE joined (id bigint PRIMARY KEY, price bigint, country text);
            CREATE TABLE copy (id bigint PRIMARY KEY, price bigint);
            INSERT INTO buyers VALUES ('a', 'fr'), ('b', 'de');
            INSERT INTO orders SELECT n, chr(97 + n % 2), n, 'note' FROM generate_series(1, 5) n;
            """
        )
        yield session


def change_unused(server: Server) -> None:
    server.execute("ALTER TABLE orders RENAME note TO remark")
    server.execute("ALTER TABLE orders DROP size")
    server.execute("UPDATE orders SET price = price + 1 WHERE id < 3; DELETE FROM orders WHERE id = 4")
    server.execute("INSERT INTO orders (id, buyer, price) VALUES (9, 'a', 10)")


def test_a_query_stops_only_at_columns_that_it_uses(
    spark: SparkSession, store: Store, server: Server, tmp_path: Path
) -> None:
    followed = {
        target: Following(spark, store, query, tables, target, tmp_path) for target, (query, tables) in QUERIES.items()
    }
    store.create_tunnel("orders", "merge")
    changes = spark.readStream.format("headrace").options(store=store.url, tunnel="merge").load()
    merge = headrace.merge(
        spark, MERGE, scans={"orders": changes}, store=store.url, checkpoint=str(tmp_path / "merge")
    ).start()
    try:
        merge.processAllAvailable()
        for each in followed.values():
            each.advance()
        change_unused(server)
        for each in followed.values():
            each.advance()
        merge.processAllAvailable()
        # Together with the new name, which a tunnel has not seen before, it would be a loss for all readers.
        server.execute("ALTER TABLE orders ALTER x TYPE bigint; UPDATE orders SET price = 0 WHERE id = 5")
        merge.processAllAvailable()
        assert (
            server.execute("SELECT * FROM copy ORDER BY id").fetchall()
            == server.execute("SELECT id, price FROM orders ORDER BY id").fetchall()
        )
        for target, (query, _) in QUERIES.items():
            found = [tuple(row.values()) for row in followed[target].advance()]
            assert found == server.execute(f"SELECT * FROM ({query}) q ORDER BY 1".encode()).fetchall(), target
        server.execute("ALTER TABLE orders RENAME price TO cost; UPDATE orders SET cost = 1 WHERE id = 1")
        problem = r"columns of table 'orders'.*price does not exist; seen at"
        for running in (merge, *(each.query for each in followed.values())):
            assert running is not None
            with pytest.raises(StreamingQueryException, match=problem):
                running.processAllAvailable()
    finally:
        merge.stop()
        for each in followed.values():
            each.stop()
    assert server.execute("SELECT count(*) FROM copy").fetchone() == (5,)


@pytest.mark.parametrize("stops", [False, True])
@pytest.mark.parametrize("how", ["exchanged", "added again"])
def test_a_column_under_the_name_of_another_one_is_not_taken_for_it(
    spark: SparkSession, tmp_path: Path, how: str, stops: bool
) -> None:
    with headrace.open(tmp_path / "shop", create=True, synchronous="off") as store:
        columns = {"id": "long", "buyer": "string", "price": "long", "cost": "long", "note": "string"}
        orders = store.create_table("orders", columns, "id", pre_images=True)
        buyers = store.create_table("buyers", {"name": "string", "country": "string"}, "name", pre_images=True)
        orders.put([{"id": n, "buyer": "ab"[n % 2], "price": n, "cost": -n, "note": "n"} for n in range(6)])
        buyers.put([{"name": "a", "country": "fr"}, {"name": "b", "country": "de"}])
        store.create_table("totals", {"buyer": "string", "n": "long", "total": "long"}, "buyer")
        store.create_table("joined", {"id": "long", "price": "long", "country": "string"}, "id")
        store.create_table("priced", {"id": "long", "price": "long"}, "id")
        queries = QUERIES | {"priced": ("SELECT id, price FROM orders", ["orders"])}
        followed = [Following(spark, store, query, tables, name, tmp_path) for name, (query, tables) in queries.items()]
        with ExitStack() as running:
            for each in followed:
                running.enter_context(each).advance()
                if stops:
                    each.restart()
            # No query uses it.
            orders.rename_column("note", "remark")
            orders.update({"id": 1, "price": 7})
            if how == "exchanged":
                for name, other in (("price", "x"), ("cost", "price"), ("x", "cost")):
                    orders.rename_column(name, other)
            else:
                orders.drop_columns(["price"])
                orders.add_columns({"price": "long"})
            orders.update({"id": 2, "buyer": "b"})
            orders.update({"id": 3, "price": 5})
            for each in followed:
                if not stops:
                    with pytest.raises(StreamingQueryException, match=r"were dropped or renamed.*received: price;"):
                        each.advance()
                    each.restart()
                with pytest.raises(OptionError, match="has another column under its name; received: orders"):
                    each.advance()
                each.arguments = {"replace": True}
                if stops:
                    assert each.advance() == each.expected(), each.target
                    orders.update({"id": 4, "price": 8, "buyer": "b"})
                    assert each.advance() == each.expected(), each.target


def test_columns_with_other_names_in_a_query_are_read(
    spark: SparkSession, store: Store, server: Server, tmp_path: Path
) -> None:
    renamed = scan(spark, store, store.create_tunnel("orders", "renamed").id).withColumnRenamed("price", "cost")
    query = headrace.follow(
        spark,
        "SELECT id, cost AS price FROM orders",
        scans={"orders": renamed},
        store=store.url,
        table="joined",
        checkpoint=tmp_path / "renamed",
    ).start()
    query.processAllAvailable()
    query.stop()
    prices = [(n, n) for n in range(1, 6)]
    assert server.execute("SELECT id, price FROM joined ORDER BY id").fetchall() == prices
    text = "SELECT a AS id, c AS price FROM orders o(a, b, c, d, e, f)"
    with Following(spark, store, text, ["orders"], "copy", tmp_path) as by_text:
        by_text.advance()
    assert server.execute("SELECT id, price FROM copy ORDER BY id").fetchall() == prices
