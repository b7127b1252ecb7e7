"""Delta tables in a bucket: all uses, writers at the same time, kills, losses of the service, and secrets."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import QueryBuilder, write_deltalake

import headrace
from headrace.batches.feeds.queue_feed import QueueFeed
from headrace.batches.feeds.queue_positions import parse_position
from headrace.errors import DataLossError, HeadraceError, NotFoundError, OptionError, StoreError
from headrace.model.findings import Status
from headrace.ports import Store
from headrace.testing.effort import THOROUGH, thorough
from headrace.testing.processes import CONTEXT
from headrace.testing.reading import drain, read_from, replay, state_of
from headrace_lake.delta import maintenance
from headrace_lake.delta.log import LOG
from headrace_lake.delta.table import DeltaTable as Table
from headrace_lake.delta.tunnels.tunnel import STREAM
from headrace_lake.places import write_new
from tests.lake.buckets import PROGRAM, SECRET, TestBucket, bucket, publish, put_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="moto's server is not installed: pip install 'moto[server]'")
COLUMNS = {"id": "long", "name": "string"}
ONCE = {"availableNow": True}
COMMITS = thorough(25)
POINTS = ["rows-staged:5", "intent-written:2", "rows-written:6", "marker-written:6"] if THOROUGH else ["rows-written:6"]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[TestBucket]:
    with bucket(tmp_path) as found:
        yield found


@pytest.fixture
def store(place: TestBucket) -> Iterator[Store]:
    with place.open() as found:
        for name in ("t", "u"):
            found.create_table(name, COLUMNS, "id")
        yield found


def rows_of(place: TestBucket, name: str = "t") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = place.foreign(name).to_pyarrow_table().sort_by("id").to_pylist()
    return found


def test_tables_in_a_bucket(store: Store, place: TestBucket) -> None:
    table = store.create_table("a/b", COLUMNS | {"at": "timestamp_ntz"}, "id", partition_by="name")
    assert isinstance(table, Table)
    tunnel = store.create_tunnel("a/b", "t", "Stream")
    table.put([{"id": 1, "name": "x"}, {"id": 2, "name": "y/ü %"}])
    for number in range(3, 6):
        table.put([{"id": 1, "name": "x"}, {"id": number, "name": "y/ü %"}])
    table.delete({"id": 1})
    expected = [{"id": number, "name": "y/ü %", "at": None} for number in range(2, 6)]
    assert list(table) == rows_of(place, "a/b") == expected
    place.foreign("a/b").optimize.compact()
    assert replay(drain(tunnel), whole_rows=True) == state_of(table)
    table.put({"id": 9, "name": "y/ü %"})
    assert maintenance.compact(table).after == 1
    assert maintenance.vacuum(table, 0) > 4
    assert {finding.status for finding in store.check()} == {Status.OK}
    write_deltalake(
        "s3://lake/some where/clicks",
        table.scan().read_all(),
        configuration={"delta.appendOnly": "true"},
        storage_options=place.storage_options,
    )
    assert store.queue("clicks").read(0, 1).rows.num_rows == 4
    assert [name for name in store.tables() if not name.startswith("__")] == ["a/b", "clicks", "t", "u"]
    assert store.wait_for_change(0)
    assert not store.wait_for_change(0)
    store.drop_table("a/b")
    with pytest.raises(NotFoundError):
        store.table("a/b")
    assert store.create_table("a/b", COLUMNS, "id").scan().read_all().num_rows == 0


def test_deletion_vectors_in_a_bucket(store: Store, place: TestBucket) -> None:
    table = store.create_table("v", COLUMNS, "id", deletion_vectors=True)
    assert isinstance(table, Table)
    table.put([{"id": number, "name": "old"} for number in range(100)])
    for number in range(9):
        table.put({"id": number, "name": "new"})
    assert sum(file.deleted_rows for file in table.snapshot().files) == 9
    assert [row["name"] for row in table] == 9 * ["new"] + 91 * ["old"]
    query = QueryBuilder().register("v", place.foreign("v")).execute("SELECT count(*) FROM v WHERE name = 'new'")
    assert pa.table(query.read_all()).column(0).to_pylist() == [9]
    # Version 10 has a checkpoint.
    assert [found.status for found in maintenance.check(table)] == [Status.OK]
    assert maintenance.vacuum(table, 0) == 8
    assert len(list(table)) == 100


def test_running_readers_notice_another_copy_of_a_table(store: Store, place: TestBucket) -> None:
    write_deltalake(
        "s3://lake/some where/clicks",
        pa.table({"id": [1, 2]}),
        configuration={"delta.appendOnly": "true"},
        storage_options=place.storage_options,
    )
    tunnel = store.create_tunnel("clicks", "t", "Stream", start="earliest")
    feed = QueueFeed(store, [store.queue("clicks")], start=parse_position("earliest"))
    offset = feed.latest(feed.latest(feed.initial()))
    _, end = read_from(tunnel, STREAM, tunnel.channels()[0].committed)
    assert feed.latest(offset) == offset
    table = store.table("clicks")
    assert isinstance(table, Table)
    entry = table.directory / LOG / f"{0:020}.json"
    content = entry.read_text("utf-8").replace('"timestamp":', '"timestamp":1')
    write_new(entry, lambda file: file.write(content.encode()))
    with pytest.raises(DataLossError, match="older copy"):
        tunnel.read(STREAM, end, 10)
    with pytest.raises(DataLossError, match="older copy"):
        feed.latest(offset)


def test_writers_at_the_same_time_lose_nothing(store: Store, place: TestBucket) -> None:
    writers = [CONTEXT.Process(target=put_rows, args=(place, number, COMMITS)) for number in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    expected = [100 * writer + number for writer in range(3) for number in range(COMMITS)]
    assert [row["id"] for row in rows_of(place)] == expected
    assert place.foreign("t").version() == 3 * COMMITS


@pytest.mark.parametrize("point", POINTS)
def test_a_driver_that_is_killed_publishes_each_batch_once(store: Store, place: TestBucket, point: str) -> None:
    victim = CONTEXT.Process(target=publish, args=(place, 0, 4, point))
    victim.start()
    victim.join(60)
    assert victim.exitcode == -signal.SIGKILL
    publish(place, 0, 4)
    assert [row["name"] for row in rows_of(place)] == [f"job {batch}" for batch in range(4)]
    assert [row["id"] for row in rows_of(place, "u")] == [3]
    for name in ("t", "u"):
        batches = [each["headrace"]["batch"] for each in place.foreign(name).history() if "headrace" in each]
        assert batches == [3, 2, 1, 0]


def test_messages_have_no_secrets(store: Store, place: TestBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    assert SECRET not in repr(store) + repr(vars(store)) + store.url
    unreachable = place.options | {"endpoint": "http://127.0.0.1:1"}
    for url, options, kind in (
        ("delta+s3://none/x", place.options, NotFoundError),
        (place.url, unreachable, StoreError),
        (f"delta+s3://key:{SECRET}@lake/x", place.options, OptionError),
        (place.url, place.options | {"endpoint": f"http://key:{SECRET}@127.0.0.1"}, OptionError),
        (place.url, {name: value for name, value in place.options.items() if name != "access_key_id"}, OptionError),
        (place.url, place.options | {"session_token": f"{SECRET}\n"}, OptionError),
    ):
        with pytest.raises(kind) as raised:
            headrace.open(url, **options)
        assert SECRET not in str(raised.value)
    for name, value in (("ENDPOINT_URL", place.endpoint), ("ACCESS_KEY_ID", "key"), ("SECRET_ACCESS_KEY", SECRET)):
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    with headrace.open(place.url, home=str(place.home)) as again:
        assert again.table("t").put({"id": 1, "name": "a"}) == 1
    place.foreign("t").alter.set_table_properties({"delta.appendOnly": "true"})
    with pytest.raises(HeadraceError) as refused:
        store.table("t").put({"id": 1, "name": "a"})
    assert SECRET not in str(refused.value)


def test_streams_into_and_out_of_a_bucket(spark: SparkSession, tmp_path: Path, store: Store, place: TestBucket) -> None:
    options = place.spark_options
    store.table("t").put([{"id": 1, "name": "a"}, {"id": 2, "name": "b"}])
    store.create_tunnel("t", "copy")
    for _ in range(2):
        changes = spark.readStream.format("headrace").options(store=store.url, tunnel="copy", **options).load()
        stream = headrace.write_stream(
            changes.select("id", "name"),
            store=store.url,
            table="u",
            options=options,
            checkpoint=tmp_path / "checkpoint",
            trigger=ONCE,
        )
        stream.start().awaitTermination()
        assert rows_of(place, "u") == rows_of(place)
        store.table("t").put({"id": 3, "name": "c"})
