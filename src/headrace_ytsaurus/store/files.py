"""Files of Cypress as files of headrace: ``/tmp/checkpoint`` is ``//tmp/checkpoint``.

A file is uploaded to headrace's own directory and then moved to its path. The move is atomic: of several moves to one
path without ``overwrite``, one succeeds.
"""

from __future__ import annotations

import datetime
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from headrace.errors import AlreadyExistsError, NotFoundError, OptionError, StoreError
from headrace.ports import Content, Files, FileStatus, Upload
from headrace.ports.files import normal_path, parent_path, paths_to_move
from headrace_ytsaurus.store.catalog import Names
from headrace_ytsaurus.store.connection import Address, YtConnection
from headrace_ytsaurus.store.failures import YtExistsError, YtNotFoundError, translated
from headrace_ytsaurus.wire.paths import escape

_PLACE = "headrace_path"
"""The attribute with the path of a file before its move. It shows whether a repeated move was already done."""
_ATTRIBUTES = ("type", "uncompressed_data_size", "modification_time", "id", _PLACE)
_IN_MEMORY = 16 << 20
_READ_BYTES = 4 << 20
_ABANDONED = datetime.timedelta(days=2)
_made: set[tuple[Address, str]] = set()


class YtFiles(Files):
    """The files of a cluster; ``root`` is the directory of Cypress that is ``/``."""

    def __init__(self, connection: YtConnection, names: Names, root: str = "/") -> None:
        self._connection = connection
        self._names = names
        self._root = root

    def __repr__(self) -> str:
        return f"YtFiles({self._connection.address.proxy!r})"

    def status(self, path: str) -> FileStatus | None:
        path = normal_path(path)
        found = self._attributes(path)
        if found is None:
            return FileStatus("/", True, 0, 0.0) if path == "/" else None
        return _status(path, found)

    def list(self, path: str) -> list[FileStatus]:
        path = normal_path(path)
        there = self.status(path)
        if there is None:
            raise NotFoundError("no such file or directory", received=repr(path))
        if not there.directory:
            return [there]
        children = self._connection.children(self._cypress(path), _ATTRIBUTES)
        found = [_status(f"{path.rstrip('/')}/{name}", attributes) for name, attributes in children]
        return sorted(found, key=lambda status: status.path)

    def open_read(self, path: str, offset: int = 0, length: int | None = None) -> Content:
        path = normal_path(path)
        while True:
            attributes = self._attributes(path)
            if attributes is None:
                raise NotFoundError("no such file", received=repr(path))
            if str(attributes["type"]) != "file":
                raise OptionError("only files can be read", received=f"{path!r}, a {attributes['type']}")
            there = _status(path, attributes)
            if not 0 <= offset <= there.size or (length is not None and length < 0):
                valid = f"an offset of 0 to {there.size}"
                raise OptionError("the file does not have this part", received=f"{offset}, {length}", valid=valid)
            size = there.size - offset if length is None else min(length, there.size - offset)
            if not size:
                return Content(0, iter(()))
            try:
                # By the id: another file may have the path now.
                stream = self._connection.open_file(f"#{attributes['id']}", offset, size)
            except YtNotFoundError:
                # The file was replaced or removed.
                continue
            return Content(size, _parts(path, stream, size))

    def create(self, path: str, *, overwrite: bool = False) -> Upload:
        path = normal_path(path)
        there = self.status(path)
        if there is not None and (there.directory or not overwrite):
            raise _exists(path)
        return _YtUpload(self, path, overwrite)

    def make_directory(self, path: str) -> None:
        path = normal_path(path)
        there = self.status(path)
        if there is not None and there.directory:
            return
        if there is not None:
            raise _through_file(path)
        try:
            with translated(f"make directory {path}"):
                self._connection.client.create("map_node", self._cypress(path), recursive=True, ignore_existing=True)
        except (YtExistsError, StoreError):
            self._check_above(path)
            raise

    def remove(self, path: str, *, recursive: bool = False) -> bool:
        path = normal_path(path)
        if path == "/":
            raise OptionError("the root cannot be removed")
        there = self.status(path)
        if there is None:
            return False
        if there.directory and not recursive and self._connection.children(self._cypress(path), ("type",)):
            raise OptionError("the directory is not empty", received=repr(path), remedy="remove it recursively")
        try:
            with translated(f"remove {path}"):
                self._connection.client.remove(self._cypress(path), recursive=recursive)
        except YtNotFoundError:
            return False
        return True

    def move(self, source: str, destination: str, *, overwrite: bool = False) -> None:
        source, destination = paths_to_move(source, destination)
        given = self._attributes(source)
        if given is None:
            if (self._attributes(destination) or {}).get(_PLACE) == source:
                return
            raise NotFoundError("no such file or directory", received=repr(source))
        # Without overwrite, the move fails if the path exists.
        there = self.status(destination) if overwrite else None
        if there is not None and there.directory:
            raise _exists(destination)
        if given.get(_PLACE) != source:
            with translated(f"move {source}"):
                self._connection.client.set(f"{self._cypress(source)}/@{_PLACE}", source)
        try:
            self._move(self._cypress(source), destination, force=overwrite)
        except YtNotFoundError:
            # With a repeated request, the first one may have done the move.
            if (self._attributes(destination) or {}).get(_PLACE) == source and self._attributes(source) is None:
                return
            if self.status(parent_path(destination)) is None:
                raise NotFoundError("no such directory", received=repr(parent_path(destination))) from None
            raise

    def _move(self, source: str, destination: str, *, force: bool, recursive: bool = False) -> None:
        try:
            with translated(f"move to {destination}"):
                self._connection.client.move(source, self._cypress(destination), force=force, recursive=recursive)
        except YtExistsError:
            raise _exists(destination) from None

    def put(self, path: str, data: bytes, *, overwrite: bool) -> FileStatus:
        """Upload bytes and move the file to its path."""
        now = datetime.datetime.now(datetime.UTC)
        temporary = f"{self._uploads(now)}/{uuid.uuid4()}"
        with translated(f"write {path}"):
            self._connection.client.create("file", temporary, attributes={_PLACE: path})
        if data:
            self._connection.write_file(temporary, data)
        try:
            there = self.status(path) if overwrite else None
            if there is not None and there.directory:
                raise _exists(path)
            self._move(temporary, path, force=overwrite, recursive=True)
        except AlreadyExistsError:
            self._connection.remove(temporary)
            raise
        except StoreError:
            self._connection.remove(temporary)
            self._check_above(path)
            raise
        return self.status(path) or FileStatus(path, False, len(data), now.timestamp())

    def _uploads(self, now: datetime.datetime) -> str:
        """Return the directory of a day's uploads. It expires with the uploads of dead processes."""
        directory = f"{self._names.state}/uploads/{now:%Y-%m-%d}"
        place = self._connection.address, directory
        if place not in _made:
            expires = (now + _ABANDONED).strftime("%Y-%m-%dT%H:%M:%S.000000Z")
            with translated(f"make {directory}"):
                self._connection.client.create(
                    "map_node", directory, recursive=True, ignore_existing=True, attributes={"expiration_time": expires}
                )
            _made.add(place)
        return directory

    def _cypress(self, path: str) -> str:
        parts = [escape(part) for part in path.split("/") if part]
        return self._root + "".join(f"/{part}" for part in parts)

    def _attributes(self, path: str) -> dict[str, Any] | None:
        found = self._connection.attributes(self._cypress(normal_path(path)), _ATTRIBUTES)
        return found

    def _check_above(self, path: str) -> None:
        """Raise `OptionError` if a part of a path is a file."""
        while path != "/":
            there = self.status(path)
            if there is not None and not there.directory:
                raise _through_file(path)
            path = parent_path(path)


class _YtUpload(Upload):
    """An upload: its bytes stay in memory until the commit."""

    def __init__(self, files: YtFiles, path: str, overwrite: bool) -> None:
        self.path = path
        self._files = files
        self._overwrite = overwrite
        self._data: Any = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115

    def write(self, data: bytes) -> None:
        if self._data is None:
            raise OptionError("the upload was already committed or aborted", received=repr(self.path))
        self._data.write(data)

    def commit(self) -> FileStatus:
        if self._data is None:
            raise OptionError("the upload was already committed or aborted", received=repr(self.path))
        self._data.seek(0)
        try:
            return self._files.put(self.path, self._data.read(), overwrite=self._overwrite)
        finally:
            self.abort()

    def abort(self) -> None:
        if self._data is not None:
            self._data.close()
            self._data = None


def _parts(path: str, stream: Any, size: int) -> Iterator[bytes]:
    left = size
    with translated(f"read {path}"):
        while left and (part := stream.read(min(left, _READ_BYTES))):
            left -= len(part)
            yield part
    if left:
        raise StoreError(f"file {path} is shorter than expected", received=f"{size - left} of {size} bytes")


def _status(path: str, attributes: Mapping[str, Any]) -> FileStatus:
    directory = str(attributes.get("type")) == "map_node"
    moment = datetime.datetime.fromisoformat(str(attributes["modification_time"]))
    size = 0 if directory else int(attributes.get("uncompressed_data_size") or 0)
    return FileStatus(path, directory, size, moment.timestamp())


def _exists(path: str) -> AlreadyExistsError:
    return AlreadyExistsError("something has this path already", received=repr(path))


def _through_file(path: str) -> OptionError:
    return OptionError("a part of the path is a file", received=repr(path))
