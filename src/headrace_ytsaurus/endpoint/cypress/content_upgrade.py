"""Upgrade of contents of files and static tables that earlier versions have written.

Earlier versions saved each part of a file as a separate entry, and the rows of a static table by the id of its node,
independent of transactions.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import apsw

from headrace_ytsaurus.endpoint.storage import static_rows as static_tables
from headrace_ytsaurus.endpoint.storage.part_lists import ContentPart, Mode, Version, kept
from headrace_ytsaurus.endpoint.storage.tree import TRUNK, Facet, Tree

if TYPE_CHECKING:
    from headrace_ytsaurus.endpoint.transactions.transactions import Transactions

_FILES, _ROWS = "yt_garbage", "yt_static_rows"
"""Tables of the old layout."""


def upgrade(tree: Tree, transactions: Transactions) -> None:
    """Upgrade a store with the old layout in one transaction."""
    tables_found = {name for (name,) in tree.database.query("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not {_FILES, _ROWS} & tables_found:
        return
    with tree.database.write() as connection:
        connection.execute(static_tables.DDL)
        if _FILES in tables_found:
            _upgrade_files(tree, transactions, connection)
        if _ROWS in tables_found:
            _upgrade_tables(tree, connection)


def _upgrade_files(tree: Tree, transactions: Transactions, connection: apsw.Connection) -> None:
    snapshots = set(connection.execute("SELECT tx, node FROM yt_lock WHERE mode = 'snapshot'"))
    found = connection.execute(
        "SELECT DISTINCT node, tx FROM yt_entry WHERE facet = ? OR (facet = ? AND value LIKE 'file %')",
        (Facet.PART, Facet.TYPE),
    )
    for node, tx in list(found):
        chain = (TRUNK,) if tx == TRUNK else transactions.chain_of(tx)
        parts = [_file_part(text) for text in tree.items(chain, node, Facet.PART).values()]
        version = tree.lists.appended(Version(), parts)
        version = kept(version.whole) if (tx, node) in snapshots else Version(Mode.REPLACED, (), version.added)
        tree.set_version(chain, node, version)
    for (text,) in list(connection.execute(f"SELECT part FROM {_FILES}")):
        tree.lists.release(tree.lists.appended(Version(), [_file_part(text)]), None)
    connection.execute("DELETE FROM yt_entry WHERE facet = ?", (Facet.PART,))
    connection.execute("DROP INDEX IF EXISTS yt_entry_part")
    connection.execute(f"DROP TABLE {_FILES}")


def _file_part(text: str) -> ContentPart:
    name, size = json.loads(text)
    return ContentPart(name, size, size)


def _upgrade_tables(tree: Tree, connection: apsw.Connection) -> None:
    tables = list(connection.execute("SELECT node, schema FROM yt_table WHERE kind = 'static'"))
    for node, schema in tables:
        parts = []
        pieces = connection.execute(f"SELECT number, n FROM {_ROWS} WHERE node = ? ORDER BY number", (node,))
        for number, rows in list(pieces):
            ((data,),) = connection.execute(f"SELECT data FROM {_ROWS} WHERE node = ? AND number = ?", (node, number))
            parts += static_tables.store(connection, [(rows, data)])
        version = tree.lists.appended(Version(), parts)
        made = connection.execute(
            "SELECT tx FROM yt_entry WHERE node = ? AND facet = ? AND value IS NOT NULL", (node, Facet.TYPE)
        )
        for (tx,) in list(made):
            tree.put(tx, node, Facet.CONTENT, "", schema.encode())
            # Several transactions may see the table, and none of them may append to another's list.
            tree.set_version((tx,), node, Version(Mode.REPLACED, (), version.added))
    connection.execute("DELETE FROM yt_table WHERE kind = 'static'")
    connection.execute(f"DROP TABLE {_ROWS}")
