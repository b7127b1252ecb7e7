"""`StoreFiles`: notices that the files of an open store were linked, replaced, moved or removed.

SQLite works on with open files that have lost their names, and another process opens the files that have these names
now. With hard links, two names of a database have two write-ahead logs. In both cases, commits are lost. So each
transaction compares the files at the paths with the open ones.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, TypeAlias

import apsw

from headrace.errors import StoreDamagedError, StoreError
from headrace.support.sqlite.transactions import closed_early

DATABASE_FILE = "db"
_Identity: TypeAlias = tuple[int, int]
_log = logging.getLogger("headrace")


class _Opened(NamedTuple):
    """The files of an open connection: the database, the write-ahead log, and the log's index."""

    database: _Identity
    log: _Identity
    log_index: _Identity


# SQLite uses one index for all connections of a process to a database, also if another file has its name now.
_opened: dict[apsw.Connection, _Opened] = {}
os.register_at_fork(after_in_child=_opened.clear)


class StoreFiles:
    """The files of a store at the time of its first connection.

    Args:
        directory: the store's directory.
    """

    def __init__(self, directory: Path) -> None:
        self.database = directory / DATABASE_FILE
        # `os.stat` of a text is faster.
        self._path = str(self.database)
        self._logs = (f"{self.database}-wal", f"{self.database}-shm")
        self._known: _Identity | None = None
        self._warned = False

    def check(self) -> _Identity:
        """Return the identity of the database's file.

        Raises:
            StoreError: it was replaced, moved or removed since the first call, or has several names.
        """
        found = self._identity(self._path)
        if self._known is None:
            self._known = found
        elif found != self._known:
            raise self._replaced(self._path)
        return found

    def check_before_opening(self) -> None:
        """Check the files, if there are some, before a connection opens them.

        Raises:
            StoreDamagedError: the write-ahead log was removed while processes use it.
        """
        # An overlay file system may give a file its number when it is opened.
        if self._known is None and not self.database.exists():
            return
        database = self._identity(self._path) if self._known is None else self.check()
        # Garbage collection can close connections while a list of pairs is built; no code runs while a dict is copied.
        for connection, opened in _opened.copy().items():
            if opened.database == database and connection not in closed_early:
                try:
                    self._check_logs(opened)
                    break
                except StoreError:
                    # Another thread may have closed it meanwhile: the last connection removes the log.
                    if connection in _opened:
                        raise
        log, index = map(Path, self._logs)
        # Looked at twice: another process may have created both in between.
        if not log.exists() and index.exists() and not log.exists():
            raise StoreDamagedError(
                "the store's write-ahead log was removed while a process used it, and its commits cannot be read",
                received=f"{index} without {log}",
                remedy="end the processes that have the store open, which saves their commits; after a crash, restore "
                f"a backup, or delete {index} to go on without them",
            )

    def check_log_has_database(self) -> None:
        """Raise `StoreDamagedError` for a write-ahead log without a database: SQLite removes it, with its commits."""
        log = Path(self._logs[0])
        # The log first: while another process creates the store, the database is written before it.
        if size_of(log) and not size_of(self.database):
            raise StoreDamagedError(
                "the store's database is missing, and its write-ahead log has commits",
                received=f"{log} without {self.database}",
                remedy="put the database back beside it, or restore a backup into another directory",
            )

    def opened(self, connection: apsw.Connection) -> None:
        """Note the files of an open connection."""
        _opened[connection] = _Opened(self._identity(self._path), *map(self._identity, self._logs))

    def check_opened(self, connection: apsw.Connection) -> None:
        """Raise `StoreError` if a file of an open connection was replaced, moved or removed."""
        self.check()
        self._check_logs(_opened[connection])

    def closing(self, connection: apsw.Connection) -> None:
        """Prepare the close of a connection.

        The last connection copies the log into the database, and deletes the log. If the index has been replaced, other
        processes may have written into the database, and the copy would undo that.
        """
        opened = _opened.pop(connection, None)
        if opened is None or connection in closed_early:
            return
        try:
            found = self._identity(self._path), self._identity(self._logs[1])
            unchanged = found == (opened.database, opened.log_index)
        except (StoreError, OSError):
            unchanged = False
        if not unchanged:
            keep_log(connection)
            if not self._warned:
                _log.warning("files of the store %s were replaced or removed while it was open", self.database.parent)
            self._warned = True

    def _check_logs(self, opened: _Opened) -> None:
        for path, known in zip(self._logs, (opened.log, opened.log_index), strict=True):
            if self._identity(path) != known:
                raise self._replaced(path)

    def _identity(self, path: str) -> _Identity:
        try:
            status = os.stat(path)  # noqa: PTH116
        except (FileNotFoundError, NotADirectoryError):
            raise StoreError(
                "the store, or a file of it, was moved or removed while it was open",
                received=f"{path} does not exist",
                remedy="close this handle, and open the store again, at its new place if it was moved",
            ) from None
        if status.st_nlink > 1:
            raise StoreError(
                "a file of the store has several names (hard links): writes under one name would be lost under another",
                received=f"{path} has {status.st_nlink} names",
                valid="one name",
                remedy="delete the other names; copy a store with `headrace backup`, or with `cp` while no process "
                "uses it",
            )
        return status.st_dev, status.st_ino

    def _replaced(self, path: str) -> StoreError:
        return StoreError(
            "the files of the store were replaced while it was open",
            received=path,
            remedy="open the store again; what this handle has written before is in the replaced files",
        )


def keep_log(connection: apsw.Connection) -> None:
    """Let the close of a connection not copy the write-ahead log into the database and delete it."""
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)


def make_durable_directory(directory: Path) -> list[Path]:
    """Create a directory and its missing parents; return those whose entries must be forced to the disk."""
    missing = [each for each in (directory, *directory.parents) if not each.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    return [directory, *(each.parent for each in missing or [directory])]


def sync_entries(directories: Iterable[Path]) -> None:
    """Force the entries of directories to the disk, except where the system does not permit or support it."""
    for directory in directories:
        try:
            sync(directory)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EINVAL, errno.ENOTSUP):
                raise


def sync(path: Path) -> None:
    """Force a file, or the entries of a directory, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def size_of(file: Path) -> int:
    """Return the size of a file in bytes; 0 if it does not exist: SQLite can remove a log at any moment."""
    try:
        return file.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return 0
