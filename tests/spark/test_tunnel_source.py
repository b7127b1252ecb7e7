"""The tunnel source in Spark: formats, triggers, limits, restarts, start positions."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headrace
from headrace.ports import Store, Table, Tunnel
from headrace.spark.versions import ENVIRONMENT, LAG, STARTS
from tests.spark_versions import needs

CATALOG = '{"columns": {"id": {"type": "long"}, "name": {"type": "string"}, "price": {"type": "double"}}}'


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return headrace.open(tmp_path / "stores" / "shop", create=True, synchronous="off")


@pytest.fixture
def items(store: Store) -> Table:
    return store.create_table("items", {"id": "long", "name": "string", "price": "double"}, "id")


@pytest.fixture
def tunnel(store: Store, items: Table) -> Tunnel:
    return store.create_tunnel("items", "all", kind="Stream")


def rows(first: int, count: int) -> list[dict[str, Any]]:
    return [{"id": n, "name": f"item {n}", "price": n / 4} for n in range(first, first + count)]


def stream(spark: SparkSession, store: Store, **options: Any) -> DataFrame:
    return spark.readStream.format("headrace").options(**{"store": store.url, "tunnel": "all"} | options).load()


Collected = list[tuple[int, list[Any]]]


def run(df: DataFrame, checkpoint: str, into: Collected, **trigger: Any) -> None:
    """Run a stream to its end, by default with availableNow, and collect its batches."""

    def collect(batch: DataFrame, number: int) -> None:
        into.append((number, [row.asDict() for row in batch.collect()]))

    query = (
        df.writeStream.foreachBatch(collect)
        .option("checkpointLocation", checkpoint)
        .trigger(**(trigger or {"availableNow": True}))
        .start()
    )
    query.awaitTermination()


def ids(batches: Collected) -> list[list[int]]:
    return [sorted(row["id"] for row in found) for _, found in batches]


def test_changes_have_sparks_change_columns(
    spark: SparkSession, store: Store, items: Table, tunnel: Tunnel, checkpoint: str
) -> None:
    items.put(rows(1, 2))
    items.update({"id": 1, "price": 9.0})
    items.delete({"id": 2})
    batches: Collected = []
    run(stream(spark, store), checkpoint, batches)
    found = sorted((row["_commit_version"], row["_change_type"], row["id"], row["price"]) for row in batches[0][1])
    assert [entry[1:] for entry in found] == [
        ("insert", 1, 0.25),
        ("insert", 2, 0.5),
        ("update_postimage", 1, 9.0),
        ("delete", 2, None),
    ]


def test_a_restart_continues_at_the_checkpoint(
    spark: SparkSession, store: Store, items: Table, tunnel: Tunnel, checkpoint: str
) -> None:
    batches: Collected = []
    for first in (0, 10, 20):
        items.put(rows(first, 10))
        run(stream(spark, store), checkpoint, batches)
    run(stream(spark, store), checkpoint, batches)
    assert ids(batches) == [list(range(first, first + 10)) for first in (0, 10, 20)]


@needs(STARTS)
def test_a_row_limit_splits_batches_and_loses_no_rows(
    spark: SparkSession, store: Store, items: Table, tunnel: Tunnel, checkpoint: str
) -> None:
    items.put(rows(0, 25))
    batches: Collected = []
    run(stream(spark, store, maxRowsPerTrigger=10), checkpoint, batches)
    assert [len(found) for _, found in batches] == [10, 10, 5]
    assert sorted(chain.from_iterable(ids(batches))) == list(range(25))


@needs(STARTS)
def test_once_ignores_the_limits(
    spark: SparkSession, store: Store, items: Table, tunnel: Tunnel, checkpoint: str
) -> None:
    items.put(rows(0, 25))
    batches: Collected = []
    run(stream(spark, store, maxRowsPerTrigger=10), checkpoint, batches, once=True)
    assert ids(batches) == [list(range(25))]


def test_processing_time_runs_no_batches_without_new_data(
    spark: SparkSession, store: Store, items: Table, tunnel: Tunnel, checkpoint: str
) -> None:
    batches: Collected = []

    def collect(batch: DataFrame, number: int) -> None:
        batches.append((number, [row.asDict() for row in batch.collect()]))

    query = stream(spark, store).writeStream.foreachBatch(collect).option("checkpointLocation", checkpoint).start()
    try:
        for first in (0, 5):
            items.put(rows(first, 5))
            query.processAllAvailable()
        query.processAllAvailable()
        assert ids(batches) == [list(range(5)), list(range(5, 10))]
        progress = query.lastProgress
        assert progress is not None
        assert (headrace.lag_of(progress)[0] is not None) == LAG.present
    finally:
        query.stop()


@needs(STARTS)
def test_available_now_reads_base_data_and_the_changes_before_its_start(
    spark: SparkSession, store: Store, items: Table, checkpoint: str
) -> None:
    items.put(rows(0, 10))
    store.create_tunnel("items", "all", kind="BaseAndStream", base_channels=3)
    items.put(rows(10, 5))
    items.split(at={"id": 5})
    items.put(rows(0, 10))
    batches: Collected = []
    run(stream(spark, store), checkpoint, batches)
    found = [row for _, batch in batches for row in batch]
    assert sorted(row["id"] for row in found if row["_change_type"] == "insert") == list(range(15))
    assert sorted(row["id"] for row in found if row["_change_type"] == "update_postimage") == list(range(10))


@needs(STARTS)
def test_two_actions_on_a_batch_see_the_same_rows(
    spark: SparkSession, store: Store, items: Table, tunnel: Tunnel, checkpoint: str
) -> None:
    items.put(rows(0, 100))
    counts: list[tuple[int, int]] = []

    def twice(batch: DataFrame, number: int) -> None:
        first = batch.count()
        items.put(rows(1000 + first + number, 7))
        counts.append((first, batch.count()))

    stream(spark, store, maxRowsPerChannel=40).writeStream.foreachBatch(twice).option(
        "checkpointLocation", checkpoint
    ).trigger(availableNow=True).start().awaitTermination()
    assert [first for first, _ in counts] == [40, 40, 20]
    assert all(first == second for first, second in counts)


def test_rows_that_are_not_read_are_delivered_again(
    spark: SparkSession, store: Store, items: Table, tunnel: Tunnel, checkpoint: str
) -> None:
    items.put(rows(0, 200_000))
    seen: set[int] = set()

    def take_some_then_all(batch: DataFrame, number: int) -> None:
        assert len(batch.limit(3).collect()) == 3
        seen.update(row["id"] for row in batch.select("id").collect())

    stream(spark, store).writeStream.foreachBatch(take_some_then_all).option("checkpointLocation", checkpoint).trigger(
        availableNow=True
    ).start().awaitTermination()
    assert len(seen) == 200_000


@pytest.mark.parametrize(("start", "expected"), [("earliest", 4), ("latest", 0), ("committed", 2)])
def test_a_new_query_begins_at_its_starting_position(
    spark: SparkSession,
    store: Store,
    items: Table,
    tunnel: Tunnel,
    checkpoint: str,
    tmp_path: Path,
    start: str,
    expected: int,
) -> None:
    items.put(rows(0, 2))
    batches: Collected = []
    run(stream(spark, store), checkpoint, batches)
    # The feed commits a batch when Spark asks for the next one.
    run(stream(spark, store), checkpoint, batches)
    items.put(rows(2, 2))
    batches.clear()
    other = str(tmp_path / "other")
    run(stream(spark, store, startingPosition=start), other, batches)
    assert sum(len(found) for _, found in batches) == expected
    batches.clear()
    items.put(rows(10, 1))
    run(stream(spark, store, startingPosition=start), other, batches)
    assert sum(len(found) for _, found in batches) == 1


def test_a_query_can_start_at_a_timestamp(
    spark: SparkSession, store: Store, items: Table, tunnel: Tunnel, checkpoint: str, tmp_path: Path
) -> None:
    items.put(rows(0, 3))
    items.put(rows(3, 3))
    batches: Collected = []
    run(stream(spark, store), checkpoint, batches)
    second = max(row["_commit_timestamp"] for row in batches[0][1])
    moment = second.astimezone().isoformat()
    found: Collected = []
    run(stream(spark, store, startingPosition=moment), str(tmp_path / "other"), found)
    assert ids(found) == [[3, 4, 5]]


def test_the_tablestore_format_has_the_connectors_options_and_columns(
    spark: SparkSession, store: Store, items: Table, tunnel: Tunnel, checkpoint: str, tmp_path: Path
) -> None:
    items.put(rows(1, 3))
    items.update({"id": 2, "price": 7.5})
    df = (
        spark.readStream.format("tablestore")
        .option("endpoint", str(tmp_path / "stores"))
        .option("instance.name", "shop")
        .option("table.name", "items")
        .option("tunnel.id", tunnel.id)
        .option("access.key.id", "")
        .option("access.key.secret", "")
        .option("catalog", CATALOG)
        .load()
    )
    assert df.columns[:4] == ["__ots_record_type__", "__ots_record_timestamp__", "id", "__ots_column_type_id"]
    batches: Collected = []
    run(df, checkpoint, batches)
    update = batches[0][1][-1]
    assert (update["__ots_record_type__"], update["price"], update["name"]) == ("UPDATE", 7.5, None)


def test_errors_name_missing_and_invalid_options(spark: SparkSession, store: Store, items: Table) -> None:
    for options, expected in (
        ({"tunnel": "none"}, "none"),
        ({"tunnel": "all", "store": store.url + "-missing"}, "no store here"),
        ({"tunnel": "all", "maxRowPerTriger": "1"}, "did you mean maxRowsPerTrigger"),
    ):
        with pytest.raises((AnalysisException, PySparkException), match=expected):
            spark.readStream.format("headrace").options(**({"store": store.url} | options)).load()


@needs(STARTS)
def test_a_stream_that_is_read_as_a_table_adds_up_to_the_table(
    spark: SparkSession, store: Store, items: Table, checkpoint: str
) -> None:
    items.put(rows(1, 3))
    store.create_tunnel("items", "early")
    with pytest.raises(AnalysisException, match=r"(?s)does not keep pre-images.*table set items pre_images=true"):
        stream(spark, store, readAs="table", tunnel="early")
    items.set_options(pre_images=True)
    store.create_tunnel("items", "all")
    df = stream(spark, store, readAs="table", maxRowsPerChannel=1)
    batches: Collected = []
    items.put(rows(2, 2))
    run(df, checkpoint, batches)
    items.update({"id": 1, "price": 9.0})
    items.delete([{"id": 2}])
    items.put(rows(7, 1))
    run(df, checkpoint, batches)
    signs = {"insert": 1, "update_postimage": 1, "update_preimage": -1, "delete": -1}
    total: Counter[tuple[Any, ...]] = Counter()
    for row in chain.from_iterable(found for _, found in batches):
        total[row["id"], row["name"], row["price"]] += signs[row["_change_type"]]
    assert not -total
    assert +total == Counter(tuple(row.values()) for row in items.scan().read_all().to_pylist())
    items.set_options(pre_images=False)
    version = items.delete({"id": 3})
    items.set_options(pre_images=True)
    with pytest.raises(StreamingQueryException, match=rf"a delete in the log of table 'items'.*version {version}"):
        run(df, checkpoint, batches)


def test_a_stream_can_select_columns(
    spark: SparkSession, store: Store, items: Table, tunnel: Tunnel, checkpoint: str
) -> None:
    items.put(rows(0, 5))
    df = (
        spark.readStream.format("headrace")
        .schema("price double, _change_type string")
        .options(store=store.url, tunnel="all")
        .load()
    )
    batches: Collected = []
    run(df, checkpoint, batches)
    assert batches[0][1][0] == {"price": 0.0, "_change_type": "insert"}


def test_trimmed_changes_fail_the_query_unless_loss_is_accepted(
    spark: SparkSession, store: Store, items: Table, tunnel: Tunnel, checkpoint: str, tmp_path: Path
) -> None:
    items.put(rows(0, 70_000))
    items.put(rows(70_000, 10))
    items.trim(before={store.table("items").describe().partitions[0].id: 70_000}, cut_tunnels=True)
    with pytest.raises(Exception, match="failOnDataLoss"):
        run(stream(spark, store), checkpoint, [])
    batches: Collected = []
    run(stream(spark, store, failOnDataLoss="false"), str(tmp_path / "other"), batches)
    assert sorted(chain.from_iterable(ids(batches))) == list(range(70_000, 70_010))


def test_one_query_reads_several_sources(
    spark: SparkSession, store: Store, items: Table, tunnel: Tunnel, checkpoint: str
) -> None:
    others = store.create_table("others", {"id": "long", "name": "string"}, "id")
    store.create_tunnel("others", "others", kind="Stream")
    items.put(rows(0, 5))
    others.put([{"id": 100 + n, "name": "x"} for n in range(5)])
    second = spark.readStream.format("headrace").options(store=store.url, tunnel="others").load()
    batches: Collected = []
    run(stream(spark, store).select("id").union(second.select("id")), checkpoint, batches)
    assert sorted(chain.from_iterable(ids(batches))) == [*range(5), *range(100, 105)]


def test_formats_are_found_without_registration(spark: SparkSession, store: Store, items: Table) -> None:
    items.put(rows(0, 3))
    fresh = spark.newSession()
    found = fresh.read.format("headrace").option("store", store.url).load("items")
    assert found.agg(F.sum("price")).first()[0] == 0.75  # type: ignore[index]


@needs(ENVIRONMENT)
def test_formats_can_be_registered_by_hand(spark: SparkSession, store: Store, items: Table) -> None:
    items.put(rows(0, 3))
    fresh = spark.newSession()
    fresh.dataSource.register(headrace.HeadraceDataSource)
    fresh.dataSource.register(headrace.TablestoreDataSource)
    assert fresh.read.format("headrace").option("store", store.url).load("items").count() == 3
