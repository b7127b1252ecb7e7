"""The embedded store's transactions over the records of tunnels."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import apsw

from headrace.stores.embedded.connection import Database
from headrace.stores.shared.tunnel_records import Records

Result = TypeVar("Result")


class SqliteStatements:
    """Statements in one transaction of a connection."""

    def __init__(self, connection: apsw.Connection) -> None:
        self.connection = connection

    def execute(self, statement: str, parameters: Sequence[object] = ()) -> apsw.Cursor:
        """Run a statement in the dialect of `headrace.stores.shared`."""
        return self.connection.execute(_in_sqlite(statement), parameters)


class EmbeddedRecords(Records[SqliteStatements]):
    """Transactions of the store's database. None is repeated."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def run(self, work: Callable[[SqliteStatements], Result], *, repeatable: bool = True) -> Result:
        with self._database.write() as connection:
            return work(SqliteStatements(connection))

    def read(self, work: Callable[[SqliteStatements], Result]) -> Result:
        with self._database.read() as connection:
            return work(SqliteStatements(connection))

    def query(self, statement: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        return self._database.query(_in_sqlite(statement), parameters)


@functools.cache
def _in_sqlite(statement: str) -> str:
    """Return a statement as SQLite has it. A write transaction locks the whole store, so no row needs a lock."""
    return statement.removesuffix(" FOR NO KEY UPDATE").replace("headrace.", "").replace("%s", "?")
