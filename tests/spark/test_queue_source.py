"""Queues as sources in Spark: streams, starts, limits, consumers, loss, and batch reads."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headrace
from headrace.ports import Queue, Store
from headrace.spark.listener import lag_of
from headrace.spark.versions import FILTERS, LAG, STARTS
from tests.spark_versions import needs

Batches = list[list[dict[str, Any]]]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return headrace.open(tmp_path / "shop", create=True, synchronous="off")


@pytest.fixture
def clicks(store: Store) -> Queue:
    return store.create_queue("clicks", {"id": "long", "page": "string"}, partitions=2)


def rows(first: int, count: int) -> list[dict[str, Any]]:
    return [{"id": n, "page": f"/{n}"} for n in range(first, first + count)]


def stream(spark: SparkSession, store: Store, queue: str | None = "clicks", **options: Any) -> DataFrame:
    reader = spark.readStream.format("headrace").option("store", store.url).options(**options)
    return reader.load(queue) if queue is not None else reader.load()


def collect(into: Batches) -> Callable[[DataFrame, int], None]:
    return lambda batch, number: into.append([row.asDict() for row in batch.collect()])


def run(df: DataFrame, checkpoint: str, **trigger: Any) -> Batches:
    """Run a stream to its end; return the batches with rows."""
    batches: Batches = []
    query = df.writeStream.foreachBatch(collect(batches)).option("checkpointLocation", checkpoint)
    query.trigger(**(trigger or {"availableNow": True})).start().awaitTermination()
    return [batch for batch in batches if batch]


def ids(batches: Batches) -> list[int]:
    return [row["id"] for row in chain.from_iterable(batches)]


@needs(STARTS)
def test_rows_arrive_in_the_order_of_their_partition_with_their_address(
    spark: SparkSession, store: Store, clicks: Queue, checkpoint: str
) -> None:
    clicks.append(rows(0, 3), partition=0)
    clicks.append(rows(10, 2), partition=1)
    df = stream(spark, store, includeRowAddress=True, sourcePathColumn="source", maxRowsPerPartition=2)
    assert df.columns == ["id", "page", "_queue", "_partition", "_row_index", "source"]
    batches = run(df, checkpoint)
    assert [len(batch) for batch in batches] == [4, 1]
    assert [tuple(row.values()) for row in batches[0]] == [
        (0, "/0", "clicks", 0, 0, "clicks"),
        (1, "/1", "clicks", 0, 1, "clicks"),
        (10, "/10", "clicks", 1, 0, "clicks"),
        (11, "/11", "clicks", 1, 1, "clicks"),
    ]


def test_a_restart_continues_and_reads_added_partitions(
    spark: SparkSession, store: Store, clicks: Queue, checkpoint: str
) -> None:
    clicks.append(rows(0, 3), partition=0)
    assert ids(run(stream(spark, store), checkpoint)) == [0, 1, 2]
    clicks.add_partitions(1)
    clicks.append(rows(3, 1), partition=0)
    clicks.append(rows(4, 1), partition=2)
    assert ids(run(stream(spark, store), checkpoint)) == [3, 4]
    assert ids(run(stream(spark, store), checkpoint)) == []


@needs(STARTS)
def test_once_ignores_the_limits(spark: SparkSession, store: Store, clicks: Queue, checkpoint: str) -> None:
    clicks.append(rows(0, 5), partition=0)
    assert [len(batch) for batch in run(stream(spark, store, maxRowsPerTrigger=2), checkpoint, once=True)] == [5]


def test_several_queues_are_one_stream(spark: SparkSession, store: Store, clicks: Queue, checkpoint: str) -> None:
    others = store.create_queue("others", {"id": "long", "page": "string"})
    clicks.append(rows(0, 2), partition=1)
    others.append(rows(5, 2))
    batches = run(stream(spark, store, None, queues="clicks, others", sourcePathColumn="source"), checkpoint)
    assert sorted((row["source"], row["id"]) for row in chain.from_iterable(batches)) == [
        ("clicks", 0),
        ("clicks", 1),
        ("others", 5),
        ("others", 6),
    ]


@needs(STARTS)
def test_the_consumer_follows_and_a_new_query_starts_at_it(
    spark: SparkSession, store: Store, clicks: Queue, checkpoint: str, tmp_path: Path
) -> None:
    store.create_consumer("stats")
    store.register_consumer("clicks", "stats")
    clicks.append(rows(0, 4), partition=0)
    assert ids(run(stream(spark, store, consumer="stats"), checkpoint)) == [0, 1, 2, 3]
    assert store.consumer("stats").offsets("clicks") == {0: 4, 1: 0}
    clicks.append(rows(4, 1), partition=0)
    assert ids(run(stream(spark, store, consumer="stats"), str(tmp_path / "other"))) == [4]


def test_a_query_fails_if_its_consumer_is_moved(
    spark: SparkSession, store: Store, clicks: Queue, checkpoint: str
) -> None:
    store.create_consumer("stats")
    store.register_consumer("clicks", "stats")
    batches: Batches = []
    query = (
        stream(spark, store, consumer="stats")
        .writeStream.foreachBatch(collect(batches))
        .option("checkpointLocation", checkpoint)
        .start()
    )
    try:
        clicks.append(rows(0, 4), partition=0)
        query.processAllAvailable()
        store.consumer("stats").advance("clicks", {0: 2})
        clicks.append(rows(4, 4), partition=0)
        with pytest.raises(Exception, match="create a consumer for each streaming query"):
            query.processAllAvailable()
    finally:
        query.stop()


@needs(LAG)
def test_lag_is_reported_for_each_partition(spark: SparkSession, store: Store, clicks: Queue, checkpoint: str) -> None:
    clicks.append(rows(0, 30), partition=0)
    clicks.append(rows(0, 3), partition=1)
    query = (
        stream(spark, store, maxRowsPerPartition=10)
        .writeStream.foreachBatch(lambda batch, number: None)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    lags = [lag.rows_by_partition for report in query.recentProgress for lag in lag_of(report) if lag is not None]
    assert {"clicks[0]": 20, "clicks[1]": 0} in lags
    assert lags[-1] == {"clicks[0]": 0, "clicks[1]": 0}


def test_trimmed_rows_fail_the_query_unless_loss_is_accepted(
    spark: SparkSession, store: Store, clicks: Queue, checkpoint: str
) -> None:
    clicks.append(rows(0, 3), partition=0)
    run(stream(spark, store), checkpoint)
    clicks.append(rows(3, 5), partition=0)
    clicks.trim(0, before=6)
    with pytest.raises(Exception, match=r"rows 3 to 5 of partition 0 .*failOnDataLoss"):
        run(stream(spark, store), checkpoint)
    assert ids(run(stream(spark, store, failOnDataLoss=False), checkpoint)) == [6, 7]


@needs(STARTS)
def test_large_partitions_are_split_and_small_ones_share_a_task(
    spark: SparkSession, store: Store, checkpoint: str, tmp_path: Path
) -> None:
    store.create_queue("wide", {"id": "long"}, partitions=8)
    for number in range(8):
        store.queue("wide").append(pa.table({"id": [number] * 100}), partition=number)
    tasks: list[int] = []

    def count(batch: DataFrame, number: int) -> None:
        tasks.append(batch.rdd.getNumPartitions())

    for options, place in (({}, checkpoint), ({"minPartitions": 20}, str(tmp_path / "other"))):
        df = stream(spark, store, "wide", **options)
        query = df.writeStream.foreachBatch(count).option("checkpointLocation", place).trigger(availableNow=True)
        query.start().awaitTermination()
    assert tasks[1] == 1
    assert tasks[3] >= 20


def test_composite_columns_keep_their_values(spark: SparkSession, store: Store, checkpoint: str) -> None:
    columns = {"id": "long", "tags": "array<string>", "at": "struct<x:int,y:array<double>>", "n": "map<string,long>"}
    queue = store.create_queue("nested", columns)
    row = {"id": 1, "tags": ["a", None], "at": {"x": 1, "y": [0.5]}, "n": [("k", 5)]}
    queue.append([row, {"id": 2, "tags": None, "at": None, "n": None}])
    (batch,) = run(stream(spark, store, "nested"), checkpoint)
    assert batch[0]["tags"] == ["a", None]
    assert batch[0]["at"].asDict() == {"x": 1, "y": [0.5]}
    assert batch[0]["n"] == {"k": 5}
    assert batch[1]["at"] is None


def test_a_stream_can_select_columns(spark: SparkSession, store: Store, clicks: Queue, checkpoint: str) -> None:
    clicks.append(rows(7, 1), partition=0)
    df = (
        spark.readStream.format("headrace")
        .schema("_row_index long, id long")
        .options(store=store.url, includeRowAddress=True)
        .load("clicks")
    )
    assert run(df, checkpoint) == [[{"_row_index": 0, "id": 7}]]


def test_a_queue_is_read_as_a_batch_by_several_tasks(spark: SparkSession, store: Store, clicks: Queue) -> None:
    clicks.append(rows(0, 50), partition=0)
    clicks.append(rows(50, 50), partition=1)
    reader = spark.read.format("headrace").options(store=store.url, includeRowAddress=True)
    assert reader.load("clicks").agg(F.sum("id")).first()[0] == sum(range(100))  # type: ignore[index]
    pieces = reader.options(splits=4, startingPosition='{"0": 10}', endingPosition='{"0": 30, "1": 5}').load("clicks")
    assert pieces.rdd.getNumPartitions() >= 4
    assert sorted(row.id for row in pieces.collect()) == [*range(10, 30), *range(50, 55)]
    assert reader.options(splits=4, startingPosition="latest").load("clicks").count() == 0
    # Spark reads one partition even if the source has none.
    assert reader.options(startingPosition="latest").load("clicks").collect() == []


@needs(FILTERS)
def test_filters_on_the_address_reduce_the_rows_that_are_read(spark: SparkSession, store: Store, clicks: Queue) -> None:
    clicks.append(rows(0, 50), partition=0)
    clicks.append(rows(50, 50), partition=1)

    def found(condition: str) -> tuple[list[int], str]:
        reader = spark.read.format("headrace").options(store=store.url, includeRowAddress=True, pushDownFilters=True)
        df = reader.load("clicks").where(condition)
        return sorted(row.id for row in df.collect()), df._jdf.queryExecution().executedPlan().toString()

    narrowed, plan = found("_partition = 1 and _row_index >= 10 and _row_index < 13")
    assert narrowed == [60, 61, 62]
    assert "Filter (" not in plan
    mixed, plan = found("_row_index = 5 and id > 50")
    assert mixed == [55]
    assert "Filter (" in plan


def test_errors_name_the_mistake(spark: SparkSession, store: Store, clicks: Queue, checkpoint: str) -> None:
    store.create_consumer("stranger")
    for options, expected in (
        ({"consumer": "stranger"}, "not registered"),
        ({"consumer": "nobody"}, "nobody"),
        ({"startingPosition": '{"7": 1}'}, "no such partition"),
        ({"queues": "clicks"}, "queues and path are both set"),
    ):
        with pytest.raises(Exception, match=expected):
            run(stream(spark, store, **options), f"{checkpoint}-{expected}")
    with pytest.raises(Exception, match="nowhere"):
        stream(spark, store, "nowhere")
