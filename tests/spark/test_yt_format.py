"""Format yt: the streaming code of SPYT's documentation, with only the store's address changed."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import length, lit
from pyspark.sql.streaming.query import StreamingQuery

import headrace
from headrace.ports import Queue, Store
from headrace.spark.session import carry_environment

QUEUE = "//tmp/spark-streaming/sample02/queue"
CONSUMER = "//tmp/spark-streaming/sample02/consumer"
RESULT = "//tmp/spark-streaming/sample02/result"
SERVICE_COLUMNS = ["__spyt_streaming_src_tablet_index", "__spyt_streaming_src_row_index"]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = headrace.open(tmp_path / "cluster", create=True, synchronous="off")
    store.create_consumer(CONSUMER)
    return store


def create_queue(store: Store, columns: dict[str, str], partitions: int = 1) -> Queue:
    queue = store.create_queue(QUEUE, columns, partitions=partitions)
    store.register_consumer(QUEUE, CONSUMER, vital=True)
    return queue


def finish(query: StreamingQuery) -> None:
    try:
        query.processAllAvailable()
    finally:
        query.stop()


def queue_rows(store: Store, name: str = RESULT) -> list[dict[str, Any]]:
    queue = store.queue(name)
    return list(chain.from_iterable(queue.read(number, 0).rows.to_pylist() for number in queue.bounds()))


def test_a_queue_streams_into_a_queue(spark: SparkSession, store: Store, checkpoint: str) -> None:
    queue = create_queue(store, {"data": "string"})
    store.create_queue(RESULT, {"data": "string", "data_length": "int"})
    queue.append([{"data": "one"}, {"data": "three"}])
    df = spark.readStream.format("yt").option("proxy", store.url).option("consumer_path", CONSUMER).load(QUEUE)
    query = (
        df.select("data")
        .withColumn("data_length", length("data"))
        .writeStream.format("yt")
        .option("proxy", store.url)
        .option("checkpointLocation", checkpoint)
        .option("path", RESULT)
        .start()
    )
    finish(query)
    assert queue_rows(store) == [{"data": "one", "data_length": 3}, {"data": "three", "data_length": 5}]
    assert store.consumer(CONSUMER).offsets(QUEUE) == {0: 2}


def test_service_columns_can_be_the_key_of_a_table(spark: SparkSession, store: Store, checkpoint: str) -> None:
    queue = create_queue(store, {"some_data": "string"}, partitions=2)
    columns = {"src_queue_path": "string", "tablet_idx": "long", "row_idx": "long", "some_data": "string"}
    table = store.create_table(RESULT, columns, ["src_queue_path", "tablet_idx", "row_idx"])
    queue.append([{"some_data": "a"}, {"some_data": "b"}], partition=0)
    queue.append([{"some_data": "c"}], partition=1)
    df = (
        spark.readStream.format("yt")
        .option("store", store.url)
        .option("consumer_path", CONSUMER)
        .option("include_service_columns", True)
        .load(QUEUE)
    )
    assert df.columns == [*SERVICE_COLUMNS, "some_data"]
    assert [field.nullable for field in df.schema] == [True, True, True]
    df = (
        df.withColumnRenamed("__spyt_streaming_src_tablet_index", "tablet_idx")
        .withColumnRenamed("__spyt_streaming_src_row_index", "row_idx")
        .withColumn("src_queue_path", lit(QUEUE))
    )
    query = (
        df.writeStream.outputMode("append")
        .format("yt")
        .option("store", store.url)
        .option("checkpointLocation", checkpoint)
        .option("path", RESULT)
        .start()
    )
    finish(query)
    found = [(row["tablet_idx"], row["row_idx"], row["some_data"]) for row in table.scan().read_all().to_pylist()]
    assert found == [(0, 0, "a"), (0, 1, "b"), (1, 0, "c")]


def test_rows_for_each_partition_are_limited(spark: SparkSession, store: Store, checkpoint: str) -> None:
    queue = create_queue(store, {"n": "long"}, partitions=2)
    for partition in range(2):
        queue.append([{"n": n} for n in range(25)], partition=partition)
    sizes: list[int] = []
    df = (
        spark.readStream.format("yt")
        .option("store", store.url)
        .option("consumer_path", CONSUMER)
        .option("max_rows_per_partition", 10)
        .load(QUEUE)
    )
    query = df.writeStream.foreachBatch(lambda batch, number: sizes.append(batch.count()))
    finish(query.option("checkpointLocation", checkpoint).start())
    assert [size for size in sizes if size] == [20, 20, 10]


def test_composite_types_are_copied_from_queue_to_queue(spark: SparkSession, store: Store, checkpoint: str) -> None:
    columns = {"list": "array<long>", "struct": "struct<a:long,b:string>", "dict": "map<string,double>"}
    queue = create_queue(store, columns)
    store.create_queue(RESULT, columns)
    rows = [{"list": [1, 2], "struct": {"a": 1, "b": "x"}, "dict": [("k", 0.5)]}, dict.fromkeys(columns)]
    queue.append(rows)
    df = (
        spark.readStream.format("yt")
        .option("store", store.url)
        .option("consumer_path", CONSUMER)
        .option("parsing_type_v3", "true")
        .load(QUEUE)
    )
    query = (
        df.writeStream.outputMode("append")
        .format("yt")
        .option("store", store.url)
        .option("write_type_v3", True)
        .option("checkpointLocation", checkpoint)
        .option("path", RESULT)
        .start()
    )
    finish(query)
    assert queue_rows(store) == rows


def test_spyts_complete_example_runs(spark: SparkSession, store: Store, checkpoint: str) -> None:
    queue = create_queue(store, {"data": "string"})
    table = store.create_table(
        RESULT, {"tablet_idx": "long", "row_idx": "long", "data": "string"}, ["tablet_idx", "row_idx"]
    )
    queue.append([{"data": str(n)} for n in range(2500)])
    df = (
        spark.readStream.format("yt")
        .option("store", store.url)
        .option("consumer_path", CONSUMER)
        .option("include_service_columns", True)
        .option("max_rows_per_partition", 1000)
        .load(QUEUE)
        .withColumnRenamed("__spyt_streaming_src_tablet_index", "tablet_idx")
        .withColumnRenamed("__spyt_streaming_src_row_index", "row_idx")
    )
    query = (
        df.writeStream.outputMode("append")
        .format("yt")
        .option("store", store.url)
        .option("checkpointLocation", checkpoint)
        .option("path", f"<append=%true>{RESULT}")
        .start()
    )
    finish(query)
    rows = table.scan().read_all()
    assert rows.column("row_idx").to_pylist() == list(range(2500))
    assert rows.column("data").to_pylist() == [str(n) for n in range(2500)]


def test_opaque_composites_are_json(spark: SparkSession, store: Store) -> None:
    create_queue(store, {"n": "long", "list": "array<long>"}).append([{"n": 1, "list": [1, 2]}])
    df = spark.read.format("yt").options(store=store.url, parsing_type_v3=False).load(QUEUE)
    assert dict(df.dtypes) == {"n": "bigint", "list": "binary"}
    assert bytes(df.collect()[0]["list"]) == b"[1,2]"
    store.create_table("//home/t", {"k": "long", "list": "array<long>"}, "k").put([{"k": 1, "list": [3]}])
    table = spark.read.format("yt").options(store=store.url, parsing_type_v3=False, pushDownFilters=True)
    assert bytes(table.load("//home/t").where("list is not null and k = 1").collect()[0]["list"]) == b"[3]"


def test_tables_and_queues_are_read_as_batches(spark: SparkSession, store: Store) -> None:
    queue = create_queue(store, {"n": "long"})
    queue.append([{"n": n} for n in range(10)])
    store.create_table("//home/t", {"k": "long", "v": "string"}, "k").put([{"k": 1, "v": "x"}])
    reader = spark.read.format("yt").option("store", store.url)
    assert [tuple(row) for row in reader.load("<foo=bar>//home/t").collect()] == [(1, "x")]
    found: DataFrame = reader.option("include_service_columns", True).load(QUEUE)
    assert [tuple(row) for row in found.where("__spyt_streaming_src_row_index > 7").collect()] == [(0, 8, 8), (0, 9, 9)]


def test_a_store_in_the_environment_after_sparks_start_is_found(
    spark: SparkSession, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_queue(store, {"n": "long"}).append([{"n": 1}])
    monkeypatch.setattr(spark.sparkContext, "environment", dict(spark.sparkContext.environment))
    monkeypatch.setenv("YT_PROXY", store.url)
    fresh = spark.newSession()
    carry_environment(fresh)
    assert [tuple(row) for row in fresh.read.format("yt").load(QUEUE).collect()] == [(1,)]


def test_a_stream_needs_a_registered_consumer(spark: SparkSession, store: Store, checkpoint: str) -> None:
    store.create_queue(QUEUE, {"n": "long"})
    for options, expected in (({}, "consumer_path is missing"), ({"consumer_path": CONSUMER}, "not registered")):
        df = spark.readStream.format("yt").option("store", store.url).options(**options).load(QUEUE)
        query = df.writeStream.format("noop").option("checkpointLocation", checkpoint).trigger(availableNow=True)
        with pytest.raises(Exception, match=expected):
            query.start().awaitTermination()
