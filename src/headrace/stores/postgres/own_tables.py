"""The tables that headrace keeps for itself, in a schema of the user's database.

A group of tables is created when a statement does not find them, so no setup is needed. A user who may not create
schemas needs one that exists, and the right to create tables in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import psycopg

from headrace.stores.postgres.connection import Bulk, Connection
from headrace.stores.postgres.definitions import create_schema, lock
from headrace.stores.postgres.failures import MissingRelationError

Result = TypeVar("Result")


@dataclass(frozen=True)
class Group:
    """Tables that are created together.

    Attributes:
        probe: a table of the group. If it exists, all exist.
        statements: the statements that create them, with ``{schema}`` for the quoted schema.
    """

    probe: str
    statements: str


class OwnTables:
    """One group of tables, and transactions that use them.

    Args:
        connection: the connections to the database.
        schema: the name of the schema.
        group: the tables.
    """

    def __init__(self, connection: Connection, schema: str, group: Group) -> None:
        self._connection = connection
        self._name = schema
        self._group = group
        self.schema = '"' + schema.replace('"', '""') + '"'
        """The quoted name of the schema, for statements."""

    def run(self, work: Callable[[psycopg.Connection], Result], *, repeatable: bool = False) -> Result:
        """Run a function in a transaction, see `Connection.run`, after the tables are created if they do not exist."""
        return self._with_tables(lambda: self._connection.run(work, repeatable=repeatable))

    def run_bulk(self, work: Callable[[Bulk], Result], *, repeatable: bool = False) -> Result:
        """Run a function in a transaction of ADBC; see `run`."""
        return self._with_tables(lambda: self._connection.run_bulk(work, repeatable=repeatable))

    def _with_tables(self, call: Callable[[], Result]) -> Result:
        try:
            return call()
        except MissingRelationError:
            self._connection.run(self._create, repeatable=True)
        return call()

    def _create(self, connection: psycopg.Connection) -> None:
        """Create the tables, unless another process has created them in the meantime."""
        create_schema(connection, self._name)
        lock(connection)
        found = connection.execute(
            "SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE n.nspname = %s AND c.relname = %s",
            (self._name, self._group.probe),
        )
        if found.fetchone() is None:
            connection.execute(self._group.statements.format(schema=self.schema).encode())
