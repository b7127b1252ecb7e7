"""Mirrors and histories whose source gets other columns, also while they run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import headrace
from headrace.errors import SchemaError
from headrace.ports import Store
from tests.conformance import serving
from tests.spark.mirror_histories import killing

Server = psycopg.Connection[Any]


@pytest.fixture
def url() -> str:
    return serving.postgres_database()


@pytest.fixture
def server(url: str) -> Iterator[Server]:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE t (id int PRIMARY KEY, name varchar(10) NOT NULL, n int, price numeric(4,2), r real)"
        )
        connection.execute("INSERT INTO t SELECT i, 'item ' || i, i, i + 0.5, i / 3.0 FROM generate_series(1, 9) i")
        yield connection


@pytest.fixture
def store(url: str, server: Server) -> Iterator[Store]:
    with headrace.open(url) as opened:
        yield opened
        for tunnel in opened.tunnels():
            opened.drop_tunnel(tunnel.id)


@pytest.fixture
def embedded(tmp_path: Path) -> Store:
    return headrace.open(tmp_path / "copy", create=True, synchronous="off")


@contextmanager
def running(
    spark: SparkSession, source: Store, target: Store, tmp_path: Path, **options: Any
) -> Iterator[StreamingQuery]:
    mirror = headrace.mirror(
        spark,
        source=source.url,
        table="t",
        to=target.url,
        to_table="copy",
        checkpoint=str(tmp_path / "checkpoint"),
        **options,
    )
    query = mirror.start()
    try:
        query.processAllAvailable()
        yield query
    finally:
        query.stop()


def rows(store: Store, table: str) -> list[dict[str, Any]]:
    return list(store.table(table))


@pytest.mark.parametrize("kind", ["postgres", "embedded"])
def test_a_running_mirror_follows_each_change_of_its_source(
    spark: SparkSession, store: Store, server: Server, embedded: Store, tmp_path: Path, kind: str
) -> None:
    target = store if kind == "postgres" else embedded
    with running(spark, store, target, tmp_path) as query:

        def check(*statements: str) -> None:
            for statement in statements:
                server.execute(statement)
            query.processAllAvailable()
            assert rows(target, "copy") == rows(store, "t")
            assert target.table("copy").schema.names == store.table("t").schema.names

        check(
            "UPDATE t SET n = 10 WHERE id = 1",
            "ALTER TABLE t ADD note text",
            "INSERT INTO t (id, name, note) VALUES (10, 'x', 'y')",
        )
        check("ALTER TABLE t ADD five int NOT NULL DEFAULT 5", "DELETE FROM t WHERE id = 2")
        check(
            "DELETE FROM t WHERE id = 3",
            "ALTER TABLE t RENAME name TO label",
            "INSERT INTO t (id, label) VALUES (11, 'z')",
        )
        check("ALTER TABLE t ALTER label TYPE text", "UPDATE t SET label = repeat('l', 20) WHERE id = 4")
        check("ALTER TABLE t ALTER n TYPE bigint", f"UPDATE t SET n = {2**40} WHERE id = 4")
        check(
            "ALTER TABLE t ALTER price TYPE numeric(10,2), ALTER r TYPE double precision",
            "UPDATE t SET price = 123456.75 WHERE id = 5",
        )
        check("ALTER TABLE t ALTER label DROP NOT NULL", "UPDATE t SET label = NULL WHERE id = 6")
        check("ALTER TABLE t DROP price, DROP note", "UPDATE t SET n = 1")
        check("ALTER TABLE t RENAME id TO key", "DELETE FROM t WHERE key = 5", "INSERT INTO t (key) VALUES (12)")
        check("TRUNCATE t", "INSERT INTO t (key, n) SELECT i, i FROM generate_series(1, 3) i")
    # While the mirror is stopped. The table changes with the first batch.
    server.execute("ALTER TABLE t RENAME n TO amount; UPDATE t SET amount = 7 WHERE key = 1")
    with running(spark, store, target, tmp_path):
        assert rows(target, "copy") == rows(store, "t")


@pytest.mark.parametrize("kind", ["postgres", "embedded"])
def test_columns_that_change_between_a_kill_and_the_next_start_follow(
    spark: SparkSession, store: Store, server: Server, embedded: Store, tmp_path: Path, kind: str
) -> None:
    target = store if kind == "postgres" else embedded
    with running(spark, store, target, tmp_path) as query:
        server.execute("INSERT INTO t (id, name) VALUES (10, 'x')")
        # The batch is published, and Spark does not know it.
        with killing(("published", 1)), pytest.raises(StreamingQueryException, match="KilledError"):
            query.processAllAvailable()
    server.execute("ALTER TABLE t ADD five int DEFAULT 5; ALTER TABLE t RENAME n TO amount")
    with running(spark, store, target, tmp_path) as query:
        server.execute("INSERT INTO t (id, name, amount) VALUES (11, 'y', 1)")
        query.processAllAvailable()
        assert rows(target, "copy") == rows(store, "t")


def test_a_history_keeps_the_columns_of_its_versions(
    spark: SparkSession, store: Store, server: Server, embedded: Store, tmp_path: Path
) -> None:
    with running(spark, store, embedded, tmp_path, history=True) as query:
        server.execute("ALTER TABLE t RENAME id TO key; ALTER TABLE t RENAME name TO label")
        server.execute("UPDATE t SET label = 'second' WHERE key = 1; DELETE FROM t WHERE key = 2")
        query.processAllAvailable()
        server.execute("ALTER TABLE t DROP n; UPDATE t SET label = 'third' WHERE key = 1")
        query.processAllAvailable()
    versions = [row for row in rows(embedded, "copy") if row["key"] < 3]
    assert [(row["key"], row["label"], row["n"], row["is_current"]) for row in versions] == [
        (1, "item 1", 1, False),
        (1, "second", 1, False),
        (1, "third", None, True),
        (2, "item 2", 2, False),
    ]


def test_lenient_keeps_dropped_columns_and_fail_ends_the_query(
    spark: SparkSession, store: Store, server: Server, embedded: Store, tmp_path: Path
) -> None:
    with running(spark, store, embedded, tmp_path, schema_change="lenient") as query:
        server.execute("ALTER TABLE t DROP name, DROP r; UPDATE t SET n = 7 WHERE id = 1")
        query.processAllAvailable()
        assert [(row["name"], row["n"]) for row in rows(embedded, "copy")][:2] == [(None, 7), ("item 2", 2)]
    with running(spark, store, embedded, tmp_path, schema_change="fail") as query:
        server.execute("ALTER TABLE t RENAME n TO amount; UPDATE t SET amount = 8 WHERE id = 1")
        with pytest.raises(StreamingQueryException, match=r"schemaChange=fail.*column n is now amount"):
            query.processAllAvailable()
    with (
        pytest.raises(SchemaError, match="column n is now amount"),
        running(spark, store, embedded, tmp_path, schema_change="fail"),
    ):
        pass
    assert rows(embedded, "copy")[0]["n"] == 7


def test_a_dropped_primary_key_stops_the_mirror_by_name(
    spark: SparkSession, store: Store, server: Server, embedded: Store, tmp_path: Path
) -> None:
    with running(spark, store, embedded, tmp_path) as query:
        server.execute("ALTER TABLE t DROP CONSTRAINT t_pkey, REPLICA IDENTITY FULL; INSERT INTO t VALUES (20, 'x')")
        with pytest.raises(StreamingQueryException, match="primary key"):
            query.processAllAvailable()
