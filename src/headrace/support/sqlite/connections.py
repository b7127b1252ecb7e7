"""The open connections of one handle: one for each thread, and others for long reads.

`Connections` references them, not only the threads that use them, so none is closed during a fork
(`headrace.support.sqlite.forks`).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import weakref
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import NoReturn

import apsw

from headrace.errors import StoreError
from headrace.support.finalizers import quiet_at_the_end
from headrace.support.sqlite.forks import no_fork, register
from headrace.support.sqlite.interrupts import atomic

# SQLite keeps descriptors of closed connections open until the process has no other connection to the database.
_MOST_CLOSED = 16


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


class Connections:
    """Opens, keeps and closes connections.

    Args:
        open_one: opens a connection.
        closing: called before a connection is closed.
    """

    def __init__(
        self,
        open_one: Callable[[], apsw.Connection],
        closing: Callable[[apsw.Connection], object] = lambda connection: None,
    ) -> None:
        self._open_one = open_one
        self._closing = closing
        self._open: set[apsw.Connection] = set()
        # The largest number of open connections since there was none.
        self._most = 0
        self._local = threading.local()
        self._generation = object()
        register(self)

    @atomic
    def of_this_thread(self) -> apsw.Connection:
        """Return this thread's connection; call it inside `no_fork`."""
        lease: _Lease | None = getattr(self._local, "lease", None)
        if lease is None or not self._is_kept(lease):
            self._local.lease = lease = None
            lease = self._local.lease = _Lease(self, self._opened())
        return lease.connection

    def _is_kept(self, lease: _Lease) -> bool:
        """Return whether a thread goes on with its connection."""
        try:
            # If another thread has closed the handle, a transaction of this thread goes on to its end.
            if lease.connection.in_transaction:
                return True
        except apsw.ConnectionClosedError:
            return False
        # If it is the last one, its end closes the descriptors of all.
        return lease.generation is self._generation and not (self._most > _MOST_CLOSED and len(self._open) == 1)

    def close(self) -> None:
        """Close this thread's connection.

        Those of other threads are closed when they use the handle again outside a transaction.
        """
        with no_fork:
            self._generation = object()
            self._local.__dict__.clear()

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
        self._local = threading.local()
        self._generation = object()

    @quiet_at_the_end
    def __del__(self) -> None:
        try:
            # An exception may have come before `__init__`.
            for connection in list(getattr(self, "_open", ())):
                self._close(connection)
        except StoreError:
            # Collected in a forked process before it was dropped.
            _abandon(self._open)

    def _opened(self) -> apsw.Connection:
        connection = self._open_one()
        self._open.add(connection)
        self._most = max(self._most, len(self._open))
        return connection

    @atomic
    def _close(self, connection: apsw.Connection) -> None:
        """Close a connection, unless a forked process has dropped it."""
        with no_fork:
            if connection in self._open:
                self._open.discard(connection)
                self._most = self._most if self._open else 0
                self._closing(connection)
                connection.close(True)


class AnotherConnection(contextlib.AbstractContextManager[apsw.Connection]):
    """A connection beside those of threads. Not a generator, see `headrace.support.sqlite.transactions.Transaction`."""

    _connection: apsw.Connection | None = None

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    @atomic
    def __enter__(self) -> apsw.Connection:
        try:
            with no_fork:
                self._connection = self._connections._opened()
            return self._connection
        except BaseException:
            self.__exit__()
            raise

    @atomic
    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        if self._connection is not None:
            self._connections._close(self._connection)
            self._connection = None

    @quiet_at_the_end
    def __del__(self) -> None:
        # An interrupt may come before the caller's `with`.
        with contextlib.suppress(StoreError):
            self.__exit__()


class _Lease:
    """A thread's connection, which is closed at the end of the thread."""

    __slots__ = ("_connections", "connection", "generation")

    def __init__(self, connections: Connections, connection: apsw.Connection) -> None:
        self._connections = weakref.ref(connections)
        self.connection = connection
        self.generation = connections._generation

    @quiet_at_the_end
    def __del__(self) -> None:
        reference = getattr(self, "_connections", None)
        connections = reference and reference()
        if connections is not None:
            # In a forked process that can use no connections.
            with contextlib.suppress(StoreError):
                connections._close(self.connection)
