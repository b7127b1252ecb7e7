"""Replication slots and publications: creating, advancing and dropping them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import LiteralString

import psycopg
from psycopg import sql

from headrace.errors import OptionError, StoreError, UnsupportedError
from headrace.stores.postgres.names import TableName
from headrace.stores.postgres.schemas import TableLayout
from headrace.stores.postgres.tunnels import blockers, partition_truncations
from headrace.stores.postgres.tunnels.meta_tables import PostgresStatements, TunnelDatabase
from headrace.stores.postgres.tunnels.positions import lsn_text
from headrace.stores.postgres.tunnels.selections import check_condition

# Creating a slot waits for all write transactions that are open.
_CREATE_SECONDS = 120
_DROP_SLOT: LiteralString = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s"
# Classes of errors: of syntax and names, of values, and of features.
_INVALID_CONDITION = ("42", "22", "0A")
# The version of the server that can publish stored generated columns.
_GENERATED_COLUMNS = 180_000

# The text of a condition can end its parenthesis, and name further tables. A schema has no condition.
_PUBLISHED = "SELECT count(*) FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid WHERE p.pubname = %s"


def create_publication(
    database: TunnelDatabase,
    name: str,
    tables: Sequence[TableLayout],
    where: str | None = None,
    *,
    listed: bool = False,
) -> None:
    """Create a publication of tables. Changes of partitions have the name of their table.

    Partitioned tables also get that of `headrace.stores.postgres.tunnels.partition_truncations`.

    Args:
        where: the condition of the rows of the only table.
        listed: whether the publication has only the columns of the layout of the only table.

    Raises:
        UnsupportedError: the log does not have all columns, or not those of the condition.
        OptionError: the condition is none that a publication can have.
    """
    needs = [has_generated(database, table) for table in tables]
    statement = sql.SQL(
        "CREATE PUBLICATION {} FOR TABLE {} WITH (publish = 'insert, update, delete, truncate',"
        " publish_via_partition_root = true{})"
    ).format(
        sql.Identifier(name),
        sql.SQL(", ").join(
            sql.SQL("{}{}{}").format(
                table.name.sql,
                sql.SQL(" ({})").format(sql.SQL(", ").join(map(sql.Identifier, table.schema.names)))
                if listed
                else sql.SQL(""),
                # Behind a comment, the parenthesis is in a line of its own.
                sql.SQL("") if where is None else sql.SQL(" WHERE ({}\n)").format(sql.SQL(where)),
            )
            for table in tables
        ),
        sql.SQL(", publish_generated_columns = stored" if any(needs) else ""),
    )

    def create(statements: PostgresStatements) -> None:
        # If the outcome of a commit is unknown, this runs again.
        statements.connection.execute(_drop_publication(name))
        partition_truncations.add(statements, name, [table.name for table in tables])
        try:
            # In binary, the text of the condition cannot have further statements.
            statements.connection.execute(statement, binary=True)
        except psycopg.Error as error:
            if where is None or not (error.sqlstate or "").startswith(_INVALID_CONDITION) or _no_right(error):
                raise
            says = f"the server says: {error.diag.message_primary}; {error.diag.message_detail or ''}".rstrip("; ")
            raise _no_condition(where, says) from None
        if where is not None:
            if statements.first(_PUBLISHED, (name,)) != (1,):
                raise _no_condition(where, "write each parenthesis with its other one, and no tables")
            check_condition(statements, name, tables[0])

    database.run(create)


def _no_condition(where: str, remedy: str) -> OptionError:
    return OptionError(
        "PostgreSQL cannot filter the rows of a publication by option where",
        received=where,
        valid="a condition on columns of the table, with built-in functions that have no effect",
        remedy=remedy,
    )


def _no_right(error: psycopg.Error) -> bool:
    return isinstance(error, psycopg.errors.InsufficientPrivilege)


def add_to_publication(statements: PostgresStatements, name: str, table: TableName, *, generated: bool) -> None:
    """Add a table to a publication.

    Args:
        generated: whether the publication has to include generated columns.
    """
    publication = sql.Identifier(name)
    statements.connection.execute(sql.SQL("ALTER PUBLICATION {} ADD TABLE {}").format(publication, table.sql))
    partition_truncations.add(statements, name, [table])
    if generated:
        statements.connection.execute(
            sql.SQL("ALTER PUBLICATION {} SET (publish_generated_columns = stored)").format(publication)
        )


def has_generated(database: TunnelDatabase, table: TableLayout) -> bool:
    """Return whether a publication of a table has to include generated columns.

    Raises:
        UnsupportedError: the log does not have all columns.
    """
    ((version, stored, virtual),) = database.query(
        "SELECT current_setting('server_version_num')::int,"
        " coalesce(array_agg(a.attname::text) FILTER (WHERE a.attgenerated = 's'), '{}'),"
        " coalesce(array_agg(a.attname::text) FILTER (WHERE a.attgenerated = 'v'), '{}')"
        " FROM pg_attribute a WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped AND a.attname = ANY(%s)",
        (table.oid, list(table.schema.names)),
    )
    with_generated = version >= _GENERATED_COLUMNS
    missing = [*virtual, *(() if with_generated else stored)]
    if missing:
        raise UnsupportedError(
            f"the log does not have generated columns of table {table.name.text!r}",
            received=", ".join(missing),
            valid="stored generated columns, from PostgreSQL 18 on",
            remedy="leave them out with option exclude, let a trigger compute them, or compute them in the query",
        )
    return bool(with_generated and stored)


def create_slot(database: TunnelDatabase, name: str, *, failover: bool = False) -> int:
    """Create a slot and return the LSN from which it has all changes. The server waits for open write transactions.

    Args:
        failover: whether standbys keep a copy of the slot; from PostgreSQL 17 on.

    Raises:
        StoreBusyError: transactions were open for too long.
    """
    late = False

    def create(statements: PostgresStatements) -> int:
        statements.execute(f"SET LOCAL statement_timeout = '{_CREATE_SECONDS}s'")
        # If the connection is lost, this runs again. The name belongs to one tunnel.
        statements.execute(_DROP_SLOT, (name,))
        try:
            slot = statements.first(
                "SELECT lsn - '0/0'::pg_lsn FROM pg_create_logical_replication_slot(%s, 'pgoutput', failover => true)"
                if failover
                else "SELECT lsn - '0/0'::pg_lsn FROM pg_create_logical_replication_slot(%s, 'pgoutput')",
                (name,),
            )
        except psycopg.errors.QueryCanceled:
            nonlocal late
            late = True
            raise
        assert slot is not None
        return int(slot[0])

    try:
        with blockers.named(database, _CREATE_SECONDS):
            return database.run(create)
    except StoreError:
        if not late:
            raise
        raise blockers.waited(database, _CREATE_SECONDS) from None


def visible_commits(database: TunnelDatabase) -> int:
    """Return an LSN whose earlier commits later snapshots see. Waits for open write transactions.

    A commit is in the log before snapshots see it: until the disk, and synchronous standbys, have it.

    Raises:
        StoreBusyError: transactions were open for too long.
    """
    ((lsn,),) = database.query("SELECT pg_current_wal_insert_lsn() - '0/0'")
    # After the LSN: a snapshot is older than the other results of its statement.
    ((end,),) = database.query("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint")
    deadline, pause = time.monotonic() + _CREATE_SECONDS, 0.01
    with blockers.named(database, _CREATE_SECONDS):
        while database.query("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint")[0][0] < end:
            if time.monotonic() > deadline:
                raise blockers.waited(database, _CREATE_SECONDS)
            time.sleep(pause)
            pause = min(2 * pause, 1.0)
    return int(lsn)


def drop_slot(database: TunnelDatabase, name: str) -> None:
    """Drop a slot, if it exists."""
    database.query(_DROP_SLOT, (name,))


def drop_publication(database: TunnelDatabase, name: str) -> None:
    """Drop a publication, if it exists."""
    database.run(lambda statements: statements.connection.execute(_drop_publication(name)))


def _drop_publication(name: str) -> sql.Composed:
    names = [sql.Identifier(name), sql.Identifier(partition_truncations.name_of(name))]
    return sql.SQL("DROP PUBLICATION IF EXISTS {}, {}").format(*names)


def advance(database: TunnelDatabase, slot: str, lsn: int) -> None:
    """Advance a slot to an LSN. A slot that is there already, or that the server has invalidated, is left alone."""
    database.query(
        "SELECT pg_replication_slot_advance(slot_name, %(lsn)s::pg_lsn) FROM pg_replication_slots"
        " WHERE slot_name = %(slot)s AND confirmed_flush_lsn < %(lsn)s::pg_lsn AND wal_status <> 'lost'",
        {"slot": slot, "lsn": lsn_text(lsn)},
    )
