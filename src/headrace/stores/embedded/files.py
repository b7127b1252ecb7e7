"""The files of an embedded store: tables ``file_node`` (a tree of names) and ``file_part`` (the bytes).

The parent of a node is the id of its directory; the root has parent 0. A file that is being written has no parent, and
parts of its bytes may be stored already. The id of a part is the id of its file, shifted left, plus the part's number.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

import apsw

from headrace.errors import AlreadyExistsError, NotFoundError, OptionError, StoreError
from headrace.ports import Content, Files, FileStatus, Upload
from headrace.ports.files import normal_path, parent_path, paths_to_move
from headrace.stores.embedded.connection import Database

PART_BYTES = 1 << 20
# An upload keeps up to this number of bytes in memory. Larger ones are stored in several transactions.
FLUSH_BYTES = 4 * PART_BYTES
# An upload without writes for this time belongs to a dead process.
ABANDONED_SECONDS = 86400.0
_ROOT = 1
PART_BITS = 24
_FIELDS = "id, directory, size, modified, moved_from"


class _Node(NamedTuple):
    id: int
    directory: int
    size: int
    modified: float
    moved_from: str | None

    def status(self, path: str) -> FileStatus:
        return FileStatus(path, bool(self.directory), self.size, self.modified)


class EmbeddedFiles(Files):
    """Files in the store's database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def status(self, path: str) -> FileStatus | None:
        path = normal_path(path)
        with self._database.read() as connection:
            node = _find(connection, path)
        return None if node is None else node.status(path)

    def list(self, path: str) -> list[FileStatus]:
        path = normal_path(path)
        with self._database.read() as connection:
            node = _need(connection, path)
            if not node.directory:
                return [node.status(path)]
            found = connection.execute(
                f"SELECT name, {_FIELDS} FROM file_node WHERE parent = ? ORDER BY name", (node.id,)
            )
            return [_Node(*fields).status(f"{path.rstrip('/')}/{name}") for name, *fields in found]

    def open_read(self, path: str, offset: int = 0, length: int | None = None) -> Content:
        path = normal_path(path)
        with self._database.read() as connection:
            node = _need(connection, path)
            if node.directory:
                raise OptionError("a directory cannot be read", received=path)
            if not 0 <= offset <= node.size:
                raise OptionError(
                    "the offset is outside the file", received=f"{offset} of {path}", valid=f"0 to {node.size}"
                )
            end = node.size if length is None else min(node.size, offset + max(0, length))
            parts = self._parts(path, node.id, offset, end)
            if end <= PART_BYTES:
                # Most files are small and are read in this transaction.
                parts = iter(list(parts))
        return Content(end - offset, parts)

    def _parts(self, path: str, file: int, offset: int, end: int) -> Iterator[bytes]:
        while offset < end:
            number, skipped = divmod(offset, PART_BYTES)
            found = self._database.query("SELECT data FROM file_part WHERE id = ?", (file << PART_BITS | number,))
            if not found:
                raise StoreError("the file was replaced or removed while it was read", received=path)
            data: bytes = found[0][0]
            yield data[skipped : skipped + end - offset] if skipped or len(data) > end - offset else data
            offset += len(data) - skipped

    def create(self, path: str, *, overwrite: bool = False) -> Upload:
        path = normal_path(path)
        with self._database.read() as connection:
            _check_free(_find(connection, path), path, overwrite)
        return _EmbeddedUpload(self._database, path, overwrite)

    def make_directory(self, path: str) -> None:
        path = normal_path(path)
        with self._database.read() as connection:
            node = _find(connection, path)
        if node is not None and node.directory:
            return
        with self._database.write() as connection:
            _make_directory(connection, path)

    def remove(self, path: str, *, recursive: bool = False) -> bool:
        path = normal_path(path)
        with self._database.write() as connection:
            node = _find(connection, path)
            if node is None:
                return False
            if node.id == _ROOT:
                raise OptionError("the root cannot be removed", received=path)
            if node.directory and not recursive:
                held = connection.execute("SELECT 1 FROM file_node WHERE parent = ? LIMIT 1", (node.id,)).fetchone()
                if held is not None:
                    raise OptionError("the directory is not empty", received=path, remedy="remove it with recursive")
            _delete(connection, node.id)
        return True

    def move(self, source: str, destination: str, *, overwrite: bool = False) -> None:
        source, destination = paths_to_move(source, destination)
        with self._database.write() as connection:
            existing = _find(connection, destination)
            node = _find(connection, source)
            if node is None and existing is not None and existing.moved_from == source:
                return
            if node is None:
                raise _not_found(source)
            _check_free(existing, destination, overwrite)
            directory = _need(connection, parent_path(destination))
            if not directory.directory:
                raise _in_the_way(parent_path(destination))
            if existing is not None:
                _delete(connection, existing.id)
            connection.execute(
                "UPDATE file_node SET parent = ?, name = ?, moved_from = ? WHERE id = ?",
                (directory.id, destination.rpartition("/")[2], source, node.id),
            )


class _EmbeddedUpload(Upload):
    """The bytes of a new file: the last ones in memory, the others in the store under the id of the new file."""

    def __init__(self, database: Database, path: str, overwrite: bool) -> None:
        self.path = path
        self._database = database
        self._overwrite = overwrite
        self._waiting = bytearray()
        self._size = 0
        self._file: int | None = None
        self._ended = False

    def write(self, data: bytes) -> None:
        self._need_open()
        self._waiting += data
        self._size += len(data)
        if len(self._waiting) >= FLUSH_BYTES:
            with self._database.write() as connection:
                file = self._begin(connection)
                whole = len(self._waiting) - len(self._waiting) % PART_BYTES
                self._flush(connection, file, whole)
            self._file = file
            del self._waiting[:whole]

    def commit(self) -> FileStatus:
        self._need_open()
        with self._database.write() as connection:
            existing = _find(connection, self.path)
            _check_free(existing, self.path, self._overwrite)
            directory = _make_directory(connection, parent_path(self.path))
            if existing is not None:
                _delete(connection, existing.id)
            file = self._begin(connection)
            self._flush(connection, file, len(self._waiting))
            modified = time.time()
            connection.execute(
                "UPDATE file_node SET parent = ?, name = ?, size = ?, modified = ? WHERE id = ?",
                (directory, self.path.rpartition("/")[2], self._size, modified, file),
            )
        self._ended = True
        self._waiting.clear()
        return FileStatus(self.path, False, self._size, modified)

    def abort(self) -> None:
        if self._ended:
            return
        self._ended = True
        self._waiting.clear()
        if self._file is not None:
            with self._database.write() as connection:
                _delete(connection, self._file)

    def _need_open(self) -> None:
        if self._ended:
            raise StoreError("the upload has ended, or failed", received=self.path)

    def _begin(self, connection: apsw.Connection) -> int:
        """Return the id of the file. The first stored part creates the id."""
        if self._file is None:
            _remove_abandoned(connection)
            connection.execute(
                "INSERT INTO file_node (name, directory, size, modified) VALUES (?, 0, 0, ?)", (self.path, time.time())
            )
            return connection.last_insert_rowid()
        known = connection.execute(
            "UPDATE file_node SET modified = ? WHERE id = ? RETURNING id", (time.time(), self._file)
        ).fetchall()
        if not known:
            raise StoreError("the upload was idle for too long and was removed", received=self.path)
        return self._file

    def _flush(self, connection: apsw.Connection, file: int, count: int) -> None:
        """Store the first bytes in memory as parts; all parts before them are full."""
        first = file << PART_BITS | (self._size - len(self._waiting)) // PART_BYTES
        with memoryview(self._waiting) as waiting:
            for start in range(0, count, PART_BYTES):
                connection.execute(
                    "INSERT INTO file_part VALUES (?, ?)",
                    (first + start // PART_BYTES, waiting[start : min(count, start + PART_BYTES)]),
                )


# -- inside the caller's transaction ----------------------------------------------------------------------


def _find(connection: apsw.Connection, path: str) -> _Node | None:
    parent, found = 0, None
    for name in ["", *(part for part in path.split("/") if part)]:
        found = connection.execute(
            f"SELECT {_FIELDS} FROM file_node WHERE parent = ? AND name = ?", (parent, name)
        ).fetchone()
        if found is None:
            return None
        parent = found[0]
    return None if found is None else _Node(*found)


def _need(connection: apsw.Connection, path: str) -> _Node:
    node = _find(connection, path)
    if node is None:
        raise _not_found(path)
    return node


def _check_free(existing: _Node | None, path: str, overwrite: bool) -> None:
    """Raise `AlreadyExistsError` unless a file may take the path of this node."""
    if existing is not None and existing.directory:
        raise AlreadyExistsError("a directory has this path", received=path)
    if existing is not None and not overwrite:
        raise AlreadyExistsError("a file has this path", received=path, remedy="pass overwrite=True to replace it")


def _make_directory(connection: apsw.Connection, path: str) -> int:
    """Create a directory and its missing parents; return its id."""
    directory, at = _ROOT, ""
    for name in path.split("/")[1:] if path != "/" else ():
        at = f"{at}/{name}"
        found = connection.execute(
            f"SELECT {_FIELDS} FROM file_node WHERE parent = ? AND name = ?", (directory, name)
        ).fetchone()
        if found is None:
            connection.execute(
                "INSERT INTO file_node (parent, name, directory, size, modified) VALUES (?, ?, 1, 0, ?)",
                (directory, name, time.time()),
            )
            directory = connection.last_insert_rowid()
        elif found[1]:
            directory = found[0]
        else:
            raise _in_the_way(at)
    return directory


def _delete(connection: apsw.Connection, node: int) -> None:
    """Delete a node and its descendants, with the bytes of their files."""
    _delete_found(connection, "VALUES (?)", (node,))


def _remove_abandoned(connection: apsw.Connection) -> None:
    """Remove the uploads of dead processes."""
    _delete_found(
        connection,
        "SELECT id FROM file_node WHERE parent IS NULL AND modified < ?",
        (time.time() - ABANDONED_SECONDS,),
    )


def _delete_found(connection: apsw.Connection, nodes: str, bindings: tuple[float, ...]) -> None:
    found = connection.execute(
        f"WITH RECURSIVE below (id) AS ({nodes} UNION ALL"
        " SELECT n.id FROM file_node n JOIN below b ON n.parent = b.id) SELECT id FROM below",
        bindings,
    )
    ids = [(each,) for (each,) in found]
    connection.executemany(f"DELETE FROM file_part WHERE id >= ?1 << {PART_BITS} AND id < (?1 + 1) << {PART_BITS}", ids)
    connection.executemany("DELETE FROM file_node WHERE id = ?", ids)


def _not_found(path: str) -> NotFoundError:
    return NotFoundError("no such file or directory", received=path)


def _in_the_way(path: str) -> OptionError:
    return OptionError("a part of the path is a file", received=path, valid="the path of a directory")
