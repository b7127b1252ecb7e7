"""Master transactions: nested, with timeouts. Their changes of Cypress are invisible to others until the commit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headrace_ytsaurus.endpoint.errors import no_such_transaction, refused
from headrace_ytsaurus.endpoint.ids import NULL_ID, ObjectType, new_id
from headrace_ytsaurus.endpoint.storage.tree import TRUNK, Facet, Tree
from headrace_ytsaurus.endpoint.transactions.locks import SNAPSHOT, Locks
from headrace_ytsaurus.wire.yson import documents

DEFAULT_TIMEOUT = 15_000
MAX_TIMEOUT = 24 * 3600 * 1000
"""Milliseconds. Longer timeouts are reduced to this one."""
MAX_DEPTH = 64


@dataclass(frozen=True)
class Transaction:
    """A master transaction.

    Attributes:
        parent: the id of the transaction around it, or `TRUNK`.
        timeout: milliseconds after the last ping until the transaction is aborted.
        deadline: µs since 1970 at which the transaction is aborted in any case, or None.
        started: µs since 1970.
    """

    id: str
    parent: str
    timeout: int
    deadline: int | None
    started: int
    user: str
    attributes: Mapping[str, Any]


class Transactions:
    """All master transactions of a cluster. They survive a restart; the times of their last pings do not."""

    def __init__(self, tree: Tree, locks: Locks) -> None:
        self._tree = tree
        self._locks = locks
        self._database = tree.database
        self._guard = threading.Lock()
        self._expiry: dict[str, float] = {}
        # Called before a node is deleted for good, with a chain that still sees the node.
        self.on_delete: Callable[[tuple[str, ...], str], None] = lambda chain, node: None
        # After a restart, clients have a whole timeout to reconnect.
        for transaction in self.all():
            self._prolong(transaction)

    def start(
        self, parent: str, *, timeout: int, deadline: int | None, user: str, attributes: Mapping[str, Any], now: int
    ) -> Transaction:
        """Begin a transaction inside ``parent``, which may be `TRUNK`."""
        if parent != TRUNK and len(self.chain(parent)) > MAX_DEPTH:
            raise refused("transactions are nested too deep", valid=f"at most {MAX_DEPTH}")
        kind = ObjectType.TRANSACTION if parent == TRUNK else ObjectType.NESTED_TRANSACTION
        transaction = Transaction(
            new_id(kind), parent, min(timeout, MAX_TIMEOUT), deadline, now, user, dict(attributes)
        )
        self._database.execute(
            "INSERT INTO yt_transaction VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                transaction.id,
                parent,
                transaction.timeout,
                deadline,
                now,
                user,
                documents.dumps(transaction.attributes, text=False),
            ),
        )
        self._prolong(transaction)
        return transaction

    def find(self, transaction_id: str) -> Transaction | None:
        """Return a transaction, None if it does not exist or has expired."""
        found = self._select("WHERE id = ?", (transaction_id,))
        return found[0] if found and not self._is_over(found[0]) else None

    def get(self, transaction_id: str) -> Transaction:
        """Return a transaction, or raise an error if there is none."""
        found = self.find(transaction_id)
        if found is None:
            raise no_such_transaction(transaction_id)
        return found

    def all(self) -> list[Transaction]:
        """Return all transactions, including expired ones."""
        return self._select("", ())

    def chain(self, transaction_id: str | None) -> tuple[str, ...]:
        """Return the chain of a transaction (see `Tree`); None and the null id mean no transaction.

        Raises:
            YtError: the transaction or one of its parents does not exist.
        """
        chain = []
        current = TRUNK if transaction_id in (None, NULL_ID, TRUNK) else str(transaction_id)
        while current != TRUNK:
            chain.append(current)
            current = self.get(current).parent
        return (*chain, TRUNK)

    def ping(self, transaction_id: str, *, ancestors: bool = False) -> None:
        """Restart the timeout of a transaction and, with ``ancestors``, of its parents."""
        transaction = self.get(transaction_id)
        self._prolong(transaction)
        while ancestors and transaction.parent != TRUNK:
            transaction = self.get(transaction.parent)
            self._prolong(transaction)

    def commit(self, transaction_id: str) -> None:
        """Move all changes to the parent, or make them visible to all. Nested transactions are aborted."""
        transaction = self.get(transaction_id)
        for nested in self.nested(transaction_id):
            self._abort(nested)
        parents = self.chain(transaction.parent)
        snapshots = {lock.node for lock in self._locks.of_transaction(transaction_id) if lock.mode == SNAPSHOT}
        # A removed node is deleted for good if only the parent sees it, and no transaction around the parent.
        deleted = [
            node
            for node, facet, _, value in self._tree.own_entries(transaction_id)
            if facet == Facet.TYPE
            and value is None
            and node not in snapshots
            and self._tree.get(parents[1:], node, Facet.TYPE) is None
            and self._tree.get(parents, node, Facet.TYPE) is not None
        ]
        for node in deleted:
            self.on_delete(parents, node)
        self._tree.merge(transaction_id, parents, snapshots, time.time_ns() // 1000)
        for node in deleted:
            self._tree.forget(transaction.parent, node)
            self._locks.orphan(node)
        self._end(transaction_id)
        self._stop_counting(transaction_id)
        self._locks.pass_on(transaction_id, transaction.parent)
        self.grant()

    def abort(self, transaction_id: str) -> None:
        """Discard all changes, including those of nested transactions."""
        self._abort(self.get(transaction_id))
        self._stop_counting(transaction_id)
        self.grant()

    def resume(self, transaction: Transaction) -> None:
        """Count the timeout of a transaction again: its commit or abort was rolled back."""
        self._prolong(transaction)

    def nested(self, transaction_id: str) -> list[Transaction]:
        """Return the transactions whose parent is this one."""
        return self._select("WHERE parent = ?", (transaction_id,))

    def abort_expired(self) -> None:
        """Abort all expired transactions; their locks are released."""
        with self._guard:
            now = time.monotonic()
            may_be = any(expiry <= now for expiry in self._expiry.values())
        if not may_be:
            return
        with self._database.write():
            for transaction in self.all():
                if self._is_over(transaction) and self._select("WHERE id = ?", (transaction.id,)):
                    self._abort(transaction)
            self.grant()
            existing = {transaction.id for transaction in self.all()}
        with self._guard:
            # After the commit, because until then other threads must wait for it. Transactions whose beginning was
            # rolled back are removed, too.
            self._expiry = {key: expiry for key, expiry in self._expiry.items() if key in existing or expiry > now}

    def _abort(self, transaction: Transaction) -> None:
        for nested in self.nested(transaction.id):
            self._abort(nested)
        parents = self.chain_of(transaction.parent)
        snapshots = {lock.node for lock in self._locks.of_transaction(transaction.id) if lock.mode == SNAPSHOT}
        made = [
            node
            for node, facet, _, value in self._tree.own_entries(transaction.id)
            if facet == Facet.TYPE
            and value is not None
            and node not in snapshots
            and self._tree.get(parents, node, Facet.TYPE) is None
        ]
        for node in made:
            self.on_delete((transaction.id, *parents), node)
        self._tree.discard(transaction.id)
        self._locks.drop(transaction.id)
        self._end(transaction.id)

    def chain_of(self, transaction_id: str) -> tuple[str, ...]:
        """Return the chain of a transaction as `chain` does, even if it has expired."""
        chain = []
        while transaction_id != TRUNK:
            chain.append(transaction_id)
            found = self._select("WHERE id = ?", (transaction_id,))
            transaction_id = found[0].parent if found else TRUNK
        return (*chain, TRUNK)

    def grant(self) -> None:
        """Acquire the pending locks that no longer conflict with others."""
        self._locks.grant({transaction.id: self.chain_of(transaction.id) for transaction in self.all()})

    def _end(self, transaction_id: str) -> None:
        self._database.execute("DELETE FROM yt_transaction WHERE id = ?", (transaction_id,))

    def _stop_counting(self, transaction_id: str) -> None:
        with self._guard:
            self._expiry.pop(transaction_id, None)

    def _prolong(self, transaction: Transaction) -> None:
        seconds = transaction.timeout / 1000
        if transaction.deadline is not None:
            seconds = min(seconds, transaction.deadline / 1e6 - time.time())
        with self._guard:
            self._expiry[transaction.id] = time.monotonic() + seconds

    def _is_over(self, transaction: Transaction) -> bool:
        with self._guard:
            expiry = self._expiry.get(transaction.id)
        return expiry is None or expiry <= time.monotonic()

    def _select(self, condition: str, bindings: tuple[str, ...]) -> list[Transaction]:
        rows = self._database.query(
            f"SELECT id, parent, timeout, deadline, started, user, attributes FROM yt_transaction {condition}", bindings
        )
        return [
            Transaction(key, parent, timeout, deadline, started, user, documents.loads(attributes))
            for key, parent, timeout, deadline, started, user, attributes in rows
        ]
