"""Batches in Delta tables: once, also when their driver is killed at any step, and in several tables."""

from __future__ import annotations

import multiprocessing
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

import headrace
from headrace.errors import DataLossError, PublicationError, SchemaError, StoreError, UnsupportedError
from headrace.model.tables.changes import RowChange
from headrace.ports import Claim, Store, Write
from headrace.testing.effort import THOROUGH
from headrace.testing.processes import CONTEXT
from headrace_lake import data_files
from headrace_lake.delta.publisher import DeltaPublisher
from tests.lake.jobs import STATE, create, publish, run, write
from tests.lake.lakes import Interference, define_as_spark, foreign, opened, orphans, rows_of

BATCHES = 4
STAGED = ("rows-staged:2", "rows-written:2", "marker-written:2")
# Steps of the transactions of the home, and of the commits of both tables.
DECIDED: tuple[str, ...] = ("rows-written:5", "marker-written:4", "committed:8", "intent-written:2", "parts-written:2")
if THOROUGH:
    DECIDED += ("rows-staged:5", "rows-written:4", "rows-written:6", "marker-written:5")
    DECIDED += tuple(f"{point}:{times}" for point in ("uncommitted", "committed") for times in (4, 7, 9))


def commits_of(directory: Path, table: str) -> list[int]:
    """Return the batches of a table's commits, in order."""
    return [each["headrace"]["batch"] for each in reversed(foreign(directory, table).history()) if "headrace" in each]


@pytest.mark.parametrize(
    ("several", "point", "old_rows"),
    [
        *((False, point, 0) for point in STAGED),
        *((True, point, 0) for point in DECIDED),
        # Each batch deletes an old row by a vector.
        *((False, point, 100) for point in STAGED[1:]),
        *((True, point, 100) for point in ("intent-written:2", "rows-written:5")),
    ],
)
def test_a_driver_that_is_killed_at_any_step_publishes_each_batch_once(
    tmp_path: Path, several: bool, point: str, old_rows: int
) -> None:
    create(tmp_path, old_rows)
    victim = CONTEXT.Process(target=run, args=(tmp_path, 0, BATCHES, several, point))
    victim.start()
    victim.join(60)
    assert victim.exitcode == -signal.SIGKILL
    with opened(tmp_path) as store:
        done = store.publisher("job", "sink").last_batch()
        for batch in range(0 if done is None else done, BATCHES):
            publish(store, batch, several=several)
        assert not publish(store, BATCHES - 1, several=several)
        expected = [{"id": batch, "name": f"job {batch}"} for batch in range(BATCHES)]
        old = [{"id": number, "name": "old"} for number in range(BATCHES, old_rows)]
        assert rows_of(tmp_path) == [*expected, *old]
        assert commits_of(tmp_path, "t") == list(range(BATCHES))
        if several:
            assert rows_of(tmp_path, "u") == expected[-1:]
            assert commits_of(tmp_path, "u") == list(range(BATCHES))
            assert list(store.table(STATE)) == [{"id": 1, "batches": BATCHES}]
    assert not list((tmp_path / "_headrace" / "staged").rglob("*.parquet"))


class Died(Exception):
    """A driver has died."""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    create(tmp_path)
    return opened(tmp_path)


def die(store: Store, batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a driver die when a batch is decided, and no Delta table has it."""

    def dies(*_: object, **__: object) -> bool:
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(DeltaPublisher, "_commit_part", dies)
        with pytest.raises(Died):
            publish(store, batch, several=True)


def test_a_decided_batch_keeps_its_rows_until_all_tables_have_them(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    die(store, 0, monkeypatch)
    publisher = store.publisher("job", "sink")
    # As after each failure of a batch.
    publisher.discard(0)
    assert rows_of(tmp_path) == []
    assert publisher.published(0)
    assert publisher.resume(0)
    assert [row["name"] for row in rows_of(tmp_path)] == ["job 0"]
    assert rows_of(tmp_path, "u") == rows_of(tmp_path)


def test_two_drivers_that_complete_the_same_batch(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    die(store, 0, monkeypatch)
    other = Interference(monkeypatch)
    # One driver completes the batch between the checks and the commit of the other one, for each table.
    other.steps = [lambda: store.publisher("job", "sink").resume(0)]
    assert store.publisher("job", "sink").resume(0)
    for table in ("t", "u"):
        assert [row["name"] for row in rows_of(tmp_path, table)] == ["job 0"]
        assert commits_of(tmp_path, table) == [0]
        # The file of the driver that died.
        assert len(orphans(tmp_path, table)) == 1


def test_another_driver_has_published_this_batch_and_the_next(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The staged rows disappear after the check whether the batch is published."""
    publisher, parts = store.publisher("job", "sink"), DeltaPublisher._parts

    def late(self: DeltaPublisher, batch: int, writes: Sequence[Write], *, decided: bool = False) -> list[Any]:
        monkeypatch.setattr(DeltaPublisher, "_parts", parts)
        for each in range(2):
            assert publish(opened(tmp_path), each, several=False)
        return parts(self, batch, writes, decided=decided)

    staged = write(store, publisher, 0, "t", [{"id": 0, "name": "job 0"}], RowChange.PUT)
    monkeypatch.setattr(DeltaPublisher, "_parts", late)
    assert not publisher.publish(0, [staged])
    assert [row["name"] for row in rows_of(tmp_path)] == ["job 0", "job 1"]
    assert commits_of(tmp_path, "t") == [0, 1]


@pytest.mark.parametrize("same", [False, True])
def test_puts_and_deletes_of_a_batch(store: Store, tmp_path: Path, same: bool) -> None:
    """Staged files become data files, unless a key is in two of them."""
    publisher = store.publisher("job", "sink")
    store.table("t").put([{"id": number, "name": "old"} for number in range(6)])
    puts = write(store, publisher, 0, "t", [{"id": 1, "name": "new"}], RowChange.PUT)
    more = write(store, publisher, 0, "t", [{"id": 1 if same else 7, "name": "last"}], RowChange.PUT)
    deletes = write(store, publisher, 0, "t", [{"id": 2}, {"id": 9}], RowChange.DELETE)
    puts = Write("t", RowChange.PUT, puts.staged + more.staged)
    assert publisher.publish(0, [puts, deletes, Write("t", RowChange.DELETE, ())])
    expected = {0: "old", 1: "last" if same else "new", 3: "old", 4: "old", 5: "old"} | ({} if same else {7: "last"})
    assert {row["id"]: row["name"] for row in rows_of(tmp_path)} == expected
    assert orphans(tmp_path) == set()


def test_the_next_batch_completes_the_one_before(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(store, 0, several=True)
    die(store, 1, monkeypatch)
    # A driver that does not ask.
    publisher = store.publisher("job", "sink")
    rows = [{"id": 9, "name": "nine"}]
    assert publisher.publish(2, [write(store, publisher, 2, "t", rows, RowChange.PUT)], content="2")
    assert [row["id"] for row in rows_of(tmp_path)] == [0, 1, 9]
    assert [row["id"] for row in rows_of(tmp_path, "u")] == [1]


def test_a_job_that_takes_a_target_completes_the_last_batch_of_the_other_one(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the other job would write it over the rows of the new one, when it is started again."""
    die(store, 0, monkeypatch)
    other = store.publisher("another", "sink")
    writes = [write(store, other, 0, "t", [{"id": 0, "name": "another"}], RowChange.REPLACE_ALL)]
    claim = Claim("__headrace_targets", {"target": "t", "job": "job"}, {"target": "t", "job": "another"})
    assert other.publish(0, writes, claim=claim)
    assert commits_of(tmp_path, "t") == [0, 0]
    assert store.publisher("job", "sink").resume(0)
    assert rows_of(tmp_path) == [{"id": 0, "name": "another"}]


def test_a_decided_batch_whose_table_was_replaced_is_complete(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    die(store, 0, monkeypatch)
    store.drop_table("t")
    store.create_table("t", {"id": "long", "name": "string"}, "id")
    store.drop_table("u")
    assert store.publisher("job", "sink").resume(0)
    assert rows_of(tmp_path) == []


def test_what_cannot_be_written_is_found_before_the_batch_is_decided(store: Store, tmp_path: Path) -> None:
    foreign(tmp_path, "u").alter.set_table_properties({"delta.appendOnly": "true"})
    with pytest.raises(UnsupportedError, match=r"delta\.appendOnly"):
        publish(store, 0, several=True)
    assert not store.publisher("job", "sink").published(0)
    assert list(store.table(STATE)) == []
    assert rows_of(tmp_path) == []
    store.publisher("job", "sink").discard(0)
    assert not list((tmp_path / "_headrace" / "staged").rglob("*.parquet"))


def test_rows_are_staged_while_another_driver_removes_those_of_the_batch(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(store, 0, several=False)
    write_file, published = data_files.write, list[bool]()

    def written(path: Path, rows: pa.Table) -> None:
        if not published:
            published.append(publish(store, 0, several=False))
        write_file(path, rows)

    monkeypatch.setattr(data_files, "write", written)
    rows = pa.RecordBatch.from_pylist([{"id": 0}])
    assert [each.rows for each in store.publisher("job", "sink").stage(0, [rows])] == [1]
    assert published == [False]


def test_a_running_job_notices_an_older_copy_of_its_table(store: Store, tmp_path: Path) -> None:
    """Its next batch would be the last one that the copy has, so that no later start would notice the loss."""
    publish(store, 0, several=False)
    shutil.copytree(tmp_path / "t", tmp_path / "copy")
    publisher = store.publisher("job", "sink")
    # A batch without rows is no loss.
    assert publisher.publish(1, [])
    for batch in (2, 3):
        assert publisher.publish(batch, [write(store, publisher, batch, "t", [{"id": batch}], RowChange.PUT)])
    (tmp_path / "t").rename(tmp_path / "newer")
    (tmp_path / "copy").rename(tmp_path / "t")
    with pytest.raises(DataLossError, match="the last batch in the store is 1"):
        publisher.publish(4, [write(store, publisher, 4, "t", [{"id": 4}], RowChange.PUT)])
    assert [row["id"] for row in rows_of(tmp_path)] == [0]


def test_a_job_of_several_tables_notices_an_older_copy_of_one(store: Store, tmp_path: Path) -> None:
    publish(store, 0, several=True)
    shutil.copytree(tmp_path / "t", tmp_path / "copy")
    for batch in (1, 2):
        publish(store, batch, several=True)
    (tmp_path / "t").rename(tmp_path / "newer")
    (tmp_path / "copy").rename(tmp_path / "t")
    with pytest.raises(DataLossError, match="older copy"):
        publish(store, 3, several=True)
    assert [row["id"] for row in rows_of(tmp_path)] == [0]


def test_discarded_rows_cannot_be_published(store: Store) -> None:
    publisher = store.publisher("job", "sink")
    staged = write(store, publisher, 0, "t", [{"id": 1, "name": "a"}], RowChange.PUT)
    publisher.discard(0)
    with pytest.raises(PublicationError):
        publisher.publish(0, [staged])


def test_columns_that_another_program_renames_are_refused_by_the_feature(store: Store, tmp_path: Path) -> None:
    publisher = store.publisher("job", "sink")
    rows = pa.table({"id": [1], "name": ["a"]}).to_batches()
    staged = publisher.stage(0, rows, table="t", change=RowChange.PUT)
    mapping = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "2"}
    protocol = {"minReaderVersion": 2, "minWriterVersion": 5}
    define_as_spark(tmp_path, mapping, protocol=protocol, rename={"name": "title"})
    with pytest.raises(UnsupportedError, match="feature columnMapping"):
        publisher.publish(0, [Write("t", RowChange.PUT, tuple(staged))])
    with pytest.raises(UnsupportedError, match="feature columnMapping"):
        publisher.stage(0, rows, table="t", change=RowChange.PUT)
    assert foreign(tmp_path).version() == 1


@pytest.mark.parametrize("known", [True, False])
def test_rows_are_added_to_a_table_without_a_key(store: Store, tmp_path: Path, known: bool) -> None:
    rows = pa.table({"id": [2, 1, 2], "name": ["b", "a", "b"]})
    write_deltalake(str(tmp_path / "events"), rows, configuration={"delta.appendOnly": "true"})
    publisher = store.publisher("job", "events")
    table = {"table": "events", "change": RowChange.PUT} if known else {}
    for batch in (0, 1, 1):
        staged = [each for _ in range(2) for each in publisher.stage(batch, rows.to_batches(), **table)]  # type: ignore[arg-type]
        publisher.publish(batch, [Write("events", RowChange.PUT, tuple(staged))])
    assert rows_of(tmp_path, "events") == sorted(rows.to_pylist() * 5, key=lambda row: row["id"])
    for change in (RowChange.DELETE, RowChange.UPDATE):
        staged = publisher.stage(2, rows.to_batches())
        with pytest.raises(SchemaError, match=r"headrace\.primaryKey"):
            publisher.publish(2, [Write("events", change, tuple(staged))])
    with pytest.raises(UnsupportedError, match="appendOnly"):
        publisher.publish(2, [Write("events", RowChange.REPLACE_ALL, tuple(publisher.stage(2, rows.to_batches())))])
    foreign(tmp_path, "events").alter.set_table_properties({"delta.appendOnly": "false"})
    assert publisher.publish(2, [Write("events", RowChange.REPLACE_ALL, tuple(publisher.stage(2, rows.to_batches())))])
    assert foreign(tmp_path, "events").to_pyarrow_table().num_rows == 3


def test_a_home_can_be_another_store(tmp_path: Path) -> None:
    url, home = f"delta://{tmp_path}/lake", tmp_path / "home"
    headrace.open(home, create=True).close()
    with headrace.open(url, create=True, home=str(home)) as store:
        store.create_table("t", {"id": "long", "name": "string"}, "id")
        store.create_table("u", {"id": "long", "name": "string"}, "id")
        publisher = store.publisher("job")
        rows = [{"id": 1, "name": "a"}]
        writes = [write(store, publisher, 0, table, rows, RowChange.PUT) for table in ("t", "u")]
        assert publisher.publish(0, writes)
        assert store.publisher("job").published(0)
    assert headrace.open(home).tables() == ["__headrace_lake_jobs", "__headrace_lake_owner"]
    assert not (tmp_path / "lake" / "_headrace" / "home").exists()


def read_in_child(directory: Path) -> None:
    """Read a table, as the child of a process that has read one."""
    with pytest.raises(StoreError, match="forked"):
        opened(directory).table("t").scan()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_gets_an_error_instead_of_a_panic(store: Store, tmp_path: Path) -> None:
    assert store.table("t").scan().read_all().num_rows == 0
    child = multiprocessing.get_context("fork").Process(target=read_in_child, args=(tmp_path,))
    child.start()
    child.join(30)
    assert child.exitcode == 0
