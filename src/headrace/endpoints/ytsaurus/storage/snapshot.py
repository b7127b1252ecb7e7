"""A store as it is in one transaction: handles of tables, queues and consumers that all see the same state."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import apsw

from headrace.errors import UnsupportedError
from headrace.sqlite.forks import no_fork
from headrace.stores.embedded.connection import Database


class SnapshotDatabase(Database):
    """A database whose reads all happen in one transaction of one connection, which the caller began and ends.

    Give it to `EmbeddedTable`, `EmbeddedQueue` and the like instead of the database itself. Only one thread at a time
    may use it.
    """

    def __init__(self, database: Database, connection: apsw.Connection) -> None:
        self.directory = database.directory
        self.synchronous = database.synchronous
        self._transaction = connection

    @property
    def connection(self) -> apsw.Connection:
        """The connection of the transaction."""
        return self._transaction

    @contextlib.contextmanager
    def read(self) -> Iterator[apsw.Connection]:
        """Run a part of the transaction."""
        with no_fork:
            yield self._transaction

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[apsw.Connection]:
        """Run a part of the transaction."""
        with no_fork:
            yield self._transaction

    @contextlib.contextmanager
    def write(self) -> Iterator[apsw.Connection]:
        """Refuse to write: the transaction only reads."""
        raise UnsupportedError("a state of the past cannot be changed")
        yield self._transaction
