"""Spark on a Tablestore instance: formats `tablestore` and `headrace` over HTTP, with headrace's own endpoint."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headrace
from headrace.errors import own_message
from headrace.ports import Store
from tests.conformance import serving

CATALOG = (
    '{"columns": {"UserId": {"type": "string"}, "n": {"type": "long"}, "price": {"type": "double"},'
    ' "note": {"type": "string"}}}'
)
ROWS = [{"UserId": f"u{n:04}", "n": n, "price": n / 4, "note": None if n % 3 else f"note {n}"} for n in range(3000)]
COLUMNS = {"UserId": "string", "n": "long", "price": "double", "note": "string"}


@pytest.fixture(scope="module")
def endpoint() -> str:
    return serving.tablestore_endpoint()


@pytest.fixture
def instance() -> str:
    return "t" + uuid.uuid4().hex[:15]


@pytest.fixture
def options(endpoint: str, instance: str) -> dict[str, str]:
    """The options of format `tablestore`, without the table."""
    return {
        "endpoint": endpoint,
        "instance.name": instance,
        "access.key.id": serving.KEY_ID,
        "access.key.secret": serving.KEY_SECRET,
        "catalog": CATALOG,
    }


@pytest.fixture
def store(endpoint: str, instance: str) -> Iterator[Store]:
    """The instance, with a table without predefined columns."""
    url = f"tablestore+{endpoint}/{instance}"
    with headrace.open(url, access_key_id=serving.KEY_ID, access_key_secret=serving.KEY_SECRET) as opened:
        opened.create_table("orders", {"UserId": "string"}, "UserId")
        yield opened


def read(spark: SparkSession, options: dict[str, str], **more: Any) -> DataFrame:
    return spark.read.format("tablestore").options(**options, **{"table.name": "orders"}, **more).load()


def content(store: Store, table: str = "orders") -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = store.table(table, COLUMNS).scan().read_all().to_pylist()
    return rows


def test_a_table_is_written_and_read_with_columns_of_the_catalog(
    spark: SparkSession, store: Store, options: dict[str, str]
) -> None:
    df = spark.createDataFrame(ROWS, "UserId string, n long, price double, note string").repartition(4)
    sink = {**options, "table.name": "orders", "batch.update.size": "100"}
    df.write.format("tablestore").options(**sink).mode("append").save()
    assert content(store) == ROWS
    found = read(spark, options, pushDownFilters="true").where("UserId >= 'u2000' AND n % 2 = 0 AND price < 600")
    assert sorted(row.n for row in found.select("n").collect()) == list(range(2000, 2400, 2))
    # A row without a cell in the selected column counts, too.
    assert read(spark, options).schema == df.schema
    assert spark.read.format("tablestore").options(**options, **{"table.name": "orders"}).schema(
        "note string"
    ).load().count() == len(ROWS)
    df.where("n < 10").write.format("tablestore").options(**sink).mode("overwrite").save()
    assert content(store) == ROWS[:10]


def test_a_stream_from_table_to_table_survives_a_restart(
    spark: SparkSession, store: Store, options: dict[str, str], checkpoint: str
) -> None:
    store.create_table("totals", {"bucket": "long", "count": "long"}, "bucket")
    orders = store.table("orders", COLUMNS)
    orders.put(ROWS[:1000])
    tunnel = store.create_tunnel("orders", "stats")
    source = {**options, "table.name": "orders", "tunnel.id": tunnel.id, "maxoffsetsperchannel": "300"}
    for rows in (ROWS[1000:2000], ROWS[2000:]):
        orders.put(rows)
        df = spark.readStream.format("tablestore").options(**source).load()
        totals = df.groupBy((F.col("n") % 7).alias("bucket")).count()
        sink = {name: value for name, value in options.items() if name != "catalog"} | {"table.name": "totals"}
        writer = headrace.write_stream(totals, format="tablestore", options=sink, checkpoint=checkpoint, mode="update")
        assert serving.KEY_SECRET not in repr(writer)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
    expected = [{"bucket": n, "count": len(range(n, 3000, 7))} for n in range(7)]
    assert store.table("totals").scan().read_all().to_pylist() == expected
    written = [path.read_bytes() for path in Path(checkpoint).rglob("*") if path.is_file()]
    assert not any(serving.KEY_SECRET.encode() in data for data in written)


def test_after_complete_mode_the_table_equals_the_result(
    spark: SparkSession, store: Store, options: dict[str, str], checkpoint: str
) -> None:
    store.table("orders", COLUMNS).put(ROWS[:20])
    totals = store.create_table("totals", {"bucket": "long", "count": "long"}, "bucket")
    totals.put({"bucket": 99, "count": 1})
    url, tunnel = store.url, store.create_tunnel("orders", "stats")
    df = spark.readStream.format("tablestore").options(**options, **{"table.name": "orders", "tunnel.id": tunnel.id})
    counts = df.load().groupBy((F.col("n") % 2).alias("bucket")).count()
    key = {"accessKeyId": serving.KEY_ID, "accessKeySecret": serving.KEY_SECRET}
    headrace.write_stream(
        counts, store=url, table="totals", checkpoint=checkpoint, mode="complete", options=key
    ).trigger(availableNow=True).start().awaitTermination()
    assert totals.scan().read_all().to_pylist() == [{"bucket": 0, "count": 10}, {"bucket": 1, "count": 10}]


def test_a_query_continues_after_a_batch_of_the_connector(
    spark: SparkSession, store: Store, options: dict[str, str], checkpoint: str
) -> None:
    """The connector's meta table has a row for each channel, with a token and a number of rows after it."""
    orders = store.table("orders", COLUMNS)
    tunnel = store.create_tunnel("orders", "stats", "Stream")
    orders.put(ROWS[:100])
    (channel,) = tunnel.channels()
    offset = json.dumps({"logPoint": channel.committed.token, "offset": 40})
    key = ["tunnelId", "uuid", "channelId"]
    meta = store.create_table("connector_meta", dict.fromkeys([*key, "channelOffset"], "string"), key)
    batch = str(uuid.uuid4())
    meta.put({"tunnelId": tunnel.id, "uuid": batch, "channelId": channel.id, "channelOffset": offset})
    totals = store.create_table("totals", {"bucket": "long", "count": "long", "least": "long"}, "bucket")
    source = {**options, "table.name": "orders", "tunnel.id": tunnel.id, "checkpoint.table": "connector_meta"}
    for position in (f"batch:{batch}", "committed"):
        df = spark.readStream.format("tablestore").options(**source, startingPosition=position).load()
        found = df.groupBy(F.lit(0).cast("long").alias("bucket")).agg(
            F.count("*").alias("count"), F.min("n").alias("least")
        )
        sink = {name: value for name, value in options.items() if name != "catalog"} | {"table.name": "totals"}
        headrace.write_stream(found, format="tablestore", options=sink, checkpoint=checkpoint, mode="update").trigger(
            availableNow=True
        ).start().awaitTermination()
        assert totals.scan().read_all().to_pylist() == [{"bucket": 0, "count": 60, "least": 40}]
    rows = meta.scan(where={"tunnelId": tunnel.id, "uuid": batch}).read_all().to_pylist()
    assert [row["channelOffset"] for row in rows] == [offset]


def test_unsupported_types_are_refused_with_their_column(
    spark: SparkSession, store: Store, options: dict[str, str]
) -> None:
    catalog = '{"columns": {"UserId": {"type": "string"}, "at": {"type": "timestamp"}}}'
    with pytest.raises(PySparkException) as caught:
        read(spark, {**options, "catalog": catalog}).collect()
    message = own_message(str(caught.value)) or ""
    assert "'at'" in message
    assert "timestamp; valid: long" in message


def test_plans_do_not_contain_the_secret(spark: SparkSession, store: Store, options: dict[str, str]) -> None:
    df = read(spark, options)
    plan = df._jdf.queryExecution().toString()
    assert serving.KEY_SECRET not in plan


def test_explain_stream_shows_the_guarantee_of_an_instance(
    spark: SparkSession, store: Store, options: dict[str, str], tmp_path: Path
) -> None:
    store.create_table("copy", {"UserId": "string"}, "UserId")
    tunnel = store.create_tunnel("orders", "stats")
    given = {**options, "access.key.secret": "${env:HEADRACE_TEST_SECRET}"}
    listed = ", ".join(f"{name}='{value}'" for name, value in given.items())
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("HEADRACE_TEST_SECRET", serving.KEY_SECRET)
        sql = headrace.sql(spark, tmp_path)
        explained = sql.run(f"""
            CREATE TABLE orders USING tablestore OPTIONS ({listed}, table.name='orders', tunnel.id='{tunnel.id}');
            CREATE TABLE copy USING tablestore OPTIONS ({listed}, table.name='copy');
            CREATE SCAN changes ON orders USING STREAM;
            CREATE STREAM s OPTIONS (checkpointLocation='{tmp_path / "cp"}')
            INSERT INTO copy SELECT UserId, n, price, note FROM changes;
            EXPLAIN STREAM s;
            DROP STREAM s
        """)
    assert "at least once, identical batches (idempotent puts)" in str(explained)
    assert serving.KEY_SECRET not in str(explained)
