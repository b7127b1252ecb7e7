"""The state of a store in one read transaction, for several handles of tables, queues and consumers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import apsw

from headrace.errors import UnsupportedError
from headrace.stores.embedded.for_servers import Database
from headrace.support.sqlite.forks import no_fork


class SnapshotDatabase(Database):
    """A database that runs all reads in one transaction of one connection. The caller begins and ends the transaction.

    It replaces the store's database in handles such as `EmbeddedTable` and `EmbeddedQueue`. Only one thread at a time
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
        """Yield the connection of the transaction."""
        with no_fork:
            yield self._transaction

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[apsw.Connection]:
        """Yield the connection of the transaction."""
        with no_fork:
            yield self._transaction

    @contextlib.contextmanager
    def write(self) -> Iterator[apsw.Connection]:
        """Raise `UnsupportedError`: the transaction only reads."""
        raise UnsupportedError("a snapshot cannot be changed")
        yield self._transaction
