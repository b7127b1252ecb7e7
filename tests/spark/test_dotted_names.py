"""Sources and sinks with names that Spark would read as paths, for columns, tables and queues."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import headrace
from headrace.ports import Store
from tests.spark.followed_histories import prepare
from tests.spark.following import Following

# A key with a dot, the column that it would mean as a path, and other characters of paths and patterns.
COLUMNS = {".k": "string", "k": "long", "a.b": "long", "a": "long", "a`b": "long", "c d": "double", "*": "string"}
ROWS = [{".k": f"r{n % 3}", "k": -n, "a.b": n, "a": -1, "a`b": 2, "c d": 0.5, "*": "x"} for n in range(6)]
LAST = ROWS[3:]
TABLE, QUEUE, SINK = "my.orders", "my.clicks", "my.sink"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = headrace.open(tmp_path / "shop.v1", create=True, synchronous="off")
    for name in (TABLE, SINK):
        store.create_table(name, COLUMNS, [".k"])
    store.create_tunnel(TABLE, "my.tunnel", kind="BaseAndStream").table.put(ROWS)
    store.create_queue(QUEUE, COLUMNS, partitions=2).append(ROWS, key=[".k"])
    store.create_consumer("my.consumer")
    store.register_consumer(QUEUE, "my.consumer")
    return store


def quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def own(df: DataFrame) -> DataFrame:
    """Return only the columns of the table."""
    return df.select(*map(quoted, COLUMNS))


def content(store: Store, table: str = SINK) -> list[dict[str, Any]]:
    return list(store.table(table).scan().read_all().to_pylist())


def finish(query: Any) -> None:
    query.awaitTermination()
    assert query.exception() is None


@pytest.mark.parametrize("row_change", ["put", "update", "delete"])
def test_a_tunnel_streams_into_a_table(spark: SparkSession, store: Store, checkpoint: str, row_change: str) -> None:
    if row_change == "delete":
        store.table(SINK).put(ROWS)
    changes = spark.readStream.format("headrace").options(store=store.url, tunnel="my.tunnel").load()
    writer = headrace.write_stream(
        own(changes), store=store.url, table=SINK, checkpoint=checkpoint, row_change=row_change
    )
    finish(writer.trigger(availableNow=True).start())
    assert content(store) == ([] if row_change == "delete" else LAST)


def test_complete_mode_writes_aggregates(spark: SparkSession, store: Store, checkpoint: str) -> None:
    store.create_table("my.totals", {".k": "string", "count": "long"}, ".k").put([{".k": "left over"}])
    changes = spark.readStream.format("headrace").options(store=store.url, tunnel="my.tunnel").load()
    counts = changes.groupBy("`.k`").count()
    writer = headrace.write_stream(counts, store=store.url, table="my.totals", checkpoint=checkpoint, mode="complete")
    finish(writer.trigger(availableNow=True).start())
    assert content(store, "my.totals") == [{".k": f"r{n}", "count": 2} for n in range(3)]


def test_a_queue_streams_into_a_queue_and_a_table_with_its_own_sink(
    spark: SparkSession, store: Store, tmp_path: Path, checkpoint: str
) -> None:
    store.create_queue("other.queue", COLUMNS, partitions=2)
    clicks = spark.readStream.format("headrace").options(store=store.url, consumer="my.consumer").load(QUEUE)
    outputs = [headrace.Output(queue="other.queue", key=[".k"]), headrace.Output(table=SINK)]
    writer = headrace.write_stream(own(clicks), store=store.url, outputs=outputs, checkpoint=checkpoint)
    finish(writer.trigger(availableNow=True).start())
    assert content(store) == LAST
    assert sum(part.rows for part in store.queue("other.queue").bounds().values()) == len(ROWS)
    assert sum(store.consumer("my.consumer").offsets(QUEUE).values()) == len(ROWS)
    native = own(spark.readStream.format("headrace").options(store=store.url).load("other.queue")).writeStream
    native = native.format("headrace").options(store=store.url, table=TABLE).trigger(availableNow=True)
    store.table(TABLE).delete(ROWS)
    finish(native.option("checkpointLocation", str(tmp_path / "native")).start())
    assert content(store, TABLE) == LAST


def test_batches_are_read_with_pushed_down_filters(spark: SparkSession, store: Store) -> None:
    table = spark.read.format("headrace").options(store=store.url, pushDownFilters="true").load(TABLE)
    found = table.where("`.k` = 'r1' and `a.b` > 2 and `a``b` = 2").select("`.k`", "`a.b`", "`k`")
    assert [row.asDict() for row in found.collect()] == [{".k": "r1", "a.b": 4, "k": -4}]
    table = spark.read.format("headrace").options(store=store.url).load(TABLE)
    own(table).write.format("headrace").options(store=store.url, table=SINK).mode("append").save()
    assert content(store) == LAST


def test_format_yt_reads_and_writes_dotted_names(spark: SparkSession, store: Store, checkpoint: str) -> None:
    clicks = spark.readStream.format("yt").options(store=store.url, consumer_path="my.consumer").load(QUEUE)
    writer = own(clicks).writeStream.format("yt").options(store=store.url, path=SINK)
    finish(writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start())
    assert content(store) == LAST


def test_streaming_sql_reads_and_writes_dotted_names(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    session = headrace.sql(spark, tmp_path)
    place = f"store = '{store.url}'"
    session.run(
        f"""
        CREATE TABLE `the source` USING headrace OPTIONS ({place}, table = '{TABLE}');
        CREATE TABLE `the sink` USING headrace OPTIONS ({place}, table = '{SINK}');
        CREATE SCAN changes ON `the source` USING STREAM OPTIONS (tunnel = 'my.tunnel');
        CREATE STREAM job OPTIONS (checkpointLocation = '{tmp_path / "checkpoint"}')
            INSERT INTO `the sink` SELECT {", ".join(map(quoted, COLUMNS))} FROM changes;
        """,
        available_now=True,
    )
    assert session.wait(120)
    session.stop()
    assert content(store) == LAST


@pytest.mark.parametrize("name", ["q`t", "it's", 'a "b', "/*", "a--b", "//", "*/", "a.b", "größe €"])
def test_a_query_over_several_tables_follows_columns_of_any_name(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    prepare(spark)
    odd = quoted(name)
    with headrace.open(tmp_path / "store", create=True, synchronous="off") as store:
        for table in ("t", "u"):
            store.create_table(table, {"id": "long", name: "long"}, "id", pre_images=True)
            store.table(table).put([{"id": number, name: number % 2} for number in range(3)])
        store.create_table("target", {name: "long", f"{name} n": "long"}, name)
        counted = f"count(u.{odd}) AS {quoted(f'{name} n')}"
        sql = f"SELECT t.{odd}, {counted} FROM t JOIN u ON t.{odd} = u.{odd} GROUP BY t.{odd}"
        with Following(spark, store, sql, ["t", "u"], "target", tmp_path) as query:
            assert query.advance() == query.expected() == [{name: 0, f"{name} n": 4}, {name: 1, f"{name} n": 1}]
            query.restart()
            store.table("u").put({"id": 4, name: 1})
            store.table("t").delete({"id": 0})
            assert query.advance() == query.expected() == [{name: 0, f"{name} n": 2}, {name: 1, f"{name} n": 2}]
