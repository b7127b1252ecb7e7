"""How Cypress is kept: entries of nodes, of which each master transaction has its own versions.

An entry is one fact of one node, such as a child or an attribute. What is outside of transactions belongs to the
transaction ``""``. A transaction sees its own entries before those of its parents; one without a value hides theirs.
A commit gives the entries to the parent, an abort forgets them.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Iterable, Iterator
from typing import Any

from headrace.stores.embedded.database import Database

TRUNK = ""
"""In the place of a transaction: outside of all of them."""
EXPIRING = ("expiration_time", "expiration_timeout")
"""Attributes that end a node."""
_DDL = """
CREATE TABLE IF NOT EXISTS yt_entry (node TEXT NOT NULL, facet INTEGER NOT NULL, key TEXT NOT NULL,
    tx TEXT NOT NULL, value, PRIMARY KEY (node, facet, key, tx)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS yt_entry_tx ON yt_entry (tx) WHERE tx != '';
CREATE INDEX IF NOT EXISTS yt_entry_part ON yt_entry (value) WHERE facet = 6;
CREATE INDEX IF NOT EXISTS yt_entry_expiring ON yt_entry (key) WHERE key IN ('expiration_time', 'expiration_timeout');
CREATE TABLE IF NOT EXISTS yt_garbage (part TEXT PRIMARY KEY, since INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS yt_transaction (id TEXT PRIMARY KEY, parent TEXT NOT NULL, timeout INTEGER NOT NULL,
    deadline INTEGER, started INTEGER NOT NULL, user TEXT NOT NULL, attributes BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS yt_lock (id TEXT PRIMARY KEY, tx TEXT NOT NULL, node TEXT NOT NULL, mode TEXT NOT NULL,
    key TEXT NOT NULL, state TEXT NOT NULL, explicit INTEGER NOT NULL, created INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS yt_lock_node ON yt_lock (node);
CREATE INDEX IF NOT EXISTS yt_lock_tx ON yt_lock (tx);
CREATE TABLE IF NOT EXISTS yt_mutation (id TEXT PRIMARY KEY, answer BLOB NOT NULL, done INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS yt_mutation_done ON yt_mutation (done);
"""


class Facet(enum.IntEnum):
    """What an entry tells of its node; the key is empty where nothing is said of it."""

    TYPE = 1
    """The node is there; the value is its type and when it was made: ``map_node 1700000000000000``."""
    PLACE = 2
    """The parent's id and the name there: ``1-2-3-4 name``."""
    CHILD = 3
    """Key: a name; value: the id of the child of this name."""
    ATTRIBUTE = 4
    """Key: a name; value: binary YSON."""
    CHANGED = 5
    """When the node was changed last (µs since 1970)."""
    PART = 6
    """Key: a number; value: one part of a file's content, see `headrace.endpoints.ytsaurus.contents`."""
    CONTENT = 7
    """Bytes: the content of a node that is no file."""


class Tree:
    """The entries of all nodes. A chain is a transaction, its parent and so on, and `TRUNK` in the end."""

    def __init__(self, database: Database) -> None:
        self.database = database
        with database.write() as connection:
            for statement in _DDL.split(";\n"):
                if statement.strip():
                    connection.execute(statement)

    def get(self, chain: tuple[str, ...], node: str, facet: Facet, key: str = "") -> Any:
        """Return the value of an entry as a transaction sees it; None if there is none."""
        rows = self.database.query(
            "SELECT tx, value FROM yt_entry WHERE node = ? AND facet = ? AND key = ?", (node, facet, key)
        )
        found: dict[str, Any] = dict(rows)
        return _first(found, self.chain_for(chain, node)) if found else None

    def items(self, chain: tuple[str, ...], node: str, facet: Facet) -> dict[str, Any]:
        """Return key → value of all entries of a facet, as a transaction sees them, in the order of the keys."""
        versions: dict[str, dict[str, Any]] = {}
        rows = self.database.query(
            "SELECT key, tx, value FROM yt_entry WHERE node = ? AND facet = ? ORDER BY key", (node, facet)
        )
        if not rows:
            return {}
        for key, tx, value in rows:
            versions.setdefault(key, {})[tx] = value
        own = self.chain_for(chain, node)
        seen = {key: _first(found, own) for key, found in versions.items()}
        return {key: value for key, value in seen.items() if value is not None}

    def put(self, tx: str, node: str, facet: Facet, key: str, value: Any) -> None:
        """Set an entry in a transaction; None hides what its parents have, or removes it outside of transactions."""
        database = self.database
        if facet is Facet.PART:
            old = database.query(
                "SELECT value FROM yt_entry WHERE node = ? AND facet = ? AND key = ? AND tx = ?", (node, facet, key, tx)
            )
            self._drop_parts(part for (part,) in old)
        if value is None and tx == TRUNK:
            database.query(
                "DELETE FROM yt_entry WHERE node = ? AND facet = ? AND key = ? AND tx = ''", (node, facet, key)
            )
        else:
            database.query("INSERT OR REPLACE INTO yt_entry VALUES (?, ?, ?, ?, ?)", (node, facet, key, tx, value))

    def chain_for(self, chain: tuple[str, ...], node: str) -> tuple[str, ...]:
        """Return the part of a chain that counts for a node: nothing beyond a transaction that has a snapshot of it."""
        if len(chain) == 1:
            return chain
        rows = self.database.query("SELECT tx FROM yt_lock WHERE node = ? AND mode = 'snapshot'", (node,))
        holders = {tx for (tx,) in rows}
        for number, tx in enumerate(chain):
            if tx in holders:
                return chain[: number + 1]
        return chain

    def take_snapshot(self, chain: tuple[str, ...], node: str) -> None:
        """Give the first transaction of a chain its own version of everything it sees of a node, but its children."""
        for facet in Facet:
            if facet is not Facet.CHILD:
                for key, value in self.items(chain, node, facet).items():
                    self.put(chain[0], node, facet, key, value)

    def forget(self, tx: str, node: str) -> None:
        """Remove all versions of a node that are a transaction's own."""
        self._drop_parts(
            part
            for (part,) in self.database.query(
                "SELECT value FROM yt_entry WHERE node = ? AND tx = ? AND facet = ?", (node, tx, Facet.PART)
            )
        )
        self.database.query("DELETE FROM yt_entry WHERE node = ? AND tx = ?", (node, tx))

    def own_entries(self, tx: str) -> list[tuple[str, int, str, Any]]:
        """Return node, facet, key and value of all entries that are a transaction's own."""
        rows = self.database.query("SELECT node, facet, key, value FROM yt_entry WHERE tx = ?1 AND tx != ''", (tx,))
        return [(node, facet, key, value) for node, facet, key, value in rows]

    def merge(self, tx: str, parent: str, snapshots: set[str]) -> None:
        """Give all entries of a transaction to its parent, but those of the nodes of which it has snapshots."""
        entries = self.own_entries(tx)
        for node in {entry[0] for entry in entries}:
            if node in snapshots:
                self.forget(tx, node)
        for node, facet, key, value in entries:
            if node not in snapshots:
                self.put(parent, node, Facet(facet), key, value)
        self.database.query("DELETE FROM yt_entry WHERE tx = ?1 AND tx != ''", (tx,))

    def discard(self, tx: str) -> None:
        """Remove all entries of a transaction."""
        for node in {entry[0] for entry in self.own_entries(tx)}:
            self.forget(tx, node)

    def expiring(self) -> dict[str, dict[str, bytes]]:
        """Return node → attribute → value of all attributes that end nodes, as they are outside of transactions."""
        found: dict[str, dict[str, bytes]] = {}
        rows = self.database.query(
            "SELECT node, key, value FROM yt_entry WHERE key IN ('expiration_time', 'expiration_timeout')"
            " AND facet = ? AND tx = ''",
            (Facet.ATTRIBUTE,),
        )
        for node, key, value in rows:
            found.setdefault(node, {})[key] = bytes(value)
        return found

    def orphans(self, before: int) -> list[str]:
        """Return the parts of files that were last used before a time (µs since 1970), and are not used now."""
        rows = self.database.query(
            "SELECT part FROM yt_garbage g WHERE since < ? AND NOT EXISTS"
            " (SELECT 1 FROM yt_entry e WHERE e.facet = 6 AND e.value = g.part)",
            (before,),
        )
        return [part for (part,) in rows]

    def forget_garbage(self, before: int) -> None:
        """Forget parts that were last seen unused before a time: they are removed, or are used again."""
        self.database.query("DELETE FROM yt_garbage WHERE since < ?", (before,))

    def _drop_parts(self, parts: Iterator[Any] | Iterable[Any]) -> None:
        for part in parts:
            if part is not None:
                now = time.time_ns() // 1000
                self.database.query("INSERT OR REPLACE INTO yt_garbage VALUES (?, ?)", (part, now))


def _first(found: dict[str, Any], chain: tuple[str, ...]) -> Any:
    """Return the value of the first transaction of a chain that has one."""
    for tx in chain:
        if tx in found:
            return found[tx]
    return None
