"""The change feed of Delta tables, which headrace writes and delta-rs reads."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.model.tables.changes import ChangeOp, RowChange
from headrace.ports import Store
from headrace.testing.reading import drain
from headrace_lake.delta import maintenance
from headrace_lake.delta.table import DeltaTable
from tests.lake.jobs import write
from tests.lake.lakes import Interference, append, foreign, opened, orphans, rows_of

PRE, POST = "update_preimage", "update_postimage"


@pytest.fixture(params=[False, True], ids=["files", "vectors"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Store]:
    with opened(tmp_path, deletion_vectors=request.param) as found:
        found.table("t").put([{"id": number, "name": "old"} for number in range(40)])
        foreign(tmp_path).alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
        yield found


def feed(directory: Path, version: int, table: str = "t") -> list[tuple[Any, ...]]:
    """Return the changes of the versions from one on, as delta-rs reads them."""
    rows = pa.table(foreign(directory, table).load_cdf(version).read_all()).to_pylist()
    return sorted((row["_commit_version"], row["id"], row["_change_type"], row["name"]) for row in rows)


def test_the_feed_has_the_rows_before_and_after_each_change(store: Store, tmp_path: Path) -> None:
    tunnel = store.create_tunnel("t", "t", "Stream")
    table = store.table("t")
    table.put([{"id": 1, "name": "new"}, {"id": 50, "name": "new"}])
    table.update({"id": 2, "name": "newer"})
    table.delete([{"id": 1}, {"id": 3}, {"id": 99}])
    table.put({"id": 60, "name": "new"})
    assert feed(tmp_path, 3) == [
        *((3, 1, POST, "new"), (3, 1, PRE, "old"), (3, 50, "insert", "new")),
        *((4, 2, POST, "newer"), (4, 2, PRE, "old")),
        *((5, 1, "delete", "new"), (5, 3, "delete", "old")),
        (6, 60, "insert", "new"),
    ]
    # New rows alone need no file of the feed.
    assert len(list((tmp_path / "t" / "_change_data").iterdir())) == 3
    assert [each.op for each in drain(tunnel)] == [
        *(ChangeOp.REPLACE, ChangeOp.INSERT, ChangeOp.REPLACE, ChangeOp.DELETE, ChangeOp.DELETE, ChangeOp.INSERT),
    ]
    found = store.table("t")
    assert isinstance(found, DeltaTable)
    assert maintenance.compact(found).version == 7
    assert feed(tmp_path, 7) == []


def test_a_publication_repeats_its_feed_after_a_conflict(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Interference(monkeypatch)
    # Another program writes the same key, and once more.
    other.steps = [lambda: append(tmp_path, [{"id": 50, "name": "theirs"}]), lambda: foreign(tmp_path).delete("id = 1")]
    publisher = store.publisher("job", "t")
    rows = [{"id": number, "name": "new"} for number in (1, 2, 50)]
    assert publisher.publish(0, [write(store, publisher, 0, "t", rows, RowChange.PUT)])
    version = foreign(tmp_path).version()
    assert feed(tmp_path, version) == [
        (version, 1, "insert", "new"),
        *((version, 2, POST, "new"), (version, 2, PRE, "old")),
        *((version, 50, POST, "new"), (version, 50, PRE, "theirs")),
    ]
    assert len(rows_of(tmp_path)) == 41
    assert orphans(tmp_path) == set()
    text = (tmp_path / "t" / "_delta_log" / f"{version:020}.json").read_text()
    assert all(path.name in text for path in (tmp_path / "t" / "_change_data").glob("hr-*"))


def test_a_row_that_moves_between_partitions(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        table = store.create_table("p", {"id": "long", "name": "string"}, "id", partition_by="name")
        foreign(tmp_path, "p").alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
        table.put([{"id": 1, "name": "a/b"}, {"id": 2, "name": "a/b"}])
        table.put({"id": 1, "name": "c d"})
        assert feed(tmp_path, 3, "p") == [(3, 1, POST, "c d"), (3, 1, PRE, "a/b")]
        assert len(list((tmp_path / "p" / "_change_data").glob("hr-*"))) == 2


def test_complete_mode_deletes_and_inserts_all_rows_without_a_file_of_the_feed(store: Store, tmp_path: Path) -> None:
    publisher = store.publisher("job", "t")
    rows = [{"id": number, "name": "new"} for number in (1, 50)]
    assert publisher.publish(0, [write(store, publisher, 0, "t", rows, RowChange.REPLACE_ALL)])
    version = foreign(tmp_path).version()
    assert feed(tmp_path, version) == sorted(
        [(version, number, "delete", "old") for number in range(40)]
        + [(version, number, "insert", "new") for number in (1, 50)]
    )
    assert not (tmp_path / "t" / "_change_data").exists()


def test_vacuum_deletes_files_of_the_feed_that_the_log_does_not_name(store: Store, tmp_path: Path) -> None:
    table = store.table("t")
    assert isinstance(table, DeltaTable)
    table.put({"id": 1, "name": "new"})
    (named,) = (tmp_path / "t" / "_change_data").iterdir()
    dead = named.with_name(named.name.replace("hr-", "hr-0"))
    shutil.copy(named, dead)
    for path in (named, dead):
        os.utime(path, (time.time() - 9 * 86400,) * 2)
    assert maintenance.vacuum(table) == 1
    assert list((tmp_path / "t" / "_change_data").iterdir()) == [named]
