"""The one SQLite database of an embedded store: connections, the writer lock, transactions, the clock.

Rules:

* A process uses one SQLite library (apsw). If a second one, or a plain ``open``, opens and closes the database file,
  the POSIX locks of the first are dropped, and commits are lost.
* SQLite is 3.53.0 or newer. Older versions can corrupt a WAL database during concurrent checkpoints.
* Every write begins with BEGIN IMMEDIATE. An upgrade of a read transaction could fail.
* A connection never crosses a fork (`headrace.sqlite.forks`).
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import apsw

from headrace import failpoints
from headrace.errors import NotFoundError, OptionError, StoreBusyError, StoreDamagedError, StoreError
from headrace.ports import upgrades
from headrace.sqlite.connections import AnotherConnection, Connections
from headrace.sqlite.forks import no_fork
from headrace.sqlite.interrupts import atomic
from headrace.sqlite.notes import provide_notes
from headrace.sqlite.opening import open_wal
from headrace.sqlite.transactions import Transaction
from headrace.stores.embedded.commit_watch import CommitWatch
from headrace.stores.embedded.writer_lock import WriterLock

FORMAT_VERSION = 6
DATABASE_FILE = "db"
LOCK_FILE = "writer.lock"
SYNCHRONOUS_MODES = ("full", "normal", "off")
BUSY_TIMEOUT_MS = 60_000
# The pause between looks for commits of which the system reports nothing, for example on macOS.
_UNWATCHED_SECONDS = 0.02
_OLDEST_SQLITE = 3_053_000
# The length of the write-ahead log from which on a commit copies it into the database file.
_WAL_BYTES = 128 << 20

_DDL = """
CREATE TABLE info (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE clock (id INTEGER PRIMARY KEY CHECK (id = 1), version INTEGER NOT NULL, ts INTEGER NOT NULL);
INSERT INTO clock VALUES (1, 0, 0);
CREATE TABLE object (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, kind TEXT NOT NULL,
    options TEXT NOT NULL, schema_version INTEGER NOT NULL);
CREATE TABLE object_schema (object INTEGER NOT NULL, version INTEGER NOT NULL, schema BLOB NOT NULL,
    keys TEXT NOT NULL, PRIMARY KEY (object, version)) WITHOUT ROWID;
CREATE TABLE partition (id INTEGER PRIMARY KEY AUTOINCREMENT, object INTEGER NOT NULL, low TEXT, high TEXT,
    parents TEXT NOT NULL, open INTEGER NOT NULL, rows INTEGER NOT NULL DEFAULT 0, first INTEGER NOT NULL DEFAULT 0,
    next INTEGER NOT NULL DEFAULT 0, small INTEGER NOT NULL DEFAULT 0, log_bytes INTEGER NOT NULL DEFAULT 0,
    trimmed INTEGER NOT NULL DEFAULT 0);
CREATE INDEX partition_object ON partition (object, open);
CREATE TABLE chunk (id INTEGER PRIMARY KEY, n INTEGER NOT NULL, level INTEGER NOT NULL, schema INTEGER NOT NULL,
    version INTEGER NOT NULL, ts INTEGER NOT NULL, commits BLOB, data BLOB NOT NULL);
CREATE TABLE snapshot (id INTEGER PRIMARY KEY AUTOINCREMENT, object INTEGER NOT NULL, tunnel TEXT NOT NULL,
    version INTEGER NOT NULL, ts INTEGER NOT NULL);
CREATE INDEX snapshot_object ON snapshot (object);
CREATE TABLE tunnel (id TEXT PRIMARY KEY, object INTEGER NOT NULL, name TEXT NOT NULL, kind TEXT NOT NULL,
    created REAL NOT NULL, reader TEXT, UNIQUE (object, name)) WITHOUT ROWID;
CREATE TABLE channel (tunnel TEXT NOT NULL, seq INTEGER NOT NULL, id TEXT NOT NULL, kind TEXT NOT NULL,
    partition INTEGER, low TEXT, high TEXT, parents TEXT NOT NULL, start TEXT NOT NULL, checkpoint TEXT NOT NULL,
    finished INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (tunnel, seq), UNIQUE (tunnel, id)) WITHOUT ROWID;
CREATE TABLE batch_plan (tunnel TEXT NOT NULL, batch TEXT NOT NULL, root TEXT NOT NULL, depth INTEGER NOT NULL,
    previous TEXT NOT NULL, plan TEXT NOT NULL, PRIMARY KEY (tunnel, batch)) WITHOUT ROWID;
CREATE INDEX batch_plan_chain ON batch_plan (tunnel, root, depth);
CREATE TABLE batch_end (tunnel TEXT NOT NULL, batch TEXT NOT NULL, channel TEXT NOT NULL, position TEXT NOT NULL,
    PRIMARY KEY (tunnel, batch, channel)) WITHOUT ROWID;
CREATE TABLE stage (id INTEGER PRIMARY KEY AUTOINCREMENT, job TEXT NOT NULL, sink TEXT NOT NULL,
    batch INTEGER NOT NULL, created REAL NOT NULL, n INTEGER NOT NULL, data BLOB NOT NULL);
CREATE INDEX stage_batch ON stage (job, sink, batch);
CREATE TABLE marker (job TEXT NOT NULL, sink TEXT NOT NULL, batch INTEGER NOT NULL, content TEXT NOT NULL,
    published REAL NOT NULL,
    PRIMARY KEY (job, sink)) WITHOUT ROWID;
"""
# The statements that upgrade a store to the next format.
_UPGRADES = {
    1: """
ALTER TABLE partition ADD COLUMN number INTEGER;
ALTER TABLE partition ADD COLUMN weight INTEGER NOT NULL DEFAULT 0;
ALTER TABLE chunk ADD COLUMN blob INTEGER;
ALTER TABLE stage ADD COLUMN queue INTEGER;
ALTER TABLE stage ADD COLUMN number INTEGER;
ALTER TABLE stage ADD COLUMN blob INTEGER;
CREATE UNIQUE INDEX partition_number ON partition (object, number);
CREATE TABLE blob (id INTEGER PRIMARY KEY AUTOINCREMENT, data BLOB NOT NULL);
CREATE TABLE registration (queue INTEGER NOT NULL, consumer INTEGER NOT NULL, vital INTEGER NOT NULL,
    PRIMARY KEY (queue, consumer)) WITHOUT ROWID;
CREATE INDEX registration_consumer ON registration (consumer);
CREATE TABLE consumer_offset (queue INTEGER NOT NULL, consumer INTEGER NOT NULL, number INTEGER NOT NULL,
    next INTEGER NOT NULL, consumed REAL NOT NULL, kept INTEGER NOT NULL,
    PRIMARY KEY (queue, consumer, number)) WITHOUT ROWID;
CREATE TABLE producer_session (queue INTEGER NOT NULL, producer INTEGER NOT NULL, session TEXT NOT NULL,
    epoch INTEGER NOT NULL, sequence INTEGER NOT NULL, meta TEXT NOT NULL,
    PRIMARY KEY (queue, producer, session)) WITHOUT ROWID;
INSERT OR IGNORE INTO info VALUES ('id', lower(hex(randomblob(16))));
""",
    2: """
ALTER TABLE channel ADD COLUMN sequence INTEGER NOT NULL DEFAULT 0;
ALTER TABLE channel ADD COLUMN lease TEXT NOT NULL DEFAULT 'WAIT';
ALTER TABLE channel ADD COLUMN version INTEGER NOT NULL DEFAULT 0;
ALTER TABLE channel ADD COLUMN client TEXT;
ALTER TABLE channel ADD COLUMN since REAL NOT NULL DEFAULT 0;
ALTER TABLE channel ADD COLUMN suspended INTEGER NOT NULL DEFAULT 0;
ALTER TABLE consumer_offset ADD COLUMN job TEXT;
CREATE TABLE tunnel_client (id TEXT PRIMARY KEY, tunnel TEXT NOT NULL, tag TEXT NOT NULL, timeout REAL NOT NULL,
    connected REAL NOT NULL, seen REAL) WITHOUT ROWID;
CREATE INDEX tunnel_client_tunnel ON tunnel_client (tunnel);
""",
    3: """
CREATE TABLE file_node (id INTEGER PRIMARY KEY AUTOINCREMENT, parent INTEGER, name TEXT NOT NULL,
    directory INTEGER NOT NULL, size INTEGER NOT NULL, modified REAL NOT NULL, moved_from TEXT, UNIQUE (parent, name));
INSERT INTO file_node VALUES (1, 0, '', 1, 0, 0, NULL);
CREATE TABLE file_part (id INTEGER PRIMARY KEY, data BLOB NOT NULL);
""",
    # The same tables. Logs may have `ChangeOp.DELETE_WITH_ROW`, which earlier releases cannot read.
    4: "",
    # Tables without a snapshot may have no SQLite table of undo rows, which earlier releases need.
    5: "",
}
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
        self._connections = Connections(functools.partial(_connect, self.directory, synchronous, may_create=create))
        if not (self.directory / DATABASE_FILE).exists() and not create:
            raise _nothing_here(self.directory)
        if create:
            self._make_directory()
        # An existing store of the current format does not wait for the writer lock.
        version = self._format()
        if version != FORMAT_VERSION and not upgrades.are_permitted():
            raise StoreError(
                "the store has an older format, and was not upgraded by the driver: it is another store",
                received=f"{self.directory}: format {version}",
                valid=f"format {FORMAT_VERSION}",
                remedy="check the path on this host: executors on other machines cannot use an embedded store, see "
                "docs/deployment.md",
            )
        if create or version != FORMAT_VERSION:
            self._bring_to_format()

    def _make_directory(self) -> None:
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"cannot create the store's directory: {error.strerror}", received=str(self.directory)
            ) from error

    def _format(self) -> int:
        """Return the version of the database's format; 0 for an empty database."""
        return int(self.query("PRAGMA user_version")[0][0])

    def _bring_to_format(self) -> None:
        """Create the tables of a new database, or upgrade those of an older format, in one transaction."""
        with self.write() as connection:
            version = self._format()
            if version == FORMAT_VERSION:
                return
            _upgrade(connection, version)

    def store_id(self) -> str:
        """Return the unique id of the store. A copy of its directory has the same id."""
        return str(self.query("SELECT value FROM info WHERE key = 'id'")[0][0])

    def file_identity(self) -> str:
        """Return the identity of the database's file: machine, device and number of the file.

        The boot id is that of the kernel, which processes must share to share the database.
        """
        status = (self.directory / DATABASE_FILE).stat()
        return f"machine {_machine()}, device {status.st_dev}, file {status.st_ino}"

    @property
    def connection(self) -> apsw.Connection:
        """This thread's connection."""
        return self._connections.of_this_thread()

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

    def wait_for_change(self, timeout: float, seen: int | None) -> int:
        """Wait until another connection commits, at most ``timeout`` seconds; return the data version.

        ``seen`` is the result of the last call. Commits of this thread's connection do not change the data version.
        """
        deadline = time.monotonic() + timeout
        # Before the look: a commit between the look and the wait must end the wait.
        self._commits.prepare()
        while True:
            version = int(self.query("PRAGMA data_version")[0][0])
            remaining = deadline - time.monotonic()
            if version != seen or remaining <= 0:
                return version
            self._commits.wait(min(_UNWATCHED_SECONDS, remaining))


class _Write(Transaction):
    """A write transaction of a database."""

    def __init__(self, database: Database) -> None:
        lock = WriterLock(database.directory / LOCK_FILE)
        super().__init__(lambda: database.connection, "BEGIN IMMEDIATE", as_store_error, lock)
        self._database = database

    @atomic
    def __enter__(self) -> apsw.Connection:
        connection = super().__enter__()
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


def _upgrade(connection: apsw.Connection, version: int) -> None:
    """Create the tables of an empty database (version 0), or upgrade those of an older format."""
    steps = [_UPGRADES[step] for step in range(max(version, 1), FORMAT_VERSION)]
    for step in steps if version else [_DDL, *steps]:
        for statement in step.split(";\n"):
            if statement.strip():
                connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")


def schema_of_new_store() -> dict[str, set[str]]:
    """Return the columns of the SQLite tables that each store has, by table."""
    with contextlib.closing(apsw.Connection(":memory:")) as connection:
        _upgrade(connection, 0)
        tables = list(
            connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
        )
        return {
            name: {column for (column,) in connection.execute("SELECT name FROM pragma_table_info(?)", (name,))}
            for (name,) in tables
        }


@functools.cache
def _machine() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        # Not Linux.
        return socket.gethostname()


def _connect(directory: Path, synchronous: str, *, may_create: bool) -> apsw.Connection:
    with translated():
        connection = open_wal(directory / DATABASE_FILE, BUSY_TIMEOUT_MS, cached_statements=256)
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
        version = connection.pragma("user_version")
    if version == 0 and not may_create:
        # Another process is creating the store, or was killed while it created it.
        connection.close()
        raise _nothing_here(directory)
    if version not in (0, *_UPGRADES, FORMAT_VERSION):
        connection.close()
        raise StoreDamagedError(
            "the store was written by another version of headrace",
            received=f"format {version}",
            valid=f"format {FORMAT_VERSION}",
        )
    return connection


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


def as_store_error(error: BaseException) -> StoreError | None:
    """Return headrace's error for an error of SQLite; None for another error."""
    if isinstance(error, apsw.BusyError):
        return StoreBusyError("another process holds the store", received=str(error))
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
def translated() -> Iterator[None]:
    """Raise the errors of SQLite as errors of headrace, see `as_store_error`."""
    try:
        yield
    except apsw.Error as error:
        found = as_store_error(error)
        if found is None:
            raise
        raise found from error
