"""The writer lock of a store: threads of a process take turns first, then processes.

``lockf`` and not ``flock``: it is free when its holder dies, even if a child that the holder forked lives on. Closing
any descriptor of the file in a process releases it, so a process has at most one descriptor of it, and only while
threads hold the lock or wait for it.
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
    """Hold the lock on a file, which a thread may take again while it holds it."""
    with _locks.used(path) as lock, lock.threads:
        _wait_for(lock.descriptor)
        try:
            yield
        finally:
            # A child that was forked in between holds nothing.
            if lock.process == os.getpid():
                fcntl.lockf(lock.descriptor, fcntl.LOCK_UN)


def _wait_for(descriptor: int) -> None:
    """Lock a file that other processes may hold.

    The system takes two threads of a process that wait at two stores for one thread, and may see a deadlock where
    there is none. It then refuses; the other process goes on, so the lock will be free.
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
    """The lock on one file in this process, as long as threads use it."""

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
        # `no_fork` also raises in a forked process that inherited locked locks and cannot use stores.
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
        """Return False: locks are not inherited, and their descriptors do no harm."""
        return False

    def drop(self, *, close: bool) -> None:
        """Close the descriptors that the parent's threads used."""
        self._guard = threading.Lock()
        for lock in self._used.values():
            os.close(lock.descriptor)
        self._used.clear()


_locks = _Locks()
