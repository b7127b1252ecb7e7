"""The one SQLite database of an embedded store: connections, the writer lock, transactions, the clock.

Rules:

* A process uses one SQLite library (apsw). If a second one, or a plain ``open``, opens and closes the database file,
  the POSIX locks of the first are dropped, and commits are lost.
* SQLite is 3.53.0 or newer. Older versions can corrupt a WAL database during concurrent checkpoints.
* Every write begins with BEGIN IMMEDIATE. An upgrade of a read transaction could fail.
* A connection never crosses a fork (`headrace.support.sqlite.forks`).
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import apsw

from headrace.errors import NotFoundError, OptionError, StoreBusyError, StoreDamagedError, StoreError
from headrace.ports import upgrades
from headrace.stores.embedded.commit_watch import CommitWatch
from headrace.stores.embedded.format import (
    CHECKSUM_FORMAT,
    FORMAT_VERSION,
    UPGRADES,
    rewrite_with_checksums,
    upgrade,
)
from headrace.stores.embedded.store_files import (
    DATABASE_FILE,
    StoreFiles,
    keep_log,
    make_durable_directory,
    sync_entries,
)
from headrace.stores.embedded.writer_lock import WriterLock
from headrace.support import failpoints
from headrace.support.sqlite.connections import AnotherConnection, Connections
from headrace.support.sqlite.forks import no_fork
from headrace.support.sqlite.interrupts import atomic
from headrace.support.sqlite.notes import provide_notes
from headrace.support.sqlite.opening import is_checksum_error, open_wal
from headrace.support.sqlite.transactions import Transaction
from headrace.support.sqlite.wal import cut_commits

LOCK_FILE = "writer.lock"
SYNCHRONOUS_MODES = ("full", "normal", "off")
BUSY_TIMEOUT_MS = 60_000
# The pause between looks for commits of which the system reports nothing, for example on macOS.
_UNWATCHED_SECONDS = 0.02
_OLDEST_SQLITE = 3_053_000
# The length of the write-ahead log from which on a commit copies it into the database file.
_WAL_BYTES = 128 << 20
_UPGRADE_PATIENCE_SECONDS = 10.0
_log = logging.getLogger("headrace")

# A chunk's id is its partition's id shifted left by this, plus the log row index of its first change.
ROW_INDEX_BITS = 40


class Database:
    """The database of one store: one connection for each thread and process, and transactions.

    Args:
        directory: the store's directory.
        create: create the directory and the database if they do not exist.
        synchronous: ``full`` (each commit is on disk before it returns), ``normal`` (a power cut may undo the
            last commits; killed processes undo nothing) or ``off``.
    """

    def __init__(self, directory: Path, *, create: bool = False, synchronous: str = "full") -> None:
        if synchronous not in SYNCHRONOUS_MODES:
            raise OptionError(
                "unknown value of option synchronous", received=repr(synchronous), valid=SYNCHRONOUS_MODES
            )
        if apsw.SQLITE_VERSION_NUMBER < _OLDEST_SQLITE:
            raise StoreError(
                "this SQLite can corrupt a store under concurrent use",
                received=apsw.sqlite_lib_version(),
                valid="3.53.0 or newer",
                remedy="pip install -U apsw",
            )
        # realpath: all spellings of a path must have the same writer lock.
        self.directory = Path(os.path.realpath(directory))
        self.synchronous = synchronous
        self._local = threading.local()
        self._commits = CommitWatch(self.directory / LOCK_FILE)
        self._files = StoreFiles(self.directory)
        connect = functools.partial(_connect, self._files, synchronous, may_create=create)
        self._connections = Connections(connect, self._files.closing)
        self._files.check_log_has_database()
        if not (self.directory / DATABASE_FILE).exists() and not create:
            raise _nothing_here(self.directory)
        new_entries = self._make_directory() if create else []
        # An existing store of the current format does not wait for the writer lock.
        version = self._format()
        if version != FORMAT_VERSION and not upgrades.are_permitted():
            raise StoreError(
                "the store has an older format, which is not upgraded here",
                received=f"{self.directory}: format {version}",
                valid=f"format {FORMAT_VERSION}",
                remedy="upgrade it by `headrace store check`. In a task of Spark it is not the store that the driver "
                "has upgraded: executors on other machines cannot use an embedded store, see docs/deployment.md",
            )
        if version not in (0, FORMAT_VERSION):
            # Before this thread waits for another one, which needs the database for itself to upgrade it.
            self._connections.close()
        if create or version != FORMAT_VERSION:
            self._bring_to_format(new_entries)
        self._check_log()

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopened, (self.directory, self.synchronous, self.file_identity())

    def _make_directory(self) -> list[Path]:
        try:
            return make_durable_directory(self.directory)
        except OSError as error:
            raise StoreError(
                f"cannot create the store's directory: {error.strerror}", received=str(self.directory)
            ) from error

    def _format(self) -> int:
        """Return the version of the database's format; 0 for an empty database."""
        return int(self.query("PRAGMA user_version")[0][0])

    def _bring_to_format(self, new_entries: list[Path]) -> None:
        """Create the tables of a new database, or upgrade those of an older format, in one transaction."""
        with self.write() as connection:
            version = self._format()
            if version == FORMAT_VERSION:
                return
            if not version and self.synchronous != "off":
                # Before the tables: a process that finds them may commit to them.
                sync_entries(new_entries)
            upgrade(connection, version)
        if not version:
            with no_fork, translated():
                # From here on, damage of the write-ahead log does not make the store look empty.
                self.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        elif version < CHECKSUM_FORMAT:
            self._connections.close()
            busy = "other processes use the store in its older format"
            with self.writer_lock(), translated(busy=busy, busy_remedy="stop them, and open it again"):
                rewrite_with_checksums(self._files.database, _UPGRADE_PATIENCE_SECONDS)

    def _check_log(self) -> None:
        """Raise `StoreDamagedError` if damage of the write-ahead log has cut commits off when SQLite recovered it.

        A power cut can cut off the last one, and in the other modes than ``full`` several.
        """
        if self._cut_commits() < 2:
            return
        with self.writer_lock():
            # Without the lock, they may have been the commits of a process between its frames and their index.
            lost = self._cut_commits()
        if lost < 2:
            return
        if self.synchronous == "full":
            keep_log(self.connection)
            self._connections.close()
            raise StoreDamagedError(
                "the store's write-ahead log is damaged, and its last commits cannot be read",
                received=f"{lost} commits after a frame with a wrong checksum in {self._files.database}-wal",
                remedy="restore a backup; or go on without these commits: open it once with synchronous='normal'",
            )
        _log.warning("store %s has lost its last %d commits by a power cut or a damaged log", self.directory, lost)

    def _cut_commits(self) -> int:
        with no_fork, translated():
            frames, _ = self.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
            return cut_commits(Path(f"{self._files.database}-wal"), max(frames, 0))

    def store_id(self) -> str:
        """Return the unique id of the store. A copy of its directory has the same id."""
        return str(self.query("SELECT value FROM info WHERE key = 'id'")[0][0])

    def file_identity(self) -> str:
        """Return the identity of the database's file: machine, device and number of the file.

        The boot id is that of the kernel, which processes must share to share the database.
        """
        device, file = self._files.check()
        return f"machine {_machine()}, device {device}, file {file}"

    @property
    def connection(self) -> apsw.Connection:
        """This thread's connection.

        Raises:
            StoreError: the store's files were replaced, moved or removed, or have several names.
        """
        connection = self._connections.of_this_thread()
        if not connection.in_transaction:
            self._files.check_opened(connection)
        return connection

    def writer_lock(self) -> WriterLock:
        """Return the lock that a thread holds while it writes."""
        return WriterLock(self.directory / LOCK_FILE)

    def close(self) -> None:
        """Close this thread's connection. Transactions of other threads go on (`Connections.close`)."""
        self._connections.close()
        self._commits.close()

    def write(self) -> contextlib.AbstractContextManager[apsw.Connection]:
        """Run a write transaction.

        Inside a write transaction of this thread it is a savepoint: if it fails, only the savepoint is rolled back.
        """
        return _Savepoint(self) if getattr(self._local, "writing", False) else _Write(self)

    def read(self) -> contextlib.AbstractContextManager[apsw.Connection]:
        """Run a read transaction, which sees one state of the whole store. A long one keeps the WAL from shrinking.

        Inside a transaction of this thread, it is a part of that transaction.
        """
        return Transaction(lambda: self.connection, "BEGIN", as_store_error)

    def snapshot(self) -> contextlib.AbstractContextManager[apsw.Connection]:
        """Run a read transaction on a separate connection, which other threads can use.

        Each use of the connection must be inside `no_fork`.
        """
        return _Snapshot(self._connections)

    def execute(self, sql: str, bindings: Any = ()) -> None:
        """Run one statement that writes: in this thread's write transaction, or else in a transaction of its own."""
        if getattr(self._local, "writing", False):
            with translated():
                self.connection.execute(sql, bindings)
        else:
            with self.write() as connection:
                connection.execute(sql, bindings)

    def query(self, sql: str, bindings: Any = ()) -> list[tuple[Any, ...]]:
        """Run one statement that only reads, and return all its rows."""
        try:
            with no_fork:
                return list(self.connection.execute(sql, bindings))
        except apsw.Error as error:
            raise as_store_error(error) or error from error

    def wait_for_change(self, timeout: float, seen: SeenVersion) -> bool:
        """Wait until another connection commits, at most ``timeout`` seconds; return whether one has.

        Args:
            seen: the data version of this thread's last call, which is updated. Commits of this thread's connection do
                not change it.
        """
        deadline = time.monotonic() + timeout
        # Before the look: a commit between the look and the wait must end the wait.
        self._commits.prepare()
        while True:
            version = int(self.query("PRAGMA data_version")[0][0])
            remaining = deadline - time.monotonic()
            if version != seen.version or remaining <= 0:
                changed, seen.version = version != seen.version, version
                return changed
            self._commits.wait(min(_UNWATCHED_SECONDS, remaining))


class SeenVersion(threading.local):
    """The data version that each thread has seen last; None before its first call."""

    version: int | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return SeenVersion, ()


class _Write(Transaction):
    """A write transaction of a database."""

    def __init__(self, database: Database) -> None:
        super().__init__(lambda: database.connection, "BEGIN IMMEDIATE", as_store_error, database.writer_lock())
        self._database = database

    @atomic
    def __enter__(self) -> apsw.Connection:
        try:
            connection = super().__enter__()
        except FileNotFoundError:
            # The directory of the lock does not exist.
            self._database._files.check()
            raise
        self._database._local.writing = True
        return connection

    def _commit(self, connection: apsw.Connection) -> None:
        failpoints.reach("uncommitted")
        super()._commit(connection)
        failpoints.reach("committed")

    def _end(self, *, failed: bool = True) -> None:
        self._database._local.writing = False
        super()._end(failed=failed)


class _Savepoint(contextlib.AbstractContextManager[apsw.Connection]):
    """A part of a write transaction that can be rolled back by itself."""

    def __init__(self, database: Database) -> None:
        self._connection = database.connection

    @atomic
    def __enter__(self) -> apsw.Connection:
        with translated():
            return self._connection.__enter__()

    @atomic
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with translated():
            self._connection.__exit__(kind, error, traceback)
        found = None if error is None else as_store_error(error)
        if found is not None:
            raise found from error


class _Snapshot(AnotherConnection):
    """A read transaction on a connection of its own."""

    @atomic
    def __enter__(self) -> apsw.Connection:
        with translated():
            connection = super().__enter__()
            try:
                with no_fork:
                    # A scan reads each page once: a larger cache would only use memory.
                    connection.pragma("cache_size", -1000)
                    connection.execute("BEGIN")
            except BaseException:
                super().__exit__()
                raise
        return connection

    @atomic
    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        super().__exit__(kind, error, traceback)
        found = None if error is None else as_store_error(error)
        if found is not None:
            raise found from error


def _reopened(directory: Path, synchronous: str, identity: str) -> Database:
    """Return the database of a handle that was pickled."""
    database = Database(directory, synchronous=synchronous)
    if database.file_identity() != identity:
        raise StoreError(
            "the path of a pickled handle leads to another store, or to a copy",
            received=f"{directory}: {database.file_identity()}",
            valid=identity,
            remedy="unpickle it on the machine, and while the store is at the place, where it was pickled",
        )
    return database


@functools.cache
def _machine() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        # Not Linux.
        return socket.gethostname()


def _connect(files: StoreFiles, synchronous: str, *, may_create: bool) -> apsw.Connection:
    files.check_before_opening()
    with translated():
        connection = open_wal(files.database, BUSY_TIMEOUT_MS, cached_statements=256, checksums_from=CHECKSUM_FORMAT)
        connection.pragma("synchronous", synchronous)
        # By default, macOS leaves a commit in the cache of the drive.
        connection.pragma("fullfsync", synchronous == "full")
        connection.pragma("cache_size", -65536)
        connection.pragma("temp_store", "memory")
        # With the default of 4 MB, small random writes are half as fast. With twice this length, large ones would be a
        # tenth faster, but a crash would leave twice as much to read.
        connection.pragma("wal_autocheckpoint", _WAL_BYTES // 4096)
        connection.pragma("journal_size_limit", _WAL_BYTES)
        provide_notes(connection)
        problem = _problem(connection, files.database, may_create=may_create)
    try:
        if problem is not None:
            raise problem
        files.opened(connection)
    except StoreError:
        keep_log(connection)
        connection.close()
        raise
    return connection


def _problem(
    connection: apsw.Connection, database: Path, *, may_create: bool
) -> StoreDamagedError | NotFoundError | None:
    """Return the reason why a database cannot be used."""
    version = connection.pragma("user_version")
    # With one commit, a power cut may have cut off the creation of the store.
    if version == 0 and cut_commits(Path(f"{database}-wal"), 0) > 1:
        # Another process may have created the store between the two looks.
        version = connection.pragma("user_version")
        if version == 0:
            return StoreDamagedError(
                "the store's write-ahead log is damaged, and nothing can be read",
                received=f"{database}-wal",
                remedy="restore a backup",
            )
    if version == 0 and not may_create:
        # Another process is creating the store, or was killed while it created it.
        return _nothing_here(database.parent)
    if version not in (0, *UPGRADES, FORMAT_VERSION):
        return StoreDamagedError(
            "the store was written by another version of headrace",
            received=f"format {version}",
            valid=f"format {FORMAT_VERSION}",
        )
    if version >= CHECKSUM_FORMAT and connection.pragma("checksum_verification") != "1":
        return StoreDamagedError(
            "the store's database is damaged: its header does not say that pages have checksums",
            received=str(database),
            remedy="restore a backup",
        )
    return None


def _nothing_here(directory: Path) -> NotFoundError:
    return NotFoundError(
        "no store here",
        received=str(directory),
        remedy="create one with headrace.open(path, create=True), `headrace table create` or `headrace queue create`",
    )


def stamp(connection: apsw.Connection) -> tuple[int, int]:
    """Return the next commit version and timestamp (µs since 1970). Both increase strictly in commit order."""
    rows = list(
        connection.execute(
            "UPDATE clock SET version = version + 1, ts = max(ts + 1, ?) RETURNING version, ts",
            (time.time_ns() // 1000,),
        )
    )
    version, ts = rows[0]
    return int(version), int(ts)


def as_store_error(
    error: BaseException, busy: str = "another process holds the store", busy_remedy: str | None = None
) -> StoreError | None:
    """Return headrace's error for an error of SQLite; None for another error."""
    if isinstance(error, apsw.BusyError):
        return StoreBusyError(busy, received=str(error), remedy=busy_remedy)
    if is_checksum_error(error):
        return StoreDamagedError(
            "the store's database is damaged: a page does not have its checksum",
            remedy="find out more with `headrace store check`, and restore a backup; if another SQLite program has "
            'written the store, docs/embedded-store.md, "Checksums", says how to write the checksums again',
        )
    if isinstance(error, apsw.CorruptError | apsw.NotADBError):
        return StoreDamagedError("the store's database is damaged", received=str(error))
    if isinstance(error, apsw.ConnectionClosedError):
        return StoreError(
            "the store was closed, or the process was forked, in the middle of a transaction or scan",
            received=str(error),
            remedy="begin the scan again in the process that reads it",
        )
    if isinstance(error, apsw.FullError):
        return StoreError("the disk is full; the transaction was rolled back")
    if isinstance(error, apsw.IOError | apsw.CantOpenError | apsw.ReadOnlyError | apsw.PermissionsError):
        return StoreError("the store's files cannot be read or written", received=str(error))
    return None


@contextlib.contextmanager
def translated(**busy: str) -> Iterator[None]:
    """Raise the errors of SQLite as errors of headrace, see `as_store_error`."""
    try:
        yield
    except apsw.Error as error:
        found = as_store_error(error, **busy)
        if found is None:
            raise
        raise found from error
