"""A disk that loses what was not forced to it: records what a process writes, and makes the files after a power cut.

The model is as strict as POSIX allows. Without a sync of the file, any of the written sectors of a file may be missing;
without a sync of the directory, the name of a new file or directory, and its removal, too.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import apsw

_SECTOR_BYTES = 512
_SYNCED_WITH_DIRECTORY = apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_MAIN_JOURNAL

Event = tuple[Any, ...]
"""Its kind (create, write, truncate, sync, sync-directory, remove, make-directory, or reached), its path, and data."""


class _Recorder(apsw.VFS):
    """SQLite's access to files, which notes what it writes. SQLite's layer of checksums is above it."""

    def __init__(self, events: list[Event]) -> None:
        super().__init__("recorder", "unix", makedefault=True)
        self._events = events

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        return _File(self._events, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        super().xDelete(filename, syncdir)
        self._events.append(("remove", filename))
        if syncdir:
            self._events.append(("sync-directory", str(Path(filename).parent)))


class _File(apsw.VFSFile):
    def __init__(self, events: list[Event], name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self._path = name.filename() if isinstance(name, apsw.URIFilename) else str(name)
        self._events = events
        # SQLite syncs the directory with the first sync of a log or journal.
        self._syncs_directory = bool(flags[0] & _SYNCED_WITH_DIRECTORY)
        is_new = not Path(self._path).exists()
        super().__init__("unix", name, flags)
        if is_new:
            events.append(("create", self._path))

    def xWrite(self, data: bytes, offset: int) -> None:
        super().xWrite(data, offset)
        self._events.append(("write", self._path, offset, bytes(data)))

    def xTruncate(self, newsize: int) -> None:
        super().xTruncate(newsize)
        self._events.append(("truncate", self._path, newsize))

    def xSync(self, flags: int) -> None:
        super().xSync(flags)
        self._events.append(("sync", self._path))
        if self._syncs_directory:
            self._syncs_directory = False
            self._events.append(("sync-directory", str(Path(self._path).parent)))


@contextmanager
def recorded(events: list[Event]) -> Iterator[None]:
    """Record what this process writes through SQLite, and its directories. No store may have been open before."""
    recorder = _Recorder(events)
    make_directory, sync = os.mkdir, os.fsync

    def noted_directory(path: str, *args: Any, **options: Any) -> None:
        make_directory(path, *args, **options)
        events.append(("make-directory", str(path)))

    def noted_sync(descriptor: int) -> None:
        sync(descriptor)
        events.append(("sync-directory", str(Path(f"/proc/self/fd/{descriptor}").readlink())))

    with patch.object(os, "mkdir", noted_directory), patch.object(os, "fsync", noted_sync):
        yield
    recorder.unregister()


@dataclass
class _Node:
    """A file or directory: what is on the disk, and what may be on it."""

    durable: bytearray | dict[str, _Node]
    waiting: list[Callable[[bytearray], object]] = field(default_factory=list)
    names: list[tuple[str, _Node | None]] = field(default_factory=list)
    current: dict[str, _Node] = field(default_factory=dict)


class Disk:
    """The state of a disk after some events."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._top = _Node({})

    def apply(self, event: Event) -> None:
        """Let an event happen."""
        kind, path, *rest = event
        if kind == "create":
            self._name(path, _Node(bytearray()))
        elif kind == "make-directory":
            self._name(path, _Node({}))
        elif kind == "remove":
            self._name(path, None)
        elif kind == "write":
            offset, data = rest
            for start in range(0, len(data), _SECTOR_BYTES):
                self._find(path).waiting.append(_writing(offset + start, data[start : start + _SECTOR_BYTES]))
        elif kind == "truncate":
            self._find(path).waiting.append(_truncating(rest[0]))
        elif kind == "sync":
            node = self._find(path)
            for change in node.waiting:
                change(node.durable)  # type: ignore[arg-type]
            node.waiting.clear()
        elif kind == "sync-directory" and Path(path).is_relative_to(self._root):
            node = self._find(path)
            node.durable = dict(node.current)
            node.names.clear()

    def cut(self, target: Path, keep: Callable[[], bool]) -> None:
        """Write the files that are left after a power cut; ``keep`` decides for each change that was not synced."""
        _write(self._top, target, keep)

    def _name(self, path: str, node: _Node | None) -> None:
        parent, name = self._find(str(Path(path).parent)), Path(path).name
        parent.names.append((name, node))
        if node is None:
            del parent.current[name]
        else:
            parent.current[name] = node

    def _find(self, path: str) -> _Node:
        node = self._top
        for part in Path(path).relative_to(self._root).parts:
            node = node.current[part]
        return node


def _write(node: _Node, path: Path, keep: Callable[[], bool]) -> None:
    if isinstance(node.durable, bytearray):
        content = bytearray(node.durable)
        for change in node.waiting:
            if keep():
                change(content)
        path.write_bytes(content)
        return
    entries = dict(node.durable)
    for name, child in node.names:
        if keep():
            if child is None:
                entries.pop(name, None)
            else:
                entries[name] = child
    path.mkdir(exist_ok=True)
    for name, child in entries.items():
        _write(child, path / name, keep)


def _writing(offset: int, data: bytes) -> Callable[[bytearray], object]:
    def write(content: bytearray) -> None:
        content.extend(bytes(max(0, offset + len(data) - len(content))))
        content[offset : offset + len(data)] = data

    return write


def _truncating(size: int) -> Callable[[bytearray], object]:
    def truncate(content: bytearray) -> None:
        del content[size:]

    return truncate


def chances(seed: int) -> Iterator[Callable[[], bool]]:
    """Yield ways to lose changes: none, all, and then a random part each time."""
    yield lambda: True
    yield lambda: False
    numbers = random.Random(seed)
    while True:
        share = numbers.random()
        yield lambda share=share: numbers.random() < share  # type: ignore[misc]
