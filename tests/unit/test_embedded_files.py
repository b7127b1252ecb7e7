"""Files of the embedded store: their parts, and the removal of abandoned uploads."""

from __future__ import annotations

from pathlib import Path

import pytest

import headrace
from headrace.errors import StoreError
from headrace.ports import Files
from headrace.stores.embedded import files as module
from headrace.stores.embedded.connection import Database


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path / "store", create=True, synchronous="off")


@pytest.fixture
def files(database: Database) -> Files:
    return module.EmbeddedFiles(database)


def counts(database: Database) -> tuple[int, int]:
    """Return the number of nodes without the root, and the number of parts."""
    nodes = database.query("SELECT count(*) FROM file_node WHERE id <> 1")[0][0]
    return int(nodes), int(database.query("SELECT count(*) FROM file_part")[0][0])


def test_replaced_and_removed_files_leave_no_bytes(database: Database, files: Files) -> None:
    files.write("/a", b"x" * (3 << 20))
    files.write("/a", b"y", overwrite=True)
    files.write("/b", b"z" * (2 << 20))
    files.move("/a", "/b", overwrite=True)
    assert counts(database) == (1, 1)
    files.write("/c/d/e", b"e")
    files.remove("/c", recursive=True)
    assert counts(database) == (1, 1)


def test_an_abandoned_upload_is_removed_after_its_timeout(
    database: Database, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    abandoned = files.create("/state/1.zip")
    abandoned.write(b"x" * (5 << 20))
    assert counts(database) == (1, 5)
    files.write("/a", b"a")
    assert counts(database) == (2, 6)
    monkeypatch.setattr(module, "ABANDONED_SECONDS", -1.0)
    files.write("/b", b"b")
    assert counts(database) == (2, 2)
    with pytest.raises(StoreError, match="idle for too long"):
        abandoned.commit()
    assert files.status("/state/1.zip") is None


def test_a_reader_of_a_replaced_file_does_not_mix_old_and_new_bytes(files: Files) -> None:
    files.write("/a", b"old" * (1 << 20))
    content = files.open_read("/a")
    assert next(content.parts).startswith(b"old")
    files.write("/a", b"new" * (1 << 20), overwrite=True)
    with pytest.raises(StoreError, match="replaced"):
        list(content.parts)


def test_the_embedded_store_has_the_capability_files(tmp_path: Path) -> None:
    with headrace.open(tmp_path / "store", create=True) as store:
        assert store.capabilities.files
        store.files().write("/a", b"a")
    with headrace.open(tmp_path / "store") as store:
        assert store.files().read("/a") == b"a"
