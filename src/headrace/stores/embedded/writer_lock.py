"""The writer lock of a store: a lock among the threads of a process, then a lock among processes.

The lock is ``lockf``, not ``flock``: the system releases it when its process dies, even if forked children live. A
process that closes any descriptor of the file releases the lock. So a process has at most one descriptor of the file,
and only while its threads hold the lock or wait for it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import struct
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

from headrace.support.sqlite import interrupts
from headrace.support.sqlite.forks import no_fork, register
from headrace.support.sqlite.interrupts import atomic, interruptible

# The main thread looks for signals this often while it waits for another thread.
_SIGNAL_SECONDS = 0.1
_SILENT_SECONDS = 1.0
_log = logging.getLogger("headrace")


class _FlockForm(NamedTuple):
    """The members of ``struct flock`` in C, which fcntl's F_GETLK takes and returns."""

    layout: str
    names: tuple[str, ...]


_FLOCK = _FlockForm("hhqqi4x", ("type", "whence", "start", "length", "pid"))
_FLOCK_OF_BSD = _FlockForm("qqihh", ("start", "length", "pid", "type", "whence"))


class WriterLock(contextlib.AbstractContextManager[None]):
    """The lock on a file. It is reentrant for a thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock: _Lock | None = None
        self._is_held = self._holds = False

    @atomic
    def __enter__(self) -> None:
        self._holds = interrupts.hold()
        try:
            self.acquire()
        except BaseException:
            self.__exit__()
            raise

    @atomic
    def __exit__(self, *error: object) -> None:
        try:
            self.release()
        finally:
            if self._holds:
                interrupts.release()

    @atomic
    def acquire(self) -> None:
        """Wait for the lock. After an exception, `release` must be called."""
        lock = self._lock = _locks.use(self._path)
        while not lock.threads.acquire(timeout=_SIGNAL_SECONDS):
            interrupts.deliver()
        self._is_held = True
        lock.depth += 1
        if lock.depth == 1 and not _try(lock.descriptor):
            warning = threading.Timer(_SILENT_SECONDS, _warn, (lock, self._path))
            warning.daemon = True
            warning.start()
            try:
                _wait_for(lock.descriptor)
            finally:
                warning.cancel()

    @atomic
    def release(self) -> None:
        """Release what `acquire` has got, also if it was interrupted."""
        lock, self._lock = self._lock, None
        if lock is None:
            return
        if self._is_held:
            self._is_held = False
            lock.depth -= 1
            # A forked child does not hold the lock.
            if not lock.depth and lock.process == os.getpid():
                fcntl.lockf(lock.descriptor, fcntl.LOCK_UN)
            lock.threads.release()
        _locks.leave(self._path, lock)


@interruptible
def _wait_for(descriptor: int) -> None:
    """Lock a file that other processes may have locked.

    The system detects deadlocks among processes, not threads. Two threads of a process that wait for the locks of two
    stores can look like a deadlock, and the call fails with EDEADLK. The other process continues and will release the
    lock, so the call is repeated.
    """
    while True:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX)
            return
        except OSError as error:
            if error.errno != errno.EDEADLK:
                raise
            time.sleep(0.001)


def _try(descriptor: int) -> bool:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            raise
        return False
    return True


def _warn(lock: _Lock, path: Path) -> None:
    """Log which process holds a lock that this process has been waiting for."""
    try:
        holder = _holder(lock.descriptor)
    except OSError:
        # The lock was acquired, and its file closed, meanwhile.
        return
    if holder is not None:
        _log.warning(
            "waiting to write store %s, which %s has locked for over %g s", path.parent, holder, _SILENT_SECONDS
        )


def _holder(descriptor: int) -> str | None:
    """Return the process that holds a lock as a text; None if no other process holds it."""
    form = _FLOCK if sys.platform == "linux" else _FLOCK_OF_BSD
    asked = {"type": fcntl.F_WRLCK, "whence": os.SEEK_SET, "start": 0, "length": 0, "pid": 0}
    answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, struct.pack(form.layout, *(asked[name] for name in form.names)))
    found = dict(zip(form.names, struct.unpack(form.layout, answer), strict=True))
    if found["type"] == fcntl.F_UNLCK:
        return None
    if found["pid"] <= 0:
        return "a process of another container or machine"
    try:
        return f"process {found['pid']} ({Path('/proc', str(found['pid']), 'comm').read_text().strip()})"
    except OSError:
        return f"process {found['pid']}"


class _Lock:
    """The lock on one file, while threads of this process use it."""

    def __init__(self, path: Path) -> None:
        self.process = os.getpid()
        self.users = 0
        self.depth = 0
        self.threads = threading.RLock()
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


class _Locks:
    """The locks that threads of this process use."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._used: dict[Path, _Lock] = {}
        register(self)

    def use(self, path: Path) -> _Lock:
        """Return the lock on a file. `leave` must be called."""
        # In a forked process that cannot use stores, `no_fork` raises an error. Its inherited locks may be locked.
        with no_fork, self._guard:
            lock = self._used.get(path)
            if lock is None:
                lock = self._used[path] = _Lock(path)
            lock.users += 1
            return lock

    def leave(self, path: Path, lock: _Lock) -> None:
        """Close the file of a lock if no other thread uses it."""
        with self._guard:
            lock.users -= 1
            if not lock.users and self._used.get(path) is lock:
                del self._used[path]
                os.close(lock.descriptor)

    def has_connections(self) -> bool:
        """Return False: a child does not inherit locks, and the inherited descriptors are harmless."""
        return False

    def drop(self, *, close: bool) -> None:
        """Close the descriptors of the parent's threads."""
        self._guard = threading.Lock()
        for lock in self._used.values():
            os.close(lock.descriptor)
        self._used.clear()


_locks = _Locks()
