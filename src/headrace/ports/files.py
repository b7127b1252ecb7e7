"""The interface of a store's files: many small files, each written atomically.

The name of a file is its path from the store's root, such as ``/checkpoints/orders/offsets/7``, in normal form. An
`Upload` writes a file, which exists from the commit on; readers never see a part of a file. If several processes write
one path, exactly one `Files.move` without ``overwrite`` succeeds; Spark's checkpoints rely on this.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from headrace.errors import OptionError
from headrace.ports.arguments import Port


@dataclass(frozen=True)
class FileStatus:
    """A file or directory.

    Attributes:
        path: in normal form.
        directory: whether it is a directory.
        size: the size of a file in bytes; 0 for a directory.
        modified: when the file was committed or the directory created, in seconds since 1970.
    """

    path: str
    directory: bool
    size: int
    modified: float

    @property
    def name(self) -> str:
        """The last part of the path; empty for the root."""
        return self.path.rpartition("/")[2]


@dataclass(frozen=True)
class Content:
    """The content of a file: its size in bytes, and an iterator over its parts."""

    size: int
    parts: Iterator[bytes]


class Upload(Port):
    """A file that is being written, invisible until `commit`. As a context manager it aborts an uncommitted file.

    The store removes the uncommitted files of ended processes after some time.
    """

    path: str

    @abstractmethod
    def write(self, data: bytes) -> None:
        """Add bytes at the end."""

    @abstractmethod
    def commit(self) -> FileStatus:
        """Make the file visible, atomically; missing parent directories are created.

        Raises:
            AlreadyExistsError: the path exists and ``overwrite`` was not set, or it is a directory.
            OptionError: a part of the path is a file.
        """

    @abstractmethod
    def abort(self) -> None:
        """Discard the file; a committed or discarded file is not changed."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()


class Files(Port):
    """The files of a store. Each call is atomic."""

    @abstractmethod
    def status(self, path: str) -> FileStatus | None:
        """Return the file or directory with a path; None if there is none. The root always exists."""

    @abstractmethod
    def list(self, path: str) -> list[FileStatus]:
        """Return the content of a directory, sorted by name; for the path of a file, that file.

        Raises:
            NotFoundError: the path does not exist.
        """

    @abstractmethod
    def open_read(self, path: str, offset: int = 0, length: int | None = None) -> Content:
        """Return the bytes of a file from an offset on, up to its end or at most ``length``.

        If the file is replaced or removed in the meantime, the parts remain those of the old file, or raise
        `StoreError`.

        Raises:
            NotFoundError: the path does not exist.
            OptionError: the path is a directory, or the offset is after the end of the file.
        """

    @abstractmethod
    def create(self, path: str, *, overwrite: bool = False) -> Upload:
        """Start to write a file.

        Args:
            overwrite: replace an existing file when the new one is committed.

        Raises:
            AlreadyExistsError: the path exists and ``overwrite`` is not set, or it is a directory.
        """

    @abstractmethod
    def make_directory(self, path: str) -> None:
        """Create a directory and its missing parents.

        Raises:
            OptionError: the path, or a parent, is a file.
        """

    @abstractmethod
    def remove(self, path: str, *, recursive: bool = False) -> bool:
        """Remove a file or directory; return whether it existed.

        Raises:
            OptionError: the directory is not empty and ``recursive`` is not set; or the path is the root.
        """

    @abstractmethod
    def move(self, source: str, destination: str, *, overwrite: bool = False) -> None:
        """Move a file or directory to another path, atomically.

        Of several concurrent moves to one destination without ``overwrite``, one succeeds. A move that is repeated,
        because its response was lost, succeeds and changes nothing: the store saves the previous path of a file.

        Args:
            overwrite: replace an existing file. At every moment the destination is either the old or the new file.

        Raises:
            NotFoundError: the source, or the directory of the destination, does not exist.
            AlreadyExistsError: the destination exists and ``overwrite`` is not set, or it is a directory.
            OptionError: the destination is the source or below it; or one of the paths is the root.
        """

    def read(self, path: str) -> bytes | None:
        """Return the content of a file; None if the path does not exist."""
        if self.status(path) is None:
            return None
        return b"".join(self.open_read(path).parts)

    def write(self, path: str, data: bytes, *, overwrite: bool = False) -> FileStatus:
        """Write a file; raise the errors of `create` and `Upload.commit`."""
        with self.create(path, overwrite=overwrite) as upload:
            upload.write(data)
            return upload.commit()


def normal_path(path: str) -> str:
    """Return a path in normal form: one ``/`` before each part, and none at the end.

    Raises:
        OptionError: the path does not start with ``/``, or a part is ``.`` or ``..`` or contains a NUL character.
    """
    parts = [part for part in path.split("/") if part]
    if not path.startswith("/") or any(part in (".", "..") or "\0" in part for part in parts):
        raise OptionError("invalid path of a file", received=repr(path), valid="a path such as /checkpoints/orders")
    return "/" + "/".join(parts)


def paths_to_move(source: str, destination: str) -> tuple[str, str]:
    """Return the two paths of a move in normal form.

    Raises:
        OptionError: a path is invalid or the root, or the destination is the source or below it.
    """
    source, destination = normal_path(source), normal_path(destination)
    if "/" in (source, destination):
        raise OptionError("the root cannot be moved or replaced", received=f"{source} to {destination}")
    if f"{destination}/".startswith(f"{source}/"):
        raise OptionError("a path cannot be moved to itself or below itself", received=f"{source} to {destination}")
    return source, destination


def parent_path(path: str) -> str:
    """Return the parent directory of a path in normal form; the parent of the root is the root."""
    return path.rpartition("/")[0] or "/"
