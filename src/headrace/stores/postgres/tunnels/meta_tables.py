"""The tables of tunnels in headrace's own schema. They are created with the first tunnel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, LiteralString, TypeAlias, TypeVar

import psycopg

from headrace.stores.postgres.connection import PostgresConnection
from headrace.stores.postgres.own_tables import OwnTables
from headrace.stores.shared.tunnel_records import Records

Result = TypeVar("Result")
Parameters: TypeAlias = Sequence[object] | Mapping[str, object]

_TABLES = """
CREATE TABLE IF NOT EXISTS {schema}.tunnel (
    id text PRIMARY KEY,
    relation oid NOT NULL,
    table_name text NOT NULL,
    name text NOT NULL,
    kind text NOT NULL,
    created double precision NOT NULL,
    reader text,
    -- The slot and the publication; null for a tunnel without a stream. Those that headrace has created are its own.
    slot text,
    publication text,
    own_slot boolean NOT NULL,
    own_publication boolean NOT NULL,
    -- The state of the publication, as JSON.
    publication_state text NOT NULL DEFAULT '{{}}',
    -- The system identifier of the cluster.
    system text NOT NULL,
    -- The LSN from which the snapshot of no chunk sees a change.
    base_end pg_lsn,
    -- The LSN to which headrace has advanced the slot, and the LSN before which changes are lost by that.
    advanced pg_lsn,
    lost pg_lsn,
    UNIQUE (relation, name)
);
CREATE TABLE IF NOT EXISTS {schema}.channel (
    tunnel text NOT NULL REFERENCES {schema}.tunnel ON DELETE CASCADE,
    seq integer NOT NULL,
    id text NOT NULL,
    kind text NOT NULL,
    parents text[] NOT NULL,
    -- The table of base data; 0 for the stream.
    relation oid NOT NULL,
    -- The key range of a chunk of base data, as JSON.
    low text,
    high text,
    start text NOT NULL,
    committed text NOT NULL,
    skip bigint NOT NULL DEFAULT 0,
    sequence bigint NOT NULL DEFAULT 0,
    lease text NOT NULL DEFAULT 'WAIT',
    version bigint NOT NULL DEFAULT 1,
    client text,
    since double precision NOT NULL DEFAULT 0,
    PRIMARY KEY (tunnel, id)
);
-- The tables of a tunnel that follows several; its row in tunnel has relation 0.
CREATE TABLE IF NOT EXISTS {schema}.tunnel_table (
    tunnel text NOT NULL REFERENCES {schema}.tunnel ON DELETE CASCADE,
    relation oid NOT NULL,
    table_name text NOT NULL,
    PRIMARY KEY (tunnel, relation)
);
-- The tables that have joined such a tunnel, and the LSN from which their changes are in its stream.
CREATE TABLE IF NOT EXISTS {schema}.joined_table (
    tunnel text NOT NULL REFERENCES {schema}.tunnel ON DELETE CASCADE,
    relation oid NOT NULL,
    since pg_lsn NOT NULL,
    PRIMARY KEY (tunnel, relation)
);
-- What a tunnel of one table leaves out of it.
CREATE TABLE IF NOT EXISTS {schema}.selection (
    tunnel text PRIMARY KEY REFERENCES {schema}.tunnel ON DELETE CASCADE,
    content text NOT NULL
);
-- The log that the server may keep for the slot of a tunnel, and why the slot was dropped.
CREATE TABLE IF NOT EXISTS {schema}.slot_limit (
    tunnel text PRIMARY KEY REFERENCES {schema}.tunnel ON DELETE CASCADE,
    bytes bigint NOT NULL,
    action text NOT NULL,
    reason text
);
-- The versions of the definitions of a tunnel's tables; what the log does not have of a change is in column lost.
CREATE TABLE IF NOT EXISTS {schema}.definition (
    tunnel text NOT NULL REFERENCES {schema}.tunnel ON DELETE CASCADE,
    seq bigint GENERATED ALWAYS AS IDENTITY,
    relation oid NOT NULL,
    state text NOT NULL,
    content text NOT NULL,
    lost text NOT NULL,
    PRIMARY KEY (tunnel, relation, state)
);
-- The snapshot of a chunk, from its first read until the stream has passed it.
CREATE TABLE IF NOT EXISTS {schema}.chunk (
    tunnel text NOT NULL REFERENCES {schema}.tunnel ON DELETE CASCADE,
    channel text NOT NULL,
    snapshot text NOT NULL,
    lsn pg_lsn NOT NULL,
    time double precision NOT NULL,
    rows bigint NOT NULL,
    PRIMARY KEY (tunnel, channel)
);
-- The rows of a chunk, from its first read until its end is committed: compressed Arrow IPC.
CREATE TABLE IF NOT EXISTS {schema}.spool (
    tunnel text NOT NULL REFERENCES {schema}.tunnel ON DELETE CASCADE,
    channel text NOT NULL,
    first_row bigint NOT NULL,
    rows bigint NOT NULL,
    content bytea NOT NULL,
    PRIMARY KEY (tunnel, channel, first_row)
);
-- The content is compressed.
ALTER TABLE {schema}.spool ALTER COLUMN content SET STORAGE EXTERNAL;
CREATE TABLE IF NOT EXISTS {schema}.tunnel_client (
    id text PRIMARY KEY,
    tunnel text NOT NULL REFERENCES {schema}.tunnel ON DELETE CASCADE,
    tag text NOT NULL,
    timeout double precision NOT NULL,
    connected double precision NOT NULL,
    seen double precision
);
CREATE TABLE IF NOT EXISTS {schema}.batch_plan (
    tunnel text NOT NULL REFERENCES {schema}.tunnel ON DELETE CASCADE,
    batch text NOT NULL,
    root text NOT NULL,
    depth bigint NOT NULL,
    previous text NOT NULL,
    plan text NOT NULL,
    PRIMARY KEY (tunnel, batch)
);
CREATE TABLE IF NOT EXISTS {schema}.batch_end (
    tunnel text NOT NULL REFERENCES {schema}.tunnel ON DELETE CASCADE,
    batch text NOT NULL,
    channel text NOT NULL,
    position text NOT NULL,
    PRIMARY KEY (tunnel, batch, channel)
);
"""


class PostgresStatements:
    """Statements in one transaction. They name headrace's schema ``headrace``, also if it has another name."""

    def __init__(self, connection: psycopg.Connection, schema: str) -> None:
        self.connection = connection
        self._schema = schema

    def execute(
        self, statement: LiteralString, parameters: Parameters = (), *, binary: bool = False
    ) -> psycopg.Cursor[tuple[Any, ...]]:
        """Run a statement with the placeholders of psycopg.

        Args:
            binary: receive the result in binary format. As text, a ``bytea`` has twice its length.
        """
        return self.connection.execute(statement.replace("headrace.", self._schema), parameters, binary=binary)

    def first(self, statement: LiteralString, parameters: Parameters = ()) -> tuple[Any, ...] | None:
        """Return the first row of a query, or None."""
        return self.execute(statement, parameters).fetchone()


class TunnelDatabase(Records[PostgresStatements]):
    """Transactions over the tables of tunnels.

    Args:
        schema: the name of headrace's schema.
    """

    def __init__(self, connection: PostgresConnection, schema: str) -> None:
        self.connection = connection
        self.schema = schema
        self._tables = OwnTables(connection, schema, _TABLES)
        self._prefix = f"{self._tables.schema}."

    def run(self, work: Callable[[PostgresStatements], Result], *, repeatable: bool = True) -> Result:
        """Run a function in a transaction; repeat it after temporary errors, see `PostgresConnection.run`.

        Almost all records of tunnels are written so that a second time changes nothing.
        """
        self.exist()
        return self.connection.run(
            lambda connection: work(PostgresStatements(connection, self._prefix)), repeatable=repeatable
        )

    def ask(self, work: Callable[[PostgresStatements], Result]) -> Result:
        """Run a function whose statements only read, each in a transaction of its own; see `PostgresConnection.ask`."""
        self.exist()
        return self.connection.ask(lambda connection: work(PostgresStatements(connection, self._prefix)))

    def read(self, work: Callable[[PostgresStatements], Result]) -> Result:
        """Run a function that changes nothing, in one transaction; it can lock rows."""
        return self.run(work)

    def query(self, statement: LiteralString, parameters: Parameters = ()) -> list[tuple[Any, ...]]:
        """Run one statement in a transaction of its own, and return its rows."""
        return self.ask(lambda statements: statements.execute(statement, parameters).fetchall())

    def create_tables(self) -> None:
        """Create the schema and the tables, as far as they do not exist."""
        if not self.exist():
            self._tables.create()

    def exist(self) -> bool:
        """Return whether the tables exist; see `OwnTables.exist`."""
        return self._tables.exist()
