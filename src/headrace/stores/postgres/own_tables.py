"""The objects that headrace keeps for itself, in a schema of the user's database.

A group of tables is created when it is first needed, so no setup is needed. A user who may not create schemas needs one
that exists, and the right to create tables in it.

Who owns a schema or a table can give it triggers, which run with the rights of the role that writes. So headrace uses
only objects of its own user, of superusers, and of roles whose rights its user has.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

import psycopg
from psycopg import sql

from headrace.errors import StoreError
from headrace.stores.postgres.connection import Bulk, PostgresConnection
from headrace.stores.postgres.failures import MissingRelationError
from headrace.stores.postgres.schemas import BYTE_DOMAIN

Result = TypeVar("Result")

# CREATE DOMAIN has no IF NOT EXISTS.
_BYTE = sql.SQL(
    """DO $do$ BEGIN
    CREATE DOMAIN {domain} AS smallint CHECK (VALUE BETWEEN -128 AND 127);
EXCEPTION WHEN duplicate_object THEN NULL;
END $do$"""
)
_CREATED = re.compile(r"CREATE (?:UNLOGGED )?TABLE IF NOT EXISTS \{schema\}\.(\w+)")
# The same number in every process. `IF NOT EXISTS` fails if two processes run it at once.
_LOCK = 0x6865_6164_7261_6365
# A superuser has the rights of every role, and trusts superusers only. pg_database_owner is the owner of the database.
_OBJECTS = """
WITH objects AS (
    SELECT NULL::text AS name, 'schema' AS kind, n.nspowner AS owner, NULL::text AS addition
    FROM pg_namespace n WHERE n.nspname = %(schema)s
    UNION ALL
    SELECT c.relname, CASE c.relkind WHEN 'r' THEN 'table' ELSE 'relation' END, c.relowner, CASE
        WHEN c.relkind <> 'r' THEN 'is no ordinary table'
        WHEN c.relrowsecurity THEN 'has row-level security'
        WHEN EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = c.oid AND NOT t.tgisinternal) THEN 'has a trigger'
        WHEN EXISTS (SELECT FROM pg_rewrite r WHERE r.ev_class = c.oid) THEN 'has a rule' END
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = %(schema)s AND c.relname = ANY(%(names)s)
    UNION ALL
    SELECT y.typname, 'domain', y.typowner, NULL
    FROM pg_type y JOIN pg_namespace n ON n.oid = y.typnamespace
    WHERE n.nspname = %(schema)s AND y.typname = ANY(%(names)s) AND y.typtype = 'd'
)
SELECT o.name, o.kind, r.rolname::text, o.addition, current_user::text,
    r.rolsuper OR r.rolname = current_user OR NOT m.rolsuper AND pg_has_role(r.oid, 'USAGE')
FROM objects o
JOIN pg_database d ON d.datname = current_database()
JOIN pg_roles s ON s.oid = o.owner
JOIN pg_roles r ON r.oid = CASE s.rolname WHEN 'pg_database_owner' THEN d.datdba ELSE s.oid END
JOIN pg_roles m ON m.rolname = current_user
"""


class OwnTables:
    """One group of tables, and transactions that use them.

    Args:
        connection: the connections to the database.
        schema: the name of the schema.
        statements: the statements that create the missing ones, with ``{schema}`` for the quoted schema.
    """

    def __init__(self, connection: PostgresConnection, schema: str, statements: str) -> None:
        self._connection = connection
        self._name = schema
        self._statements = statements
        self._names = tuple(_CREATED.findall(statements))
        self._checked = (schema, self._names)
        self.schema = '"' + schema.replace('"', '""') + '"'
        """The quoted name of the schema, for statements."""

    def run(self, work: Callable[[psycopg.Connection], Result], *, repeatable: bool = False) -> Result:
        """Create missing tables, and run a function in a transaction; see `PostgresConnection.run`."""
        return self._with_tables(lambda: self._connection.run(work, repeatable=repeatable))

    def ask(self, work: Callable[[psycopg.Connection], Result]) -> Result:
        """Run a function whose statements only read, each in a transaction of its own; see `PostgresConnection.ask`."""
        return self._with_tables(lambda: self._connection.ask(work))

    def run_bulk(self, work: Callable[[Bulk], Result], *, repeatable: bool = False) -> Result:
        """Run a function in a transaction of ADBC; see `run`."""
        return self._with_tables(lambda: self._connection.run_bulk(work, repeatable=repeatable))

    def exist(self) -> bool:
        """Return whether the tables exist. Tables that earlier releases did not have are added.

        Raises:
            StoreError: somebody else owns the schema or a table.
        """
        if self._checked not in self._connection.checked:
            there = self._connection.ask(lambda session: check(session, self._name, self._names))
            if not there:
                return False
            if len(there) < len(self._names):
                self.create()
            self._connection.checked.add(self._checked)
        return True

    def create(self) -> None:
        """Create the schema and the tables, as far as they do not exist."""
        self._connection.run(self._create, repeatable=True)
        self._connection.checked.add(self._checked)

    def _with_tables(self, call: Callable[[], Result]) -> Result:
        if not self.exist():
            self.create()
        try:
            return call()
        except MissingRelationError:
            self.create()
        return call()

    def _create(self, connection: psycopg.Connection) -> None:
        create_schema(connection, self._name)
        lock(connection)
        if len(check(connection, self._name, self._names)) < len(self._names):
            connection.execute(self._statements.format(schema=self.schema).encode())
            check(connection, self._name, self._names)


def check(connection: psycopg.Connection, schema: str, names: Sequence[str]) -> list[str]:
    """Return which tables and domains of these names are in headrace's schema.

    Raises:
        StoreError: a role that the user has no reason to trust owns the schema or one of them, or a table has
            additions that run code.
    """
    there = []
    for name, kind, owner, addition, user, trusted in connection.execute(
        _OBJECTS, {"schema": schema, "names": list(names)}
    ):
        what = f"schema {schema!r}" if name is None else f"{kind} {name!r} in schema {schema!r}"
        if not trusted:
            identifier = sql.Identifier(schema, *([] if name is None else [name])).as_string()
            raise StoreError(
                f"{what}, which headrace needs for itself, belongs to another role",
                received=f"owner {owner}, user {user}",
                valid="the user of headrace, a role whose rights this user has, or a superuser as owner",
                remedy=f"ALTER {'TABLE' if kind == 'relation' else kind.upper()} {identifier} OWNER TO "
                f"{sql.Identifier(user).as_string()}, after a look at what is in it; or give option schema the name "
                "of another schema",
            )
        if addition is not None:
            raise StoreError(
                f"{what} is not as headrace has created it",
                received=f"the table {addition}",
                remedy="remove the addition, or give option schema the name of another schema",
            )
        if name is not None:
            there.append(name)
    return there


def create_schema(connection: psycopg.Connection, schema: str) -> None:
    """Create the schema, unless it exists.

    Raises:
        StoreError: it exists, and belongs to a role that the user has no reason to trust.
    """
    if connection.execute("SELECT FROM pg_namespace WHERE nspname = %s", [schema]).rowcount == 0:
        lock(connection)
        connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema)))
    check(connection, schema, ())


def lock(connection: psycopg.Connection) -> None:
    """Lock the creation of objects until the end of the transaction."""
    connection.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])


def create_byte_domain(connection: psycopg.Connection, schema: str) -> None:
    """Create the domain of headrace's type ``byte``, unless it exists."""
    create_schema(connection, schema)
    connection.execute(_BYTE.format(domain=sql.Identifier(schema, BYTE_DOMAIN)))
    check(connection, schema, [BYTE_DOMAIN])
