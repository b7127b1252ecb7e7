"""Damaged bytes of an embedded store: an error or the right rows, never other rows; and `store check` finds them."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import apsw.sqlite_extra
import pyarrow as pa
import pytest

import headrace
from headrace.cli.environment_checks import check_sqlite
from headrace.errors import HeadraceError, NotFoundError, StoreDamagedError, StoreError
from headrace.model.findings import Status
from headrace.model.tables.changes import RowChange
from headrace.ports import Store, Write
from headrace.stores.embedded.format import CHECKSUM_FORMAT
from headrace.support.sqlite import opening
from headrace.support.sqlite.opening import checksum_vfs
from headrace.support.sqlite.wal import cut_commits
from headrace.testing.effort import thorough
from headrace.testing.processes import CONTEXT
from tests.documents import blocks
from tests.embedded_database import raw_connection

FLIPS = thorough(300)


def fill(store: Store) -> None:
    """Write rows of each kind: small and large ones, binaries of several pages, staged rows, files."""
    orders = store.create_table("orders", {"id": "long", "note": "string"}, "id")
    store.create_tunnel("orders", "changes")
    orders.put([{"id": number, "note": f"note {number}"} for number in range(300)])
    orders.put([{"id": number, "note": "long " * 3000} for number in range(300, 303)])
    orders.delete([{"id": number} for number in range(0, 300, 7)])
    clicks = store.create_queue("clicks", {"user": "string", "n": "long"}, partitions=2)
    for number in range(20):
        clicks.append([{"user": f"u{number}", "n": number}], partition=number % 2)
    clicks.append([{"user": "u" * 50, "n": number} for number in range(2000)], partition=1)
    publisher = store.publisher("job")
    rows = pa.RecordBatch.from_pydict({"id": [1000], "note": ["published"]})
    publisher.publish(0, [Write("orders", RowChange.PUT, tuple(publisher.stage(0, [rows])))])
    store.files().write("/job/state", b"state" * 20_000)


def content(directory: Path) -> list[Any]:
    """Return all that a user can read of a store."""
    with headrace.open(directory) as store:
        clicks = store.queue("clicks")
        tunnel = store.tunnel("changes")
        changes = [tunnel.read(each.id, each.committed, 1 << 20).changes for each in tunnel.channels()]
        return [
            store.table("orders").scan().read_all().to_pylist(),
            [(each.ops.to_pylist(), each.rows.to_pylist()) for each in changes],
            [(bounds, clicks.read(number, bounds.lower, 1 << 20).rows.to_pylist())
             for number, bounds in sorted(clicks.bounds().items())],
            store.files().read("/job/state"),
        ]  # fmt: skip


class Filled(NamedTuple):
    """A store with its content, and the pages that hold it. Others are free."""

    directory: Path
    content: list[Any]
    pages: frozenset[int]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    directory = tmp_path_factory.mktemp("filled") / "store"
    with headrace.open(directory, create=True, synchronous="off") as store:
        fill(store)
    connection = raw_connection(directory)
    pages = frozenset(page for (page,) in connection.execute("SELECT pageno FROM dbstat"))
    connection.close()
    return Filled(directory, content(directory), pages)


def outcome(directory: Path) -> list[Any] | HeadraceError:
    """Return what reading a store gives: any other error than headrace's fails the test."""
    try:
        return content(directory)
    except HeadraceError as error:
        return error


def problems(directory: Path) -> list[str]:
    """Return what `store check` finds."""
    try:
        with headrace.open(directory) as store:
            return [finding.found for finding in store.check() if finding.status != Status.OK]
    except HeadraceError as error:
        return [str(error)]


def flipped(data: bytes, place: int, bit: int) -> bytes:
    changed = bytearray(data)
    changed[place] ^= 1 << bit
    return bytes(changed)


def test_each_flipped_bit_of_the_data_is_found_and_gives_no_other_rows(filled: Filled, tmp_path: Path) -> None:
    data = (filled.directory / "db").read_bytes()
    random_bits = random.Random(7)
    # All bytes of the header, then bytes anywhere.
    places = [*range(100), *(random_bits.randrange(len(data)) for _ in range(FLIPS))]
    for place in places:
        directory = tmp_path / "store"
        directory.mkdir()
        (directory / "db").write_bytes(flipped(data, place, random_bits.randrange(8)))
        found = outcome(directory)
        assert isinstance(found, HeadraceError) or found == filled.content, f"byte {place}"
        if place // 4096 + 1 in filled.pages:
            assert problems(directory), f"byte {place}"
        shutil.rmtree(directory)


def test_a_damaged_page_says_so_in_reads_checks_and_backups(filled: Filled, tmp_path: Path) -> None:
    directory = tmp_path / "store"
    directory.mkdir()
    connection = raw_connection(filled.directory)
    ((page,),) = connection.execute("SELECT min(pageno) FROM dbstat WHERE name = 'file_part' AND pagetype = 'overflow'")
    connection.close()
    (directory / "db").write_bytes(flipped((filled.directory / "db").read_bytes(), page * 4096 - 100, 3))
    with headrace.open(directory) as store:
        with pytest.raises(StoreDamagedError, match=r"a page does not have its checksum; .*restore a backup"):
            store.files().read("/job/state")
        assert f"failed to get page {page}" in store.check()[0].found
        with pytest.raises(StoreDamagedError, match="a page does not have its checksum"):
            store.back_up(tmp_path / "backup")
    assert not (tmp_path / "backup").exists()


def test_a_header_without_the_mark_of_checksums_is_refused(filled: Filled, tmp_path: Path) -> None:
    data = (filled.directory / "db").read_bytes()
    assert data[20] == 8, "bytes at the end of each page"
    (tmp_path / "db").write_bytes(data[:20] + b"\0" + data[21:])
    with pytest.raises(StoreDamagedError, match="does not say that pages have checksums"):
        headrace.open(tmp_path)


@pytest.mark.parametrize("is_half_done", [False, True])
def test_an_upgraded_store_and_backups_have_a_checksum_on_each_page(
    filled: Filled, tmp_path: Path, is_half_done: bool
) -> None:
    old = tmp_path / "old"
    old.mkdir()
    connection = apsw.Connection(
        str(filled.directory / "db"), flags=apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_URI, vfs=checksum_vfs()
    )
    # Without checksums, as a release before them has written it.
    connection.execute("VACUUM INTO ?", (f"file:{old / 'db'}?reserve=0&vfs=unix",))
    connection.close()
    plain = raw_connection(old)
    # Nor the tables of later formats.
    plain.execute("DROP TABLE tunnel_table; ALTER TABLE channel DROP COLUMN object")
    plain.execute("ALTER TABLE object DROP COLUMN trimmed_version")
    plain.pragma("user_version", CHECKSUM_FORMAT - 1)
    if is_half_done:
        # The upgrade was killed when some pages had checksums.
        plain.pragma("cache_size", 10)
        plain.reserve_bytes(reserve=8)
        plain.execute("VACUUM")
    plain.close()
    assert (old / "db").read_bytes()[20] == (8 if is_half_done else 0)
    assert content(old) == filled.content
    with headrace.open(old) as store:
        store.back_up(tmp_path / "backup")
        assert {finding.status for finding in store.check()} == {Status.OK}
    headrace.restore(tmp_path / "backup", tmp_path / "restored")
    assert content(tmp_path / "restored") == filled.content
    for file in (old / "db", tmp_path / "restored" / "db"):
        data = file.read_bytes()
        assert data[20] == 8
        verify = raw_connection(file.parent)
        pages = [data[start : start + 4096] for start in range(0, len(data), 4096)]
        assert [verify.execute("SELECT verify_checksum(?)", (page,)).get for page in pages] == [1] * len(pages)
        verify.close()


def test_a_store_that_another_sqlite_program_has_written_gets_its_checksums_again(
    killed: tuple[Path, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(killed[0], tmp_path / "shop")
    # Its last connection copies the log into the database. In a process of its own, because of the locks.
    program = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('SELECT * FROM tunnel'); c.close()"
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "shop" / "db")], check=True)
    with pytest.raises(StoreDamagedError, match="another SQLite program"):
        content(tmp_path / "shop")
    monkeypatch.chdir(tmp_path)
    exec(blocks("docs/embedded-store.md", "python")[-1], {"apsw": apsw, "checksum_vfs": checksum_vfs})
    shutil.copytree(killed[0], tmp_path / "as-it-was")
    assert content(tmp_path / "shop") == content(tmp_path / "as-it-was")
    assert problems(tmp_path / "shop") == []


def test_an_apsw_without_checksums_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opening._load_checksums.cache_clear()
    monkeypatch.setattr(apsw.sqlite_extra, "has", lambda name: None)

    def load(connection: apsw.Connection, name: str) -> None:
        raise apsw.sqlite_extra.NotAvailable(f"{name} is not included")

    monkeypatch.setattr(apsw.sqlite_extra, "load", load)
    with pytest.raises(StoreError, match=r"no checksums of pages.*cksumvfs is not included; .*--only-binary apsw"):
        headrace.open(tmp_path, create=True)
    assert check_sqlite().remedy == opening.APSW_OF_PYPI
    monkeypatch.undo()
    headrace.open(tmp_path, create=True)


# -- the write-ahead log ----------------------------------------------------------------------------------


def _written_without_an_end(directory: Path, before_last: Any) -> None:
    """Write commits that stay in the write-ahead log, and end as a killed process does."""
    store = headrace.open(directory, create=True, synchronous="off")
    fill(store)
    before_last.value = (directory / "db-wal").stat().st_size
    store.table("orders").put([{"id": 5000, "note": "last"}])
    os._exit(0)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A store whose last commits are in the log, and the size of the log before the last one."""
    directory = tmp_path_factory.mktemp("killed") / "store"
    before_last = CONTEXT.Value("q")
    process = CONTEXT.Process(target=_written_without_an_end, args=(directory, before_last))
    process.start()
    process.join()
    return directory, before_last.value


def crashed(killed: Path, directory: Path, log: bytes) -> None:
    """Make a store of the files of a killed process, with another log."""
    directory.mkdir()
    shutil.copyfile(killed / "db", directory / "db")
    (directory / "db-wal").write_bytes(log)


def test_no_flipped_bit_of_the_log_loses_more_than_the_last_commit(killed: tuple[Path, int], tmp_path: Path) -> None:
    files, last = killed
    log = (files / "db-wal").read_bytes()
    crashed(files, tmp_path / "whole", log)
    whole = content(tmp_path / "whole")
    crashed(files, tmp_path / "cut", log[:last])
    without_last = content(tmp_path / "cut")
    assert len(whole[0]) == len(without_last[0]) + 1
    random_bits = random.Random(3)
    # The header, the first frame, and bytes anywhere.
    places = [*range(0, 80, 3), 200, *(random_bits.randrange(len(log)) for _ in range(thorough(150)))]
    for place in places:
        crashed(files, tmp_path / "store", flipped(log, place, random_bits.randrange(8)))
        found = outcome(tmp_path / "store")
        if isinstance(found, HeadraceError):
            assert isinstance(found, StoreDamagedError), f"byte {place}: {found}"
        else:
            assert found == whole or (found == without_last and place >= last), f"byte {place}"
        shutil.rmtree(tmp_path / "store")


def test_a_damaged_first_frame_of_a_store_that_was_never_copied_into_its_file_is_no_missing_store(
    killed: tuple[Path, int], tmp_path: Path
) -> None:
    files, _ = killed
    directory = tmp_path / "store"
    directory.mkdir()
    (directory / "db-wal").write_bytes(flipped((files / "db-wal").read_bytes(), 60, 1))
    # The first page as it is before the first commit.
    raw = raw_connection(tmp_path)
    raw.reserve_bytes(reserve=8)
    raw.pragma("journal_mode", "wal")
    raw.close()
    shutil.move(tmp_path / "db", directory / "db")
    with pytest.raises(StoreDamagedError, match="write-ahead log is damaged"):
        headrace.open(directory)
    with pytest.raises(StoreDamagedError, match="write-ahead log is damaged"):
        headrace.open(directory, create=True)


def test_a_store_that_another_process_creates_between_two_looks_is_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = (
        "import headrace; s = headrace.open('store', create=True); [s.create_queue(q, {'n': 'long'}) for q in 'abc']"
    )

    def later(log: Path, frames: int) -> int:
        monkeypatch.undo()
        subprocess.run([sys.executable, "-c", create], cwd=tmp_path, check=True)
        return cut_commits(log, frames)

    monkeypatch.setattr("headrace.stores.embedded.connection.cut_commits", later)
    with headrace.open(tmp_path / "store", create=True) as store:
        assert set(store.queue("a").bounds()) == {0}


@pytest.mark.parametrize("database", [None, b""])
def test_a_log_without_its_database_is_damage_and_is_kept(
    killed: tuple[Path, int], tmp_path: Path, database: bytes | None
) -> None:
    files, _ = killed
    log = (files / "db-wal").read_bytes()
    crashed(files, tmp_path / "whole", log)
    crashed(files, tmp_path / "store", log)
    (tmp_path / "store/db").unlink()
    if database is not None:
        (tmp_path / "store/db").write_bytes(database)
    for create in (False, True):
        with pytest.raises(StoreDamagedError, match=r"database is missing.*put the database back"):
            headrace.open(tmp_path / "store", create=create)
    shutil.copyfile(files / "db", tmp_path / "store/db")
    assert content(tmp_path / "store") == content(tmp_path / "whole")


def test_a_new_store_is_in_its_file_before_the_first_row(tmp_path: Path) -> None:
    headrace.open(tmp_path / "store", create=True, synchronous="off")
    shutil.copytree(tmp_path / "store", tmp_path / "copy", ignore=shutil.ignore_patterns("*-wal", "*-shm"))
    with pytest.raises(NotFoundError):
        headrace.open(tmp_path / "nothing")
    assert headrace.open(tmp_path / "copy").tables() == []


def test_cut_commits_are_accepted_by_name_only(
    killed: tuple[Path, int], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files, last = killed
    log = (files / "db-wal").read_bytes()
    crashed(files, tmp_path / "store", flipped(log, last // 2, 0))
    with pytest.raises(
        StoreDamagedError, match=r"\d commits after a frame with a wrong checksum.*synchronous='normal'"
    ):
        headrace.open(tmp_path / "store")
    with headrace.open(tmp_path / "store", synchronous="normal") as store:
        store.create_table("new", {"id": "long"}, "id")
    assert "has lost its last" in caplog.text
    assert headrace.open(tmp_path / "store").table("new").scan().read_all().num_rows == 0


def test_damage_of_the_log_is_found_while_the_store_is_open(tmp_path: Path) -> None:
    with headrace.open(tmp_path, create=True, synchronous="off") as store:
        fill(store)
        assert {finding.status for finding in store.check()} == {Status.OK}
        log = tmp_path / "db-wal"
        with log.open("r+b") as file:
            file.seek(log.stat().st_size - 3000)
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 16]))
        found = {finding.name: finding for finding in store.check()}["write-ahead log"]
        assert (found.status, "1 of" in found.found) == (Status.FAIL, True)
        with pytest.raises(StoreDamagedError, match="frames of the write-ahead log"):
            store.back_up(tmp_path / "backup")
