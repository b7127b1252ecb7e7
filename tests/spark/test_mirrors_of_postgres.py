"""Mirrors and streams of PostgreSQL's tables whose definition changes: right values, or an error whose remedy works."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import headrace
from tests.conformance import serving

Server = psycopg.Connection[Any]


@pytest.fixture
def server() -> Iterator[Server]:
    with psycopg.connect(serving.postgres_database(), autocommit=True) as connection:
        yield connection


@pytest.fixture
def url(server: Server) -> Iterator[str]:
    found = f"postgresql://postgres@{server.info.host}:{server.info.port}/{server.info.dbname}"
    yield found
    with headrace.open(found) as store:
        for tunnel in store.tunnels():
            store.drop_tunnel(tunnel.id)


@pytest.mark.parametrize("change", ["ADD c int NOT NULL DEFAULT 5", "RENAME name TO full_name", "ADD c int"])
def test_the_old_rows_of_a_mirror_have_the_values_of_changed_columns(
    spark: SparkSession, server: Server, url: str, tmp_path: Path, change: str
) -> None:
    server.execute("CREATE TABLE t (id int PRIMARY KEY, name text)")
    server.execute("INSERT INTO t VALUES (1, 'a'), (2, 'b')")

    def run() -> None:
        mirror = headrace.mirror(
            spark, source=url, table="t", to=url, to_table="copy", checkpoint=str(tmp_path / "checkpoint")
        )
        mirror.trigger(availableNow=True).start().awaitTermination()

    run()
    server.execute("INSERT INTO t VALUES (3, 'c')")
    server.execute(f"ALTER TABLE t {change}".encode())
    server.execute("INSERT INTO t VALUES (4, 'd')")
    run()
    copied = {row[0]: row[1] for row in server.execute("SELECT id, to_jsonb(r) FROM copy r")}
    assert copied == {row[0]: row[1] for row in server.execute("SELECT id, to_jsonb(r) FROM t r")}


def test_a_column_that_was_null_between_two_batches_is_null_in_the_history(
    spark: SparkSession, server: Server, url: str, tmp_path: Path
) -> None:
    server.execute("CREATE TABLE t (id int PRIMARY KEY, v int NOT NULL)")
    mirror = headrace.mirror(
        spark, source=url, table="t", to=url, to_table="past", history=True, checkpoint=str(tmp_path / "checkpoint")
    )

    def run() -> None:
        mirror.trigger(availableNow=True).start().awaitTermination()

    run()
    server.execute("ALTER TABLE t ALTER v DROP NOT NULL; INSERT INTO t VALUES (1)")
    server.execute("UPDATE t SET v = 5; ALTER TABLE t ALTER v SET NOT NULL")
    run()
    assert server.execute("SELECT id, v FROM past ORDER BY valid_from_version").fetchall() == [(1, None), (1, 5)]


def test_a_query_continues_after_a_dropped_partition_only_if_it_accepts_the_loss(
    spark: SparkSession, server: Server, url: str, tmp_path: Path
) -> None:
    server.execute("CREATE TABLE t (id int PRIMARY KEY, n int) PARTITION BY RANGE (id)")
    server.execute("CREATE TABLE t0 PARTITION OF t FOR VALUES FROM (0) TO (10)")
    server.execute("CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (10) TO (20)")
    server.execute("INSERT INTO t VALUES (1, 1), (11, 1)")
    server.execute("CREATE TABLE copy (id int PRIMARY KEY, n int)")
    with headrace.open(url) as store:
        store.create_tunnel("t", "changes")

    def run(**options: str) -> None:
        changes = spark.readStream.format("headrace").options(store=url, tunnel="changes", **options).load()
        headrace.write_stream(
            changes.select("id", "n"),
            store=url,
            table="copy",
            checkpoint=str(tmp_path / "checkpoint"),
            trigger={"availableNow": True},
        ).start().awaitTermination()

    run()
    server.execute("DROP TABLE t0")
    server.execute("INSERT INTO t VALUES (12, 1)")
    with pytest.raises(StreamingQueryException, match=r"partition public\.t0 was detached or dropped"):
        run()
    run(failOnDataLoss="false")
    server.execute("CREATE TABLE t2 PARTITION OF t FOR VALUES FROM (20) TO (30)")
    server.execute("INSERT INTO t VALUES (21, 1)")
    server.execute("DROP TABLE t2")
    with pytest.raises(StreamingQueryException, match=r"partition public\.t2 was detached or dropped"):
        run()
    run(failOnDataLoss="false")
    server.execute("TRUNCATE t")
    server.execute("INSERT INTO t VALUES (13, 1)")
    with pytest.raises(StreamingQueryException, match="truncated"):
        run()
    run(failOnDataLoss="false")
    server.execute("INSERT INTO t VALUES (14, 1)")
    run()
    assert [row[0] for row in server.execute("SELECT id FROM copy ORDER BY id")] == [1, 11, 12, 13, 14, 21]


@pytest.mark.parametrize("history", [False, True])
@pytest.mark.parametrize("partitions", ["", "PARTITION BY HASH (id)"])
def test_a_truncate_deletes_the_rows_of_a_mirror_once(
    spark: SparkSession, server: Server, url: str, tmp_path: Path, history: bool, partitions: str
) -> None:
    server.execute(f"CREATE TABLE t (id int PRIMARY KEY, name text) {partitions}".encode())
    for number in range(3) if partitions else ():
        server.execute(
            f"CREATE TABLE t{number} PARTITION OF t FOR VALUES WITH (MODULUS 3, REMAINDER {number})".encode()
        )
    server.execute("INSERT INTO t SELECT i, 'a' FROM generate_series(1, 9) i")

    def run() -> None:
        mirror = headrace.mirror(
            spark, source=url, table="t", to=url, to_table="copy", checkpoint=str(tmp_path / "cp"), history=history
        )
        mirror.trigger(availableNow=True).start().awaitTermination()

    run()
    server.execute("UPDATE t SET name = 'b' WHERE id < 3; INSERT INTO t VALUES (10, 'c')")
    server.execute(
        "BEGIN; INSERT INTO t VALUES (11, 'd'); TRUNCATE t; INSERT INTO t VALUES (2, 'e'), (12, 'f'); COMMIT"
    )
    run()
    server.execute("TRUNCATE t; INSERT INTO t VALUES (2, 'g')")
    run()
    where = " WHERE is_current" if history else ""
    assert server.execute(f"SELECT id, name FROM copy{where}").fetchall() == [(2, "g")]
    if history:
        query = "SELECT name, valid_to IS NULL FROM copy WHERE id = {} ORDER BY valid_from_version"
        assert server.execute(query.format(2)).fetchall() == [
            ("a", False), ("b", False), ("e", False), ("g", True),
        ]  # fmt: skip
        assert server.execute(query.format(10)).fetchall() == [("c", False)]
        assert server.execute("SELECT count(*) FROM copy WHERE is_current").fetchone() == (1,)


def test_option_truncations_gives_a_row_at_the_begin_of_its_batch(
    spark: SparkSession, server: Server, url: str, tmp_path: Path
) -> None:
    server.execute("CREATE TABLE t (id int PRIMARY KEY, name text)")
    with headrace.open(url) as store:
        store.create_tunnel("t", "changes", "Stream")
    server.execute("INSERT INTO t VALUES (1, 'a')")
    server.execute("TRUNCATE t")
    server.execute("INSERT INTO t VALUES (2, 'b')")
    batches: list[list[tuple[Any, ...]]] = []

    def run(**options: str) -> None:
        rows = spark.readStream.format("headrace").options(store=url, tunnel="changes", **options).load()
        shown = rows.select("id", "name", "_change_type").writeStream
        shown = shown.foreachBatch(lambda batch, _: batches.append([tuple(row) for row in batch.collect()]))
        shown.option("checkpointLocation", str(tmp_path / "cp")).trigger(availableNow=True).start().awaitTermination()

    with pytest.raises(StreamingQueryException, match="was truncated"):
        run()
    batches.clear()
    run(truncations="true")
    assert [each for each in batches if each] in (
        [[(1, "a", "insert")], [(None, None, "truncate"), (2, "b", "insert")]],
        [[(None, None, "truncate"), (2, "b", "insert")]],
    )


def test_a_mirror_has_the_columns_and_rows_of_its_tunnel(
    spark: SparkSession, server: Server, url: str, tmp_path: Path
) -> None:
    server.execute("CREATE TABLE t (id int PRIMARY KEY, name text, card text, number int)")
    server.execute("INSERT INTO t SELECT i, 'a', '1234-' || i, i FROM generate_series(1, 9) i")
    with headrace.open(url) as store:
        store.create_tunnel("t", "some", exclude="name", where="id > 5", mask={"card": "first(2)", "number": "hash"})

    def run() -> None:
        mirror = headrace.mirror(
            spark, source=url, table="t", to=url, to_table="copy", checkpoint=str(tmp_path / "cp"), tunnel="some"
        )
        mirror.trigger(availableNow=True).start().awaitTermination()

    run()
    server.execute("UPDATE t SET id = id + 20 WHERE id < 3; DELETE FROM t WHERE id = 9; ALTER TABLE t DROP name")
    run()
    copied = server.execute("SELECT id, card, length(number) FROM copy ORDER BY id").fetchall()
    assert copied == [(id, "12", 32) for id in (6, 7, 8, 21, 22)]
