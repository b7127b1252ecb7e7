"""Replication slots and publications: creating, reading, advancing and dropping them.

A slot is read by ``pg_logical_slot_peek_binary_changes``: it returns the transactions whose commit record begins before
an LSN, always the same ones, and does not move the slot. It is several times faster than the replication protocol,
which sends each change by itself.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import LiteralString, NamedTuple

import psycopg
import pyarrow as pa
from psycopg import sql

from headrace.errors import DataLossError, StoreBusyError, StoreError, UnsupportedError
from headrace.stores.postgres.schemas import TableLayout
from headrace.stores.postgres.tunnels import blockers
from headrace.stores.postgres.tunnels.meta_tables import Database, Statements
from headrace.stores.postgres.tunnels.positions import lsn_text
from headrace.wire.pgoutput.messages import commit_lsn

# Creating a slot waits for all write transactions that are open.
_CREATE_SECONDS = 120
_DROP_SLOT: LiteralString = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s"
# A read of a failover slot would wait for ever, in a call that cannot be interrupted. From PostgreSQL 17 on.
_MISSING_STANDBYS: LiteralString = (
    "(SELECT string_agg(trim(name), ', ') FROM"
    " string_to_table(current_setting('synchronized_standby_slots', true), ',') name"
    " WHERE (to_jsonb(s) ->> 'failover')::boolean AND trim(name) NOT IN"
    " (SELECT slot_name FROM pg_replication_slots))"
)
# The version of the server that can publish stored generated columns.
_GENERATED_COLUMNS = 180_000


class Peeked(NamedTuple):
    """The messages of all transactions from a slot's position whose commit record begins before the LSN ``end``."""

    messages: Sequence[pa.RecordBatch]
    end: int


class SlotState(NamedTuple):
    """The state of a tunnel's slot, at one moment.

    Attributes:
        flushed: the LSN up to which the server's log is on disk.
        confirmed: the LSN to which the slot was advanced.
        restart: the LSN from which the server keeps its log for the slot.
        status: ``wal_status`` of pg_replication_slots.
    """

    flushed: int
    confirmed: int
    restart: int
    status: str


def create_publication(database: Database, name: str, tables: Sequence[TableLayout]) -> None:
    """Create a publication of tables. Changes of partitions have the name of their table.

    Raises:
        UnsupportedError: the log does not have all columns.
    """
    needs = [has_generated(database, table) for table in tables]
    statement = sql.SQL(
        "CREATE PUBLICATION {} FOR TABLE {} WITH (publish = 'insert, update, delete, truncate',"
        " publish_via_partition_root = true{})"
    ).format(
        sql.Identifier(name),
        sql.SQL(", ").join(table.name.sql for table in tables),
        sql.SQL(", publish_generated_columns = stored" if any(needs) else ""),
    )

    def create(statements: Statements) -> None:
        # If the outcome of a commit is unknown, this runs again.
        statements.connection.execute(_drop_publication(name))
        statements.connection.execute(statement)

    database.run(create)


def has_generated(database: Database, table: TableLayout) -> bool:
    """Return whether a publication of a table has to include generated columns.

    Raises:
        UnsupportedError: the log does not have all columns.
    """
    ((version, stored, virtual),) = database.query(
        "SELECT current_setting('server_version_num')::int,"
        " coalesce(array_agg(a.attname::text) FILTER (WHERE a.attgenerated = 's'), '{}'),"
        " coalesce(array_agg(a.attname::text) FILTER (WHERE a.attgenerated = 'v'), '{}')"
        " FROM pg_attribute a WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped",
        (table.oid,),
    )
    with_generated = version >= _GENERATED_COLUMNS
    missing = [*virtual, *(() if with_generated else stored)]
    if missing:
        raise UnsupportedError(
            f"the log does not have generated columns of table {table.name.text!r}",
            received=", ".join(missing),
            valid="stored generated columns, from PostgreSQL 18 on",
            remedy="let a trigger compute these columns, or compute them in the query",
        )
    return bool(with_generated and stored)


def create_slot(database: Database, name: str, *, failover: bool = False) -> int:
    """Create a slot and return the LSN from which it has all changes. The server waits for open write transactions.

    Args:
        failover: whether standbys keep a copy of the slot; from PostgreSQL 17 on.

    Raises:
        StoreBusyError: transactions were open for too long.
    """
    late = False

    def create(statements: Statements) -> int:
        statements.execute(f"SET LOCAL statement_timeout = '{_CREATE_SECONDS}s'")
        # If the connection is lost, this runs again. The name belongs to one tunnel.
        statements.execute(_DROP_SLOT, (name,))
        try:
            found = statements.first(
                "SELECT lsn - '0/0'::pg_lsn FROM pg_create_logical_replication_slot(%s, 'pgoutput', failover => true)"
                if failover
                else "SELECT lsn - '0/0'::pg_lsn FROM pg_create_logical_replication_slot(%s, 'pgoutput')",
                (name,),
            )
        except psycopg.errors.QueryCanceled:
            nonlocal late
            late = True
            raise
        assert found is not None
        return int(found[0])

    try:
        with blockers.named(database, _CREATE_SECONDS):
            return database.run(create)
    except StoreError:
        if not late:
            raise
        raise blockers.waited(database, _CREATE_SECONDS) from None


def visible_commits(database: Database) -> int:
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


def drop_slot(database: Database, name: str) -> None:
    """Drop a slot, if it exists."""
    database.query(_DROP_SLOT, (name,))


def drop_publication(database: Database, name: str) -> None:
    """Drop a publication, if it exists."""
    database.run(lambda statements: statements.connection.execute(_drop_publication(name)))


def _drop_publication(name: str) -> sql.Composed:
    return sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(name))


def state(database: Database, tunnel: str, slot: str, system: str, lost: str) -> SlotState:
    """Return the state of a slot after the checks that a read needs.

    Args:
        lost: a text for the changes that are lost if the slot is unusable.

    Raises:
        DataLossError: the slot does not exist or is lost, or the server is another one.
        StoreBusyError: the server would let a read wait for a standby that has no slot.
    """
    ((flushed, found_system, confirmed, restart, status, awaited),) = database.query(
        "SELECT pg_current_wal_flush_lsn() - '0/0', (SELECT system_identifier::text FROM pg_control_system()),"
        f" s.confirmed_flush_lsn - '0/0', s.restart_lsn - '0/0', s.wal_status, {_MISSING_STANDBYS}"
        " FROM (SELECT 1) one LEFT JOIN pg_replication_slots s ON s.slot_name = %(slot)s",
        {"slot": slot},
    )
    if awaited:
        raise StoreBusyError(
            f"the server waits with the changes of tunnel {tunnel!r} for standbys that have no slot",
            received=f"synchronized_standby_slots with {awaited}",
            remedy="create these slots, or remove them from synchronized_standby_slots: a standby that was promoted "
            "may still name itself",
        )
    remedy = "create a new tunnel; one of kind BaseAndStream begins with the rows that the table has"
    if found_system != system:
        problem = f"tunnel {tunnel!r} belongs to another database cluster"
    elif status is None:
        problem = f"the replication slot of tunnel {tunnel!r} does not exist"
    elif status == "lost" or confirmed is None or restart is None:
        problem = f"the server has removed the log that tunnel {tunnel!r} needs (max_slot_wal_keep_size)"
    else:
        return SlotState(int(flushed), int(confirmed), int(restart), status)
    raise DataLossError(problem, received=f"slot {slot}; {lost}", remedy=remedy)


def peek(
    database: Database, slot: str, publication: str, end: int, *, binary: bool, messages: int | None = None
) -> Peeked:
    """Return the messages of all transactions from the slot's position whose commit record begins before an LSN.

    They have one column of binaries. Another user of the slot, such as a twin of a task, delays the call.

    Args:
        messages: the server stops after the transaction with which there are so many messages; None for no limit.

    Raises:
        StoreBusyError: another process reads the slot for too long.
    """
    # The option is a list of identifiers.
    quoted = '"' + publication.replace('"', '""') + '"'
    # Without parameters, the driver reads the result by COPY, which is faster.
    statement = sql.SQL(
        "SELECT data FROM pg_logical_slot_peek_binary_changes({}, {}::pg_lsn, {},"
        " 'proto_version', '1', 'publication_names', {}, 'binary', {})"
    ).format(slot, lsn_text(end), messages, quoted, "true" if binary else "false")
    found = database.arrow(statement.as_string())
    if messages is None or sum(each.num_rows for each in found) < messages:
        return Peeked(found, end)
    last = next(each for each in reversed(found) if each.num_rows).column(0)[-1].as_py()
    return Peeked(found, min(end, commit_lsn(last) + 1))


def advance(database: Database, slot: str, lsn: int) -> None:
    """Advance a slot to an LSN. A slot that is there already, or that the server has invalidated, is left alone."""
    database.query(
        "SELECT pg_replication_slot_advance(slot_name, %(lsn)s::pg_lsn) FROM pg_replication_slots"
        " WHERE slot_name = %(slot)s AND confirmed_flush_lsn < %(lsn)s::pg_lsn AND wal_status <> 'lost'",
        {"slot": slot, "lsn": lsn_text(lsn)},
    )
