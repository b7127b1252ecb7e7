"""`StoreFiles`: notices that the files of an open store were linked, replaced, moved or removed.

SQLite works on with open files that have lost their names, and another process opens the files that have these names
now. With hard links, two names of a database have two write-ahead logs. In both cases, commits are lost. So each
transaction compares the files at the paths with the open ones.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

from headrace.errors import StoreDamagedError, StoreError

DATABASE_FILE = "db"
_Identity: TypeAlias = tuple[int, int]


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
        """Check the database's file, if there is one, before a connection opens it."""
        if self._known is not None:
            self.check()
        elif self.database.exists():
            # An overlay file system may give a file its number when it is opened.
            self._identity(self._path)

    def check_log_has_database(self) -> None:
        """Raise `StoreDamagedError` for a write-ahead log without a database: SQLite removes it, with its commits."""
        log = Path(self._logs[0])
        # The log first: while another process creates the store, the database is written before it.
        if log.exists() and log.stat().st_size and not (self.database.exists() and self.database.stat().st_size):
            raise StoreDamagedError(
                "the store's database is missing, and its write-ahead log has commits",
                received=f"{log} without {self.database}",
                remedy="put the database back beside it, or restore a backup into another directory",
            )

    def logs(self) -> tuple[_Identity, _Identity]:
        """Return the identities of the write-ahead log and its index, while a connection is open."""
        wal, index = self._logs
        return self._identity(wal), self._identity(index)

    def check_logs(self, known: tuple[_Identity, _Identity]) -> None:
        """Raise `StoreError` if the write-ahead log or its index differ from a result of `logs`."""
        if self.logs() != known:
            raise self._replaced(self._logs[0])

    def _identity(self, path: str) -> _Identity:
        try:
            status = os.stat(path)  # noqa: PTH116
        except FileNotFoundError:
            raise StoreError(
                "the store was moved or removed while it was open",
                received=f"{path} does not exist",
                remedy="open the store again, at its new place",
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
