"""Queues and several outputs as sinks in Spark: exactly once, with the consumer in the same transaction."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

import headrace
from headrace import Output
from headrace.errors import OptionError, SchemaError
from headrace.ports import Queue, Store, Table
from tests.embedded_database import raw_connection

COLUMNS = {"id": "long", "name": "string"}
CONSUMER = "//home/copy"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return headrace.open(tmp_path / "shop", create=True, synchronous="off")


@pytest.fixture
def clicks(store: Store) -> Queue:
    """A queue of two partitions with a consumer."""
    queue = store.create_queue("clicks", COLUMNS, partitions=2)
    store.create_consumer(CONSUMER)
    store.register_consumer("clicks", CONSUMER)
    return queue


@pytest.fixture
def copy(store: Store) -> Queue:
    return store.create_queue("copy", COLUMNS, partitions=2)


def some(first: int, count: int) -> list[dict[str, Any]]:
    return [{"id": n, "name": f"n{n % 3}"} for n in range(first, first + count)]


def content(queue: Queue) -> dict[int, list[Any]]:
    """Return the ids of each partition in order; the whole rows for other queues."""
    found = {}
    for number, bounds in queue.bounds().items():
        rows: list[Any] = []
        while bounds.lower + len(rows) < bounds.upper:
            rows += queue.read(number, bounds.lower + len(rows), 1000).rows.to_pylist()
        found[number] = [row["id"] if row.keys() == COLUMNS.keys() else row for row in rows]
    return found


def all_ids(queue: Queue) -> list[int]:
    return sorted(number for part in content(queue).values() for number in part)


def consumed(store: Store, consumer: str = CONSUMER) -> dict[int, int]:
    return store.consumer(consumer).offsets("clicks")


def stream(spark: SparkSession, store: Store, consumer: str = CONSUMER, **options: Any) -> DataFrame:
    return spark.readStream.format("headrace").options(store=store.url, consumer=consumer, **options).load("clicks")


def run(df: DataFrame, store: Store, checkpoint: str, **more: Any) -> None:
    writer = headrace.write_stream(df, store=store.url, checkpoint=checkpoint, **more)
    writer.trigger(availableNow=True).start().awaitTermination()


def run_natively(df: DataFrame, store: Store, checkpoint: str, path: str, format: str = "headrace") -> None:
    writer = df.writeStream.format(format).options(store=store.url, path=path, checkpointLocation=checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()


def forget_last_commit(checkpoint: str) -> None:
    """Make Spark repeat the last batch, as after a crash between the sink and the commit log."""
    last = max(int(file.name) for file in (Path(checkpoint) / "commits").glob("[0-9]*"))
    for name in (str(last), f".{last}.crc"):
        (Path(checkpoint) / "commits" / name).unlink(missing_ok=True)


def until(condition: Callable[[], object], *queries: StreamingQuery) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, [query.exception() for query in queries]
        time.sleep(0.05)


@pytest.mark.parametrize("way", ["write_stream", "headrace", "yt"])
def test_the_offset_of_the_consumer_is_the_end_of_the_last_batch(
    spark: SparkSession, store: Store, clicks: Queue, copy: Queue, checkpoint: str, way: str
) -> None:
    for first in (0, 10):
        clicks.append(some(first, 5), partition=0)
        clicks.append(some(first + 5, 5), partition=1)
        rows = stream(spark, store)
        if way == "write_stream":
            run(rows, store, checkpoint, queue="copy")
        else:
            run_natively(rows, store, checkpoint, "copy", way)
        assert consumed(store) == {0: first // 2 + 5, 1: first // 2 + 5}
    assert all_ids(copy) == list(range(20))


@pytest.mark.parametrize("native", [False, True])
def test_a_batch_that_runs_again_changes_neither_queue_nor_consumer(
    spark: SparkSession, store: Store, clicks: Queue, copy: Queue, checkpoint: str, native: bool
) -> None:
    def copy_all() -> None:
        rows = stream(spark, store)
        if native:
            return run_natively(rows, store, checkpoint, "copy")
        return run(rows, store, checkpoint, queue="copy")

    clicks.append(some(0, 10), partition=0)
    copy_all()
    before = content(copy), consumed(store)
    assert before[1] == {0: 10, 1: 0}
    forget_last_commit(checkpoint)
    copy_all()
    assert (content(copy), consumed(store)) == before


def test_the_column_tablet_index_selects_the_partition(
    spark: SparkSession, store: Store, clicks: Queue, copy: Queue, checkpoint: str
) -> None:
    clicks.append(some(0, 20), partition=1)
    clicks.append(some(20, 20), partition=0)
    rows = stream(spark, store, includeRowAddress="true").withColumnRenamed("_partition", "$tablet_index")
    run(rows.drop("_queue", "_row_index"), store, checkpoint, queue="copy")
    assert content(copy) == {0: list(range(20, 40)), 1: list(range(20))}


def test_rows_of_one_key_go_to_one_partition(spark: SparkSession, store: Store, clicks: Queue, checkpoint: str) -> None:
    keyed = store.create_queue("keyed", {"name": "string", "n": "long"}, partitions=4)
    for first in (0, 60):
        clicks.append(some(first, 60), partition=first // 60)
        run(stream(spark, store).selectExpr("name", "id AS n"), store, checkpoint, queue="keyed", key="name")
    homes = [{row["name"] for row in rows} for rows in content(keyed).values()]
    assert sorted(name for names in homes for name in names) == ["n0", "n1", "n2"]
    assert sum(bounds.rows for bounds in keyed.bounds().values()) == 120


@pytest.mark.parametrize(("mode", "expected"), [("update", [1, 1, 2]), ("complete", [1, 1, 1, 2])])
def test_update_and_complete_mode_append_to_a_queue(
    spark: SparkSession, store: Store, clicks: Queue, checkpoint: str, mode: str, expected: list[int]
) -> None:
    counts = store.create_queue("counts", {"name": "string", "count": "long"})
    clicks.append(some(0, 2), partition=0)
    run(stream(spark, store).groupBy("name").count(), store, checkpoint, queue="counts", mode=mode)
    clicks.append([{"id": 9, "name": "n0"}], partition=1)
    run(stream(spark, store).groupBy("name").count(), store, checkpoint, queue="counts", mode=mode)
    assert sorted(row["count"] for row in content(counts)[0]) == expected


def test_a_batch_write_appends_and_an_overwrite_leaves_only_its_rows(
    spark: SparkSession, store: Store, copy: Queue
) -> None:
    df = spark.range(1000).selectExpr("id", "concat('n', id) AS name")
    for mode, rows in (("append", df), ("append", df.limit(10)), ("overwrite", df.limit(5))):
        rows.write.format("headrace").option("store", store.url).mode(mode).save("copy")
    bounds = copy.bounds()
    assert all_ids(copy) == [0, 1, 2, 3, 4]
    assert sum(part.upper for part in bounds.values()) == 1015, "row indexes are never used again"


@pytest.mark.parametrize("sizes", [(3, 5), (5, 5)], ids=["different", "equal"])
def test_of_two_queries_on_one_consumer_one_fails_and_its_batch_is_invisible(
    spark: SparkSession, store: Store, clicks: Queue, tmp_path: Path, sizes: tuple[int, int]
) -> None:
    sinks = [store.create_queue(name, COLUMNS) for name in ("first", "second")]
    queries = [
        headrace.write_stream(
            stream(spark, store, maxRowsPerPartition=size), store=store.url, queue=sink.name, checkpoint=tmp_path / name
        ).start()
        for size, sink, name in zip(sizes, sinks, "ab", strict=True)
    ]
    try:
        # Both have fixed their starting position.
        until(lambda: all((tmp_path / name / "commits" / "0").exists() for name in "ab"), *queries)
        clicks.append(some(0, 30), partition=0)
        until(lambda: any(query.exception() for query in queries), *queries)
        loser = 0 if queries[0].exception() else 1
        assert "OffsetConflictError" in str(queries[loser].exception())
        assert all_ids(sinks[loser]) == list(range(len(all_ids(sinks[loser]))))
        until(lambda: all_ids(sinks[1 - loser]) == list(range(30)), *queries)
        assert consumed(store)[0] == 30
    finally:
        for query in queries:
            query.stop()


# -- several outputs ------------------------------------------------------------------------------------


@pytest.fixture
def big(store: Store) -> Table:
    return store.create_table("big", COLUMNS, "id")


def test_several_outputs_are_published_together_and_computed_once(
    spark: SparkSession, store: Store, clicks: Queue, copy: Queue, big: Table, tmp_path: Path, checkpoint: str
) -> None:
    clicks.append(some(0, 10), partition=0)
    computed = tmp_path / "computed"

    def counted(batches: Any) -> Any:
        for batch in batches:
            with computed.open("a") as file:
                file.write(f"{batch.num_rows}\n")
            yield batch

    outputs = [Output(table="big", select=lambda df: df.where("id >= 7")), Output(queue="copy", key="name")]
    rows = stream(spark, store)
    run(rows.mapInArrow(counted, rows.schema), store, checkpoint, outputs=outputs)
    assert [row["id"] for row in big.scan().read_all().to_pylist()] == [7, 8, 9]
    assert all_ids(copy) == list(range(10))
    assert consumed(store) == {0: 10, 1: 0}
    assert sum(map(int, computed.read_text().split())) == 10
    forget_last_commit(checkpoint)
    run(stream(spark, store), store, checkpoint, outputs=outputs)
    assert all_ids(copy) == list(range(10))


def test_if_one_output_fails_none_is_published(
    spark: SparkSession, store: Store, clicks: Queue, copy: Queue, checkpoint: str
) -> None:
    store.create_table("bytes", {"name": "string", "id": "byte"}, "name")
    clicks.append([{"id": 1000, "name": "too large for a byte"}], partition=0)
    with pytest.raises(Exception, match="column 'id' cannot hold"):
        run(stream(spark, store), store, checkpoint, outputs=[Output(queue="copy"), Output(table="bytes")])
    assert all_ids(copy) == []
    assert consumed(store) == {0: 0, 1: 0}
    assert staged_rows(store) == 0


def staged_rows(store: Store) -> int:
    connection = raw_connection(Path(store.url.removeprefix("file://")))
    try:
        return int(next(iter(connection.execute("SELECT count(*) FROM stage")))[0])
    finally:
        connection.close()


def test_outputs_replace_the_arguments_table_and_queue(
    spark: SparkSession, store: Store, clicks: Queue, copy: Queue, checkpoint: str
) -> None:
    rows = stream(spark, store)
    calls: tuple[dict[str, Any], ...] = (
        {"queue": "copy", "outputs": [Output(queue="copy")]},
        {"outputs": [Output(queue="copy")], "key": "name"},
        {"outputs": []},
        {"table": "big", "queue": "copy"},
        {},
    )
    for wrong in calls:
        with pytest.raises(OptionError):
            headrace.write_stream(rows, store=store.url, checkpoint=checkpoint, **wrong).start()


# -- invalid rows and columns ---------------------------------------------------------------------------


def test_columns_are_checked_before_the_stream_starts(
    spark: SparkSession, store: Store, clicks: Queue, checkpoint: str
) -> None:
    store.create_queue(
        "strict",
        {
            "id": "long not null",
            "tags": "array<struct<name:string,weight:long>>",
            "$timestamp": "timestamp",
        },
        partitions=2,
    )
    rows = stream(spark, store).select("id")
    tags = "array(named_struct('name', 'a', 'weight', {}))"
    for df, key, expected in (
        (
            rows.withColumn("$timestamp", F.current_timestamp()),
            None,
            r"the store fills.*df\.drop\('\$timestamp'\)",
        ),
        (rows.withColumn("$row_index", F.lit(0)), None, "the store fills column"),
        (rows.withColumn("other", F.lit(0)), None, "'other'"),
        (rows.selectExpr("1 AS `$tablet_index`"), None, "no column 'id', which is NOT NULL"),
        (rows.selectExpr("id", f"{tags.format('true')} AS tags"), None, "CAST"),
        (rows.selectExpr("id", "'x' AS `$tablet_index`"), None, r"\$tablet_index"),
        (rows, "tags", "a column of the key"),
    ):
        with pytest.raises(SchemaError, match=expected):
            headrace.write_stream(df, store=store.url, queue="strict", key=key, checkpoint=checkpoint).start()
    with pytest.raises(OptionError, match="both the key and the column"):
        headrace.write_stream(
            rows.withColumn("$tablet_index", F.lit(0)), store=store.url, queue="strict", key="id", checkpoint=checkpoint
        ).start()
    run(rows.selectExpr("id", f"{tags.format('1')} AS tags", "1 AS `$tablet_index`"), store, checkpoint, queue="strict")
    no_id = spark.range(1).select(F.lit(1).alias("$tablet_index")).write.format("headrace")
    with pytest.raises(Exception, match="which is NOT NULL"):
        no_id.option("store", store.url).mode("append").save("strict")


def test_a_row_that_does_not_fit_fails_the_write_and_writes_nothing(spark: SparkSession, store: Store) -> None:
    small = store.create_queue("small", {"id": "byte"}, partitions=2)
    with pytest.raises(Exception, match="column 'id' cannot hold"):
        spark.range(0, 200, numPartitions=2).write.format("headrace").option("store", store.url).mode("append").save(
            "small"
        )
    assert sum(bounds.upper for bounds in small.bounds().values()) == 0
    assert staged_rows(store) == 0


# -- format yt ------------------------------------------------------------------------------------------


def test_spyts_documented_recipe_writes_each_row_once(
    spark: SparkSession, store: Store, clicks: Queue, checkpoint: str
) -> None:
    table = store.create_table(
        "//tmp/result",
        {"tablet_idx": "long", "row_idx": "long", "id": "long", "name": "string", "note": "string"},
        ["tablet_idx", "row_idx"],
    )
    clicks.append(some(0, 4), partition=0)
    clicks.append(some(4, 4), partition=1)
    reader = spark.readStream.format("yt").option("proxy", store.url).option("consumer_path", CONSUMER)
    df = (
        reader.option("include_service_columns", True)
        .option("max_rows_per_partition", 3)
        .load("clicks")
        .withColumnRenamed("__spyt_streaming_src_tablet_index", "tablet_idx")
        .withColumnRenamed("__spyt_streaming_src_row_index", "row_idx")
    )
    run_natively(df, store, checkpoint, "<append=%true>//tmp/result", "yt")
    rows = table.scan().read_all().to_pylist()
    assert [(row["tablet_idx"], row["row_idx"], row["id"], row["note"]) for row in rows] == [
        (part, row, part * 4 + row, None) for part in (0, 1) for row in range(4)
    ]
    with pytest.raises(Exception, match=r"key column.*'row_idx'"):
        run_natively(df.drop("row_idx"), store, checkpoint + "-2", "//tmp/result", "yt")


def test_the_size_of_writes_is_checked(
    spark: SparkSession, store: Store, clicks: Queue, copy: Queue, checkpoint: str
) -> None:
    df = spark.range(10).selectExpr("id", "'n' AS name")
    spark.conf.set("spark.yt.write.dynBatchSize", "many")
    try:
        with pytest.raises(Exception, match=r"spark.yt.write.dynBatchSize.*many.*positive"):
            df.write.format("yt").option("proxy", store.url).mode("append").save("copy")
        with pytest.raises(OptionError, match="positive"):
            headrace.write_stream(
                stream(spark, store), format="yt", options={"path": "copy"}, store=store.url, checkpoint=checkpoint
            )
        df.write.format("headrace").option("store", store.url).mode("append").save("copy")
        spark.conf.set("spark.yt.write.dynBatchSize", "3")
        df.write.format("yt").option("proxy", store.url).mode("append").save("copy")
    finally:
        spark.conf.unset("spark.yt.write.dynBatchSize")
    assert all_ids(copy) == sorted([*range(10), *range(10)])
