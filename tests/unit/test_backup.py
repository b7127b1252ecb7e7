"""Backups of an embedded store: one state of the whole store, complete or absent."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

import headrace
from headrace.cli.main import main
from headrace.errors import (
    AlreadyExistsError,
    NotFoundError,
    OptionError,
    StoreBusyError,
    StoreDamagedError,
    StoreError,
    UnsupportedError,
)
from headrace.model.findings import Status
from headrace.model.tables.changes import RowChange
from headrace.ports import Store, Write
from headrace.stores.embedded import backup
from headrace.stores.postgres.store import PostgresStore
from headrace.testing.processes import CONTEXT
from headrace_tablestore.store.store import TablestoreStore
from headrace_ytsaurus.store.store import YtStore
from tests.conformance.pipelines import Checkpoint, Pipeline, QueuePipeline, TablePipeline
from tests.embedded_database import raw_connection

ROUNDS = 400


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with headrace.open(tmp_path / "store", create=True, synchronous="off") as created:
        yield created


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copy a few pages at a time, so that writers commit between the steps of a small store."""
    monkeypatch.setattr(backup, "_PAGES_PER_STEP", 8)


def fill(store: Store) -> None:
    """Write something of each kind."""
    orders = store.create_table("orders", {"id": "long", "note": "string"}, "id", pre_images=True)
    orders.put([{"id": number, "note": "x" * number} for number in range(500)])
    store.create_tunnel("orders", "changes")
    orders.split()
    orders.put([{"id": number, "note": "y"} for number in range(0, 500, 7)])
    orders.delete([{"id": 3}])
    store.create_queue("clicks", {"n": "long"}, partitions=2)
    store.queue("clicks").append([{"n": number} for number in range(1000)], partition=1)
    store.create_consumer("reader")
    store.register_consumer("clicks", "reader", vital=True)
    publisher = store.publisher("job")
    rows = pa.RecordBatch.from_pydict({"id": [1000], "note": ["published"]})
    publisher.publish(0, [Write("orders", RowChange.PUT, tuple(publisher.stage(0, [rows])))])
    publisher.stage(1, [rows])
    store.files().write("/streams/job/offsets/0", b"v1")
    store.files().write("/streams/job/state", b"s" * 3_000_000)


def everything(directory: Path) -> dict[str, list[Any]]:
    """Return all rows of all SQLite tables of a store."""
    connection = raw_connection(directory)
    try:
        names = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        return {name: sorted(connection.execute(f"SELECT * FROM {name}"), key=repr) for name in names}
    finally:
        connection.close()


def logged(store: Store, table: str) -> int:
    """Return the number of changes in the log of a table."""
    return sum(partition.next for partition in store.table(table).describe().partitions)


# -- content --------------------------------------------------------------------------------------------


def test_a_restored_store_has_everything(store: Store, tmp_path: Path) -> None:
    fill(store)
    made = store.back_up(tmp_path / "backup")
    assert headrace.restore(tmp_path / "backup", tmp_path / "restored") == made
    assert sorted(file.name for file in (tmp_path / "restored").iterdir()) == ["db"]
    assert everything(tmp_path / "restored") == everything(tmp_path / "store")
    with headrace.open(tmp_path / "restored") as restored:
        assert restored.id == store.id == made.store_id
        assert {finding.status for finding in restored.check()} == {Status.OK}
        restored.table("orders").put([{"id": 1, "note": "after"}])
        assert restored.tunnel("changes").describe().channels
    assert store.table("orders").get({"id": 1}) != {"id": 1, "note": "after"}


@pytest.mark.usefixtures("small_steps")
def test_a_backup_is_the_state_at_its_begin_while_a_writer_goes_on(store: Store, tmp_path: Path) -> None:
    fill(store)
    before = everything(tmp_path / "store")
    steps = 0

    def write(_done: int, _all: int) -> None:
        nonlocal steps
        steps += 1
        store.table("orders").put([{"id": steps, "note": "during the backup"}])
        store.queue("clicks").append([{"n": steps}], partition=0)

    store.back_up(tmp_path / "backup", progress=write)
    assert steps > 50
    headrace.restore(tmp_path / "backup", tmp_path / "restored")
    assert everything(tmp_path / "restored") == before
    assert store.queue("clicks").bounds()[0].upper == steps


def test_a_backup_is_no_store_and_a_directory_with_files_is_not_overwritten(store: Store, tmp_path: Path) -> None:
    store.back_up(tmp_path / "new" / "backup")
    with pytest.raises(NotFoundError, match="no store here"):
        headrace.open(tmp_path / "new" / "backup")
    with pytest.raises(AlreadyExistsError, match="not empty"):
        store.back_up(tmp_path / "new" / "backup")
    with pytest.raises(AlreadyExistsError, match="not empty"):
        headrace.restore(tmp_path / "new" / "backup", tmp_path / "store")
    (tmp_path / "empty").mkdir()
    headrace.restore(tmp_path / "new" / "backup", tmp_path / "empty")
    assert headrace.open(tmp_path / "empty").id == store.id


# -- failures -------------------------------------------------------------------------------------------


def _killed(store: Path, directory: Path, step: int) -> None:
    """Back up a store until a step of the copy, or if it is 0, until the manifest is written."""
    backup._PAGES_PER_STEP = 8
    steps = 0

    def count(_done: int, _all: int) -> None:
        nonlocal steps
        steps += 1
        if steps == step:
            os.kill(os.getpid(), signal.SIGKILL)

    def kill(_file: Path, _data: bytes) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    if not step:
        vars(backup)["_write_durably"] = kill
    headrace.open(store).back_up(directory, progress=count)


@pytest.mark.parametrize("step", [1, 40, 0])
def test_a_killed_backup_leaves_no_backup_and_the_next_one_succeeds(store: Store, tmp_path: Path, step: int) -> None:
    fill(store)
    process = CONTEXT.Process(target=_killed, args=(tmp_path / "store", tmp_path / "backup", step))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    process.close()
    assert not (tmp_path / "backup").exists()
    assert (tmp_path / "backup.incomplete").exists()
    for left in ("backup", "backup.incomplete"):
        with pytest.raises(NotFoundError, match="no complete backup here"):
            headrace.restore(tmp_path / left, tmp_path / "restored")
    store.back_up(tmp_path / "backup")
    assert not (tmp_path / "backup.incomplete").exists()
    headrace.restore(tmp_path / "backup", tmp_path / "restored")
    assert everything(tmp_path / "restored") == everything(tmp_path / "store")


def _flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def _change_manifest(**fields: object) -> Callable[[Path], None]:
    def change(directory: Path) -> None:
        file = directory / backup.MANIFEST_FILE
        file.write_text(json.dumps(json.loads(file.read_text()) | fields))

    return change


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda directory: _flip(directory / backup.COPY_FILE), "not what was written"),
        (lambda directory: os.truncate(directory / backup.COPY_FILE, 5000), "not what was written"),
        (lambda directory: (directory / backup.COPY_FILE).unlink(), "cannot be read"),
        (lambda directory: (directory / backup.MANIFEST_FILE).write_text("{"), "manifest of the backup cannot be read"),
        (lambda directory: (directory / backup.MANIFEST_FILE).write_text("[]"), "manifest of the backup cannot be"),
        (_change_manifest(sha256="0" * 64), "not what was written"),
        (_change_manifest(store_format=99), "another version"),
        (_change_manifest(manifest_format=2), "another version"),
    ],
)
def test_a_damaged_backup_is_refused_and_makes_no_store(
    store: Store, tmp_path: Path, damage: Callable[[Path], object], says: str
) -> None:
    fill(store)
    store.back_up(tmp_path / "backup")
    damage(tmp_path / "backup")
    with pytest.raises(StoreError, match=says):
        headrace.restore(tmp_path / "backup", tmp_path / "restored")
    assert {path.name for path in tmp_path.iterdir()} == {"store", "backup"}


def test_a_damaged_database_is_not_restored(store: Store, tmp_path: Path) -> None:
    fill(store)
    store.back_up(tmp_path / "backup")
    copy = tmp_path / "backup" / backup.COPY_FILE
    content = bytearray(copy.read_bytes())
    content[4096 * 5 : 4096 * 9] = b"\xff" * 4096 * 4
    copy.write_bytes(content)
    _change_manifest(sha256=backup._checksum(copy)[1])(tmp_path / "backup")
    with pytest.raises(StoreDamagedError, match="the database of the backup is damaged"):
        headrace.restore(tmp_path / "backup", tmp_path / "restored")
    assert not (tmp_path / "restored").exists()


def test_two_backups_of_one_name_at_a_time_are_refused(store: Store, tmp_path: Path) -> None:
    def again(_done: int, _all: int) -> None:
        with pytest.raises(StoreBusyError):
            store.back_up(tmp_path / "backup")

    store.back_up(tmp_path / "backup", progress=again)
    assert (tmp_path / "backup").exists()


def test_a_directory_that_cannot_be_written_is_named(store: Store, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot be written"):
        store.back_up(tmp_path / "file" / "backup")
    with pytest.raises(AlreadyExistsError):
        store.back_up(tmp_path / "file")
    with pytest.raises(OptionError):
        store.back_up(cast("Any", 1))


@pytest.mark.parametrize(
    ("kind", "tool"),
    [(PostgresStore, "pg_basebackup"), (TablestoreStore, "Cloud Backup"), (YtStore, "create_table_backup")],
)
def test_other_stores_name_the_tool_that_backs_them_up(kind: type[Store], tool: str, store: Store) -> None:
    other = cast("Any", kind.__new__(kind))
    other.url = "service://host"
    with pytest.raises(UnsupportedError, match=tool):
        other.back_up("backup")
    with pytest.raises(UnsupportedError):
        other.check()


@pytest.mark.parametrize("directory", ["", "a\0b", "\ud800", 5, None], ids=ascii)
def test_an_invalid_directory_is_an_error(store: Store, tmp_path: Path, directory: Any) -> None:
    with pytest.raises(OptionError, match="directory"):
        store.back_up(directory)
    with pytest.raises(OptionError, match="backup"):
        headrace.restore(directory, tmp_path / "restored")
    assert not (tmp_path / "restored").exists()


@pytest.mark.parametrize("url", ["postgresql://host/shop", "yt://proxy", "tablestore+https://host/instance"])
def test_only_an_embedded_store_is_restored(store: Store, tmp_path: Path, url: str) -> None:
    store.back_up(tmp_path / "backup")
    with pytest.raises(UnsupportedError, match="a path, or file:///path"):
        headrace.restore(tmp_path / "backup", url)


# -- streams --------------------------------------------------------------------------------------------


class StoredCheckpoint(Checkpoint):
    """A checkpoint in the files of the store."""

    def __init__(self, store: Store) -> None:
        self._files = store.files()

    def offsets(self) -> list[Any]:
        return [json.loads(self._files.read(path) or b"") for path in self._paths("offsets")]

    def commits(self) -> int:
        return len(self._paths("commits"))

    def write(self, log: str, batch: int, entry: Any) -> None:
        self._files.write(f"/checkpoint/{log}/{batch:06}", json.dumps(entry).encode())

    def _paths(self, log: str) -> list[str]:
        directory = f"/checkpoint/{log}"
        return [] if self._files.status(directory) is None else [each.path for each in self._files.list(directory)]


def _stream(kind: type[Pipeline], path: Path, rounds: int) -> None:
    with headrace.open(path, synchronous="off") as store:
        pipeline = kind(store, StoredCheckpoint(store))
        for number in range(rounds):
            pipeline.write(number)
            pipeline.follow()


@pytest.mark.parametrize("kind", [TablePipeline, QueuePipeline])
@pytest.mark.usefixtures("small_steps")
def test_a_stream_continues_exactly_once_on_each_backup_that_was_made_while_it_ran(
    kind: type[Pipeline], store: Store, tmp_path: Path
) -> None:
    kind.create(store)
    process = CONTEXT.Process(target=_stream, args=(kind, tmp_path / "store", ROUNDS))
    process.start()
    commits: list[int] = []
    for number in range(4):
        while StoredCheckpoint(store).commits() < 3 * number and process.is_alive():
            store.wait_for_change(1.0)
        store.back_up(tmp_path / f"backup{number}")
    process.kill()
    process.join()
    process.close()
    for number in range(4):
        headrace.restore(tmp_path / f"backup{number}", tmp_path / f"restored{number}")
        with headrace.open(tmp_path / f"restored{number}", synchronous="off") as restored:
            assert {finding.status for finding in restored.check()} <= {Status.OK}
            checkpoint = StoredCheckpoint(restored)
            commits.append(checkpoint.commits())
            pipeline = kind(restored, checkpoint)
            # Three rounds at least, which `check` expects, and one more than the backup has.
            for rounds in range(max(3, commits[-1] + 1)):
                pipeline.write(rounds)
            pipeline.follow()
            if kind is QueuePipeline:
                pipeline.check()
            else:
                rows = [restored.table(name).scan().read_all().to_pylist() for name in ("source", "sink")]
                assert rows[0] == rows[1]
                # Each row was written once: a repeated batch would have logged its rows again.
                assert logged(restored, "sink") == logged(restored, "source") == len(rows[0])
            assert {finding.status for finding in restored.check()} == {Status.OK}
    assert commits == sorted(commits)
    assert commits[-1] >= 9


# -- command line ---------------------------------------------------------------------------------------


def test_the_commands_back_up_and_restore(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(store)
    names = [str(tmp_path / name) for name in ("store", "backup", "restored")]
    assert main(["backup", *names[:2]]) == 0
    assert "Backed up" in capsys.readouterr().out
    assert main(["restore", *names[1:], "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["store_id"], len(shown["sha256"])) == (store.id, 64)
    assert main(["restore", *names[1:]]) == 1
    assert "not empty" in capsys.readouterr().err
    assert everything(tmp_path / "restored") == everything(tmp_path / "store")
