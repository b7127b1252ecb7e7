"""What a store can do with files: small ones, many of them, each there as a whole or not at all.

Names are paths from the store's root, ``/checkpoints/orders/offsets/7``, in normal form. A file is written by an
`Upload`, and is there from its commit on; nobody ever sees a part of one. `Files.move` is what exactly-once rests on
where several processes write to one place.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from headrace.errors import OptionError
from headrace.ports.arguments import Port


@dataclass(frozen=True)
class FileStatus:
    """A file or directory.

    Attributes:
        path: in normal form.
        directory: whether it is a directory.
        size: bytes of a file, 0 for a directory.
        modified: when the content was committed, or the directory made, in seconds since 1970.
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
    """Bytes of a file: how many there will be, and the parts that they come in, to be taken once."""

    size: int
    parts: Iterator[bytes]


class Upload(Port):
    """A file on its way into the store, invisible until `commit`. Used as a context, it is given up if not committed.

    What a process that died had written is removed by the store in time.
    """

    path: str

    @abstractmethod
    def write(self, data: bytes) -> None:
        """Add bytes at the end."""

    @abstractmethod
    def commit(self) -> FileStatus:
        """Make the file visible, in one step; directories above it are made where they are not there.

        Raises:
            AlreadyExistsError: something has that path by now, and is not to be replaced; or it is a directory.
            OptionError: a part of the path is a file.
        """

    @abstractmethod
    def abort(self) -> None:
        """Give the file up; nothing happens once it is committed or given up."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()


class Files(Port):
    """The files of a store. Each call is one step: it happens as a whole, and once, whoever else calls."""

    @abstractmethod
    def status(self, path: str) -> FileStatus | None:
        """Return what has a path; None if nothing has. The root is always there."""

    @abstractmethod
    def list(self, path: str) -> list[FileStatus]:
        """Return what a directory holds, by name; for the path of a file, that file.

        Raises:
            NotFoundError: nothing has the path.
        """

    @abstractmethod
    def open_read(self, path: str, offset: int = 0, length: int | None = None) -> Content:
        """Return bytes of a file from an offset on, up to its end or at most ``length``.

        All of them are of one file: where it is replaced or removed meanwhile, the parts go on to the end or raise
        `StoreError`.

        Raises:
            NotFoundError: nothing has the path.
            OptionError: it is a directory, or the offset lies behind the file's end.
        """

    @abstractmethod
    def create(self, path: str, *, overwrite: bool = False) -> Upload:
        """Begin to write a file.

        Args:
            overwrite: replace the file that has the path when this one is committed.

        Raises:
            AlreadyExistsError: something has the path, and is not to be replaced; or it is a directory.
        """

    @abstractmethod
    def make_directory(self, path: str) -> None:
        """Make a directory, and those above it, where they are not there.

        Raises:
            OptionError: the path, or a part of it, is that of a file.
        """

    @abstractmethod
    def remove(self, path: str, *, recursive: bool = False) -> bool:
        """Remove a file or directory; tell whether there was one.

        Raises:
            OptionError: a directory that is not empty, without ``recursive``; or the root.
        """

    @abstractmethod
    def move(self, source: str, destination: str, *, overwrite: bool = False) -> None:
        """Give a file or directory another path, in one step.

        Of all who move something to one destination at the same time without ``overwrite``, one succeeds. A move that
        has been done and is asked for once more, because the answer was lost, succeeds and changes nothing: the store
        remembers of a file which path it was moved from.

        Args:
            overwrite: replace the file that has the destination. There is no moment at which neither is there.

        Raises:
            NotFoundError: nothing has the source, or the directory of the destination is not there.
            AlreadyExistsError: something has the destination, and is not to be replaced; or it is a directory.
            OptionError: something is to be moved to its own path or below it, or the root.
        """

    def read(self, path: str) -> bytes | None:
        """Return a file's content; None if nothing has the path."""
        if self.status(path) is None:
            return None
        return b"".join(self.open_read(path).parts)

    def write(self, path: str, data: bytes, *, overwrite: bool = False) -> FileStatus:
        """Write a file at once; raise what `create` and `Upload.commit` raise."""
        with self.create(path, overwrite=overwrite) as upload:
            upload.write(data)
            return upload.commit()


def normal_path(path: str) -> str:
    """Return a path in normal form: ``/`` in front of each part and nowhere else.

    Raises:
        OptionError: it does not begin with ``/``, or a part of it is ``.`` or ``..`` or has a zero character.
    """
    parts = [part for part in path.split("/") if part]
    if not path.startswith("/") or any(part in (".", "..") or "\0" in part for part in parts):
        raise OptionError("not the path of a file", received=repr(path), valid="a path such as /checkpoints/orders")
    return "/" + "/".join(parts)


def paths_to_move(source: str, destination: str) -> tuple[str, str]:
    """Return the two paths of a move in normal form.

    Raises:
        OptionError: one of them is no path; or the root is to be moved, or something to its own path or below it.
    """
    source, destination = normal_path(source), normal_path(destination)
    if "/" in (source, destination):
        raise OptionError("the root cannot be moved or replaced", received=f"{source} to {destination}")
    if f"{destination}/".startswith(f"{source}/"):
        raise OptionError("nothing can be moved to its own path or below it", received=f"{source} to {destination}")
    return source, destination


def parent_path(path: str) -> str:
    """Return the directory of a path in normal form; the root's is itself."""
    return path.rpartition("/")[0] or "/"
