"""The writer lock of a store: a lock among the threads of a process, then a lock among processes.

The lock is ``lockf``, not ``flock``: the system releases it when its process dies, even if forked children live. A
process that closes any descriptor of the file releases the lock. So a process has at most one descriptor of the file,
and only while its threads hold the lock or wait for it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from headrace.sqlite.forks import no_fork, register


@contextlib.contextmanager
def writer_lock(path: Path) -> Iterator[None]:
    """Hold the lock on a file. The lock is reentrant for a thread."""
    with _locks.used(path) as lock, lock.threads:
        _wait_for(lock.descriptor)
        try:
            yield
        finally:
            # A forked child does not hold the lock.
            if lock.process == os.getpid():
                fcntl.lockf(lock.descriptor, fcntl.LOCK_UN)


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


class _Lock:
    """The lock on one file, while threads of this process use it."""

    def __init__(self, path: Path) -> None:
        self.process = os.getpid()
        self.users = 0
        self.threads = threading.RLock()
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


class _Locks:
    """The locks that threads of this process use."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._used: dict[Path, _Lock] = {}
        register(self)

    @contextlib.contextmanager
    def used(self, path: Path) -> Iterator[_Lock]:
        # In a forked process that cannot use stores, `no_fork` raises an error. Its inherited locks may be locked.
        with no_fork, self._guard:
            lock = self._used.get(path)
            if lock is None:
                lock = self._used[path] = _Lock(path)
            lock.users += 1
        try:
            yield lock
        finally:
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
