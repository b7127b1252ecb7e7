"""Locks of master transactions on nodes, and the conflicts between them."""

from __future__ import annotations

from dataclasses import dataclass

from headrace_ytsaurus.endpoint.errors import lock_conflict, nested_lock_conflict, own_lock_conflict
from headrace_ytsaurus.endpoint.ids import ObjectType, new_id
from headrace_ytsaurus.endpoint.storage.tree import TRUNK, Tree
from headrace_ytsaurus.wire.errors import Code, YtError

SNAPSHOT, SHARED, EXCLUSIVE = "snapshot", "shared", "exclusive"
MODES = (EXCLUSIVE, SHARED, SNAPSHOT)
ACQUIRED, PENDING = "acquired", "pending"
_FIELDS = "id, tx, node, mode, key, state, explicit, created"


@dataclass(frozen=True)
class Lock:
    """A lock.

    Attributes:
        key: the target of a shared lock: ``child:name`` or ``attribute:name``; empty for the whole node, which two
            transactions can share.
        explicit: a client asked for the lock; other locks come with changes.
        created: µs since 1970.
    """

    id: str
    transaction: str
    node: str
    mode: str
    key: str
    state: str
    explicit: int
    created: int


class Locks:
    """The locks of all transactions. A chain is defined in `headrace_ytsaurus.endpoint.storage.tree.Tree`."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._database = tree.database

    def find(self, lock_id: str) -> Lock | None:
        """Return a lock by its id."""
        found = self._select("id = ?", lock_id)
        return found[0] if found else None

    def of_node(self, node: str) -> list[Lock]:
        """Return all locks on a node, including pending ones."""
        return self._select("node = ?", node)

    def of_transaction(self, tx: str) -> list[Lock]:
        """Return all locks of a transaction, including pending ones."""
        return self._select("tx = ?", tx)

    def check(self, chain: tuple[str, ...], node: str, path: str, mode: str = EXCLUSIVE, key: str = "") -> None:
        """Raise the error of a conflict if another lock prevents a lock."""
        conflict = self._conflict(chain, node, path, mode, key)
        if conflict is not None:
            raise conflict

    def need(self, chain: tuple[str, ...], node: str, path: str, mode: str = EXCLUSIVE, key: str = "") -> None:
        """Take the lock that a change needs. Outside of transactions, only check for conflicts."""
        self.check(chain, node, path, mode, key)
        if chain[0] == TRUNK:
            return
        held = self._select("node = ? AND state = 'acquired'", node)
        if not any(lock.transaction == chain[0] and _covers(lock, mode, key) for lock in held):
            self._insert(chain[0], node, mode, key, ACQUIRED, explicit=0, now=0)
            self._acquired(chain, node, mode)

    def take(
        self, chain: tuple[str, ...], node: str, path: str, mode: str, key: str, *, waitable: bool, now: int
    ) -> Lock:
        """Take a lock for a client. If there is a conflict and ``waitable``, the lock is pending."""
        state = ACQUIRED
        conflict = self._conflict(chain, node, path, mode, key)
        if conflict is not None:
            # A conflict with the transaction's own lock cannot be resolved by other transactions, so waiting is no use.
            if not waitable or conflict.code != Code.CYPRESS_LOCK_CONFLICT:
                raise conflict
            state = PENDING
        else:
            self._acquired(chain, node, mode)
        return self._insert(chain[0], node, mode, key, state, explicit=1, now=now)

    def release(self, tx: str, node: str) -> None:
        """Release the explicit locks on a node that the transaction has not changed."""
        self._database.execute("DELETE FROM yt_lock WHERE tx = ? AND node = ? AND explicit = 1", (tx, node))
        if not any(lock.node == node for lock in self.of_transaction(tx)):
            self._tree.forget(tx, node)

    def pass_on(self, tx: str, parent: str) -> None:
        """Move the locks of a committed transaction, including pending ones, to its parent; snapshot locks end."""
        if parent == TRUNK:
            self.drop(tx)
            return
        self._database.execute("DELETE FROM yt_lock WHERE tx = ? AND mode = 'snapshot'", (tx,))
        self._database.execute("UPDATE yt_lock SET tx = ? WHERE tx = ?", (parent, tx))

    def orphan(self, node: str) -> None:
        """Delete the pending locks on a node that has been deleted."""
        self._database.execute("DELETE FROM yt_lock WHERE node = ? AND state = 'pending'", (node,))

    def drop(self, tx: str) -> None:
        """Delete all locks of a transaction."""
        self._database.execute("DELETE FROM yt_lock WHERE tx = ?", (tx,))

    def grant(self, chains: dict[str, tuple[str, ...]]) -> None:
        """Acquire the pending locks that no longer conflict, in the order of their creation.

        Args:
            chains: the chains of all transactions.
        """
        for lock in sorted(self._select("state = ?", PENDING), key=lambda lock: (lock.created, lock.id)):
            chain = chains[lock.transaction]
            if self._conflict(chain, lock.node, "", lock.mode, lock.key) is None:
                self._database.execute("UPDATE yt_lock SET state = 'acquired' WHERE id = ?", (lock.id,))
                self._acquired(chain, lock.node, lock.mode)

    def _acquired(self, chain: tuple[str, ...], node: str, mode: str) -> None:
        """Save the transaction's view of a node, as far as the lock guarantees it."""
        if mode != SNAPSHOT:
            self._tree.branch(chain, node, refresh=mode == EXCLUSIVE)
        elif self._tree.chain_for(chain, node) != chain[:1]:
            self._tree.take_snapshot(chain, node)

    def _conflict(self, chain: tuple[str, ...], node: str, path: str, mode: str, key: str) -> YtError | None:
        """Return the error if a lock conflicts with another; None if the transaction can take it."""
        found = None
        for lock in self._select("node = ? AND state = 'acquired'", node):
            if lock.transaction in chain:
                if _excludes_own(lock, chain, mode):
                    return own_lock_conflict(path, mode, lock.mode, lock.transaction, same=lock.transaction == chain[0])
            elif mode == SNAPSHOT:
                if lock.mode != SNAPSHOT and self._is_nested(lock.transaction, chain[0]):
                    return nested_lock_conflict(path, mode, lock.mode)
            elif _excludes(lock, mode, key):
                found = found or lock_conflict(path, mode, lock.mode, lock.transaction, key)
        return found

    def _is_nested(self, tx: str, outer: str) -> bool:
        while tx not in (TRUNK, outer):
            rows = self._database.query("SELECT parent FROM yt_transaction WHERE id = ?", (tx,))
            tx = rows[0][0] if rows else TRUNK
        return tx == outer and outer != TRUNK

    def _insert(self, tx: str, node: str, mode: str, key: str, state: str, *, explicit: int, now: int) -> Lock:
        lock = Lock(new_id(ObjectType.LOCK), tx, node, mode, key, state, explicit, now)
        self._database.execute(
            f"INSERT INTO yt_lock ({_FIELDS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (lock.id, tx, node, mode, key, state, explicit, now),
        )
        return lock

    def _select(self, condition: str, value: str) -> list[Lock]:
        rows = self._database.query(f"SELECT {_FIELDS} FROM yt_lock WHERE {condition}", (value,))
        return [Lock(*row) for row in rows]


def _excludes_own(lock: Lock, chain: tuple[str, ...], mode: str) -> bool:
    """Return whether a lock of the same or an outer transaction excludes a new one.

    A transaction cannot change a node in its snapshot, and cannot take a snapshot of a node that it has changed.
    """
    if mode == SNAPSHOT:
        return lock.mode != SNAPSHOT and lock.transaction == chain[0]
    return lock.mode == SNAPSHOT


def _excludes(lock: Lock, mode: str, key: str) -> bool:
    """Return whether a lock of another transaction excludes a shared or exclusive lock."""
    if lock.mode == SNAPSHOT:
        return False
    return EXCLUSIVE in (mode, lock.mode) or (key != "" and key == lock.key)


def _covers(lock: Lock, mode: str, key: str) -> bool:
    """Return whether a lock includes one of a mode and key."""
    return lock.mode == EXCLUSIVE or (lock.mode == mode and lock.key == key)
