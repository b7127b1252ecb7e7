"""Streams of Spark into a DuckLake and its database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import headrace
from headrace.ports import Store
from tests.lake.ducklakes import catalog, database, opened
from tests.lake.streaming import ONCE, change, reader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def url() -> str:
    return database()


@pytest.fixture
def lake(url: str, tmp_path: Path) -> Iterator[Store]:
    with opened(url, tmp_path) as store:
        yield store


def test_a_followed_join_is_one_transaction_with_its_state(
    spark: SparkSession, tmp_path: Path, shop: Store, lake: Store, url: str
) -> None:
    users = shop.create_table("users", {"user": "string", "city": "string"}, "user", pre_images=True)
    users.put([{"user": "u0", "city": "Bern"}, {"user": "u1", "city": "Rome"}])
    shop.create_tunnel(["orders", "users"], "both")
    lake.create_table("totals", {"city": "string", "orders": "long", "n": "long"}, "city")
    for attempt in ("the start", "a restart"):
        query = headrace.follow(
            spark,
            "SELECT city, count(*) AS orders, sum(n) AS n FROM o JOIN u ON o.user = u.user GROUP BY city",
            scans={
                "o": reader(spark, shop, "both", readAs="table", table="orders"),
                "u": reader(spark, shop, "both", readAs="table", table="users"),
            },
            store=lake.url,
            table="totals",
            checkpoint=tmp_path / "checkpoint",
            trigger=ONCE,
        )
        query.start().awaitTermination()
        if attempt == "the start":
            assert list(lake.table("totals")) == [
                {"city": "Bern", "orders": 3, "n": 6},
                {"city": "Rome", "orders": 3, "n": 9},
            ]
            change(shop)
            users.put([{"user": "u2", "city": "Rome"}])
    assert list(lake.table("totals")) == [
        {"city": "Bern", "orders": 3, "n": 16},
        {"city": "Rome", "orders": 3, "n": 14},
    ]
    # One snapshot for each batch, and the state is in the database.
    made = catalog(url, "SELECT count(*) FROM ducklake_snapshot_changes WHERE commit_extra_info LIKE '%headrace%'")
    batches = catalog(url, "SELECT sum(batch + 1) FROM headrace.marker")
    assert made[0][0] <= batches[0][0]
    assert [name for name in lake.tables() if name.startswith("__headrace_")]


def test_a_batch_writes_a_table_of_the_lake_and_one_of_the_database(
    spark: SparkSession, tmp_path: Path, shop: Store, lake: Store
) -> None:
    for name in ("small", "postgresql:large"):
        lake.create_table(name, {"id": "long", "n": "long"}, "id")
    shop.create_tunnel("orders", "both")
    outputs = [
        headrace.Output(table="small", select=lambda rows: rows.where("n < 3").select("id", "n")),
        headrace.Output(table="postgresql:large", select=lambda rows: rows.where("n >= 3").select("id", "n")),
    ]
    rows = reader(spark, shop, "both").drop("_change_type")
    headrace.write_stream(
        rows, store=lake.url, outputs=outputs, checkpoint=tmp_path / "outputs", trigger=ONCE
    ).start().awaitTermination()
    assert [row["id"] for row in lake.table("small")] == [0, 1, 2]
    assert [row["id"] for row in lake.table("postgresql:large")] == [3, 4, 5]


def test_streams_and_batches_write_an_ordinary_table(
    spark: SparkSession, tmp_path: Path, shop: Store, lake: Store
) -> None:
    lake.create_table("postgresql:copy", {"id": "long", "n": "long"}, "id")
    shop.create_tunnel("orders", "copy", "BaseData")
    rows = reader(spark, shop, "copy").select("id", "n")
    headrace.write_stream(
        rows, store=lake.url, table="postgresql:copy", checkpoint=tmp_path / "copy", trigger=ONCE
    ).start().awaitTermination()
    sql = headrace.sql(spark, tmp_path / "workspace")
    sql.run(f"CREATE TABLE copy USING headrace OPTIONS (store = '{lake.url}', table = 'postgresql:copy')")
    sql.run("INSERT INTO copy SELECT 6L AS id, 6L AS n")
    arguments = {"store": lake.url, "table": "postgresql:copy"}
    frame = spark.read.format("headrace").options(**arguments).load()
    frame.where("id = 6").selectExpr("id + 1 AS id", "n").write.format("headrace").options(**arguments).mode(
        "append"
    ).save()
    assert [(row["id"], row["n"]) for row in lake.table("postgresql:copy")] == [
        *((n, n) for n in range(6)),
        (6, 6),
        (7, 6),
    ]


def test_jobs_that_follow_tables_fill_ordinary_ones(
    spark: SparkSession, tmp_path: Path, shop: Store, lake: Store
) -> None:
    for name, columns in (("last", {"id": "long", "n": "long"}), ("totals", {"user": "string", "n": "long"})):
        lake.create_table(f"postgresql:{name}", columns, next(iter(columns)))
        shop.create_tunnel("orders", name)
    statement = """
        MERGE INTO `postgresql:last` AS t USING changes AS s ON t.id = s.id
        WHEN MATCHED AND s._change_type = 'delete' THEN DELETE
        WHEN MATCHED THEN UPDATE SET n = s.n
        WHEN NOT MATCHED AND s._change_type <> 'delete' THEN INSERT (id, n) VALUES (s.id, s.n)
    """
    for attempt in ("the start", "a restart"):
        scans = {"changes": reader(spark, shop, "last")}
        merge = headrace.merge(spark, statement, scans=scans, store=lake.url, checkpoint=tmp_path / "merge")
        merge.trigger(**ONCE).start().awaitTermination()
        follow = headrace.follow(
            spark,
            "SELECT user, sum(n) AS n FROM o GROUP BY user",
            scans={"o": reader(spark, shop, "totals", readAs="table")},
            store=lake.url,
            table="postgresql:totals",
            checkpoint=tmp_path / "totals",
            trigger=ONCE,
        )
        follow.start().awaitTermination()
        for name in ("copy", "versions"):
            mirror = headrace.mirror(
                spark,
                source=shop.url,
                table="orders",
                to=lake.url,
                to_table=f"postgresql:{name}",
                history=name == "versions",
                checkpoint=tmp_path / name,
                trigger=ONCE,
            )
            mirror.start().awaitTermination()
        if attempt == "the start":
            change(shop)
    rows = list(shop.table("orders"))
    assert list(lake.table("postgresql:copy")) == rows
    assert list(lake.table("postgresql:last")) == [{"id": row["id"], "n": row["n"]} for row in rows]
    assert list(lake.table("postgresql:totals")) == [
        {"user": "u0", "n": 16},
        {"user": "u1", "n": 8},
        {"user": "u2", "n": 6},
    ]
    versions = list(lake.table("postgresql:versions"))
    assert [row["id"] for row in versions if not row["is_current"]] == [0, 1]


def test_jobs_of_the_lake_and_of_its_database_are_different_ones(
    spark: SparkSession, tmp_path: Path, shop: Store, lake: Store, url: str
) -> None:
    stores = [
        lake,
        headrace.open(url),
        headrace.open(lake.url, catalog="other", data=str(tmp_path / "other"), create=True),
    ]
    for attempt in ("the start", "a restart"):
        for number, store in enumerate(stores):
            tunnel = f"totals{number}"
            if attempt == "the start":
                store.create_table("totals", {"user": "string", "n": "long"}, "user")
                shop.create_tunnel("orders", tunnel)
            headrace.follow(
                spark,
                "SELECT user, sum(n) AS n FROM o GROUP BY user",
                scans={"o": reader(spark, shop, tunnel, readAs="table")},
                store=store.url,
                table="totals",
                options={"duckLakeCatalog": "other"} if number == 2 else {},
                checkpoint=tmp_path / tunnel,
                trigger=ONCE,
            ).start().awaitTermination()
        change(shop)
    for store in stores:
        with store:
            assert list(store.table("totals")) == [
                {"user": "u0", "n": 16},
                {"user": "u1", "n": 8},
                {"user": "u2", "n": 6},
            ]


def test_a_job_fills_a_table_with_a_long_name(spark: SparkSession, tmp_path: Path, shop: Store, lake: Store) -> None:
    name = f"{'sales ' * 10}Ü.{'totals ' * 10}ü"
    lake.create_table(name, {"user": "string", "n": "long"}, "user")
    shop.create_tunnel("orders", "totals")
    headrace.follow(
        spark,
        "SELECT user, sum(n) AS n FROM o GROUP BY user",
        scans={"o": reader(spark, shop, "totals", readAs="table")},
        store=lake.url,
        table=name,
        checkpoint=tmp_path / "totals",
        trigger=ONCE,
    ).start().awaitTermination()
    assert [row["n"] for row in lake.table(name)] == [6, 9]
