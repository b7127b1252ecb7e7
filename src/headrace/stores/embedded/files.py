"""The files of an embedded store, see `headrace.stores.shared.file_trees`.

The root has parent 0. The id of a part is the id of its file, shifted left, plus the part's number.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import apsw

from headrace.stores.embedded.connection import Database
from headrace.stores.shared.file_trees import ABANDONED_SECONDS, FileTree, Node, TreeFiles

Result = TypeVar("Result")

PART_BITS = 24
_FIELDS = "id, directory, size, modified, moved_from"


class EmbeddedFiles(TreeFiles):
    """Files in the store's database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def view(self, work: Callable[[FileTree], Result]) -> Result:
        with self._database.read() as connection:
            return work(_SqliteTree(connection))

    def change(self, work: Callable[[FileTree], Result], *, repeatable: bool = False) -> Result:
        with self._database.write() as connection:
            return work(_SqliteTree(connection))


class _SqliteTree(FileTree):
    """The statements in one transaction. A write transaction locks the whole store, so no node needs a lock."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def find(self, path: str) -> Node | None:
        parent, row = 0, None
        for name in ["", *(part for part in path.split("/") if part)]:
            row = self._connection.execute(
                f"SELECT {_FIELDS} FROM file_node WHERE parent = ? AND name = ?", (parent, name)
            ).fetchone()
            if row is None:
                return None
            parent = row[0]
        return None if row is None else _node(row)

    def children(self, directory: int) -> list[tuple[str, Node]]:
        rows = self._connection.execute(
            f"SELECT name, {_FIELDS} FROM file_node WHERE parent = ? ORDER BY name", (directory,)
        )
        return [(name, _node(fields)) for name, *fields in rows]

    def has_children(self, directory: int) -> bool:
        rows = self._connection.execute("SELECT 1 FROM file_node WHERE parent = ? LIMIT 1", (directory,))
        return rows.fetchone() is not None

    def find_bytes(self, path: str, number: int, skipped: int, count: int) -> tuple[Node, bytes] | None:
        node = self.find(path)
        return None if node is None else (node, self.part(node.id, number, skipped, count) or b"")

    def part(self, file: int, number: int, skipped: int, count: int) -> bytes | None:
        row = self._connection.execute(
            "SELECT substr(data, ?, ?) FROM file_part WHERE id = ?", (skipped + 1, count, file << PART_BITS | number)
        ).fetchone()
        return None if row is None else row[0]

    def lock(self, node: int) -> None: ...

    def lock_moves(self) -> None: ...

    def add_directory(self, parent: int, name: str) -> int:
        self._connection.execute(
            "INSERT INTO file_node (parent, name, directory, size, modified) VALUES (?, ?, 1, 0, ?)",
            (parent, name, time.time()),
        )
        return self._connection.last_insert_rowid()

    def begin_upload(self, path: str) -> int:
        self._delete("SELECT id FROM file_node WHERE parent IS NULL AND modified < ?", time.time() - ABANDONED_SECONDS)
        self._connection.execute(
            "INSERT INTO file_node (name, directory, size, modified) VALUES (?, 0, 0, ?)", (path, time.time())
        )
        return self._connection.last_insert_rowid()

    def touch(self, file: int) -> bool:
        rows = self._connection.execute(
            "UPDATE file_node SET modified = ? WHERE id = ? RETURNING id", (time.time(), file)
        )
        return bool(rows.fetchall())

    def add_part(self, file: int, number: int, data: memoryview) -> None:
        self._connection.execute("INSERT INTO file_part VALUES (?, ?)", (file << PART_BITS | number, data))

    def end_upload(self, file: int, directory: int, name: str, size: int) -> float:
        modified = time.time()
        self._connection.execute(
            "UPDATE file_node SET parent = ?, name = ?, size = ?, modified = ? WHERE id = ?",
            (directory, name, size, modified, file),
        )
        return modified

    def move(self, node: int, directory: int, name: str, source: str) -> None:
        self._connection.execute(
            "UPDATE file_node SET parent = ?, name = ?, moved_from = ? WHERE id = ?", (directory, name, source, node)
        )

    def delete(self, node: int) -> None:
        self._delete("VALUES (?)", node)

    def _delete(self, nodes: str, binding: float) -> None:
        rows = self._connection.execute(
            f"WITH RECURSIVE below (id) AS ({nodes} UNION ALL"
            " SELECT n.id FROM file_node n JOIN below b ON n.parent = b.id) SELECT id FROM below",
            (binding,),
        )
        ids = [(each,) for (each,) in rows]
        self._connection.executemany(
            f"DELETE FROM file_part WHERE id >= ?1 << {PART_BITS} AND id < (?1 + 1) << {PART_BITS}", ids
        )
        self._connection.executemany("DELETE FROM file_node WHERE id = ?", ids)


def _node(row: Any) -> Node:
    number, directory, *rest = row
    return Node(number, bool(directory), *rest)
