"""Backups of embedded stores: a directory with a copy of the database and a manifest with its checksum.

A copy is one committed state of the whole store: SQLite copies the pages of one read transaction, while writers go on.
The directory gets its name when it is complete, so a killed process leaves only ``NAME.incomplete``, which has no
manifest and which the next backup or restore of this name deletes. The copy has another name than the database of a
store, so that nobody opens a backup as a store and changes it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import apsw

from headrace.errors import AlreadyExistsError, NotFoundError, StoreBusyError, StoreDamagedError, StoreError
from headrace.ports.backups import Backup, Progress
from headrace.stores.embedded.checks import pages
from headrace.stores.embedded.connection import Database, as_store_error
from headrace.stores.embedded.format import CHECKSUM_FORMAT, FORMAT_VERSION
from headrace.stores.embedded.store_files import DATABASE_FILE, sync
from headrace.support.sqlite.forks import no_fork
from headrace.support.sqlite.opening import CHECKSUM_BYTES, checksum_vfs

COPY_FILE = "database.backup"
MANIFEST_FILE = "manifest.json"
_MANIFEST_FORMAT = 1
_KIND = "backup of an embedded headrace store"
_PAGES_PER_STEP = 1024
_READ_BYTES = 4 << 20


def back_up(database: Database, directory: Path, progress: Progress | None = None) -> Backup:
    """Write a backup of a store into a new directory.

    Raises:
        AlreadyExistsError: the directory exists and is not empty.
        StoreBusyError: another process writes a backup of this name.
        StoreError: the file system refuses a write.
    """
    shown = progress or _silent
    with _new_directory(directory) as building:
        copy = building / COPY_FILE
        created, version = _copy_database(database, copy, shown)
        size, sha256 = _checksum(copy)
        backup = Backup(database.store_id(), created, version, size, sha256)
        manifest = {
            "kind": _KIND,
            "manifest_format": _MANIFEST_FORMAT,
            "store_format": FORMAT_VERSION,
            **asdict(backup),
        }
        _write_durably(building / MANIFEST_FILE, json.dumps(manifest, indent=2).encode() + b"\n")
    return backup


def restore(directory: Path, target: Path, progress: Progress | None = None) -> Backup:
    """Verify a backup, and create a store of it in a new directory.

    Raises:
        NotFoundError: there is no complete backup.
        AlreadyExistsError: the target exists and is not empty.
        StoreDamagedError: the backup is damaged, or was written by another version of headrace.
        StoreBusyError: another process restores to this directory.
        StoreError: the file system refuses a read or write.
    """
    shown = progress or _silent
    with _as_store_error("the backup cannot be read", directory):
        backup = read_manifest(directory)
    with _new_directory(target) as building:
        with _as_store_error("the backup cannot be read", directory):
            found = _copy_file(directory / COPY_FILE, building / DATABASE_FILE, backup.size, shown)
        if found != (backup.size, backup.sha256):
            raise StoreDamagedError(
                "the data of the backup is not what was written",
                received=f"{found[0]} bytes with SHA-256 {found[1]}",
                valid=f"{backup.size} bytes with SHA-256 {backup.sha256}",
                remedy="use another backup",
            )
        _check_database(building / DATABASE_FILE)
    return backup


def read_manifest(directory: Path) -> Backup:
    """Return the description of a backup.

    Raises:
        NotFoundError: there is no complete backup.
        StoreDamagedError: the manifest is damaged, or was written by another version of headrace.
        OSError: the file system refuses the read.
    """
    try:
        text = (directory / MANIFEST_FILE).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise NotFoundError(
            "no complete backup here",
            received=str(directory),
            valid=f"a directory with {MANIFEST_FILE}, which `headrace backup` writes at its end",
        ) from None
    try:
        fields: dict[str, Any] = json.loads(text)
        known = (fields.pop("kind"), fields.pop("manifest_format"))
        store_format = fields.pop("store_format")
        backup = Backup(**fields)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise StoreDamagedError(
            "the manifest of the backup cannot be read", received=str(directory), remedy="use another backup"
        ) from None
    if known != (_KIND, _MANIFEST_FORMAT) or store_format > FORMAT_VERSION:
        raise StoreDamagedError(
            "the backup was written by another version of headrace",
            received=f"manifest {known[1]}, store format {store_format}",
            valid=f"manifest {_MANIFEST_FORMAT}, store format {FORMAT_VERSION} or older",
        )
    return backup


# -- the database -----------------------------------------------------------------------------------------


def _copy_database(database: Database, copy: Path, progress: Progress) -> tuple[float, int]:
    """Copy one state of the database; return the time and the commit version of the state."""
    with database.snapshot() as source, contextlib.closing(_empty_database(copy)) as target:
        with no_fork:
            # The first read starts the transaction whose state is copied.
            ((version,),) = source.execute("SELECT version FROM clock")
            created = time.time()
            page_bytes = int(source.pragma("page_size"))
            copying = target.backup("main", source, "main")
        try:
            while not copying.done:
                with no_fork:
                    copying.step(_PAGES_PER_STEP)
                progress((copying.page_count - copying.remaining) * page_bytes, copying.page_count * page_bytes)
        except apsw.Error as error:
            raise as_store_error(error) or StoreError(
                f"the database cannot be copied: {error}", received=str(copy)
            ) from error
        finally:
            with no_fork:
                copying.close(True)
        with no_fork:
            damage = list(pages.write_ahead_log(source))
        if damage:
            raise StoreDamagedError(damage[0].found, remedy="find out more with `headrace store check`")
    sync(copy)
    return created, int(version)


def _empty_database(file: Path) -> apsw.Connection:
    """Create a database to copy another one into, whose pages get checksums from the first on."""
    connection = apsw.Connection(str(file), vfs=checksum_vfs())
    connection.reserve_bytes(reserve=CHECKSUM_BYTES)
    connection.pragma("synchronous", "off")
    connection.pragma("journal_mode", "off")
    connection.pragma("user_version", FORMAT_VERSION)
    return connection


def _check_database(file: Path) -> None:
    """Raise `StoreDamagedError` if SQLite finds an error in a database that no other process has open."""
    try:
        connection = apsw.Connection(str(file), flags=apsw.SQLITE_OPEN_READWRITE, vfs=checksum_vfs())
        with contextlib.closing(connection):
            found = [str(row[0]) for row in connection.execute("PRAGMA quick_check(3)")]
            version = int(connection.pragma("user_version"))
            if version >= CHECKSUM_FORMAT and connection.pragma("checksum_verification") != "1":
                found.append("pages have no checksums")
    except apsw.Error as error:
        found = [str(error)]
    if found != ["ok"]:
        raise StoreDamagedError(
            "the database of the backup is damaged", received="; ".join(found), remedy="use another backup"
        )


# -- files --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _new_directory(directory: Path) -> Iterator[Path]:
    """Yield a directory to fill, which becomes ``directory`` at the end; if the body fails, it is deleted."""
    directory = Path(os.path.realpath(directory))
    building = directory.with_name(f"{directory.name}.incomplete")
    with _as_store_error("the directory cannot be written", directory):
        _check_free(directory)
        directory.parent.mkdir(parents=True, exist_ok=True)
        descriptor = _claim(building)
        try:
            for left in building.iterdir():
                left.unlink()
            try:
                yield building
                sync(building)
                _move(building, directory)
                sync(directory.parent)
            except BaseException:
                shutil.rmtree(building, ignore_errors=True)
                raise
        finally:
            os.close(descriptor)


def _claim(building: Path) -> int:
    """Create a directory, or take one that a killed process has left; return the descriptor with its lock."""
    while True:
        building.mkdir(exist_ok=True)
        descriptor = os.open(building, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with contextlib.suppress(FileNotFoundError):
                # Otherwise its last owner has given it its name, or deleted it, in the meantime.
                if os.path.samestat(os.fstat(descriptor), building.stat()):
                    return descriptor
        except BlockingIOError:
            os.close(descriptor)
            raise StoreBusyError("another process writes this directory", received=str(building)) from None
        os.close(descriptor)


def _check_free(directory: Path) -> None:
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise AlreadyExistsError(
            "the directory exists and is not empty", received=str(directory), valid="a new or empty directory"
        )


def _move(building: Path, directory: Path) -> None:
    """Give a directory its name. The file system refuses it if that is a directory with files."""
    try:
        building.rename(directory)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            _check_free(directory)
        raise


@contextlib.contextmanager
def _as_store_error(problem: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"{problem}: {error.strerror or error}", received=str(path)) from error


def _copy_file(source: Path, target: Path, size: int, progress: Progress) -> tuple[int, str]:
    """Copy a file durably; return its size and SHA-256."""
    with target.open("xb") as written:

        def write(part: bytes, done: int) -> None:
            written.write(part)
            progress(done, size)

        found = _checksum(source, write)
        written.flush()
        os.fsync(written.fileno())
    return found


def _checksum(file: Path, each: Callable[[bytes, int], object] | None = None) -> tuple[int, str]:
    """Return the size and the SHA-256 of a file; ``each`` gets its parts, with the number of bytes up to their end."""
    size, digest = 0, hashlib.sha256()
    with file.open("rb", buffering=0) as content:
        while part := content.read(_READ_BYTES):
            size += len(part)
            digest.update(part)
            if each is not None:
                each(part, size)
    return size, digest.hexdigest()


def _write_durably(file: Path, data: bytes) -> None:
    with file.open("xb") as written:
        written.write(data)
        written.flush()
        os.fsync(written.fileno())


def _silent(_done: int, _all: int) -> None:
    pass
