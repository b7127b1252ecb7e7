"""The streaming code of SPYT's documentation over a YTsaurus endpoint, with the proxy in the environment."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import BinaryType
from yt.wrapper import YsonFormat, YtClient

import headrace
from headrace.ports import Store
from headrace_ytsaurus.store.publication import planned_writes
from tests.conformance import serving

COMPOSITE = [
    {"name": "small", "type_v3": "uint8"},
    {"name": "large", "type_v3": "uint32"},
    {"name": "maybe", "type_v3": {"type_name": "optional", "item": "uint16"}},
    {"name": "many", "type_v3": {"type_name": "list", "item": "int64"}},
    {
        "name": "pair",
        "type_v3": {"type_name": "struct", "members": [{"name": "a", "type": "int64"}, {"name": "b", "type": "utf8"}]},
    },
    {"name": "any", "type_v3": {"type_name": "optional", "item": "yson"}},
    {"name": "at", "type_v3": "timestamp64"},
    {"name": "day", "type_v3": "date32"},
    {"name": "huge", "type_v3": "uint64"},
]


@pytest.fixture(scope="module", autouse=True)
def proxy() -> Iterator[str]:
    """An endpoint. The environment names it, as for users of SPYT."""
    endpoint = serving.ytsaurus_endpoint()
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("YT_PROXY", endpoint)
        environment.setenv("YT_TOKEN", serving.TOKEN)
        yield endpoint


@pytest.fixture
def client(proxy: str) -> YtClient:
    return YtClient(proxy=proxy, token=serving.TOKEN)


@pytest.fixture
def base(client: YtClient) -> str:
    """A directory for one test."""
    path = f"//tmp/{uuid.uuid4().hex}"
    client.create("map_node", path)
    return path


@pytest.fixture
def checkpoint(spark: SparkSession, base: str) -> str:
    """A checkpoint location in the cluster."""
    return headrace.checkpoint(f"yt://{base[1:]}/checkpoint", spark=spark)


@pytest.fixture
def store(proxy: str) -> Store:
    return headrace.open(f"yt+{proxy}")


def dynamic_table(client: YtClient, path: str, schema: Any, **attributes: Any) -> str:
    client.create("table", path, recursive=True, attributes={"dynamic": True, "schema": schema, **attributes})
    client.mount_table(path, sync=True)
    return path


def queue_with_consumer(client: YtClient, base: str, schema: Any, tablets: int = 1) -> tuple[str, str]:
    queue = dynamic_table(client, f"{base}/queue", schema, tablet_count=tablets)
    client.create("queue_consumer", f"{base}/consumer")
    client.register_queue_consumer(queue, f"{base}/consumer", vital=True)
    return queue, f"{base}/consumer"


def finish(query: StreamingQuery) -> None:
    try:
        query.processAllAvailable()
    finally:
        query.stop()


def offsets(client: YtClient, consumer: str) -> dict[int, int]:
    return {row["partition_index"]: row["offset"] for row in client.select_rows(f"* from [{consumer}]")}


def test_windows_are_published_with_a_checkpoint_in_the_cluster(
    spark: SparkSession, client: YtClient, base: str, checkpoint: str
) -> None:
    schema = [
        {"name": "start", "type": "string"},
        {"name": "num", "type": "int64"},
        {"name": "count", "type": "int64"},
    ]
    result = dynamic_table(client, f"{base}/result", schema)
    numbers = (
        spark.readStream.format("rate")
        .option("rowsPerSecond", 50)
        .load()
        .select("timestamp", F.floor(F.rand() * 10).alias("num"))
    )
    grouped = (
        numbers.withWatermark("timestamp", "5 seconds")
        .groupBy(F.window("timestamp", "5 seconds", "3 seconds"), "num")
        .count()
    )
    written: list[int] = []

    def write(frame: DataFrame, number: int) -> None:
        frame = frame.select(F.col("window.start").cast("string").alias("start"), "num", "count")
        frame.write.mode("append").format("yt").save(result)
        written.append(number)

    query = (
        grouped.writeStream.outputMode("update").option("checkpointLocation", checkpoint).foreachBatch(write).start()
    )
    try:
        while len(written) < 2 and query.isActive:
            query.awaitTermination(1)
    finally:
        query.stop()
    assert len(list(client.select_rows(f"* from [{result}]"))) > 0
    names = client.list(f"{base}/checkpoint")
    assert {"metadata", "offsets", "commits", "state"} <= set(names)


def test_a_batch_and_its_consumer_share_one_transaction(
    spark: SparkSession, client: YtClient, base: str, checkpoint: str, store: Store
) -> None:
    queue, consumer = queue_with_consumer(client, base, [{"name": "data", "type": "string"}])
    result = dynamic_table(
        client, f"{base}/result", [{"name": "data", "type": "string"}, {"name": "data_length", "type": "int32"}]
    )
    for rows in ([{"data": "one"}, {"data": "three"}], [{"data": "eleven"}]):
        client.insert_rows(queue, rows)
        df = spark.readStream.format("yt").option("consumer_path", consumer).load(queue)
        finish(
            df.select("data")
            .withColumn("data_length", F.length("data"))
            .writeStream.format("yt")
            .option("checkpointLocation", checkpoint)
            .option("path", result)
            .start()
        )
    found = [(row["data"], row["data_length"]) for row in client.select_rows(f"* from [{result}]")]
    assert found == [("one", 3), ("three", 5), ("eleven", 6)]
    assert offsets(client, consumer) == {0: 3}


def test_strings_with_any_bytes_are_binary(spark: SparkSession, client: YtClient, base: str, checkpoint: str) -> None:
    schema = [{"name": "data", "type": "string"}]
    queue, consumer = queue_with_consumer(client, base, schema)
    result = dynamic_table(client, f"{base}/result", schema)
    raw = YsonFormat(encoding=None)
    client.insert_rows(queue, [{b"data": b"\xff\x00"}, {b"data": b"text"}], format=raw)
    reader = spark.readStream.format("yt").option("consumer_path", consumer).option("binary_strings", True)
    df = reader.load(queue)
    assert df.schema["data"].dataType == BinaryType()
    finish(
        df.select(F.concat(F.col("data"), F.lit(b"\xfe")).alias("data"))
        .writeStream.format("yt")
        .option("binary_strings", True)
        .option("checkpointLocation", checkpoint)
        .option("path", result)
        .start()
    )
    found = [row[b"data"] for row in client.select_rows(f"data from [{result}]", format=raw)]
    assert found == [b"\xff\x00\xfe", b"text\xfe"]


def test_service_columns_can_be_the_key_of_a_table(
    spark: SparkSession, client: YtClient, base: str, checkpoint: str
) -> None:
    queue, consumer = queue_with_consumer(client, base, [{"name": "some_data", "type": "string"}], tablets=2)
    schema = [
        {"name": "src_queue_path", "type": "string", "sort_order": "ascending"},
        {"name": "tablet_idx", "type": "int64", "sort_order": "ascending"},
        {"name": "row_idx", "type": "int64", "sort_order": "ascending"},
        {"name": "some_data", "type": "string"},
    ]
    result = dynamic_table(client, f"{base}/result", schema)
    client.insert_rows(queue, [{"some_data": text, "$tablet_index": int(text == "c")} for text in "abc"])
    df = (
        spark.readStream.format("yt")
        .option("consumer_path", consumer)
        .option("include_service_columns", True)
        .load(queue)
        .withColumnRenamed("__spyt_streaming_src_tablet_index", "tablet_idx")
        .withColumnRenamed("__spyt_streaming_src_row_index", "row_idx")
        .withColumn("src_queue_path", F.lit(queue))
    )
    finish(
        df.writeStream.outputMode("append")
        .format("yt")
        .option("checkpointLocation", checkpoint)
        .option("path", result)
        .start()
    )
    rows = client.select_rows(f"[tablet_idx], [row_idx], [some_data] from [{result}]")
    assert [tuple(row.values()) for row in rows] == [(0, 0, "a"), (0, 1, "b"), (1, 0, "c")]


def test_rows_of_a_batch_and_of_a_write_are_limited(
    spark: SparkSession, client: YtClient, base: str, checkpoint: str
) -> None:
    queue, consumer = queue_with_consumer(client, base, [{"name": "n", "type": "int64"}], tablets=2)
    result = dynamic_table(client, f"{base}/result", [{"name": "n", "type": "int64"}])
    client.insert_rows(queue, [{"n": number, "$tablet_index": number % 2} for number in range(2500)])
    spark.conf.set("spark.yt.write.dynBatchSize", 100)
    try:
        df = (
            spark.readStream.format("yt")
            .option("consumer_path", consumer)
            .option("max_rows_per_partition", 1000)
            .load(queue)
        )
        writer = df.writeStream.outputMode("append").format("yt").option("checkpointLocation", checkpoint)
        query = writer.option("path", result).start()
        finish(query)
    finally:
        spark.conf.unset("spark.yt.write.dynBatchSize")
    assert [progress.numInputRows for progress in query.recentProgress if progress.numInputRows] == [2000, 500]
    assert sorted(row["n"] for row in client.select_rows(f"* from [{result}]")) == list(range(2500))


def test_composite_and_unsigned_types_keep_their_values(
    spark: SparkSession, client: YtClient, base: str, checkpoint: str
) -> None:
    queue, consumer = queue_with_consumer(client, base, COMPOSITE)
    result = dynamic_table(client, f"{base}/result", COMPOSITE)
    rows = [
        {
            "small": small,
            "large": large,
            "maybe": maybe,
            "many": [1, -2],
            "pair": {"a": 1, "b": "x"},
            "any": {"deep": [1, 2]},
            "at": -1,
            "day": -5,
            "huge": 2**64 - 1,
        }
        for small, large, maybe in ((0, 0, None), (255, 2**32 - 1, 65535), (1, 1, 1))
    ]
    client.insert_rows(queue, rows)
    df = spark.readStream.format("yt").option("consumer_path", consumer).option("parsing_type_v3", "true").load(queue)
    assert df.schema["many"].dataType.simpleString() == "array<bigint>"
    finish(
        df.writeStream.outputMode("append")
        .format("yt")
        .option("write_type_v3", True)
        .option("checkpointLocation", checkpoint)
        .option("path", result)
        .start()
    )
    found = [{name: row[name] for name in rows[0]} for row in client.select_rows(f"* from [{result}]")]
    assert found == rows


def test_every_output_mode_is_published_once_over_a_restart(
    spark: SparkSession, client: YtClient, base: str, checkpoint: str, store: Store
) -> None:
    queue, consumer = queue_with_consumer(client, base, [{"name": "key", "type": "int64"}])
    schema = [
        {"name": "key", "type": "int64", "sort_order": "ascending"},
        {"name": "count", "type": "int64"},
    ]
    result = dynamic_table(client, f"{base}/result", schema)
    for first in (0, 700):
        client.insert_rows(queue, [{"key": number % 7} for number in range(first, first + 700)])
        df = spark.readStream.format("yt").option("consumer_path", consumer).load(queue)
        writer = headrace.write_stream(
            df.groupBy("key").count(), format="yt", options={"path": result}, checkpoint=checkpoint, mode="update"
        )
        assert serving.TOKEN not in repr(writer)
        writer.trigger(availableNow=True).start().awaitTermination()
        assert [tuple(row.values()) for row in client.select_rows(f"* from [{result}]")] == [
            (key, (first + 700) // 7) for key in range(7)
        ]
    assert offsets(client, consumer) == {0: 1400}


def test_a_batch_larger_than_a_transaction_is_written_once(
    spark: SparkSession,
    client: YtClient,
    base: str,
    checkpoint: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The driver publishes in this process.
    monkeypatch.setattr(planned_writes, "ROWS_PER_TABLET", 100)
    queue, consumer = queue_with_consumer(client, base, [{"name": "n", "type": "int64"}])
    result = dynamic_table(client, f"{base}/result", [{"name": "n", "type": "int64"}])
    client.insert_rows(queue, [{"n": number} for number in range(1000)])
    df = spark.readStream.format("yt").option("consumer_path", consumer).load(queue)
    writer = headrace.write_stream(df, format="yt", options={"path": result}, checkpoint=checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()
    assert [row["n"] for row in client.select_rows(f"* from [{result}]")] == list(range(1000))
    assert offsets(client, consumer) == {0: 1000}


def test_explain_stream_shows_the_guarantee_and_no_token(
    spark: SparkSession, client: YtClient, base: str, tmp_path: Path
) -> None:
    queue, consumer = queue_with_consumer(client, base, [{"name": "n", "type": "int64"}])
    dynamic_table(client, f"{base}/result", [{"name": "n", "type": "int64"}])
    df = spark.readStream.format("yt").option("consumer_path", consumer).load(queue)
    assert serving.TOKEN not in df._jdf.queryExecution().toString()
    explained = headrace.sql(spark, tmp_path).run(f"""
        CREATE TABLE source USING yt OPTIONS (path='{queue}', consumer_path='{consumer}');
        CREATE TABLE sink USING yt OPTIONS (path='{base}/result');
        CREATE SCAN rows ON source USING STREAM;
        CREATE STREAM s OPTIONS (checkpointLocation='yt://{base[1:]}/cp') INSERT INTO sink SELECT n FROM rows;
        EXPLAIN STREAM s;
        DROP STREAM s
    """)
    assert "exactly once; up to 100000 rows of a batch visible at once, more of them in parts" in str(explained)
    assert f"consumer {consumer} advances in the same transaction" in str(explained)
    assert serving.TOKEN not in str(explained)
