"""Streams of Spark into Delta tables, read by delta-rs."""

from __future__ import annotations

import datetime
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

import headrace
from headrace.errors import SchemaError
from headrace.ports import Store
from tests.lake.lakes import foreign, rows_of
from tests.lake.streaming import ONCE, change, reader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAY = datetime.timedelta(days=1)


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Store]:
    with headrace.open(f"delta://{tmp_path}/lake", create=True) as store:
        yield store


def test_a_running_mirror_gets_new_columns_with_their_rows(
    spark: SparkSession, tmp_path: Path, shop: Store, lake: Store
) -> None:
    lake.create_table("copy", shop.table("orders").schema.arrow, "id", deletion_vectors=True)
    mirror = headrace.mirror(
        spark, source=shop.url, table="orders", to=lake.url, to_table="copy", checkpoint=tmp_path / "checkpoint"
    )
    query = mirror.start()
    try:
        query.processAllAvailable()
        shop.table("orders").add_columns({"note": "string"})
        shop.table("orders").put([{"id": 7, "user": "u1", "n": 7, "note": "new"}])
        query.processAllAvailable()
        assert rows_of(tmp_path / "lake", "copy") == list(shop.table("orders"))
        # One commit has the column and its row.
        assert foreign(tmp_path / "lake", "copy").version() == 2
        shop.table("orders").drop_columns(["note"])
        shop.table("orders").put([{"id": 8, "user": "u1", "n": 8}])
        with pytest.raises(Exception, match="the target's store can only add columns"):
            query.processAllAvailable()
    finally:
        query.stop()
    assert [row["id"] for row in rows_of(tmp_path / "lake", "copy")] == [*range(6), 7]


@pytest.mark.parametrize("how", ["created again", "an older copy"])
def test_a_running_mirror_stops_when_its_target_is_replaced(
    spark: SparkSession, tmp_path: Path, shop: Store, lake: Store, how: str
) -> None:
    mirror = headrace.mirror(spark, source=shop.url, table="orders", to=lake.url, checkpoint=tmp_path / "checkpoint")
    query, orders, copy = mirror.start(), tmp_path / "lake" / "orders", tmp_path / "copy"
    try:
        query.processAllAvailable()
        shutil.copytree(orders, copy)
        for number in (7, 8):
            shop.table("orders").put([{"id": number, "user": "u1", "n": number}])
            query.processAllAvailable()
        orders.rename(tmp_path / "newer")
        if how == "an older copy":
            copy.rename(orders)
        else:
            properties = {"headrace.primaryKey": '["id"]'}
            fields = DeltaTable(str(tmp_path / "newer")).schema()
            DeltaTable.create(str(orders), fields, configuration=properties, raise_if_key_not_exists=False)
        shop.table("orders").put([{"id": 9, "user": "u1", "n": 9}])
        problem = (
            "DataLossError: .*" + {"created again": "created again", "an older copy": "replaced by an older copy"}[how]
        )
        with pytest.raises(Exception, match=problem):
            query.processAllAvailable()
    finally:
        query.stop()
    assert [row["id"] for row in rows_of(tmp_path / "lake", "orders")] == (
        [*range(6)] if how != "created again" else []
    )


@pytest.mark.parametrize("vectorized", ["true", "false"])
def test_spark_reads_the_data_files(spark: SparkSession, tmp_path: Path, lake: Store, vectorized: str) -> None:
    table = lake.create_table("files", {"id": "long", "n": "int", "day": "date", "at": "timestamp"}, "id")
    start = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    rows: list[dict[str, Any]] = [
        {"id": number**3, "n": -number, "day": start.date() - number * DAY, "at": start + number * DAY}
        for number in range(2000)
    ]
    table.put([row | {"at": None} if row["n"] % 9 == 0 else row for row in rows])
    # Columns of different numbers are written as differences.
    (file,) = (tmp_path / "lake" / "files").glob("*.parquet")
    group = pq.ParquetFile(file).metadata.row_group(0)
    assert all("DELTA_BINARY_PACKED" in group.column(place).encodings for place in range(4))
    spark.conf.set("spark.sql.parquet.enableVectorizedReader", vectorized)
    found = spark.read.parquet(str(file)).orderBy("id").toArrow()
    assert found.cast(table.schema.nullable()).to_pylist() == list(table)


def test_a_followed_query_with_its_state_in_the_home(
    spark: SparkSession, tmp_path: Path, shop: Store, lake: Store
) -> None:
    shop.create_tunnel("orders", "totals")
    lake.create_table("totals", {"user": "string", "orders": "long", "n": "long"}, "user")
    for attempt in ("the start", "a restart"):
        query = headrace.follow(
            spark,
            "SELECT user, count(*) AS orders, sum(n) AS n FROM o GROUP BY user",
            scans={"o": reader(spark, shop, "totals", readAs="table")},
            store=lake.url,
            table="totals",
            checkpoint=tmp_path / "checkpoint",
            trigger=ONCE,
        )
        query.start().awaitTermination()
        if attempt == "the start":
            assert list(lake.table("totals")) == [
                {"user": "u0", "orders": 3, "n": 6},
                {"user": "u1", "orders": 3, "n": 9},
            ]
            change(shop)
    found = foreign(tmp_path / "lake", "totals").to_pyarrow_table().sort_by("user").to_pylist()
    assert found == [
        {"user": "u0", "orders": 3, "n": 16},
        {"user": "u1", "orders": 2, "n": 8},
        {"user": "u2", "orders": 1, "n": 6},
    ]


def test_delta_tables_are_followed_mirrored_and_read_as_queues(
    spark: SparkSession, tmp_path: Path, shop: Store, lake: Store
) -> None:
    directory = tmp_path / "lake"
    DeltaTable.create(
        str(directory / "orders"),
        pa.schema({"id": pa.int64(), "user": pa.string(), "n": pa.int64()}),
        configuration={"headrace.primaryKey": '["id"]', "delta.enableChangeDataFeed": "true"},
        raise_if_key_not_exists=False,
    )
    lake.create_tunnel("orders", "totals")
    lake.create_table("totals", {"user": "string", "n": "long"}, "user")
    events = pa.table({"id": pa.array([1, 2], "int64")})
    write_deltalake(str(directory / "events"), events, configuration={"delta.appendOnly": "true"})
    lake.create_table("seen", {"id": "long", "times": "long"}, "id")
    for attempt in ("the start", "a restart"):
        theirs = foreign(directory, "orders")
        if attempt == "the start":
            write_deltalake(theirs, shop.table("orders").scan().read_all(), mode="append")
        else:
            theirs.update(updates={"user": "'u0'", "n": "n + 10"}, predicate="id = 1")
            theirs.delete("id = 0")
            theirs.optimize.compact()
            write_deltalake(str(directory / "events"), pa.table({"id": pa.array([2], "int64")}), mode="append")
        totals = headrace.follow(
            spark,
            "SELECT user, sum(n) AS n FROM o GROUP BY user",
            scans={"o": reader(spark, lake, "totals", readAs="table")},
            store=lake.url,
            table="totals",
            checkpoint=tmp_path / "totals",
            trigger=ONCE,
        )
        mirror = headrace.mirror(
            spark,
            source=lake.url,
            table="orders",
            to=shop.url,
            to_table="copy",
            checkpoint=tmp_path / "c",
            trigger=ONCE,
        )
        queue = spark.readStream.format("headrace").options(store=lake.url, queue="events").load()
        seen = headrace.write_stream(
            queue.groupBy("id").count().withColumnRenamed("count", "times"),
            store=lake.url,
            table="seen",
            mode="update",
            checkpoint=tmp_path / "seen",
            trigger=ONCE,
        )
        for stream in (totals, mirror, seen):
            stream.start().awaitTermination()
        rows = list(lake.table("orders"))
        assert list(shop.table("copy")) == rows
        users = sorted({row["user"] for row in rows})
        expected = [{"user": user, "n": sum(row["n"] for row in rows if row["user"] == user)} for user in users]
        assert list(lake.table("totals")) == expected
    assert list(lake.table("seen")) == [{"id": 1, "times": 1}, {"id": 2, "times": 2}]
    batch = spark.read.format("headrace").options(store=lake.url, queue="events").load()
    assert sorted(row["id"] for row in batch.collect()) == [1, 2, 2]


def test_a_table_without_a_key_takes_appended_rows(
    spark: SparkSession, tmp_path: Path, shop: Store, lake: Store
) -> None:
    shop.create_tunnel("orders", "log", "BaseData")
    # A table of another program, without a key.
    write_deltalake(str(tmp_path / "lake" / "log"), pa.table({"user": ["u7"], "count": [7]}))
    changes = reader(spark, shop, "log").selectExpr("user", "n AS count")
    log = headrace.write_stream(changes, name="log", store=lake.url, table="log", trigger=ONCE)
    log.start().awaitTermination()
    assert foreign(tmp_path / "lake", "log").to_pyarrow_table().num_rows == 7
    with pytest.raises(SchemaError, match=r"headrace\.primaryKey"):
        headrace.write_stream(changes, name="no", store=lake.url, table="log", mode="update").start()
