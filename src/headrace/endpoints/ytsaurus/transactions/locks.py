"""Locks of master transactions on nodes: who may change what, and who waits for whom."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.endpoints.ytsaurus.errors import lock_conflict, nested_lock_conflict, own_lock_conflict
from headrace.endpoints.ytsaurus.ids import ObjectType, new_id
from headrace.endpoints.ytsaurus.storage.tree import TRUNK, Tree
from headrace.wire.ytsaurus.errors import Code, YtError

SNAPSHOT, SHARED, EXCLUSIVE = "snapshot", "shared", "exclusive"
MODES = (EXCLUSIVE, SHARED, SNAPSHOT)
ACQUIRED, PENDING = "acquired", "pending"
_FIELDS = "id, tx, node, mode, key, state, explicit, created"


@dataclass(frozen=True)
class Lock:
    """A lock.

    Attributes:
        key: what a shared lock is about: ``child:name`` or ``attribute:name``; empty for all of the node, which two
            transactions may share.
        explicit: a client asked for it; the others came with changes.
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
    """The locks of all transactions. A chain is what `headrace.endpoints.ytsaurus.storage.tree.Tree` says."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._database = tree.database

    def find(self, lock_id: str) -> Lock | None:
        """Return a lock by its id."""
        found = self._select("id = ?", lock_id)
        return found[0] if found else None

    def of_node(self, node: str) -> list[Lock]:
        """Return all locks on a node, pending ones too."""
        return self._select("node = ?", node)

    def of_transaction(self, tx: str) -> list[Lock]:
        """Return all locks of a transaction, pending ones too."""
        return self._select("tx = ?", tx)

    def check(self, chain: tuple[str, ...], node: str, path: str, mode: str = EXCLUSIVE, key: str = "") -> None:
        """Raise the error of a conflict if another lock does not let a transaction have its own."""
        conflict = self._conflict(chain, node, path, mode, key)
        if conflict is not None:
            raise conflict

    def need(self, chain: tuple[str, ...], node: str, path: str, mode: str = EXCLUSIVE, key: str = "") -> None:
        """Take the lock that a change needs; outside of transactions, see only that nobody has another."""
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
        """Take a lock that a client asks for; one that has to wait is pending, if it may."""
        state = ACQUIRED
        conflict = self._conflict(chain, node, path, mode, key)
        if conflict is not None:
            # No other transaction ends a conflict with a lock of the transaction itself, so it does not wait for that.
            if not waitable or conflict.code != Code.CYPRESS_LOCK_CONFLICT:
                raise conflict
            state = PENDING
        else:
            self._acquired(chain, node, mode)
        return self._insert(chain[0], node, mode, key, state, explicit=1, now=now)

    def release(self, tx: str, node: str) -> None:
        """Give back what a client asked for on a node, which the transaction has not changed."""
        self._database.execute("DELETE FROM yt_lock WHERE tx = ? AND node = ? AND explicit = 1", (tx, node))
        if not any(lock.node == node for lock in self.of_transaction(tx)):
            self._tree.forget(tx, node)

    def pass_on(self, tx: str, parent: str) -> None:
        """Give the locks of a transaction that is committed to its parent, also those that wait; snapshots end."""
        if parent == TRUNK:
            self.drop(tx)
            return
        self._database.execute("DELETE FROM yt_lock WHERE tx = ? AND mode = 'snapshot'", (tx,))
        self._database.execute("UPDATE yt_lock SET tx = ? WHERE tx = ?", (parent, tx))

    def orphan(self, node: str) -> None:
        """Remove the locks that wait for a node which is gone for good."""
        self._database.execute("DELETE FROM yt_lock WHERE node = ? AND state = 'pending'", (node,))

    def drop(self, tx: str) -> None:
        """Remove all locks of a transaction."""
        self._database.execute("DELETE FROM yt_lock WHERE tx = ?", (tx,))

    def grant(self, chains: dict[str, tuple[str, ...]]) -> None:
        """Let pending locks be acquired that nothing stands against any more, those that came first before others.

        Args:
            chains: transaction → its chain, of all that are there.
        """
        for lock in sorted(self._select("state = ?", PENDING), key=lambda lock: (lock.created, lock.id)):
            chain = chains[lock.transaction]
            if self._conflict(chain, lock.node, "", lock.mode, lock.key) is None:
                self._database.execute("UPDATE yt_lock SET state = 'acquired' WHERE id = ?", (lock.id,))
                self._acquired(chain, lock.node, lock.mode)

    def _acquired(self, chain: tuple[str, ...], node: str, mode: str) -> None:
        """Let a transaction keep what it sees of a node that it locks, so far as the lock promises it."""
        if mode != SNAPSHOT:
            self._tree.branch(chain, node, anew=mode == EXCLUSIVE)
        elif self._tree.chain_for(chain, node) != chain[:1]:
            self._tree.take_snapshot(chain, node)

    def _conflict(self, chain: tuple[str, ...], node: str, path: str, mode: str, key: str) -> YtError | None:
        """Return the error for a lock that a transaction wants; None if it can have it."""
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
    """Tell whether a lock of a transaction, or of an outer one, excludes one that it wants.

    A transaction changes nothing of which it has a snapshot, and has no snapshot of what it changes.
    """
    if mode == SNAPSHOT:
        return lock.mode != SNAPSHOT and lock.transaction == chain[0]
    return lock.mode == SNAPSHOT


def _excludes(lock: Lock, mode: str, key: str) -> bool:
    """Tell whether a lock of another transaction excludes one that is no snapshot."""
    if lock.mode == SNAPSHOT:
        return False
    return EXCLUSIVE in (mode, lock.mode) or (key != "" and key == lock.key)


def _covers(lock: Lock, mode: str, key: str) -> bool:
    """Tell whether who has a lock needs no other of that mode and key."""
    return lock.mode == EXCLUSIVE or (lock.mode == mode and lock.key == key)
