"""Batches in Iceberg tables: once, also when their driver is killed at any step, and beside other programs."""

from __future__ import annotations

import multiprocessing
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.errors import PublicationError, SchemaError, StoreBusyError, UnsupportedError
from headrace.model.tables.changes import RowChange
from headrace.ports import Claim, Store, Write
from headrace.testing.processes import CONTEXT
from headrace_lake.iceberg import commits
from headrace_lake.iceberg.publisher import IcebergPublisher
from tests.lake.icebergs import FIELDS, Interference, append, catalog, foreign, opened, orphans, rows_of
from tests.lake.jobs import STATE, add_tables, publish, run, write

BATCHES = 4
STAGED = ("rows-staged:2", "rows-written:2", "marker-written:2")
DECIDED = ("rows-written:5", "marker-written:4", "committed:8", "intent-written:2", "parts-written:2")


def commits_of(directory: Path, table: str = "t") -> list[int]:
    """Return the batches of a table's snapshots, in order."""
    found = (each.summary for each in foreign(directory, table).snapshots())
    return [int(each["headrace.batch"]) for each in found if each is not None and each["headrace.batch"] is not None]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = opened(tmp_path)
    add_tables(store)
    return store


@pytest.mark.parametrize(
    ("several", "point"), [*((False, point) for point in STAGED), *((True, point) for point in DECIDED)]
)
def test_a_driver_that_is_killed_at_any_step_publishes_each_batch_once(
    store: Store, tmp_path: Path, several: bool, point: str
) -> None:
    victim = CONTEXT.Process(target=run, args=(tmp_path, 0, BATCHES, several, point, opened))
    victim.start()
    victim.join(60)
    assert victim.exitcode == -signal.SIGKILL
    done = store.publisher("job", "sink").last_batch()
    for batch in range(0 if done is None else done, BATCHES):
        publish(store, batch, several=several)
    assert not publish(store, BATCHES - 1, several=several)
    expected = [{"id": batch, "name": f"job {batch}"} for batch in range(BATCHES)]
    assert rows_of(tmp_path) == expected
    assert commits_of(tmp_path) == list(range(BATCHES))
    if several:
        assert rows_of(tmp_path, "u") == expected[-1:]
        assert commits_of(tmp_path, "u") == list(range(BATCHES))
        assert list(store.table(STATE)) == [{"id": 1, "batches": BATCHES}]
    assert not list((tmp_path / "_headrace" / "staged").rglob("*.parquet"))


def test_two_drivers_publish_a_batch_once(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Interference(monkeypatch)
    # The other driver commits after the checks of this one, which finds the marker at its next attempt.
    other.steps = [lambda: publish(opened(tmp_path), 0, several=False)]
    assert not publish(store, 0, several=False)
    assert rows_of(tmp_path) == [{"id": 0, "name": "job 0"}]
    assert commits_of(tmp_path) == [0]
    assert orphans(tmp_path) == set()


def test_two_drivers_publish_a_batch_without_rows_once(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A catalog compares the version of a table only for a snapshot: without one, a stale marker would win."""
    other = Interference(monkeypatch)
    empty = [Write("t", RowChange.PUT, ())]
    other.steps = [lambda: opened(tmp_path).publisher("job", "sink").publish(1, empty)]
    store.publisher("job", "sink").publish(0, empty)
    assert store.publisher("job", "sink").published(1)
    assert commits_of(tmp_path) == [1]


def test_steps_of_other_programs_before_a_commit(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Interference(monkeypatch)
    store.table("t").put([{"id": number, "name": "old"} for number in range(4)])
    publisher = store.publisher("job", "sink")
    writes = [
        write(store, publisher, 0, "t", [{"id": 1, "name": "new"}, {"id": 9, "name": "new"}], RowChange.PUT),
        write(store, publisher, 0, "t", [{"id": 2}], RowChange.DELETE),
    ]
    other.steps = [
        # A row with a key of the batch, a rewrite of the file that the batch rewrites, a property.
        lambda: append(tmp_path, [{"id": 9, "name": "theirs"}, {"id": 7, "name": "theirs"}]),
        lambda: foreign(tmp_path).delete("id = 3"),
        lambda: foreign(tmp_path).overwrite(foreign(tmp_path).scan().to_arrow().cast(FIELDS)),
    ]
    assert publisher.publish(0, writes)
    assert not other.steps
    names = {row["id"]: row["name"] for row in rows_of(tmp_path)}
    assert names == {0: "old", 1: "new", 7: "theirs", 9: "new"}
    assert orphans(tmp_path) == set()


def test_a_property_of_another_program_stays(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Interference(monkeypatch)

    def set_property() -> None:
        with foreign(tmp_path).transaction() as transaction:
            transaction.set_properties({"owner": "ada"})

    other.steps = [set_property]
    assert publish(store, 0, several=False)
    assert foreign(tmp_path).properties["owner"] == "ada"
    assert store.publisher("job", "sink").last_batch() == 0


def test_a_marker_survives_other_programs_snapshots(store: Store, tmp_path: Path) -> None:
    publish(store, 0, several=False)
    append(tmp_path, [{"id": 7, "name": "theirs"}])
    foreign(tmp_path).maintenance.expire_snapshots().by_ids([foreign(tmp_path).snapshots()[0].snapshot_id]).commit()
    assert not publish(store, 0, several=False)
    assert [row["id"] for row in rows_of(tmp_path)] == [0, 7]


@pytest.mark.parametrize("hot", [False, True])
def test_batches_bound_the_manifests_and_the_snapshots(store: Store, tmp_path: Path, hot: bool) -> None:
    """Each commit reads them: new keys add a file in each batch, written ones replace a file."""
    publisher = store.publisher("job", "sink")
    for batch in range(30):
        rows = [{"id": batch % 3 if hot else batch, "name": str(batch)}]
        assert publisher.publish(batch, [write(store, publisher, batch, "t", rows, RowChange.PUT)])
        snapshot = foreign(tmp_path).current_snapshot()
        assert snapshot is not None
        assert len(snapshot.manifests(foreign(tmp_path).io)) <= 12
        assert len(foreign(tmp_path).snapshots()) <= 23
    assert {row["name"] for row in rows_of(tmp_path)} == {str(batch) for batch in range(27 if hot else 0, 30)}
    kept = commits_of(tmp_path)
    assert kept == list(range(30 - len(kept), 30))
    assert len(kept) > 10


def test_another_program_expires_the_same_snapshots(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(21):
        store.table("t").put({"id": number, "name": "old"})
    (first, *_) = foreign(tmp_path).snapshots()
    other = Interference(monkeypatch)
    other.steps = [lambda: foreign(tmp_path).maintenance.expire_snapshots().by_id(first.snapshot_id).commit()]
    store.table("t").put({"id": 21, "name": "new"})
    assert not other.steps
    assert [row["id"] for row in rows_of(tmp_path)] == list(range(22))


def test_another_program_returns_to_a_snapshot_that_is_expired(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(21):
        store.table("t").put({"id": number, "name": "old"})
    (first, *_) = foreign(tmp_path).snapshots()
    other = Interference(monkeypatch)
    other.steps = [lambda: foreign(tmp_path).manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()]
    store.table("t").put({"id": 21, "name": "new"})
    assert not other.steps
    assert [row["id"] for row in rows_of(tmp_path)] == [0, 21]


def test_a_column_of_another_program_fails_the_write(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Interference(monkeypatch)

    def add_column() -> None:
        append(tmp_path, [{"id": 7, "name": "theirs"}])
        with foreign(tmp_path).update_schema() as update:
            update.add_column("more", foreign(tmp_path).schema().find_type("name"))

    other.steps = [add_column]
    with pytest.raises(SchemaError, match="columns were changed"):
        publish(store, 0, several=False)
    assert publish(store, 0, several=False)
    assert [row["id"] for row in rows_of(tmp_path)] == [0, 7]


@pytest.mark.parametrize("replaced", [False, True])
def test_columns_that_change_before_the_first_check_fail_the_write(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replaced: bool
) -> None:
    """Staged files have the ids of the old columns: another table of the name would have their values exchanged."""
    store.create_table("v", {"id": "long", "a": "string", "b": "string"}, "id")
    publisher = store.publisher("job", "sink")
    rows = write(store, publisher, 0, "v", [{"id": 1, "a": "a", "b": "b"}], RowChange.PUT)
    commit_part = IcebergPublisher._commit_part

    def after_a_change(*arguments: Any, **options: Any) -> bool:
        if replaced:
            store.drop_table("v")
            store.create_table("v", {"id": "long", "b": "string", "a": "string"}, "id")
        else:
            with foreign(tmp_path, "v").update_schema() as update:
                update.delete_column("b")
        return commit_part(*arguments, **options)

    monkeypatch.setattr(IcebergPublisher, "_commit_part", after_a_change)
    with pytest.raises(SchemaError, match="columns were changed"):
        publisher.publish(0, [rows])
    assert rows_of(tmp_path, "v") == []
    assert not publisher.published(0)


def test_other_programs_that_commit_all_the_time(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Interference(monkeypatch)
    monkeypatch.setattr(commits, "_PATIENCE_SECONDS", 0)
    other.steps = [lambda: append(tmp_path, [{"id": 7, "name": "theirs"}])]
    with pytest.raises(StoreBusyError):
        publish(store, 0, several=False)
    assert publish(store, 0, several=False)
    assert [row["id"] for row in rows_of(tmp_path)] == [0, 7]


class Died(Exception):
    """A driver has died."""


def test_a_decided_batch_is_completed_by_the_next_driver(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_: object, **__: object) -> bool:
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(IcebergPublisher, "_commit_part", dies)
        with pytest.raises(Died):
            publish(store, 0, several=True)
    publisher = store.publisher("job", "sink")
    publisher.discard(0)
    assert rows_of(tmp_path) == []
    other = store.publisher("another", "sink")
    writes = [write(store, other, 0, "t", [{"id": 5, "name": "another"}], RowChange.REPLACE_ALL)]
    claim = Claim("__headrace_targets", {"target": "t", "job": "job"}, {"target": "t", "job": "another"})
    assert other.publish(0, writes, claim=claim)
    assert rows_of(tmp_path) == [{"id": 5, "name": "another"}]
    assert [row["name"] for row in rows_of(tmp_path, "u")] == ["job 0"]
    assert publisher.resume(0)


@pytest.mark.parametrize(
    ("change", "cells", "expected"),
    [
        (RowChange.PUT, {"a": "new", "b": "new"}, "new"),
        (RowChange.UPDATE, {"a": "new", "b": "new"}, "new"),
        (RowChange.UPDATE, {"b": "new"}, "old"),
    ],
)
def test_a_column_is_dropped_when_a_batch_is_decided(
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: RowChange,
    cells: dict[str, str],
    expected: str,
) -> None:
    """The tables are as if the column was dropped after the batch."""
    store.create_table("v", {"id": "long", "a": "string", "b": "string"}, "id")
    publisher = store.publisher("job", "sink")
    for name in ("t", "v"):
        store.table(name).put([{"id": 1, "name": "old"} if name == "t" else {"id": 1, "a": "old", "b": "old"}])
    staged = publisher.stage(0, pa.Table.from_pylist([{"id": 1, **cells}]).to_batches(), table="v", change=change)
    rows = [Write("v", change, tuple(staged))]
    rows.append(write(store, publisher, 0, "t", [{"id": 1, "name": "new"}], RowChange.PUT))

    def dies(*_: object, **__: object) -> bool:
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(IcebergPublisher, "_commit_part", dies)
        with pytest.raises(Died):
            publisher.publish(0, rows)
    with foreign(tmp_path, "v").update_schema() as update:
        update.delete_column("b")
    assert store.publisher("job", "sink").resume(0)
    assert rows_of(tmp_path, "v") == [{"id": 1, "a": expected}]
    assert rows_of(tmp_path) == [{"id": 1, "name": "new"}]


@pytest.mark.parametrize("same", [False, True])
def test_puts_and_deletes_of_a_batch(store: Store, tmp_path: Path, same: bool) -> None:
    """Staged files become data files, unless a key is in two of them."""
    publisher = store.publisher("job", "sink")
    store.table("t").put([{"id": number, "name": "old"} for number in range(4)])
    puts = write(store, publisher, 0, "t", [{"id": 1, "name": "new"}], RowChange.PUT)
    more = write(store, publisher, 0, "t", [{"id": 1 if same else 7, "name": "last"}], RowChange.PUT)
    deletes = write(store, publisher, 0, "t", [{"id": 2}, {"id": 9}], RowChange.DELETE)
    assert publisher.publish(0, [Write("t", RowChange.PUT, puts.staged + more.staged), deletes])
    expected = {0: "old", 1: "last" if same else "new", 3: "old"} | ({} if same else {7: "last"})
    assert {row["id"]: row["name"] for row in rows_of(tmp_path)} == expected
    assert orphans(tmp_path) == set()
    replaced = write(store, publisher, 1, "t", [{"id": 8, "name": "only"}], RowChange.REPLACE_ALL)
    assert publisher.publish(1, [replaced])
    assert rows_of(tmp_path) == [{"id": 8, "name": "only"}]


def test_discarded_rows_cannot_be_published(store: Store) -> None:
    publisher = store.publisher("job", "sink")
    staged = write(store, publisher, 0, "t", [{"id": 1, "name": "a"}], RowChange.PUT)
    publisher.discard(0)
    with pytest.raises(PublicationError):
        publisher.publish(0, [staged])


def test_rows_are_added_to_a_table_without_a_key(store: Store, tmp_path: Path) -> None:
    rows = pa.Table.from_pylist([{"id": 2, "name": "b"}, {"id": 1, "name": "a"}], FIELDS)
    catalog(tmp_path).create_table("default.events", FIELDS).append(rows)
    publisher = store.publisher("job", "events")
    staged = tuple(publisher.stage(0, rows.to_batches(), table="events", change=RowChange.PUT))
    with pytest.raises(UnsupportedError, match=r"commit\.retry\.num-retries"):
        publisher.publish(0, [Write("events", RowChange.PUT, staged)])
    with foreign(tmp_path, "events").transaction() as transaction:
        transaction.set_properties({"commit.retry.num-retries": "0"})
    for _ in range(2):
        publisher.publish(0, [Write("events", RowChange.PUT, staged)])
    assert [row["id"] for row in rows_of(tmp_path, "events")] == [1, 1, 2, 2]
    with pytest.raises(SchemaError, match=r"headrace\.primaryKey"):
        publisher.publish(1, [Write("events", RowChange.DELETE, tuple(publisher.stage(1, rows.to_batches())))])


def write_in_child(store: Store) -> None:
    """Write a table, as the child of a process that has used its store."""
    store.table("t").put([{"id": 2, "name": "child"}])


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_uses_its_own_connections(store: Store) -> None:
    store.table("t").put([{"id": 1, "name": "parent"}])
    child = multiprocessing.get_context("fork").Process(target=write_in_child, args=(store,))
    child.start()
    child.join(30)
    assert child.exitcode == 0
    assert [row["id"] for row in store.table("t")] == [1, 2]
