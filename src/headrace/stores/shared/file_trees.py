"""Files as a tree of nodes, in tables ``file_node`` (names) and ``file_part`` (bytes) of a store.

The parent of a node is the id of its directory. A file that is being written has no parent, and parts of its bytes may
be stored already.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from itertools import chain
from typing import NamedTuple, TypeVar

from headrace.errors import AlreadyExistsError, NotFoundError, OptionError, StoreError
from headrace.ports import Content, Files, FileStatus, Upload
from headrace.ports.files import normal_path, parent_path, paths_to_move

Result = TypeVar("Result")

PART_BYTES = 1 << 20
FLUSH_BYTES = 4 * PART_BYTES
"""An upload keeps up to this number of bytes in memory. Larger ones are stored in several transactions."""
ABANDONED_SECONDS = 86400
"""An upload without writes for this time belongs to a dead process."""
ROOT = 1


class Node(NamedTuple):
    """A file or directory.

    Attributes:
        moved_from: its path before its last move.
    """

    id: int
    directory: bool
    size: int
    modified: float
    moved_from: str | None

    def status(self, path: str) -> FileStatus:
        return FileStatus(path, self.directory, self.size, self.modified)


class FileTree(ABC):
    """The statements over the tables, inside one transaction."""

    @abstractmethod
    def find(self, path: str) -> Node | None:
        """Return the node of a path, or None."""

    @abstractmethod
    def children(self, directory: int) -> list[tuple[str, Node]]:
        """Return the nodes of a directory with their names, in the order of the names."""

    @abstractmethod
    def has_children(self, directory: int) -> bool:
        """Return whether a directory is not empty."""

    @abstractmethod
    def find_bytes(self, path: str, number: int, skipped: int, count: int) -> tuple[Node, bytes] | None:
        """Return a node, and some bytes of one part of its file, at one moment: the file may be replaced after it.

        Args:
            number: the number of the part.
            skipped: the first byte.
            count: the maximum number of bytes.
        """

    @abstractmethod
    def part(self, file: int, number: int, skipped: int, count: int) -> bytes | None:
        """Return some bytes of one part of a file, or None if it does not exist; see `find_bytes`."""

    @abstractmethod
    def lock(self, node: int) -> None:
        """Lock a node against changes, removal, and additions to its directory."""

    @abstractmethod
    def lock_moves(self) -> None:
        """Lock moves of directories until the end of the transaction."""

    @abstractmethod
    def add_directory(self, parent: int, name: str) -> int:
        """Add a directory, and return its id."""

    @abstractmethod
    def begin_upload(self, path: str) -> int:
        """Add a file without a directory, and return its id. Uploads of dead processes are removed."""

    @abstractmethod
    def touch(self, file: int) -> bool:
        """Set the time of an upload to now; return whether the upload exists."""

    @abstractmethod
    def add_part(self, file: int, number: int, data: memoryview) -> None:
        """Add a part of a file."""

    @abstractmethod
    def end_upload(self, file: int, directory: int, name: str, size: int) -> float:
        """Give an upload its path; return the time."""

    @abstractmethod
    def move(self, node: int, directory: int, name: str, source: str) -> None:
        """Give a node another path, and save the previous one."""

    @abstractmethod
    def delete(self, node: int) -> None:
        """Delete a node and its descendants, with the bytes of their files."""

    def need(self, path: str) -> Node:
        """Return the node of a path; raise `NotFoundError` if there is none."""
        node = self.find(path)
        if node is None:
            raise _not_found(path)
        return node

    def make_directory(self, path: str) -> int:
        """Create a directory and its missing parents; return its id."""
        node = self.find(path)
        if node is not None and node.directory:
            return node.id
        directory, at = ROOT, ""
        for name in path.split("/")[1:]:
            at = f"{at}/{name}"
            node = self.find(at)
            if node is not None and not node.directory:
                raise _in_the_way(at)
            directory = self.add_directory(directory, name) if node is None else node.id
        return directory


class TreeFiles(Files):
    """Files in the tables of a store."""

    @abstractmethod
    def view(self, work: Callable[[FileTree], Result]) -> Result:
        """Run a function that changes nothing, and needs no snapshot of its own for several statements."""

    @abstractmethod
    def change(self, work: Callable[[FileTree], Result], *, repeatable: bool = False) -> Result:
        """Run a function in a write transaction.

        Args:
            repeatable: the function changes nothing more when it runs again after its commit. A store may repeat it.
        """

    def status(self, path: str) -> FileStatus | None:
        path = normal_path(path)
        node = self.view(lambda tree: tree.find(path))
        return None if node is None else node.status(path)

    def list(self, path: str) -> list[FileStatus]:
        path = normal_path(path)

        def work(tree: FileTree) -> list[FileStatus]:
            node = tree.need(path)
            if not node.directory:
                return [node.status(path)]
            return [child.status(f"{path.rstrip('/')}/{name}") for name, child in tree.children(node.id)]

        return self.view(work)

    def read(self, path: str) -> bytes | None:
        content = self._content(path, 0, None)
        return None if content is None else b"".join(content.parts)

    def open_read(self, path: str, offset: int = 0, length: int | None = None) -> Content:
        content = self._content(path, offset, length)
        if content is None:
            raise _not_found(normal_path(path))
        return content

    def _content(self, path: str, offset: int, length: int | None) -> Content | None:
        """Return the content of a file, whose first part is read with its status; None if the path does not exist."""
        path = normal_path(path)
        number, skipped = divmod(max(0, offset), PART_BYTES)
        count = PART_BYTES - skipped if length is None else max(0, min(length, PART_BYTES - skipped))
        first = self.view(lambda tree: tree.find_bytes(path, number, skipped, count))
        if first is None:
            return None
        node, data = first
        if node.directory:
            raise OptionError("a directory cannot be read", received=path)
        if not 0 <= offset <= node.size:
            raise OptionError(
                "the offset is outside the file", received=f"{offset} of {path}", valid=f"0 to {node.size}"
            )
        end = node.size if length is None else min(node.size, offset + max(0, length))
        rest = self._parts(path, node.id, offset + len(data), end)
        return Content(end - offset, chain((data,) if data else (), rest))

    def _parts(self, path: str, file: int, offset: int, end: int) -> Iterator[bytes]:
        """Yield the bytes of a file, each part in its own transaction: the reader may take its time."""
        while offset < end:
            number, skipped = divmod(offset, PART_BYTES)
            place = (number, skipped, min(PART_BYTES - skipped, end - offset))
            data = self.view(lambda tree, place=place: tree.part(file, *place))  # type: ignore[misc]
            if data is None:
                raise StoreError("the file was replaced or removed while it was read", received=path)
            yield data
            offset += len(data)

    def create(self, path: str, *, overwrite: bool = False) -> Upload:
        path = normal_path(path)
        _check_free(self.view(lambda tree: tree.find(path)), path, overwrite)
        return TreeUpload(self, path, overwrite)

    def make_directory(self, path: str) -> None:
        path = normal_path(path)
        node = self.view(lambda tree: tree.find(path))
        if node is None or not node.directory:
            self.change(lambda tree: tree.make_directory(path), repeatable=True)

    def remove(self, path: str, *, recursive: bool = False) -> bool:
        path = normal_path(path)

        def work(tree: FileTree) -> bool:
            node = tree.find(path)
            if node is None:
                return False
            if node.id == ROOT:
                raise OptionError("the root cannot be removed", received=path)
            # The lock keeps others from adding to the directory.
            tree.lock(node.id)
            if node.directory and not recursive and tree.has_children(node.id):
                raise OptionError("the directory is not empty", received=path, remedy="remove it with recursive")
            tree.delete(node.id)
            return True

        return self.change(work)

    def move(self, source: str, destination: str, *, overwrite: bool = False) -> None:
        source, destination = paths_to_move(source, destination)

        def work(tree: FileTree) -> None:
            node = tree.find(source)
            if node is not None and node.directory:
                tree.lock_moves()
                node = tree.find(source)
            existing = tree.find(destination)
            if node is None and existing is not None and existing.moved_from == source:
                return
            if node is None:
                raise _not_found(source)
            tree.lock(node.id)
            _check_free(existing, destination, overwrite)
            directory = tree.need(parent_path(destination))
            if not directory.directory:
                raise _in_the_way(parent_path(destination))
            if existing is not None:
                tree.delete(existing.id)
            tree.move(node.id, directory.id, destination.rpartition("/")[2], source)

        # A move that was done is recognised by the previous path.
        self.change(work, repeatable=True)


class TreeUpload(Upload):
    """The bytes of a new file: the last ones in memory, the others in the store under the id of the new file."""

    def __init__(self, files: TreeFiles, path: str, overwrite: bool) -> None:
        self.path = path
        self._files = files
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
            whole = len(self._waiting) - len(self._waiting) % PART_BYTES
            # The second time, a file without a path may be left, which is removed after a day.
            self._file = self._files.change(lambda tree: self._flush(tree, whole), repeatable=True)
            del self._waiting[:whole]

    def commit(self) -> FileStatus:
        self._need_open()

        def work(tree: FileTree) -> float:
            existing = tree.find(self.path)
            if existing is not None and existing.id == self._file:
                # The answer to this commit was lost.
                return existing.modified
            _check_free(existing, self.path, self._overwrite)
            directory = tree.make_directory(parent_path(self.path))
            if existing is not None:
                tree.delete(existing.id)
            file = self._flush(tree, len(self._waiting))
            return tree.end_upload(file, directory, self.path.rpartition("/")[2], self._size)

        modified = self._files.change(work, repeatable=self._overwrite or self._file is not None)
        self._ended = True
        self._waiting.clear()
        return FileStatus(self.path, False, self._size, modified)

    def abort(self) -> None:
        if self._ended:
            return
        self._ended = True
        self._waiting.clear()
        file = self._file
        if file is not None:
            self._files.change(lambda tree: tree.delete(file), repeatable=True)

    def _need_open(self) -> None:
        if self._ended:
            raise StoreError("the upload has ended, or failed", received=self.path)

    def _flush(self, tree: FileTree, count: int) -> int:
        """Store the first bytes in memory as parts, and return the id of the file; all parts before them are full."""
        file = tree.begin_upload(self.path) if self._file is None else self._file
        if self._file is not None and not tree.touch(file):
            raise StoreError("the upload was idle for too long and was removed", received=self.path)
        first = (self._size - len(self._waiting)) // PART_BYTES
        with memoryview(self._waiting) as waiting:
            for start in range(0, count, PART_BYTES):
                tree.add_part(file, first + start // PART_BYTES, waiting[start : min(count, start + PART_BYTES)])
        return file


def _check_free(existing: Node | None, path: str, overwrite: bool) -> None:
    """Raise `AlreadyExistsError` unless a file may take the path of this node."""
    if existing is not None and existing.directory:
        raise AlreadyExistsError("a directory has this path", received=path)
    if existing is not None and not overwrite:
        raise AlreadyExistsError("a file has this path", received=path, remedy="pass overwrite=True to replace it")


def _not_found(path: str) -> NotFoundError:
    return NotFoundError("no such file or directory", received=path)


def _in_the_way(path: str) -> OptionError:
    return OptionError("a part of the path is a file", received=path, valid="the path of a directory")
