"""Cypress in the store: entries of nodes, with separate versions for each master transaction.

An entry is one fact about one node, for example a child or an attribute. Committed entries belong to the transaction
``""``. A transaction reads its own entries first, then those of its parents; an entry without a value hides theirs. A
commit moves the entries to the parent, an abort deletes them. The rows of a table and the bytes of a file are one
entry, a version of `part_lists`: a lock branches it, and a commit appends to the parent's version or replaces it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

from headrace.stores.embedded.for_servers import Database
from headrace_ytsaurus.endpoint.storage import part_lists
from headrace_ytsaurus.endpoint.storage.part_lists import Mode, PartLists, Version, kept

TRUNK = ""
"""The id in place of a transaction for committed entries."""
ATTRIBUTES = "attributes"
EXPIRING = ("expiration_time", "expiration_timeout")
"""Attributes after whose time a node is removed."""
_DDL = """
CREATE TABLE IF NOT EXISTS yt_entry (node TEXT NOT NULL, facet INTEGER NOT NULL, key TEXT NOT NULL,
    tx TEXT NOT NULL, value, PRIMARY KEY (node, facet, key, tx)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS yt_entry_tx ON yt_entry (tx) WHERE tx != '';
CREATE INDEX IF NOT EXISTS yt_entry_parts ON yt_entry (facet) WHERE facet = 8;
CREATE INDEX IF NOT EXISTS yt_entry_expiring ON yt_entry (key) WHERE key IN ('expiration_time', 'expiration_timeout');
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
    """The kinds of entries. The key of an entry is empty unless the kind has one."""

    TYPE = 1
    """The node exists; the value is its type and creation time: ``map_node 1700000000000000``."""
    PLACE = 2
    """The parent's id and the name in the parent: ``1-2-3-4 name``."""
    CHILD = 3
    """Key: a name; value: the id of the child with this name."""
    ATTRIBUTE = 4
    """Key: a name; value: binary YSON."""
    CHANGED = 5
    """The time of the last change, µs since 1970; with the key `ATTRIBUTES`, of the last change of an attribute."""
    CONTENT = 7
    """Bytes: the content of a node other than a file, or the schema of a static table."""
    PARTS = 8
    """A version: the bytes of a file, the rows of a static table."""


class Tree:
    """The entries of all nodes. A chain is a transaction, its parents, and `TRUNK` at the end."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.lists = PartLists(database)
        with database.write() as connection:
            for statement in (_DDL + part_lists.DDL).split(";\n"):
                if statement.strip():
                    connection.execute(statement)

    def get(self, chain: tuple[str, ...], node: str, facet: Facet, key: str = "") -> Any:
        """Return the value of an entry that a transaction sees; None if there is none."""
        return seen(self.database.query, chain, node, facet, key)

    def items(self, chain: tuple[str, ...], node: str, facet: Facet) -> dict[str, Any]:
        """Return key → value of all entries of one kind that a transaction sees, in the order of the keys."""
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
        """Set an entry in a transaction. None hides the parents' entry; in `TRUNK` it deletes the entry."""
        database = self.database
        if facet is Facet.PARTS and (old := self._own_version(tx, node)) is not None:
            self.lists.release(old, None if value is None else Version.parse(value))
        if value is None and tx == TRUNK:
            database.execute(
                "DELETE FROM yt_entry WHERE node = ? AND facet = ? AND key = ? AND tx = ''", (node, facet, key)
            )
        else:
            database.execute("INSERT OR REPLACE INTO yt_entry VALUES (?, ?, ?, ?, ?)", (node, facet, key, tx, value))

    def chain_for(self, chain: tuple[str, ...], node: str) -> tuple[str, ...]:
        """Return the part of a chain that a node is read from: up to the first transaction with a snapshot of it."""
        return _chain_for(self.database.query, chain, node)

    def take_snapshot(self, chain: tuple[str, ...], node: str) -> None:
        """Copy all entries of a node except its children to the first transaction of a chain."""
        for facet in Facet:
            if facet not in (Facet.CHILD, Facet.PARTS):
                for key, value in self.items(chain, node, facet).items():
                    self.put(chain[0], node, facet, key, value)
        self.branch(chain, node)

    # -- versions of contents -------------------------------------------------------------------------

    def version(self, chain: tuple[str, ...], node: str) -> Version | None:
        """Return the content of a file or static table that a transaction sees; None for another node."""
        found = self.get(chain, node, Facet.PARTS)
        return None if found is None else Version.parse(found)

    def set_version(self, chain: tuple[str, ...], node: str, version: Version) -> None:
        """Replace a transaction's version of the content of a node."""
        self.put(chain[0], node, Facet.PARTS, "", version.text)

    def branch(self, chain: tuple[str, ...], node: str, *, refresh: bool = False) -> None:
        """Give a transaction its own version of a file or table, which later appends by others do not change.

        Args:
            refresh: include what others have appended since the last call; a lock must prevent more appends.
        """
        own = self._own_version(chain[0], node)
        if own is not None and (not refresh or own.mode is Mode.REPLACED):
            return
        below = self.version(chain[1:], node)
        if below is not None:
            now = kept(below.whole)
            self.set_version(chain, node, now if own is None else own.on(now))

    def is_changed(self, tx: str, node: str) -> bool:
        """Return whether a transaction has changed a node."""
        rows = self.database.query("SELECT facet, value FROM yt_entry WHERE node = ? AND tx = ?", (node, tx))
        return any(facet != Facet.PARTS or Version.parse(value).mode is not Mode.SAME for facet, value in rows)

    def used_lists(self) -> dict[str, int]:
        """Return list → number of its parts in use, for the lists in versions of all transactions."""
        rows = self.database.query("SELECT value FROM yt_entry WHERE facet = 8 AND value IS NOT NULL")
        found: dict[str, int] = {}
        for (value,) in rows:
            for segment in Version.parse(value).whole:
                found[segment.list] = max(segment.end, found.get(segment.list, 0))
        return found

    def _own_version(self, tx: str, node: str) -> Version | None:
        rows = self.database.query(
            "SELECT value FROM yt_entry WHERE node = ? AND facet = ? AND key = '' AND tx = ?", (node, Facet.PARTS, tx)
        )
        return Version.parse(rows[0][0]) if rows and rows[0][0] is not None else None

    def _merge_version(self, parents: tuple[str, ...], node: str, child: Version) -> None:
        """Merge a transaction's version of a node into its parent's."""
        if child.mode is Mode.APPENDED:
            own = self._own_version(parents[0], node)
            if own is None:
                below = self.version(parents, node)
                own = kept(() if below is None else below.whole)
            child = self.lists.joined(own, child)
        elif child.mode is Mode.SAME:
            return
        self.set_version(parents, node, child)

    # -- the ends of transactions ---------------------------------------------------------------------

    def forget(self, tx: str, node: str) -> None:
        """Delete all entries that a transaction has for a node."""
        version = self._own_version(tx, node)
        if version is not None:
            self.lists.release(version, None)
        self.database.execute("DELETE FROM yt_entry WHERE node = ? AND tx = ?", (node, tx))

    def own_entries(self, tx: str) -> list[tuple[str, int, str, Any]]:
        """Return node, facet, key and value of all entries of a transaction."""
        rows = self.database.query("SELECT node, facet, key, value FROM yt_entry WHERE tx = ?1 AND tx != ''", (tx,))
        return [(node, facet, key, value) for node, facet, key, value in rows]

    def merge(self, tx: str, parents: tuple[str, ...], snapshots: set[str], now: int) -> None:
        """Move all entries of a transaction to its parent, except those of nodes in its snapshots.

        Args:
            parents: the chain of the parent.
            now: the time of the commit, µs since 1970; it becomes the time of change of the nodes.
        """
        for node, facet, key, value in self.own_entries(tx):
            if node in snapshots:
                continue
            if facet == Facet.PARTS and value is not None:
                self._merge_version(parents, node, Version.parse(value))
            elif facet == Facet.CHANGED:
                before = max(self.items(parents, node, Facet.CHANGED).values(), default=0)
                self.put(parents[0], node, Facet.CHANGED, key, max(now, value, before + 1))
            else:
                self.put(parents[0], node, Facet(facet), key, value)
        self.discard(tx)

    def discard(self, tx: str) -> None:
        """Delete all entries of a transaction."""
        for node in {entry[0] for entry in self.own_entries(tx)}:
            self.forget(tx, node)

    def expiring(self) -> dict[str, dict[str, bytes]]:
        """Return node → attribute → value of all committed expiration attributes."""
        found: dict[str, dict[str, bytes]] = {}
        rows = self.database.query(
            "SELECT node, key, value FROM yt_entry WHERE key IN ('expiration_time', 'expiration_timeout')"
            " AND facet = ? AND tx = ''",
            (Facet.ATTRIBUTE,),
        )
        for node, key, value in rows:
            found.setdefault(node, {})[key] = bytes(value)
        return found


Query = Callable[[str, Any], list[tuple[Any, ...]]]
"""Runs an SQL statement with bindings, and returns all rows."""


def seen(query: Query, chain: tuple[str, ...], node: str, facet: Facet, key: str = "") -> Any:
    """Return the value of an entry that a transaction sees, by any connection to the store; None if there is none."""
    rows = query("SELECT tx, value FROM yt_entry WHERE node = ? AND facet = ? AND key = ?", (node, facet, key))
    return _first(dict(rows), _chain_for(query, chain, node)) if rows else None


def _chain_for(query: Query, chain: tuple[str, ...], node: str) -> tuple[str, ...]:
    if len(chain) == 1:
        return chain
    holders = {tx for (tx,) in query("SELECT tx FROM yt_lock WHERE node = ? AND mode = 'snapshot'", (node,))}
    for number, tx in enumerate(chain):
        if tx in holders:
            return chain[: number + 1]
    return chain


def _first(found: dict[Any, Any], chain: tuple[str, ...]) -> Any:
    """Return the first value in the order of a chain, None if there is none."""
    for tx in chain:
        if tx in found:
            return found[tx]
    return None
