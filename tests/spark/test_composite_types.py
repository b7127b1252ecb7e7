"""Composite, decimal and time columns keep their values in batch reads, batch writes and streams."""

from __future__ import annotations

import datetime
import decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.functions import array, col, lit

import headrace
from headrace.errors import SchemaError

COLUMNS = {
    "tags": "array<string>",
    "counts": "map<string,long>",
    "place": "struct<x:double not null,names:array<string>>",
    "deep": "array<struct<n:int,m:map<string,array<decimal(10,2)>>> not null>",
    "price": "decimal(20,3)",
    "day": "date",
    "ts": "timestamp",
    "local": "timestamp_ntz",
    "wait": "interval day to second",
    "waits": "array<interval day to second>",
}
KINDS = {"id": "long", "n": "int not null"} | COLUMNS
NOON = datetime.datetime(2026, 1, 31, 12, 30, 0, 5)
FULL: dict[str, Any] = {
    "tags": ["a", None, ""],
    "counts": [("x", 1), ("y", None)],
    "place": {"x": 0.5, "names": ["p", None]},
    "deep": [{"n": 1, "m": [("k", [decimal.Decimal("1.50"), None])]}, {"n": None, "m": None}],
    "price": decimal.Decimal("12345678901234567.125"),
    "day": datetime.date(1969, 12, 31),
    "ts": NOON.replace(tzinfo=datetime.UTC),
    "local": NOON,
    "wait": datetime.timedelta(days=-3, microseconds=7),
    "waits": [datetime.timedelta(hours=1), None],
}
NULLS: dict[str, Any] = dict.fromkeys(COLUMNS)
EMPTY = NULLS | {"tags": [], "counts": [], "place": {"x": -1.0, "names": []}, "deep": [], "waits": []}
ROWS = [{"id": number, "n": number} | values for number, values in enumerate([FULL, NULLS, EMPTY])]


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A store with two tables with the same columns. The first one has the rows."""
    path = str(tmp_path / "store")
    with headrace.open(path, create=True, synchronous="off") as store:
        for name in ("source", "sink"):
            store.create_table(name, KINDS, "id")
        store.table("source").put(ROWS)
    return path


def rows_of(path: str, table: str) -> list[dict[str, Any]]:
    with headrace.open(path) as store:
        rows: list[dict[str, Any]] = store.table(table).scan().read_all().to_pylist()
        return rows


def frame(spark: SparkSession, path: str) -> DataFrame:
    return spark.read.format("headrace").option("store", path).option("table", "source").load()


def test_a_table_is_read_as_sparks_own_types_and_written_back(spark: SparkSession, path: str) -> None:
    df = frame(spark, path)
    assert df.schema["deep"].dataType.simpleString() == "array<struct<n:int,m:map<string,array<decimal(10,2)>>>>"
    assert all(field.nullable for field in df.schema)
    first, nulls, _ = df.orderBy("id").collect()
    assert (first.counts, first.place, first.wait) == (
        {"x": 1, "y": None},
        Row(x=0.5, names=["p", None]),
        FULL["wait"],
    )
    assert nulls.asDict() == ROWS[1]
    df.write.format("headrace").option("store", path).option("table", "sink").mode("append").save()
    assert rows_of(path, "sink") == ROWS


def test_spark_evaluates_conditions_on_composite_columns(spark: SparkSession, path: str) -> None:
    df = frame(spark, path)
    assert [row.id for row in df.where(col("tags").isNull()).collect()] == [1]
    assert [row.id for row in df.where(col("tags") == array(lit("a"), lit(None), lit(""))).collect()] == [0]
    assert [row.id for row in df.where("place.x < 0 and size(waits) = 0").collect()] == [2]
    assert [row.id for row in df.where("wait < INTERVAL '0' DAY").collect()] == [0]


def test_changes_stream_into_a_table(spark: SparkSession, path: str, checkpoint: str) -> None:
    with headrace.open(path) as store:
        store.create_tunnel("source", "both")
        store.table("source").put([{"id": 3, "n": 3} | FULL, {"id": 4, "n": 4} | NULLS])
        store.table("source").update({"id": 4, "tags": ["new", None], "wait": datetime.timedelta(1)})
        store.table("source").delete([{"id": 0}])
    stream = spark.readStream.format("headrace").option("store", path).option("tunnel", "both").load()
    kept = stream.where("_change_type <> 'delete'").drop("_change_type", "_commit_version", "_commit_timestamp")
    headrace.write_stream(kept, store=path, table="sink", checkpoint=checkpoint).trigger(
        availableNow=True
    ).start().awaitTermination()
    latest = {"id": 4, "n": 4} | NULLS | {"tags": ["new", None], "wait": datetime.timedelta(1)}
    assert rows_of(path, "sink") == [*ROWS, {"id": 3, "n": 3} | FULL, latest]


def test_a_missing_required_value_fails_the_query(spark: SparkSession, path: str) -> None:
    df = frame(spark, path).withColumn("n", lit(None).cast("int"))
    with pytest.raises(Exception, match="'n' is NOT NULL"):
        df.write.format("headrace").option("store", path).option("table", "sink").mode("append").save()
    assert rows_of(path, "sink") == []


def test_a_column_with_another_type_is_refused_before_the_query_starts(
    spark: SparkSession, path: str, checkpoint: str
) -> None:
    stream = spark.readStream.format("rate").load().selectExpr("value AS id", "0 AS n", "array(value) AS tags")
    with pytest.raises(SchemaError, match="'tags' has another type"):
        headrace.write_stream(stream, store=path, table="sink", checkpoint=checkpoint).start()
