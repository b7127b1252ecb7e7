"""The database of a workspace directory, ``.headrace/workspace.db``, which several processes can share.

Formats: 1 has definitions and streams; 2 also has their history (`headrace.streaming_sql.stream_history`); 3 also has
the time at which the lag of a stream was measured; 4 also has the queries of materialized views; 5 also has the lag in
seconds and bytes; 6 also has the log that servers keep for a stream. The first use of a workspace upgrades it. A
process of an earlier release that has it open goes on and writes no history; a new one fails, because it could not keep
the history complete.

File locks show which processes are alive. Process ids would not: the system reuses them, and containers that share a
directory have different ones.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import apsw

from headrace.errors import StoreBusyError, StoreDamagedError, StoreError
from headrace.support.sqlite.connections import Connections
from headrace.support.sqlite.forks import no_fork
from headrace.support.sqlite.opening import open_wal
from headrace.support.sqlite.transactions import Transaction

_FORMAT_VERSION = 6
_BUSY_TIMEOUT_MS = 30_000
_DDL = """
CREATE TABLE definition (name TEXT PRIMARY KEY, definition TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE owner (id INTEGER PRIMARY KEY AUTOINCREMENT, pid INTEGER NOT NULL);
CREATE TABLE stream (name TEXT PRIMARY KEY, shown_name TEXT NOT NULL, script TEXT NOT NULL, fingerprint TEXT NOT NULL,
    target TEXT NOT NULL, checkpoint TEXT NOT NULL, wanted TEXT NOT NULL, state TEXT NOT NULL, owner INTEGER NOT NULL,
    pid INTEGER NOT NULL, query_id TEXT, batch INTEGER, rows_per_second REAL, lag INTEGER, error TEXT,
    started REAL NOT NULL, updated REAL NOT NULL) WITHOUT ROWID;
"""
# The statements that upgrade a workspace to the next format. Columns have defaults for processes that write format 1.
_UPGRADES = {
    1: """
ALTER TABLE stream ADD COLUMN lag_unknown INTEGER NOT NULL DEFAULT 0;
ALTER TABLE stream ADD COLUMN ranges INTEGER NOT NULL DEFAULT 0;
ALTER TABLE stream ADD COLUMN ranges_done INTEGER NOT NULL DEFAULT 0;
ALTER TABLE stream ADD COLUMN remedy TEXT;
CREATE TABLE batch (stream TEXT NOT NULL, time REAL NOT NULL, batch INTEGER NOT NULL, rows_in INTEGER NOT NULL,
    rows_out INTEGER, durations TEXT NOT NULL, lag_rows INTEGER, lag_unknown INTEGER, ranges INTEGER,
    ranges_done INTEGER, watermark REAL, state_rows INTEGER, state_bytes INTEGER, PRIMARY KEY (stream, time, batch))
    WITHOUT ROWID;
CREATE TABLE ending (stream TEXT NOT NULL, time REAL NOT NULL, state TEXT NOT NULL, error TEXT, remedy TEXT,
    PRIMARY KEY (stream, time)) WITHOUT ROWID;
""",
    2: "ALTER TABLE stream ADD COLUMN lag_time REAL",
    3: "ALTER TABLE stream ADD COLUMN view TEXT",
    4: "ALTER TABLE stream ADD COLUMN lag_seconds REAL; ALTER TABLE stream ADD COLUMN lag_bytes INTEGER",
    5: "ALTER TABLE stream ADD COLUMN slot_status TEXT; ALTER TABLE stream ADD COLUMN slot_bytes INTEGER",
}


class Workspace:
    """The database of a workspace directory. The first write creates it.

    Args:
        directory: a directory; the files are in its sub-directory ``.headrace``.
    """

    def __init__(self, directory: str | Path) -> None:
        # realpath: all spellings of a directory must have the same owner.
        try:
            self.directory = Path(os.path.realpath(directory)) / ".headrace"
        except ValueError as error:
            raise StoreError("the workspace must be a path", received=ascii(directory), valid="a directory") from error
        self._path = self.directory / "workspace.db"
        self._connections = Connections(functools.partial(_connect, self._path))

    def query(self, sql: str, bindings: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """Run a statement that reads. Before the first write it returns no rows."""
        with no_fork, _translated():
            if not self._path.exists():
                return []
            return list(self._connections.of_this_thread().execute(sql, bindings))

    def write(self) -> contextlib.AbstractContextManager[apsw.Connection]:
        """Run the block in a write transaction, which is rolled back after an error."""
        with _translated():
            self.directory.mkdir(parents=True, exist_ok=True)
        return Transaction(self._connections.of_this_thread, "BEGIN IMMEDIATE", _as_store_error)

    def close(self) -> None:
        """Close this thread's connection. The next use opens a new one."""
        self._connections.close()

    # -- owners -----------------------------------------------------------------------------------------

    def owner(self) -> int:
        """Return this process's number in the workspace. Its lock is held until the process ends.

        The first call writes, so it must be outside of a transaction.
        """
        return _OwnerLock.of(self).number

    def is_alive(self, owner: int) -> bool:
        """Return whether the process with this number still runs."""
        return _OwnerLock.of(self).is_alive(owner)


class _OwnerLock:
    """One byte of a lock file for each process, which is locked until the process ends.

    A process has one object for each directory, because closing any descriptor of the file would release the lock.
    """

    _of_process: ClassVar[dict[Path, _OwnerLock]] = {}
    _guard = threading.Lock()

    def __init__(self, workspace: Workspace) -> None:
        pid = os.getpid()
        self._asking = threading.Lock()
        with workspace.write() as connection:
            connection.execute("INSERT INTO owner (pid) VALUES (?)", (pid,))
            self.number = connection.last_insert_rowid()
            self._descriptor = os.open(
                workspace.directory / "owners.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644
            )
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX, 1, self.number)

    @classmethod
    def of(cls, workspace: Workspace) -> _OwnerLock:
        key = workspace.directory
        # Without the guard first: a caller inside a transaction must not wait for a thread that begins one.
        known = cls._of_process.get(key)
        if known is not None:
            return known
        with cls._guard:
            if key not in cls._of_process:
                cls._of_process[key] = cls(workspace)
            return cls._of_process[key]

    def is_alive(self, owner: int) -> bool:
        if owner == self.number:
            return True
        with self._asking:
            try:
                fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, owner)
            except OSError:
                return True
            fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, owner)
            return False

    @classmethod
    def forget_all(cls) -> None:
        """Forget the locks of the parent, which a forked process does not hold."""
        cls._guard = threading.Lock()
        for lock in cls._of_process.values():
            os.close(lock._descriptor)
        cls._of_process.clear()


os.register_at_fork(after_in_child=_OwnerLock.forget_all)


def _connect(path: Path) -> apsw.Connection:
    connection = open_wal(path, _BUSY_TIMEOUT_MS)
    try:
        connection.pragma("synchronous", "full")
        with Transaction(lambda: connection, "BEGIN IMMEDIATE", _as_store_error):
            _bring_to_format(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _bring_to_format(connection: apsw.Connection, path: Path) -> None:
    """Create the tables, or upgrade those of an older format."""
    version = connection.pragma("user_version")
    if version > _FORMAT_VERSION:
        raise StoreDamagedError(
            "the workspace was written by a newer version of headrace",
            received=f"format {version} in {path}",
            valid=f"formats up to {_FORMAT_VERSION}",
            remedy="use that version, or another workspace",
        )
    if version == 0:
        connection.execute(_DDL)
    for format_version in range(max(1, version), _FORMAT_VERSION):
        connection.execute(_UPGRADES[format_version])
    if version != _FORMAT_VERSION:
        connection.execute(f"PRAGMA user_version = {_FORMAT_VERSION}")


def _as_store_error(error: BaseException) -> StoreError | None:
    """Return headrace's error for an error of SQLite or of the file system; None for another error."""
    if isinstance(error, apsw.BusyError):
        return StoreBusyError("another process has locked the workspace", received=str(error))
    if isinstance(error, apsw.CorruptError | apsw.NotADBError):
        return StoreDamagedError("the workspace's database is damaged", received=str(error))
    if isinstance(error, apsw.Error | OSError):
        return StoreError("the workspace's files cannot be read or written", received=str(error))
    return None


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Turn errors of SQLite and of the file system into headrace's."""
    try:
        yield
    except (apsw.Error, OSError) as error:
        raise _as_store_error(error) or error from error
