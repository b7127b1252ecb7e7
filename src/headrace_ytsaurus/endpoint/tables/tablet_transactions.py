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
from typing import Any

from headrace.stores.embedded.for_servers import Database, stamp
from headrace.support.sqlite.forks import no_fork
from headrace_ytsaurus.endpoint.errors import no_such_transaction, refused
from headrace_ytsaurus.endpoint.ids import ObjectType, kind_of, new_id
from headrace_ytsaurus.endpoint.parameters import Parameters
from headrace_ytsaurus.endpoint.storage.snapshot import SnapshotDatabase
from headrace_ytsaurus.endpoint.tables.row_changes import Change, Commit, QueueChange
from headrace_ytsaurus.endpoint.tables.row_locks import Locked, RowLocks
from headrace_ytsaurus.endpoint.tables.state import ROW_LIMIT
from headrace_ytsaurus.wire.errors import Code, YtError

MAX_OPEN = 500
"""The maximum number of open transactions; each has a connection to the database."""
MAX_TIMEOUT = 3600 * 1000


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
    """All open tablet transactions of a cluster.

    Args:
        cluster: the name of the cluster.
    """

    def __init__(self, database: Database, cluster: str) -> None:
        self._database = database
        self._cluster = cluster
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
            transaction = self._open.get(transaction_id)
        if transaction is not None and transaction.expired:
            self.discard(transaction_id)
            transaction = None
        if transaction is None:
            if kind_of(transaction_id) in (ObjectType.TRANSACTION, ObjectType.NESTED_TRANSACTION):
                raise refused("Dynamic tables cannot be used within a master transaction", received=transaction_id)
            raise no_such_transaction(transaction_id)
        return transaction

    def of(self, parameters: Parameters) -> TabletTransaction | None:
        """Return the open transaction of a command, None if it has none.

        Raises:
            YtError: 11000, there is no such transaction; 1, the transaction is a master transaction.
        """
        transaction_id = parameters.object_id("transaction_id", None)
        return None if transaction_id is None else self.get(transaction_id)

    def attributes(self, transaction_id: str) -> Mapping[str, Any] | None:
        """Return the attributes of a transaction, None if there is none with this id."""
        try:
            transaction = self.get(transaction_id)
        except YtError:
            return None
        return {
            **transaction.attributes,
            "id": transaction.id,
            "type": "tablet_transaction",
            "timeout": transaction.timeout,
        }

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

    def commit(self, transaction_id: str) -> None:
        """Apply all changes of a transaction atomically. The transaction ends even if this fails.

        Raises:
            YtError: 1700, another transaction has changed one of the rows; 1702, a tablet is not mounted.
        """
        transaction = self.get(transaction_id)
        with self._guard:
            self._open.pop(transaction_id, None)
        with transaction.exclusive():
            try:
                self._apply(transaction.changes, since=transaction.since)
            finally:
                transaction.close()

    def write(self, parameters: Parameters, changes: Sequence[Change]) -> None:
        """Add changes to the transaction of a command, or apply them immediately if it has none."""
        transaction = self.of(parameters)
        if transaction is None:
            self._apply(changes)
            return
        with transaction.exclusive():
            # Too many changes are an error now, not only in the commit.
            _check_sizes([*transaction.changes, *changes])
            transaction.changes.extend(changes)

    def _apply(self, changes: Sequence[Change], *, since: int | None = None) -> None:
        """Apply changes in one write transaction of the store.

        Args:
            since: the version of the last commit before the changes were computed; None for changes without conflicts.
        """
        if not changes:
            return
        _check_sizes(changes)
        with self._database.write() as connection:
            version, ts = stamp(connection)
            commit = Commit(connection, version, ts, self._cluster)
            self._locks.begin_commit(version)
            locks: dict[str, Locked] = {}
            for change in changes:
                change.check(commit)
                if change.locked is not None:
                    node = change.table.node.id
                    locks[node] = locks[node].joined(change.locked) if node in locks else change.locked
            if since is not None and (taken := self._locks.conflict(since, locks)) is not None:
                raise _conflict(next(change.table.name for change in changes if change.table.node.id == taken))
            # Appends trim what consumers have read: of a consumer that goes back, as far as it is then.
            for change in sorted(changes, key=lambda each: isinstance(each, QueueChange)):
                change.apply(commit)
            self._locks.committed(version, locks)

    def abort_expired(self) -> None:
        """End all expired transactions."""
        with self._guard:
            expired = [transaction for transaction in self._open.values() if transaction.expired]
            for transaction in expired:
                del self._open[transaction.id]
        for transaction in expired:
            transaction.close()


def _conflict(path: str) -> YtError:
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
            key = (change.table.name, tablet)
            sizes[key] = sizes.get(key, 0) + rows
            if sizes[key] > ROW_LIMIT:
                raise YtError(
                    Code.TOO_MANY_ROWS_IN_TRANSACTION,
                    f"Transaction affects too many rows in tablet {tablet} of table {change.table.name}",
                    received=f"{sizes[key]} rows",
                    valid=f"at most {ROW_LIMIT}",
                    remedy="write fewer rows in one transaction, or give the table more tablets",
                )
