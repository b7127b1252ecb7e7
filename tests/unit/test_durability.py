"""The promises of a store if the disk is full or power fails."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

import headrace
from headrace.errors import StoreError
from headrace.stores.embedded import store_files
from headrace.stores.embedded.connection import Database
from headrace.stores.embedded.store import EmbeddedStore

# The values of SQLite's PRAGMA synchronous. In WAL mode, only FULL forces the log to disk in each commit.
_SYNCHRONOUS = {"full": 2, "normal": 1, "off": 0}


@pytest.mark.parametrize("mode", _SYNCHRONOUS)
def test_the_database_forces_commits_to_disk_according_to_its_mode(tmp_path: Path, mode: str) -> None:
    database = Database(tmp_path / "store", create=True, synchronous=mode)
    with database.write() as connection:
        assert connection.pragma("synchronous") == _SYNCHRONOUS[mode]
        assert connection.pragma("journal_mode") == "wal"


def test_a_store_forces_commits_to_disk_by_default(tmp_path: Path) -> None:
    store = headrace.open(tmp_path / "store", create=True)
    assert isinstance(store, EmbeddedStore)
    with store.database.write() as connection:
        assert connection.pragma("synchronous") == _SYNCHRONOUS["full"]


def test_a_directory_that_cannot_be_forced_to_disk_stops_no_creation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = iter([errno.EACCES, errno.EINVAL])

    def refuse(path: Path) -> None:
        raise OSError(next(numbers), "refused", str(path))

    monkeypatch.setattr(store_files, "sync", refuse)
    assert headrace.open(tmp_path / "store", create=True).tables() == []
    numbers = iter([errno.EIO])
    with pytest.raises(StoreError, match="refused"):
        headrace.open(tmp_path / "other", create=True)


def test_on_a_full_disk_a_transaction_has_no_effect_and_a_later_one_succeeds(tmp_path: Path) -> None:
    store = headrace.open(tmp_path / "store", create=True, synchronous="off")
    assert isinstance(store, EmbeddedStore)
    table = store.create_table("orders", {"id": "long", "note": "string"}, "id")
    table.put([{"id": 0, "note": "before"}])
    rows = [{"id": n, "note": f"{n}" * 500} for n in range(1, 3000)]
    # SQLite fails above this size with the error of a full disk.
    with store.database.read() as connection:
        pages = connection.pragma("page_count")
        connection.pragma("max_page_count", pages + 4)
    with pytest.raises(StoreError, match="full"):
        table.put(rows)
    assert [row["note"] for row in table.scan().read_all().to_pylist()] == ["before"]
    with store.database.read() as connection:
        connection.pragma("max_page_count", 1 << 30)
    table.put(rows)
    assert table.scan().read_all().num_rows == 3000
