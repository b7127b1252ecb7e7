"""`Transaction`: begins and ends a transaction on this thread's connection, whatever interrupts it."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Protocol

import apsw

from headrace.errors import StoreError
from headrace.support.sqlite import interrupts
from headrace.support.sqlite.forks import no_fork

closed_early: weakref.WeakSet[apsw.Connection] = weakref.WeakSet()
"""Connections that `roll_back` has closed. A question to a connection could disturb the thread that uses it."""


class Lock(Protocol):
    """A lock that is held during a transaction."""

    def acquire(self) -> None:
        """Wait for the lock. After an exception, `release` is called."""

    def release(self) -> None:
        """Release what `acquire` has got, also if it was interrupted."""


class Transaction(contextlib.AbstractContextManager[apsw.Connection]):
    """A transaction. An exception rolls it back, and no exception leaves it open, nor the lock, nor `no_fork`.

    Not a generator: an interrupted one stays suspended, with its transaction, as long as the traceback exists, which a
    notebook keeps until the next error.

    Args:
        connect: returns this thread's connection.
        begin: the statement that begins the transaction. BEGIN only reads, and is rolled back at its end.
        translate: returns headrace's error for one of SQLite or of the file system; None to leave it as it is.
        lock: is acquired first: inside `no_fork`, a fork would have to wait for the writers of other processes.
    """

    def __init__(
        self,
        connect: Callable[[], apsw.Connection],
        begin: str,
        translate: Callable[[BaseException], StoreError | None],
        lock: Lock | None = None,
    ) -> None:
        self._connect = connect
        self._begin = begin
        self._translate = translate
        self._lock = lock
        self._connection: apsw.Connection | None = None
        self._is_begun = self._holds = self._in_no_fork = False

    @interrupts.atomic
    def __enter__(self) -> apsw.Connection:
        self._holds = interrupts.hold()
        try:
            if self._lock is not None:
                self._lock.acquire()
            no_fork.__enter__()
            self._in_no_fork = True
            self._connection = self._connect()
            # A read inside of another transaction of this thread is a part of it.
            self._is_begun = not self._connection.in_transaction
            if self._is_begun or self._begin != "BEGIN":
                self._connection.execute(self._begin)
            if self._holds:
                interrupts.deliver()
        except BaseException as error:
            self._end()
            self._raise(error)
            raise
        return self._connection

    @interrupts.atomic
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is None and self._connection is not None and self._begin != "BEGIN":
                self._commit(self._connection)
        except BaseException as failure:
            error = failure
            raise
        finally:
            self._end(failed=error is not None)
            self._raise(error)

    def _commit(self, connection: apsw.Connection) -> None:
        connection.execute("COMMIT")

    def _end(self, *, failed: bool = True) -> None:
        """Roll an uncommitted transaction back, and release everything."""
        try:
            if self._is_begun and self._connection is not None:
                roll_back(self._connection, failed=failed)
        finally:
            try:
                if self._in_no_fork:
                    no_fork.__exit__()
            finally:
                try:
                    if self._lock is not None:
                        self._lock.release()
                finally:
                    if self._holds:
                        interrupts.release()

    def _raise(self, error: BaseException | None) -> None:
        """Raise headrace's error for an error, if it has one."""
        translated = None if error is None else self._translate(error)
        if translated is not None:
            raise translated from error


def roll_back(connection: apsw.Connection, *, failed: bool = False) -> None:
    """Roll a transaction back, if a full disk, a fork or the close of the connection has not ended it already.

    A cursor that an exception has left in the middle of its rows keeps a read transaction, from which none that writes
    can begin after the commit of another process. Such a connection is closed.
    """
    with contextlib.suppress(apsw.ConnectionClosedError, StoreError):
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        if failed and connection.txn_state("main") != apsw.SQLITE_TXN_NONE:
            connection.close(True)
            closed_early.add(connection)
