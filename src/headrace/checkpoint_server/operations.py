"""The WebHDFS operations without data that Spark's checkpoints use, on the files of stores."""

from __future__ import annotations

import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable

from headrace.checkpoint_server import protocol
from headrace.checkpoint_server.protocol import Request, Response
from headrace.checkpoint_server.served_directories import ServedDirectories, ServedPath
from headrace.errors import AlreadyExistsError, HeadraceError, NotFoundError, OptionError, UnsupportedError
from headrace.ports import FileStatus
from headrace.ports.files import parent_path

# A file that Spark has written and not renamed, because it lost a race or was killed. Spark never deletes them. It does
# not start a stateful query without a batch if its offsets have one.
_TEMPORARY = re.compile(r"\..*\.tmp")
ABANDONED_SECONDS = 86400.0
# In a query's checkpoint, at any depth: state/<operator>/<partition>/…, except metadata (`_…`). A checkpoint can itself
# be at such a path. Its logs are no state: a rename never replaces one of their files.
_STATE_FILE = re.compile(r"(?:/[^/]+)*/state/\d+/\d+/(?:(?!_|(?:offsets|commits|sources)/)[^/]+/)*(?!_|metadata$)[^/]+")
# The rename that follows a deletion comes within milliseconds, or not at all.
_NOTED_SECONDS = 60.0


class NotServedError(HeadraceError):
    """A path that this server does not serve."""


class Operations:
    """The operations on files. Thread-safe."""

    def __init__(self, directories: ServedDirectories) -> None:
        self._directories = directories
        self._replacements = Replacements()
        self._handlers: dict[str, Callable[[Request], Response]] = {
            "GET GETFILESTATUS": self._status,
            "GET GETFILELINKSTATUS": self._status,
            "GET LISTSTATUS": self._list,
            "GET GETSERVERDEFAULTS": lambda _: protocol.SERVER_DEFAULTS,
            "GET GETHOMEDIRECTORY": lambda _: protocol.HOME_DIRECTORY,
            "PUT MKDIRS": self._make_directory,
            "PUT RENAME": self._rename,
            "DELETE DELETE": self._delete,
        }

    def find(self, path: str) -> ServedPath:
        """Return the served path of a request's path.

        Raises:
            NotServedError: no served directory contains the path.
        """
        found = self._directories.find(path)
        if found is None:
            raise NotServedError("no checkpoint of this driver has this path", received=path)
        return found

    def respond(self, request: Request) -> Response:
        """Perform the operation of a request.

        Raises:
            UnsupportedError: the operation is unknown.
            HeadraceError: an error of the store.
        """
        handler = self._handlers.get(request.operation)
        if handler is None:
            raise UnsupportedError(
                "checkpoints do not have this operation", received=request.operation, valid=sorted(self._handlers)
            )
        return handler(request)

    def _status(self, request: Request) -> Response:
        if self._directories.find(request.path) is None and self._directories.is_above(request.path):
            return protocol.file_status(FileStatus(request.path, True, 0, 0.0))
        found = self.find(request.path)
        status = found.files.status(found.path)
        if status is None:
            raise NotFoundError("no such file or directory", received=request.path)
        return protocol.file_status(status)

    def _list(self, request: Request) -> Response:
        directory = self.find(request.path)
        shown: list[FileStatus] = []
        for status in directory.files.list(directory.path):
            if not _is_temporary(status) or status.path == directory.path:
                shown.append(status)
            elif status.modified < time.time() - ABANDONED_SECONDS:
                directory.files.remove(status.path)
        return protocol.file_statuses(directory.path, shown)

    def _make_directory(self, request: Request) -> Response:
        if not self._directories.is_above(request.path):
            directory = self.find(request.path)
            directory.files.make_directory(directory.path)
        return protocol.boolean(True)

    def _delete(self, request: Request) -> Response:
        deleted = self.find(request.path)
        if not request.flag("recursive") and _is_state_file(deleted):
            status = deleted.files.status(deleted.path)
            if status is not None and not status.directory:
                self._replacements.note(deleted)
                return protocol.boolean(True)
        return protocol.boolean(deleted.files.remove(deleted.path, recursive=request.flag("recursive")))

    def _rename(self, request: Request) -> Response:
        destination = request.parameters.get("destination", "")
        source, target = self.find(request.path), self.find(destination)
        if source.files is not target.files:
            raise OptionError("a file cannot be moved to another store", received=f"{request.path} to {destination}")
        options = request.parameters.get("renameoptions")
        replaced = _is_state_file(target) and (options is None or self._replacements.take(target))
        if options is not None:
            overwrite = replaced or "OVERWRITE" in options.upper()
            source.files.move(source.path, target.path, overwrite=overwrite)
            return Response()
        # Without options, the response is true or false, and never an error.
        try:
            source.files.move(source.path, target.path, overwrite=replaced)
        except (NotFoundError, AlreadyExistsError, OptionError):
            return protocol.boolean(False)
        return protocol.boolean(True)

    def check_creation(self, request: Request) -> None:
        """Raise an error if a file cannot be created, before its bytes arrive."""
        created = self.find(request.path)
        parent = created.files.status(parent_path(created.path))
        if parent is not None and not parent.directory:
            raise OptionError("a part of the path is a file", received=request.path)
        created.files.create(created.path, overwrite=request.flag("overwrite")).abort()


def _is_temporary(status: FileStatus) -> bool:
    return not status.directory and _TEMPORARY.fullmatch(status.name) is not None


def _is_state_file(path: ServedPath) -> bool:
    """Return whether a path in a checkpoint is a file of a state store."""
    return _STATE_FILE.fullmatch(path.inside) is not None


class Replacements:
    """The files of a query's state that the next rename replaces. Thread-safe.

    To overwrite such a file, which a repeated batch writes again, Hadoop's client sends two requests: a deletion of the
    old file (not recursive; Spark itself never deletes so), and a rename of the new file, which fails if the name
    exists. A crash between the two would lose a file of the previous batch. So the server only notes such a deletion,
    and the following rename replaces the file.

    Spark's other manager of checkpoint files sends only the rename. HDFS refuses it if the name exists. Spark would
    take that for success and keep the file of a failed attempt. So the server replaces the file.
    """

    def __init__(self) -> None:
        self._noted: dict[ServedPath, list[float]] = defaultdict(list)
        self._lock = threading.Lock()

    def note(self, path: ServedPath) -> None:
        """Note that the next rename to this path replaces the file."""
        with self._lock:
            old = time.monotonic() - _NOTED_SECONDS
            for known in [known for known, times in self._noted.items() if times[-1] < old]:
                del self._noted[known]
            self._noted[path].append(time.monotonic())

    def take(self, path: ServedPath) -> bool:
        """Remove a note for a file. Return whether there was one."""
        with self._lock:
            times = self._noted.pop(path, [])
            if not times or times[-1] < time.monotonic() - _NOTED_SECONDS:
                return False
            if times[1:]:
                self._noted[path] = times[1:]
            return True
