"""The open connections of one handle: one for each thread, and others for long reads.

`Connections` references them, not only the threads that use them, so none is closed during a fork
(`headrace.sqlite.forks`).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NoReturn

import apsw

from headrace.errors import StoreError
from headrace.sqlite.forks import no_fork, register


def _abandon(connections: Iterable[apsw.Connection]) -> None:
    """Never free inherited connections that cannot be closed safely, and make all their statements fail.

    Garbage collection would close them, also at the end of the interpreter. The fork may have happened in a signal
    handler inside a transaction of the forking thread: the child must not continue the transaction.
    """
    for connection in connections:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
        connection.exec_trace = _refuse


def _refuse(cursor: object, sql: object, bindings: object) -> NoReturn:
    raise StoreError(
        "this process was forked during a transaction, which only its parent can continue",
        received=f"process {os.getpid()}",
        remedy="leave the function that the fork interrupted, for example with os._exit or exec",
    )


def roll_back(connection: apsw.Connection) -> None:
    """Roll a transaction back, if a full disk, a fork or the close of the connection has not ended it already."""
    with contextlib.suppress(apsw.ConnectionClosedError, StoreError):
        if connection.in_transaction:
            connection.execute("ROLLBACK")


class Connections:
    """Opens, keeps and closes connections.

    Args:
        open_one: opens a connection.
    """

    def __init__(self, open_one: Callable[[], apsw.Connection]) -> None:
        self._open_one = open_one
        self._open: set[apsw.Connection] = set()
        # Connections of ended threads, and of threads that found the handle closed. Threads can end during a fork.
        self._left: deque[apsw.Connection] = deque()
        self._local = threading.local()
        self._generation = object()
        register(self)

    def of_this_thread(self) -> apsw.Connection:
        """Return this thread's connection; call it inside `no_fork`."""
        lease: _Lease | None = getattr(self._local, "lease", None)
        # If another thread has closed the handle, a transaction of this thread goes on to its end.
        if lease is None or (lease.generation is not self._generation and not lease.connection.in_transaction):
            self._local.lease = lease = None
            self._close_left()
            lease = self._local.lease = _Lease(self._opened(), self._generation, self._left)
        return lease.connection

    @contextlib.contextmanager
    def another(self) -> Iterator[apsw.Connection]:
        """Open a connection that other threads can use, and close it at the end."""
        with no_fork:
            connection = self._opened()
        try:
            yield connection
        finally:
            # A forked process has dropped the connection.
            if connection in self._open:
                with no_fork:
                    self._close(connection)

    def close(self) -> None:
        """Close this thread's connection.

        Those of other threads are closed when they use the handle again outside a transaction.
        """
        with no_fork:
            self._generation = object()
            self._local.__dict__.clear()
            self._close_left()

    def has_connections(self) -> bool:
        """Return whether connections are open."""
        return bool(self._open)

    def drop(self, *, close: bool) -> None:
        """Drop the parent's connections in a forked process."""
        if close:
            for connection in self._open:
                # Without a checkpoint: another process may have the store open.
                connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
                connection.close(True)
        else:
            _abandon(self._open)
        self._open.clear()
        # A new queue: the leases in `_local` still refer to the old one.
        self._left = deque()
        self._local = threading.local()
        self._generation = object()

    def __del__(self) -> None:
        if self._open:
            try:
                with no_fork:
                    for connection in list(self._open):
                        self._close(connection)
            except StoreError:
                # Collected in a forked process before it was dropped.
                _abandon(self._open)

    def _opened(self) -> apsw.Connection:
        connection = self._open_one()
        self._open.add(connection)
        return connection

    def _close(self, connection: apsw.Connection) -> None:
        self._open.discard(connection)
        connection.close(True)

    def _close_left(self) -> None:
        while self._left:
            self._close(self._left.popleft())


class _Lease:
    """A thread's connection. At the end of the thread it goes to the queue of connections to close."""

    __slots__ = ("_left", "connection", "generation")

    def __init__(self, connection: apsw.Connection, generation: object, left: deque[apsw.Connection]) -> None:
        self.connection = connection
        self.generation = generation
        self._left = left

    def __del__(self) -> None:
        self._left.append(self.connection)
