"""Sinks in Spark: every output mode through publication, native append, batch writes and reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headrace
from headrace.errors import OptionError, SchemaError
from headrace.ports import Store, Table
from headrace.spark.versions import FILTERS
from tests.embedded_database import raw_connection
from tests.spark_versions import needs


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return headrace.open(tmp_path / "shop", create=True, synchronous="off")


@pytest.fixture
def orders(store: Store) -> Table:
    table = store.create_table("orders", {"id": "long", "user": "string", "price": "double"}, "id")
    store.create_tunnel("orders", "all", kind="Stream")
    return table


@pytest.fixture
def totals(store: Store) -> Table:
    return store.create_table("totals", {"user": "string", "count": "long", "total": "double"}, "user")


def some(first: int, count: int) -> list[dict[str, Any]]:
    return [{"id": n, "user": f"u{n % 3}", "price": 0.5} for n in range(first, first + count)]


def stream(spark: SparkSession, store: Store, **options: Any) -> DataFrame:
    return spark.readStream.format("headrace").options(store=store.url, tunnel="all", **options).load()


def per_user(changes: DataFrame) -> DataFrame:
    return changes.groupBy("user").agg(F.count("*").alias("count"), F.sum("price").alias("total"))


def content(table: Table) -> list[dict[str, Any]]:
    return list(table.scan().read_all().to_pylist())


def run(df: DataFrame, store: Store, checkpoint: str, table: str, mode: str, **more: Any) -> None:
    writer = headrace.write_stream(df, store=store.url, table=table, checkpoint=checkpoint, mode=mode, **more)
    writer.trigger(availableNow=True).start().awaitTermination()


@pytest.mark.parametrize("mode", ["update", "complete"])
def test_aggregates_are_kept_up_to_date(
    spark: SparkSession, store: Store, orders: Table, totals: Table, checkpoint: str, mode: str
) -> None:
    for first in (0, 30):
        orders.put(some(first, 30))
        run(per_user(stream(spark, store)), store, checkpoint, "totals", mode)
    assert content(totals) == [{"user": f"u{n}", "count": 20, "total": 10.0} for n in range(3)]


def test_complete_mode_removes_rows_that_are_not_in_the_result(
    spark: SparkSession, store: Store, orders: Table, totals: Table, checkpoint: str
) -> None:
    totals.put({"user": "left over", "count": 1, "total": 1.0})
    orders.put(some(0, 2))
    run(per_user(stream(spark, store)), store, checkpoint, "totals", "complete")
    assert [row["user"] for row in content(totals)] == ["u0", "u1"]


def test_write_stream_and_the_native_sink_append(
    spark: SparkSession, store: Store, orders: Table, tmp_path: Path
) -> None:
    copies = [store.create_table(name, {"id": "long", "price": "double"}, "id") for name in ("first", "second")]
    orders.put(some(0, 10))
    rows = stream(spark, store).select("id", "price")
    run(rows, store, str(tmp_path / "c1"), "first", "append")
    again = stream(spark, store, startingPosition="earliest").select("id", "price")
    native = again.writeStream.format("headrace").option("store", store.url).option("table", "second")
    native.option("checkpointLocation", str(tmp_path / "c2")).trigger(availableNow=True).start().awaitTermination()
    assert [len(content(copy)) for copy in copies] == [10, 10]


def test_a_batch_that_runs_again_changes_nothing(
    spark: SparkSession, store: Store, orders: Table, totals: Table, checkpoint: str
) -> None:
    orders.put(some(0, 30))
    run(per_user(stream(spark, store)), store, checkpoint, "totals", "update")
    before = content(totals), totals.describe().partitions[0].next
    # Spark repeats a batch that is not in the commit log.
    (Path(checkpoint) / "commits" / "0").unlink()
    (Path(checkpoint) / "commits" / ".0.crc").unlink(missing_ok=True)
    run(per_user(stream(spark, store)), store, checkpoint, "totals", "update")
    assert (content(totals), totals.describe().partitions[0].next) == before


@pytest.mark.parametrize("native", [False, True])
def test_an_older_copy_of_the_checkpoint_is_an_error(
    spark: SparkSession, store: Store, orders: Table, checkpoint: str, native: bool
) -> None:
    store.create_table("copy", {"id": "long", "price": "double"}, "id")

    def copy() -> None:
        rows = stream(spark, store).select("id", "price")
        if not native:
            return run(rows, store, checkpoint, "copy", "append")
        writer = rows.writeStream.format("headrace").options(store=store.url, table="copy")
        writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()

    orders.put(some(0, 30))
    copy()
    # As after a power cut: Spark does not sync its files.
    for file in Path(checkpoint).glob("*/*0*"):
        if file.parent.name in ("offsets", "commits"):
            file.unlink()
    orders.put(some(30, 5))
    with pytest.raises(Exception, match="checkpoint is older than the store"):
        copy()


def test_a_stateful_query_killed_before_its_first_batch_starts_again(
    spark: SparkSession, store: Store, orders: Table, totals: Table, checkpoint: str
) -> None:
    orders.put(some(0, 30))
    half_written = Path(checkpoint) / "offsets" / ".0.0f009dcf-e139.tmp"
    half_written.parent.mkdir(parents=True)
    half_written.write_text("v1")
    run(per_user(stream(spark, store)), store, checkpoint, "totals", "update")
    assert [row["count"] for row in content(totals)] == [10, 10, 10]


def test_an_unknown_option_is_refused_in_every_use(
    spark: SparkSession, store: Store, orders: Table, checkpoint: str
) -> None:
    orders.put(some(0, 3))
    rows = spark.range(1).selectExpr("id", "1D AS price")
    writer = rows.write.format("headrace").mode("append").option("store", store.url)
    source = stream(spark, store).select("id", "price")
    sink = source.writeStream.format("headrace").options(store=store.url, table="orders", checkpointLocation=checkpoint)
    uses: list[Callable[[], object]] = [
        lambda: stream(spark, store, maxRowPerTrigger="5"),
        lambda: spark.read.format("headrace").options(store=store.url, maxRowPerTrigger="5").load("orders").collect(),
        lambda: writer.option("maxRowPerTrigger", "5").save("orders"),
        lambda: sink.option("maxRowPerTrigger", "5").trigger(availableNow=True).start().awaitTermination(),
        lambda: spark.sql(f"CREATE TEMPORARY VIEW v USING headrace OPTIONS (store '{store.url}', maxRowPerTrigger 5)"),
    ]
    for use in uses:
        with pytest.raises(Exception, match=r"unknown option of format headrace.*did you mean maxRowsPerTrigger\?"):
            use()
    with pytest.raises(Exception, match=r"received: 'replace_all'; valid: put, update, delete"):
        rows.write.format("headrace").mode("append").options(store=store.url, rowChange="replace_all").save("orders")
    with pytest.raises(Exception, match="a tunnel is read as a stream"):
        spark.read.format("headrace").options(store=store.url, tunnel="all").load("orders").collect()
    # Spark's own options, and options of another use of the format.
    given = {"store": store.url, "queryName": "q", "rowChange": "update"}
    assert spark.read.format("headrace").options(**given).load("orders").count() == 3
    assert len(content(orders)) == 3


def test_a_new_checkpoint_is_a_new_job(
    spark: SparkSession, store: Store, orders: Table, totals: Table, tmp_path: Path
) -> None:
    orders.put(some(0, 30))
    run(per_user(stream(spark, store)), store, str(tmp_path / "a"), "totals", "update")
    totals.delete([{"user": "u0"}, {"user": "u1"}, {"user": "u2"}])
    run(per_user(stream(spark, store, startingPosition="earliest")), store, str(tmp_path / "b"), "totals", "update")
    assert len(content(totals)) == 3


def test_update_row_changes_keep_the_other_cells(
    spark: SparkSession, store: Store, orders: Table, checkpoint: str
) -> None:
    wide = store.create_table("wide", {"id": "long", "price": "double", "note": "string"}, "id")
    wide.put([{"id": 1, "price": 9.0, "note": "kept"}])
    orders.put([{"id": 1, "user": "u", "price": 2.0}])
    run(stream(spark, store).select("id", "price"), store, checkpoint, "wide", "append", row_change="update")
    assert content(wide) == [{"id": 1, "price": 2.0, "note": "kept"}]


def test_one_query_can_write_two_tables(
    spark: SparkSession, store: Store, orders: Table, totals: Table, checkpoint: str
) -> None:
    other = store.create_table("other", {"id": "long", "price": "double"}, "id")
    orders.put(some(0, 6))

    def fan_out(batch: DataFrame, number: int) -> None:
        for rows, table in ((per_user(batch), "totals"), (batch.select("id", "price"), "other")):
            rows.write.format("headrace").option("store", store.url).mode("append").save(table)

    query = stream(spark, store).writeStream.foreachBatch(fan_out).option("checkpointLocation", checkpoint)
    query.trigger(availableNow=True).start().awaitTermination()
    assert (len(content(totals)), len(content(other))) == (3, 6)


def test_columns_are_checked_before_the_stream_starts(
    spark: SparkSession, store: Store, orders: Table, totals: Table, checkpoint: str
) -> None:
    changes = stream(spark, store)
    for df, expected in (
        (changes.select("user", F.lit(1).alias("number")), "number"),
        (changes.select(F.lit(1).cast("long").alias("count")), "key column"),
        (changes.select("user", F.lit("x").alias("count")), "CAST"),
    ):
        with pytest.raises(SchemaError, match=expected):
            headrace.write_stream(df, store=store.url, table="totals", checkpoint=checkpoint).start()
    with pytest.raises(OptionError, match="append, update, complete"):
        headrace.write_stream(changes, store=store.url, table="totals", checkpoint=checkpoint, mode="upsert")


def test_no_rows_stay_staged(spark: SparkSession, store: Store, orders: Table, totals: Table, checkpoint: str) -> None:
    orders.put(some(0, 10))
    run(per_user(stream(spark, store)), store, checkpoint, "totals", "update")
    failing = stream(spark, store).select(F.raise_error(F.lit("stop")).cast("string").alias("user"))
    orders.put(some(10, 10))
    with pytest.raises(Exception, match="stop"):
        run(failing, store, checkpoint + "-2", "totals", "append")
    connection = raw_connection(Path(store.url.removeprefix("file://")))
    assert list(connection.execute("SELECT count(*) FROM stage")) == [(0,)]
    connection.close()


def test_batch_write_and_read(spark: SparkSession, store: Store, orders: Table) -> None:
    df = spark.range(1000).selectExpr("id", "concat('u', id % 3) AS user", "id / 4D AS price")
    df.write.format("headrace").option("store", store.url).mode("append").save("orders")
    read = spark.read.format("headrace").option("store", store.url).option("splits", 4).load("orders")
    assert read.rdd.getNumPartitions() == 4
    assert read.where("id >= 990 AND user <> 'u0'").select("id").count() == 6
    assert read.agg(F.sum("price")).first()[0] == sum(n / 4 for n in range(1000))  # type: ignore[index]
    df.limit(10).write.format("headrace").option("store", store.url).mode("overwrite").save("orders")
    assert orders.describe().rows == 10


@needs(FILTERS)
def test_filters_reach_the_store_with_the_option(spark: SparkSession, store: Store, orders: Table) -> None:
    orders.put(some(0, 100))

    def matching(condition: str) -> DataFrame:
        # A new DataFrame each time, because Spark keeps the filters of the first use.
        read = spark.read.format("headrace").option("store", store.url).option("pushDownFilters", "true")
        return read.load("orders").where(condition)

    plan = matching("id = 7 AND user IS NOT NULL")._jdf.queryExecution().executedPlan().toString()
    assert "Filter (" not in plan
    assert matching("id = 7").count() == 1
    assert matching("price > 0.4 AND user IN ('u1', 'u2')").count() == 66
    assert matching("user LIKE 'u1%' OR id < 3").count() == 35
    assert matching("user <> 'u1' AND user LIKE 'u%' AND price <= 0.5").count() == 67


def test_the_tablestore_format_reads_and_writes_batches(
    spark: SparkSession, store: Store, orders: Table, tmp_path: Path
) -> None:
    options = {
        "endpoint": tmp_path.as_uri(),
        "instance.name": "shop",
        "table.name": "orders",
        "catalog": '{"columns": {"id": {"type": "long"}, "price": {"type": "double"}}}',
        "version": "v2",
        "writer.row.change.type": "update",
    }
    orders.put([{"id": 1, "user": "kept", "price": 1.0}])
    spark.range(3).selectExpr("id", "2D AS price").write.format("tablestore").options(**options).mode("append").save()
    rows = spark.read.format("tablestore").options(**options).load().orderBy("id").collect()
    assert [(row.id, row.price) for row in rows] == [(0, 2.0), (1, 2.0), (2, 2.0)]
    assert orders.get({"id": 1}) == {"id": 1, "user": "kept", "price": 2.0}


def test_a_row_that_does_not_fit_fails_the_write_and_writes_nothing(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    small = store.create_table("small", {"id": "long", "value": "byte"}, "id")
    df = spark.range(10).selectExpr("id", "id * 50 AS value")
    with pytest.raises(Exception, match="value"):
        df.write.format("headrace").option("store", store.url).mode("append").save("small")
    assert small.scan().read_all() == pa.table({"id": [], "value": []}, schema=small.schema.arrow)
