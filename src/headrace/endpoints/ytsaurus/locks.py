"""Locks of master transactions on nodes: who may change what, and who waits for whom."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.endpoints.ytsaurus.errors import lock_conflict
from headrace.endpoints.ytsaurus.ids import ObjectType, new_id
from headrace.endpoints.ytsaurus.tree import TRUNK, Tree

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
    """The locks of all transactions. A chain is what `headrace.endpoints.ytsaurus.tree.Tree` says."""

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
        """Raise the error of a conflict if another transaction has a lock that does not let this one have its own."""
        for lock in self._select("node = ? AND state = 'acquired'", node):
            if _conflict(lock, chain, mode, key):
                raise lock_conflict(path, mode, lock.mode, lock.transaction, own=lock.transaction in chain)

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
        conflicts = [
            lock for lock in self._select("node = ? AND state = 'acquired'", node) if _conflict(lock, chain, mode, key)
        ]
        if conflicts and not waitable:
            first = conflicts[0]
            raise lock_conflict(path, mode, first.mode, first.transaction, own=first.transaction in chain)
        if conflicts:
            state = PENDING
        else:
            self._acquired(chain, node, mode)
        return self._insert(chain[0], node, mode, key, state, explicit=1, now=now)

    def release(self, tx: str, node: str) -> None:
        """Give back what a client asked for on a node, which the transaction has not changed."""
        self._database.query("DELETE FROM yt_lock WHERE tx = ? AND node = ? AND explicit = 1", (tx, node))
        if not any(lock.node == node for lock in self.of_transaction(tx)):
            self._tree.forget(tx, node)

    def pass_on(self, tx: str, parent: str) -> None:
        """Give the locks of a transaction that is committed to its parent; snapshots and pending ones end."""
        if parent == TRUNK:
            self.drop(tx)
            return
        self._database.query("DELETE FROM yt_lock WHERE tx = ? AND (mode = 'snapshot' OR state = 'pending')", (tx,))
        self._database.query("UPDATE yt_lock SET tx = ? WHERE tx = ?", (parent, tx))

    def drop(self, tx: str) -> None:
        """Remove all locks of a transaction."""
        self._database.query("DELETE FROM yt_lock WHERE tx = ?", (tx,))

    def grant(self, chains: dict[str, tuple[str, ...]]) -> None:
        """Let pending locks be acquired that nothing stands against any more, those that came first before others.

        Args:
            chains: transaction → its chain, of all that are there.
        """
        for lock in sorted(self._select("state = ?", PENDING), key=lambda lock: (lock.created, lock.id)):
            held = self._select("node = ? AND state = 'acquired'", lock.node)
            chain = chains[lock.transaction]
            if not any(_conflict(other, chain, lock.mode, lock.key) for other in held):
                self._database.query("UPDATE yt_lock SET state = 'acquired' WHERE id = ?", (lock.id,))
                self._acquired(chain, lock.node, lock.mode)

    def _acquired(self, chain: tuple[str, ...], node: str, mode: str) -> None:
        """Let a transaction keep what it sees of a node that it locks, so far as the lock promises it."""
        if mode != SNAPSHOT:
            self._tree.branch(chain, node, anew=mode == EXCLUSIVE)
        elif self._tree.chain_for(chain, node) != chain[:1]:
            self._tree.take_snapshot(chain, node)

    def _insert(self, tx: str, node: str, mode: str, key: str, state: str, *, explicit: int, now: int) -> Lock:
        lock = Lock(new_id(ObjectType.LOCK), tx, node, mode, key, state, explicit, now)
        self._database.query(
            f"INSERT INTO yt_lock ({_FIELDS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (lock.id, tx, node, mode, key, state, explicit, now),
        )
        return lock

    def _select(self, condition: str, value: str) -> list[Lock]:
        rows = self._database.query(f"SELECT {_FIELDS} FROM yt_lock WHERE {condition}", (value,))
        return [Lock(*row) for row in rows]


def _conflict(lock: Lock, chain: tuple[str, ...], mode: str, key: str) -> bool:
    """Tell whether a lock that somebody has stands against one that a transaction wants."""
    if lock.transaction == chain[0]:
        # A transaction changes nothing of which it has a snapshot, and has no snapshot of what it changes.
        return (lock.mode == SNAPSHOT) != (mode == SNAPSHOT)
    if lock.transaction in chain:
        return lock.mode == SNAPSHOT and mode != SNAPSHOT
    if SNAPSHOT in (mode, lock.mode):
        return False
    if EXCLUSIVE in (mode, lock.mode):
        return True
    return key != "" and key == lock.key


def _covers(lock: Lock, mode: str, key: str) -> bool:
    """Tell whether who has a lock needs no other of that mode and key."""
    return lock.mode == EXCLUSIVE or (lock.mode == mode and lock.key == key)
