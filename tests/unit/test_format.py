"""The format of a store's database: new ones are made, older ones upgraded, newer ones refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import apsw
import pyarrow as pa
import pytest

import headrace
from headrace.errors import StoreBusyError, StoreDamagedError, StoreError
from headrace.ports import Append
from headrace.spark.executors import task_store
from headrace.stores.embedded import connection as embedded
from headrace.stores.embedded import format as database
from headrace.stores.embedded.connection import Database
from headrace.stores.registry import StoreAddress
from tests.embedded_database import raw_connection


@pytest.fixture(params=range(1, database.FORMAT_VERSION))
def older(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A store of an older format with a staged batch, the marker of another one, and a tunnel's channel."""
    connection = apsw.Connection(str(tmp_path / "db"))
    connection.pragma("journal_mode", "wal")
    plain = range(1, min(request.param, database.CHECKSUM_FORMAT - 1))
    for step in [database.DDL, *(database.UPGRADES[version] for version in plain)]:
        for statement in step.split(";\n"):
            connection.execute(statement)
    connection.execute("INSERT INTO stage (job, sink, batch, created, n, data) VALUES ('job', '', 5, 1e10, 1, x'00')")
    connection.execute("INSERT INTO marker VALUES ('job', '', 4, '', 0)")
    connection.execute(
        "INSERT INTO channel (tunnel, seq, id, kind, partition, parents, start, checkpoint)"
        " VALUES ('t', 0, 'stream-1', 'Stream', 1, '[]', 'a', 'b')"
    )
    with_checksums = request.param >= database.CHECKSUM_FORMAT
    connection.pragma("user_version", database.CHECKSUM_FORMAT - 1 if with_checksums else request.param)
    connection.close()
    if with_checksums:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(database, "FORMAT_VERSION", request.param)
            database.rewrite_with_checksums(tmp_path / "db", 10.0)
    return tmp_path


def test_a_store_of_an_older_format_is_upgraded_when_it_is_opened(older: Path) -> None:
    with headrace.open(older, synchronous="off") as store:
        table = store.create_table("orders", {"id": "long", "price": "double"}, "id")
        table.put({"id": 1, "price": 2.5})
        queue = store.create_queue("clicks", {"user": "string"})
        publisher = store.publisher("job")
        assert publisher.published(4)
        rows = [pa.RecordBatch.from_pydict({"user": ["u"] * 20_000})]
        assert publisher.publish(5, [Append("clicks", tuple(publisher.stage_append(5, "clicks", rows)))])
        assert queue.bounds()[0].upper == 20_000
        assert table.get({"id": 1}) == {"id": 1, "price": 2.5}
    channel = "SELECT id, checkpoint, sequence, lease, version, client FROM channel"
    assert Database(older).query(channel) == [("stream-1", "b", 0, "WAIT", 0, None)]


def test_concurrent_openings_upgrade_an_older_store_once(older: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        stores = list(threads.map(lambda _: headrace.open(older, synchronous="off"), range(8)))
    assert len({store.id for store in stores}) == 1
    assert all(store.queues() == [] for store in stores)


@pytest.mark.parametrize("older", range(1, database.CHECKSUM_FORMAT), indirect=True)
def test_an_older_store_that_others_use_gets_no_checksums(older: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "_UPGRADE_PATIENCE_SECONDS", 0.1)
    with raw_connection(older) as other:
        other.pragma("user_version")
        with pytest.raises(StoreBusyError, match=r"other processes use the store in its older format; .*stop them"):
            headrace.open(older)
    other.close()
    assert headrace.open(older).queues() == []


def test_an_upgraded_store_has_the_same_tables_as_a_new_one(
    older: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    new = tmp_path_factory.mktemp("new")
    definitions = "SELECT name, sql FROM sqlite_schema ORDER BY name"
    stores = [Database(older), Database(new, create=True)]
    upgraded, made = (store.query(definitions) for store in stores)
    assert upgraded == made


def test_a_task_does_not_upgrade_another_store_than_its_drivers(older: Path) -> None:
    before = {path.name: path.read_bytes() for path in older.iterdir()}
    with (
        pytest.raises(StoreError, match="not the store that the driver has upgraded"),
        task_store(StoreAddress(str(older), instance="of the driver")),
    ):
        pass
    assert {name: (older / name).read_bytes() for name in before} == before


def test_stores_have_ids_of_their_own(tmp_path: Path) -> None:
    first, second = (headrace.open(tmp_path / name, create=True) for name in "ab")
    assert first.id != second.id
    assert headrace.open(tmp_path / "a").id == first.id


def test_a_store_of_a_later_format_is_refused(tmp_path: Path) -> None:
    headrace.open(tmp_path, create=True).close()
    with raw_connection(tmp_path) as connection:
        connection.pragma("user_version", database.FORMAT_VERSION + 1)
    with pytest.raises(StoreDamagedError, match=rf"another version.*format {database.FORMAT_VERSION + 1}"):
        headrace.open(tmp_path)
