"""Streams of Spark into a DuckLake and its database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import headrace
from headrace.ports import Store
from tests.lake.ducklakes import catalog, database, opened

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ONCE = {"availableNow": True}


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Store]:
    with headrace.open(tmp_path / "shop", create=True) as store:
        orders = store.create_table("orders", {"id": "long", "user": "string", "n": "long"}, "id", pre_images=True)
        orders.put([{"id": number, "user": f"u{number % 2}", "n": number} for number in range(6)])
        yield store


@pytest.fixture
def url() -> str:
    return database()


@pytest.fixture
def lake(url: str, tmp_path: Path) -> Iterator[Store]:
    with opened(url, tmp_path) as store:
        yield store


def change(shop: Store) -> None:
    """Change, add and delete rows of the source."""
    orders = shop.table("orders")
    orders.put([{"id": 1, "user": "u0", "n": 10}, {"id": 6, "user": "u2", "n": 6}])
    orders.delete([{"id": 0}])


def reader(spark: SparkSession, shop: Store, tunnel: str, **options: str) -> Any:
    return spark.readStream.format("headrace").options(store=shop.url, tunnel=tunnel, **options).load()


def test_a_mirror_and_its_history(spark: SparkSession, tmp_path: Path, shop: Store, lake: Store) -> None:
    for attempt in ("the start", "a restart"):
        for history in (False, True):
            mirror = headrace.mirror(
                spark,
                source=shop.url,
                table="orders",
                to=lake.url,
                to_table="versions" if history else "orders",
                history=history,
                checkpoint=tmp_path / f"checkpoint-{history}",
                trigger=ONCE,
            )
            mirror.start().awaitTermination()
        if attempt == "the start":
            change(shop)
            shop.table("orders").add_columns({"note": "string"})
            shop.table("orders").put([{"id": 7, "user": "u1", "n": 7, "note": "new"}])
    assert list(lake.table("orders")) == list(shop.table("orders"))
    versions = list(lake.table("versions"))
    current = [row for row in versions if row["is_current"]]
    assert [{name: row[name] for name in ("id", "user", "n", "note")} for row in current] == list(shop.table("orders"))
    assert [row["id"] for row in versions if not row["is_current"]] == [0, 1]
    assert headrace.diff_tables(shop.table("orders"), lake.table("orders")).changed == 0


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


def test_merge_and_outputs_into_a_table_of_the_lake_and_one_of_the_database(
    spark: SparkSession, tmp_path: Path, shop: Store, lake: Store
) -> None:
    for name in ("last", "small", "postgresql:large"):
        lake.create_table(name, {"id": "long", "n": "long"}, "id")
    for name in ("last", "small"):
        shop.create_tunnel("orders", name)
    statement = """
        MERGE INTO last AS t USING changes AS s ON t.id = s.id
        WHEN MATCHED AND s._change_type = 'delete' THEN DELETE
        WHEN MATCHED THEN UPDATE SET n = s.n
        WHEN NOT MATCHED AND s._change_type <> 'delete' THEN INSERT (id, n) VALUES (s.id, s.n)
    """
    outputs = [
        headrace.Output(table="small", select=lambda rows: rows.where("n < 3").select("id", "n")),
        headrace.Output(table="postgresql:large", select=lambda rows: rows.where("n >= 3").select("id", "n")),
    ]
    for attempt in ("the start", "a restart"):
        scans = {"changes": reader(spark, shop, "last")}
        merge = headrace.merge(spark, statement, scans=scans, store=lake.url, checkpoint=tmp_path / "merge")
        merge.trigger(**ONCE).start().awaitTermination()
        rows = reader(spark, shop, "small").where("_change_type IN ('insert', 'update_postimage')")
        writer = headrace.write_stream(
            rows, store=lake.url, outputs=outputs, checkpoint=tmp_path / "outputs", trigger=ONCE
        )
        writer.start().awaitTermination()
        if attempt == "the start":
            change(shop)
    present = [{"id": row["id"], "n": row["n"]} for row in shop.table("orders")]
    assert list(lake.table("last")) == present
    # A row that grows is in both, and nothing deletes a row.
    assert [row["id"] for row in lake.table("small")] == [0, 1, 2]
    assert [row["id"] for row in lake.table("postgresql:large")] == [1, 3, 4, 5, 6]


def test_complete_mode_batches_and_sql(spark: SparkSession, tmp_path: Path, shop: Store, lake: Store) -> None:
    shop.create_tunnel("orders", "counts", "BaseData")
    lake.create_table("counts", {"user": "string", "count": "long"}, "user").put([{"user": "old", "count": 1}])
    counts = reader(spark, shop, "counts").groupBy("user").count()
    # The database keeps the checkpoint.
    stream = headrace.write_stream(counts, name="counts", store=lake.url, table="counts", mode="complete", trigger=ONCE)
    stream.start().awaitTermination()
    assert list(lake.table("counts")) == [{"user": "u0", "count": 3}, {"user": "u1", "count": 3}]
    sql = headrace.sql(spark, tmp_path / "workspace")
    sql.run(f"CREATE TABLE counts USING headrace OPTIONS (store = '{lake.url}', table = 'counts')")
    sql.run("INSERT INTO counts SELECT 'u9' AS user, 9L AS count")
    assert sql.run("SELECT sum(count) FROM counts")[0].fetch()[0][0] == 15
    frame = spark.read.format("headrace").options(store=lake.url, table="counts").load()
    frame.where("user = 'u9'").write.format("headrace").options(store=lake.url, table="counts").mode("overwrite").save()
    assert list(lake.table("counts")) == [{"user": "u9", "count": 9}]
