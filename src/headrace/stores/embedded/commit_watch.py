"""`CommitWatch`: wakes a thread when a process has committed to a store, without a message from the writer.

A writer closes the lock file after its commit (`headrace.stores.embedded.writer_lock`), which Linux reports by inotify
to all processes of the machine. A report is only a hint: whoever waits looks into the database, and looks again after a
pause, because some file systems and systems report nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import select
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.support.finalizers import quiet_at_the_end

_IN_CLOSE_WRITE = 0x8
_READ_BYTES = 65536


class CommitWatch:
    """Watches the lock file of a store. Thread-safe; a forked process gets a watch of its own.

    Args:
        path: the lock file. It may not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._events: _Events | None = None
        self._process = os.getpid()

    def prepare(self) -> None:
        """Begin to watch. Commits after this call end the next `wait`."""
        if self._process != os.getpid():
            # The child would take the events of an inherited descriptor away from its parent.
            self._events = None
            self._process = os.getpid()
        if self._events is None:
            self._events = _watched(self._path)

    def wait(self, seconds: float) -> None:
        """Wait for a commit, at most ``seconds``. Other events, and commits that another thread waits for, can end the
        wait early or not at all."""
        events = self._events
        if events is None:
            time.sleep(seconds)
        else:
            events.wait(seconds)

    def close(self) -> None:
        """Stop watching, when the last wait has ended. The next call of `prepare` begins again."""
        self._events = None


class _Events:
    """A descriptor of inotify, which is closed when no thread uses it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def wait(self, seconds: float) -> None:
        """Wait for an event, at most ``seconds``, and remove all that have arrived."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        if poll.poll(1000 * seconds):
            # Another thread may have removed them.
            with contextlib.suppress(BlockingIOError):
                os.read(self._descriptor, _READ_BYTES)

    @quiet_at_the_end
    def __del__(self) -> None:
        os.close(self._descriptor)


def _watched(path: Path) -> _Events | None:
    """Return the events of a file; None if it does not exist, or the system has no more descriptors of inotify."""
    calls = _inotify()
    if calls is None:
        return None
    init, add = calls
    descriptor: int = init(os.O_NONBLOCK | os.O_CLOEXEC)
    if descriptor < 0:
        return None
    events = _Events(descriptor)
    return events if add(descriptor, os.fsencode(path), _IN_CLOSE_WRITE) >= 0 else None


@functools.cache
def _inotify() -> tuple[Callable[..., Any], Callable[..., Any]] | None:
    """Return the functions inotify_init1 and inotify_add_watch; None on systems without inotify."""
    library = ctypes.CDLL(None)
    try:
        return library.inotify_init1, library.inotify_add_watch
    except AttributeError:
        return None
