"""A process opens a table once, and then reads what was added to its log: also beside other programs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.ports import Store
from headrace_lake.delta import snapshot
from headrace_lake.delta.table import DeltaTable
from tests.lake.jobs import publish
from tests.lake.lakes import append, foreign, opened, rows_of


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with opened(tmp_path) as found:
        yield found


@pytest.fixture
def opens(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """The versions that were opened; None for the newest one."""
    found: list[int | None] = []
    original = snapshot._opened

    def note(name: str, directory: Path, version: int | None) -> Any:
        found.append(version)
        return original(name, directory, version)

    monkeypatch.setattr(snapshot, "_opened", note)
    return found


def table_of(store: Store) -> DeltaTable:
    table = store.table("t")
    assert isinstance(table, DeltaTable)
    return table


def test_a_table_is_opened_once(store: Store, tmp_path: Path, opens: list[int | None]) -> None:
    table = table_of(store)
    for batch in range(3):
        assert publish(store, batch, several=False)
        table.put([{"id": 10 + batch, "name": "put"}])
        append(tmp_path, [{"id": 20 + batch, "name": "theirs"}])
        assert table.get({"id": 20 + batch}) == {"id": 20 + batch, "name": "theirs"}
    assert opens == [None]
    assert sorted(table, key=lambda row: row["id"]) == rows_of(tmp_path)
    foreign(tmp_path).alter.set_table_properties({"delta.checkpointInterval": "2"})
    table.put([{"id": 30, "name": "put"}])
    table.put([{"id": 31, "name": "put"}])
    assert table.snapshot().version == 12
    # A checkpoint is written, and read.
    assert opens == [None, 12, None]


def test_an_earlier_version_stays_as_it_was(store: Store, tmp_path: Path, opens: list[int | None]) -> None:
    table = table_of(store)
    publish(store, 0, several=False)
    before = table.snapshot()
    read = table.snapshot()
    names = [file.path for file in read.files]
    publish(store, 1, several=False)
    after = table.snapshot()
    assert after.version == before.version + 1
    assert [file.path for file in before.files] == names != [file.path for file in after.files]
    assert opens == [None]
    app = "headrace/job/sink"
    assert (before.marker(app), after.marker(app)) == (0, 1)
    assert before.marker("another") is None
    assert opens == [None, before.version]


def _anew(store: Store, directory: Path, commits: int) -> None:
    store.drop_table("t")
    table = store.create_table("t", {"id": "long", "name": "string"}, "id")
    for number in range(commits):
        table.put([{"id": number, "name": "new"}])


def _renamed(store: Store, directory: Path, commits: int) -> None:
    table = store.create_table("other", {"id": "long", "name": "string"}, "id")
    for number in range(commits):
        table.put([{"id": number, "name": "new"}])
    shutil.rmtree(directory / "t")
    (directory / "other").rename(directory / "t")


@pytest.mark.parametrize("replace", [_anew, _renamed])
@pytest.mark.parametrize("commits", [1, 3, 5])
def test_a_table_that_another_program_replaces(
    store: Store, tmp_path: Path, replace: Callable[[Store, Path, int], None], commits: int
) -> None:
    table = table_of(store)
    for number in range(3):
        table.put([{"id": 100 + number, "name": "old"}])
    identity = table.identity()
    with opened(tmp_path) as other:
        replace(other, tmp_path, commits)
    assert table.identity() != identity
    expected = [{"id": number, "name": "new"} for number in range(commits)]
    assert list(table) == expected
    table.put([{"id": 50, "name": "put"}])
    assert rows_of(tmp_path) == [*expected, {"id": 50, "name": "put"}]


def test_the_log_of_a_table_that_was_replaced_is_on_the_disk(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_of(store)
    for number in range(3):
        table.put([{"id": number, "name": "old"}])
    with opened(tmp_path) as other:
        _anew(other, tmp_path, 0)
    append(tmp_path, [{"id": 1, "name": "theirs"}])
    foreign(tmp_path).create_checkpoint()
    synced: list[str] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    table.put([{"id": 1, "name": "new"}])
    log = {path.name for path in (tmp_path / "t" / "_delta_log").iterdir()}
    assert {f"{1:020}.checkpoint.parquet", "_last_checkpoint", f"{2:020}.json"} < log <= set(synced)
    synced.clear()
    foreign(tmp_path).create_checkpoint()
    append(tmp_path, [{"id": 2, "name": "theirs"}])
    table.put([{"id": 1, "name": "newer"}])
    wanted = {f"{2:020}.checkpoint.parquet", "_last_checkpoint", f"{3:020}.json", f"{4:020}.json", "_delta_log"}
    assert wanted <= set(synced)


def test_entries_that_another_program_deletes(store: Store, tmp_path: Path, opens: list[int | None]) -> None:
    """A commit must not take the place of an entry that was deleted."""
    table = table_of(store)
    table.put([{"id": 1, "name": "old"}])
    assert table.snapshot().version == 1
    append(tmp_path, [{"id": 10, "name": "theirs"}])
    append(tmp_path, [{"id": 11, "name": "theirs"}])
    foreign(tmp_path).create_checkpoint()
    (tmp_path / "t" / "_delta_log" / f"{2:020}.json").unlink()
    table.put([{"id": 1, "name": "new"}])
    assert table.snapshot().version == 4
    assert rows_of(tmp_path) == [
        {"id": 1, "name": "new"},
        {"id": 10, "name": "theirs"},
        {"id": 11, "name": "theirs"},
    ]
