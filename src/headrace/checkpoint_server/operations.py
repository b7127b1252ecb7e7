"""The operations of WebHDFS that have no data, over the files of stores: those that Spark's checkpoints use."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from headrace.checkpoint_server import protocol
from headrace.checkpoint_server.places import Place, Places
from headrace.checkpoint_server.protocol import Answer, Request
from headrace.checkpoint_server.replacing import Replacements, is_state_file
from headrace.errors import AlreadyExistsError, HeadraceError, NotFoundError, OptionError, UnsupportedError
from headrace.ports import FileStatus
from headrace.ports.files import parent_path

# A file that Spark has written and not renamed: it lost a race, or was killed. Spark itself leaves them for ever.
_TEMPORARY = re.compile(r"\..*\.tmp")
LEFT_BEHIND_SECONDS = 86400.0


class NotServedError(HeadraceError):
    """A path that this server does not serve, or not to this caller."""


class Operations:
    """What the server does with files; may be called from any thread."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._replacements = Replacements()
        self._handlers: dict[str, Callable[[Request], Answer]] = {
            "GET GETFILESTATUS": self._status,
            "GET GETFILELINKSTATUS": self._status,
            "GET LISTSTATUS": self._list,
            "GET GETSERVERDEFAULTS": lambda _: protocol.SERVER_DEFAULTS,
            "GET GETHOMEDIRECTORY": lambda _: protocol.HOME_DIRECTORY,
            "PUT MKDIRS": self._make_directory,
            "PUT RENAME": self._rename,
            "DELETE DELETE": self._delete,
        }

    def place(self, path: str) -> Place:
        """Return where a path leads, or raise `NotServedError`."""
        found = self._places.find(path)
        if found is None:
            raise NotServedError("no checkpoint of this driver has this path", received=path)
        return found

    def answer(self, request: Request) -> Answer:
        """Do what a request asks for.

        Raises:
            UnsupportedError: there is no such operation.
            HeadraceError: whatever the store raises.
        """
        handler = self._handlers.get(request.operation)
        if handler is None:
            raise UnsupportedError(
                "checkpoints do not have this operation", received=request.operation, valid=sorted(self._handlers)
            )
        return handler(request)

    def _status(self, request: Request) -> Answer:
        if self._places.find(request.path) is None and self._places.is_above(request.path):
            return protocol.file_status(FileStatus(request.path, True, 0, 0.0))
        place = self.place(request.path)
        found = place.files.status(place.path)
        if found is None:
            raise NotFoundError("no such file or directory", received=request.path)
        return protocol.file_status(found)

    def _list(self, request: Request) -> Answer:
        place = self.place(request.path)
        found = place.files.list(place.path)
        left = [status for status in found if _is_left_behind(status)]
        for status in left:
            place.files.remove(status.path)
        return protocol.file_statuses(place.path, [status for status in found if status not in left])

    def _make_directory(self, request: Request) -> Answer:
        if not self._places.is_above(request.path):
            place = self.place(request.path)
            place.files.make_directory(place.path)
        return protocol.boolean(True)

    def _delete(self, request: Request) -> Answer:
        place = self.place(request.path)
        if not request.flag("recursive") and is_state_file(place):
            there = place.files.status(place.path)
            if there is not None and not there.directory:
                self._replacements.note(place)
                return protocol.boolean(True)
        return protocol.boolean(place.files.remove(place.path, recursive=request.flag("recursive")))

    def _rename(self, request: Request) -> Answer:
        destination = request.parameters.get("destination", "")
        source, target = self.place(request.path), self.place(destination)
        if source.files is not target.files:
            raise OptionError("a file cannot be moved to another store", received=f"{request.path} to {destination}")
        options = request.parameters.get("renameoptions")
        replaced = is_state_file(target) and (options is None or self._replacements.take(target))
        if options is not None:
            overwrite = replaced or "OVERWRITE" in options.upper()
            source.files.move(source.path, target.path, overwrite=overwrite)
            return Answer()
        # Without options an answer says what came of it, and there is no error.
        try:
            source.files.move(source.path, target.path, overwrite=replaced)
        except (NotFoundError, AlreadyExistsError, OptionError):
            return protocol.boolean(False)
        return protocol.boolean(True)

    def check_creation(self, request: Request) -> None:
        """Raise what there is to say against a file before its bytes come."""
        place = self.place(request.path)
        above = place.files.status(parent_path(place.path))
        if above is not None and not above.directory:
            raise OptionError("a part of the path is a file", received=request.path)
        place.files.create(place.path, overwrite=request.flag("overwrite")).abort()


def _is_left_behind(status: FileStatus) -> bool:
    old = status.modified < time.time() - LEFT_BEHIND_SECONDS
    return old and not status.directory and _TEMPORARY.fullmatch(status.name) is not None
