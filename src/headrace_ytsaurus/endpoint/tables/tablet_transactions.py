"""Tablet transactions: they read one state of the store, and apply all changes when they are committed.

Changes are kept in memory until the commit, so the process's end aborts the transaction. Reads see the store at the
time when the transaction began, without its own changes. The commit is one write transaction of the store. It fails if
another transaction has changed one of the rows since this one began.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import apsw

from headrace.stores.embedded.for_servers import Database, stamp
from headrace.support.sqlite.forks import no_fork
from headrace_ytsaurus.endpoint.clock import timestamp_of
from headrace_ytsaurus.endpoint.context import Cluster, Context
from headrace_ytsaurus.endpoint.errors import no_such_transaction, refused
from headrace_ytsaurus.endpoint.ids import ObjectType, kind_of, new_id
from headrace_ytsaurus.endpoint.parameters import Parameters
from headrace_ytsaurus.endpoint.storage.snapshot import SnapshotDatabase
from headrace_ytsaurus.endpoint.tables.past_states import KEPT_SECONDS, PastStates
from headrace_ytsaurus.endpoint.tables.row_locks import Locked, Locks, RowLocks
from headrace_ytsaurus.endpoint.tables.state import ROW_LIMIT
from headrace_ytsaurus.wire.errors import Code, YtError

MAX_OPEN = 500
"""The maximum number of open transactions; each has a connection to the database."""
MAX_TIMEOUT = 3600 * 1000
# Timestamps from this one on are not times, but mean the newest rows.
_FIRST_SPECIAL = 0x3FFFFFFFFFFFFF00


class Change(Protocol):
    """A checked and typed change of rows that is not yet applied."""

    @property
    def table(self) -> str:
        """The path of the table."""
        ...

    @property
    def size(self) -> Mapping[int, int]:
        """Number of a tablet → number of rows to change in it."""
        ...

    def locks(self, connection: apsw.Connection) -> Locks:
        """Return the rows that other transactions must not have changed."""
        ...

    def apply(self, connection: apsw.Connection, version: int, ts: int) -> None:
        """Apply the change in a write transaction, with the version and the timestamp (µs) of its commit."""
        ...


class TabletTransaction:
    """One open transaction.

    Attributes:
        view: the store when the transaction began; use it within `reading`.
        since: the version of the last visible commit.
        changes: the changes to apply.
    """

    def __init__(
        self, database: Database, transaction_id: str, timeout: int, attributes: Mapping[str, Any], locks: RowLocks
    ) -> None:
        self.id = transaction_id
        self.timeout = timeout
        self.attributes = attributes
        self.changes: list[Change] = []
        self._locks = locks
        self._stack = contextlib.ExitStack()
        self._guard = threading.RLock()
        self._deadline = 0.0
        self._open = True
        locks.begin(transaction_id)
        try:
            connection = self._stack.enter_context(database.snapshot())
            # The snapshot is the state at the first statement that reads.
            with no_fork:
                ((version,),) = connection.execute("SELECT version FROM clock")
        except BaseException:
            self.close()
            raise
        self.since = int(version)
        locks.began(transaction_id, self.since)
        self.view = SnapshotDatabase(database, connection)
        self.ping()

    def ping(self) -> None:
        """Restart the timeout."""
        self._deadline = time.monotonic() + self.timeout / 1000

    @property
    def expired(self) -> bool:
        return time.monotonic() > self._deadline

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[TabletTransaction]:
        """Use the transaction exclusively in this thread."""
        with self._guard:
            if not self._open:
                raise no_such_transaction(self.id)
            yield self

    def close(self) -> None:
        """End the transaction without applying its changes."""
        with self._guard:
            self._open = False
            self._stack.close()
            self._locks.end(self.id)


class TabletTransactions:
    """All open tablet transactions of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._database = cluster.database
        self._locks = RowLocks()
        self._guard = threading.Lock()
        self._open: dict[str, TabletTransaction] = {}

    @property
    def open(self) -> set[str]:
        """The ids of the open transactions."""
        with self._guard:
            return set(self._open)

    def start(self, timeout: int, attributes: Mapping[str, Any]) -> str:
        """Begin a transaction; return its id.

        Args:
            timeout: milliseconds after the last ping until the transaction is aborted.
            attributes: the client's attributes.
        """
        self.abort_expired()
        with self._guard:
            if len(self._open) >= MAX_OPEN:
                raise YtError(Code.REQUEST_QUEUE_FULL, f"More than {MAX_OPEN} tablet transactions are open")
        chosen = new_id(ObjectType.ATOMIC_TABLET_TRANSACTION)
        transaction = TabletTransaction(self._database, chosen, min(timeout, MAX_TIMEOUT), attributes, self._locks)
        with self._guard:
            self._open[chosen] = transaction
        return chosen

    def get(self, transaction_id: str) -> TabletTransaction:
        """Return an open transaction.

        Raises:
            YtError: 11000, there is none with this id.
        """
        with self._guard:
            found = self._open.get(transaction_id)
        if found is not None and found.expired:
            self.discard(transaction_id)
            found = None
        if found is None:
            if kind_of(transaction_id) in (ObjectType.TRANSACTION, ObjectType.NESTED_TRANSACTION):
                raise refused("Dynamic tables cannot be used within a master transaction", received=transaction_id)
            raise no_such_transaction(transaction_id)
        return found

    def attributes(self, transaction_id: str) -> Mapping[str, Any] | None:
        """Return the attributes of a transaction, None if there is none with this id."""
        try:
            found = self.get(transaction_id)
        except YtError:
            return None
        return {**found.attributes, "id": found.id, "type": "tablet_transaction", "timeout": found.timeout}

    def abort(self, transaction_id: str) -> None:
        """End a transaction without applying its changes."""
        self.get(transaction_id)
        self.discard(transaction_id)

    def discard(self, transaction_id: str) -> None:
        """End a transaction as `abort` does, unless it has ended."""
        with self._guard:
            transaction = self._open.pop(transaction_id, None)
        if transaction is not None:
            transaction.close()

    def commit(self, transaction_id: str) -> int:
        """Apply all changes of a transaction atomically; return the version. The transaction ends even if this fails.

        Raises:
            YtError: 1700, another transaction has changed one of the rows; 1702, a tablet is not mounted.
        """
        transaction = self.get(transaction_id)
        with self._guard:
            self._open.pop(transaction_id, None)
        with transaction.exclusive():
            try:
                return self.write(transaction.changes, since=transaction.since)
            finally:
                transaction.close()

    def write(self, changes: Sequence[Change], *, since: int | None = None) -> int:
        """Apply changes in one write transaction of the store; return the version of the commit.

        Args:
            since: the version of the last commit before the changes were computed; None for changes without conflicts.
        """
        if not changes:
            return 0
        _check_sizes(changes)
        with self._database.write() as connection:
            version, ts = stamp(connection)
            self._locks.begin_commit(version)
            locks: dict[int, Locked] = {}
            for change in changes:
                for object_id, locked in change.locks(connection).items():
                    known = locks.get(object_id)
                    locks[object_id] = locked if known is None else known.joined(locked)
            if since is not None and (taken := self._locks.conflict(since, locks)) is not None:
                raise self._conflict(connection, taken)
            for change in changes:
                change.apply(connection, version, ts)
            self._locks.committed(version, locks)
        return version

    def abort_expired(self) -> None:
        """End all expired transactions."""
        with self._guard:
            expired = [transaction for transaction in self._open.values() if transaction.expired]
            for transaction in expired:
                del self._open[transaction.id]
        for transaction in expired:
            transaction.close()

    def _conflict(self, connection: apsw.Connection, object_id: int) -> YtError:
        found = connection.execute("SELECT name FROM object WHERE id = ?", (object_id,)).fetchone()
        path = found[0] if found else "a removed table"
        return YtError(
            Code.TABLET_LOCK_CONFLICT,
            f"Row lock conflict in {path}: a row was changed by a concurrent transaction since this one began",
            remedy="begin a new transaction and try again",
            attributes={"path": path},
        )


def _check_sizes(changes: Sequence[Change]) -> None:
    sizes: dict[tuple[str, int], int] = {}
    for change in changes:
        for tablet, rows in change.size.items():
            key = (change.table, tablet)
            sizes[key] = sizes.get(key, 0) + rows
            if sizes[key] > ROW_LIMIT:
                raise YtError(
                    Code.TOO_MANY_ROWS_IN_TRANSACTION,
                    f"Transaction affects too many rows in tablet {tablet} of table {change.table}",
                    received=f"{sizes[key]} rows",
                    valid=f"at most {ROW_LIMIT}",
                    remedy="write fewer rows in one transaction, or give the table more tablets",
                )


def transaction_of(context: Context, parameters: Parameters) -> TabletTransaction | None:
    """Return the tablet transaction of a command, None if it has none.

    Raises:
        YtError: 11000, there is no such transaction; 1, the transaction is a master transaction.
    """
    given = parameters.object_id("transaction_id", None)
    return None if given is None else context.cluster.service(TabletTransactions).get(given)


def write_changes(context: Context, parameters: Parameters, changes: Sequence[Change]) -> None:
    """Add changes to the transaction of a command, or apply them immediately if it has none."""
    transaction = transaction_of(context, parameters)
    if transaction is None:
        context.cluster.service(TabletTransactions).write(changes)
        return
    with transaction.exclusive():
        # Too many changes are an error now, not only in the commit.
        _check_sizes([*transaction.changes, *changes])
        transaction.changes.extend(changes)


def check_timestamp(parameters: Parameters) -> None:
    """Raise an error if a command filters rows by age."""
    retention = parameters.number("retention_timestamp", 0)
    if retention:
        problem = "This endpoint does not hide rows by their age"
        raise refused(problem, received=f"retention_timestamp={retention}", remedy="read without it")


@contextlib.contextmanager
def reading(context: Context, parameters: Parameters) -> Iterator[Database]:
    """Yield a state of the store: at the command's timestamp, in its transaction, or now.

    Raises:
        YtError: the state at the timestamp is not kept.
    """
    transaction = transaction_of(context, parameters)
    wanted = parameters.number("timestamp", None)
    if wanted is not None and wanted < _FIRST_SPECIAL:
        ((committed,),) = context.database.query("SELECT ts FROM clock")
        newest = timestamp_of(int(committed))
        if wanted < newest:
            with _past(context, wanted, newest) as view:
                yield view
            return
    if transaction is not None:
        with transaction.exclusive():
            yield transaction.view
        return
    database = context.database
    with database.read() as connection:
        yield SnapshotDatabase(database, connection)


@contextlib.contextmanager
def _past(context: Context, wanted: int, newest: int) -> Iterator[Database]:
    with context.cluster.service(PastStates).at(wanted) as view:
        if view is None:
            raise refused(
                "This endpoint keeps the newest rows only, and those at timestamps that it has generated lately",
                received=f"timestamp={wanted}",
                valid=f"{newest} or later, or one of generate_timestamp, for {KEPT_SECONDS:.0f} seconds",
                remedy="read within a tablet transaction to see one state",
            )
        yield view


def abort_expired_tablet_transactions(cluster: Cluster) -> None:
    """Abort tablet transactions whose timeout has passed; their snapshots keep the database large."""
    cluster.service(TabletTransactions).abort_expired()
