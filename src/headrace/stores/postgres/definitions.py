"""The objects that headrace keeps for itself in a database, in a schema of their own.

The first write that needs an object creates it. A new kind of object is one more statement.
"""

from __future__ import annotations

import psycopg
from psycopg import sql

from headrace.stores.postgres.schemas import BYTE_DOMAIN

_SCHEMA = sql.SQL("CREATE SCHEMA IF NOT EXISTS {schema}")
# CREATE DOMAIN has no IF NOT EXISTS.
_BYTE = sql.SQL(
    """DO $do$ BEGIN
    CREATE DOMAIN {domain} AS smallint CHECK (VALUE BETWEEN -128 AND 127);
EXCEPTION WHEN duplicate_object THEN NULL;
END $do$"""
)
# The same number in every process: two of them create the objects one after the other.
_LOCK = 0x6865_6164_7261_6365


def create_schema(connection: psycopg.Connection, schema: str) -> None:
    """Create the schema, unless it exists."""
    if connection.execute("SELECT FROM pg_namespace WHERE nspname = %s", [schema]).rowcount:
        return
    lock(connection)
    connection.execute(_SCHEMA.format(schema=sql.Identifier(schema)))


def lock(connection: psycopg.Connection) -> None:
    """Lock the creation of objects until the end of the transaction. `IF NOT EXISTS` fails if two processes run it."""
    connection.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])


def create_byte_domain(connection: psycopg.Connection, schema: str) -> None:
    """Create the domain of headrace's type ``byte``, unless it exists."""
    create_schema(connection, schema)
    connection.execute(_BYTE.format(domain=sql.Identifier(schema, BYTE_DOMAIN)))
