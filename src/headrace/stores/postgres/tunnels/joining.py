"""Tables that join a tunnel of several tables while it is read: later ones with a name that the tunnel follows.

One transaction adds the table to the publication and its base channels to the tunnel. It locks out the writers of the
table, so each of them commits before it, and its changes are in base data, or after it, and they are in the stream. The
stream waits before the first of these changes until base data is committed. It finds them in the log, so each reader
waits at the same place, and a repeated batch ends there again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import psycopg
from psycopg import sql

from headrace.errors import HeadraceError, StoreBusyError, StoreError
from headrace.stores.postgres.names import TableName
from headrace.stores.postgres.tunnels import catalog, followable, publications, slots, stored_tunnels
from headrace.stores.postgres.tunnels.members import others
from headrace.stores.postgres.tunnels.meta_tables import PostgresStatements, TunnelDatabase
from headrace.stores.postgres.tunnels.publications import PublishedTable
from headrace.stores.postgres.tunnels.seen_definitions import SeenDefinitions
from headrace.stores.postgres.tunnels.stored_tunnels import NewTable, StoredTunnel
from headrace.stores.shared.tunnel_records import lock_tunnel

LOOK_SECONDS = 1.0
"""The time between two looks for new tables."""
_LOCK_SECONDS = 2
"""How long the writers of a new table wait behind a transaction that has written it before."""
# Of the time, if looks wait for locks.
_LOOKING_SHARE = 0.05
_log = logging.getLogger("headrace")


class _ChangedError(Exception):
    """A table was changed, renamed or dropped after the look that has found it."""


class Joining:
    """Takes new tables into a tunnel.

    Args:
        opened: returns a table by its name.
    """

    def __init__(self, database: TunnelDatabase, tunnel: StoredTunnel, opened: Callable[[str], NewTable]) -> None:
        self._database = database
        self._tunnel = tunnel
        self._opened = opened
        self._next_look = 0.0
        # The tables that could not join: the times of the last attempts, and the problems.
        self._refused: dict[TableName, tuple[float, str]] = {}

    def look(self) -> list[str]:
        """Take in the new tables that can be followed, unless the last look was just now; return their names.

        A table that cannot be followed is logged once: the tunnel goes on without it, and takes it in when it can.
        """
        begin = time.monotonic()
        if begin < self._next_look:
            return []
        joined, pause = list[str](), LOOK_SECONDS
        names = others(self._database, self._tunnel.id, self._tunnel.table)
        for name in sorted(names, key=lambda name: self._refused.get(name, (0.0, ""))):
            try:
                joined += [name.text] if self._join(name) else []
            except _ChangedError:
                # The next look finds it as it is then.
                continue
            except HeadraceError as error:
                if name not in self._refused or self._refused[name][1] != error.problem:
                    _log.warning("tunnel %s does not follow table %s: %s", self._tunnel.name, name.text, error)
                self._refused[name] = time.monotonic(), error.problem
                if error.retryable:
                    # Readers wait for this look. The next one begins with other tables.
                    pause = max(pause, (time.monotonic() - begin) / _LOOKING_SHARE)
                    break
        self._next_look = time.monotonic() + pause
        return joined

    def _join(self, name: TableName) -> bool:
        """Take in a table; return whether no other process has done so."""
        database, tunnel = self._database, self._tunnel
        # Of two looks at the table, the second one is under the lock.
        state = database.ask(lambda statements: _state(statements, name))
        table = self._opened(name.text)
        layout = table.layout
        layout.schema.check_keyed()
        # A table without rows has a channel, too: its first rows can come before the lock.
        size = stored_tunnels.size_of(database, layout)
        keys = table.splits(min(size.chunks, stored_tunnels.MAX_CHUNKS))
        generated = slots.has_generated(database, layout)
        definitions = SeenDefinitions(database, tunnel.id, [layout.oid])

        def join(statements: PostgresStatements) -> bool:
            _lock(statements, name)
            if _state(statements, name) != state or state.relation != layout.oid:
                raise _ChangedError
            lock_tunnel(statements, tunnel.id)
            added = statements.execute(
                "INSERT INTO headrace.tunnel_table (tunnel, relation, table_name) VALUES (%s, %s, %s)"
                " ON CONFLICT DO NOTHING",
                (tunnel.id, layout.oid, name.text),
            )
            if not added.rowcount:
                return False
            followable.check(statements, [layout.oid], as_columns=False)
            self._publish(statements, PublishedTable.of(layout), generated=generated)
            definitions.record_in(statements)
            statements.execute(
                "INSERT INTO headrace.joined_table (tunnel, relation, since)"
                " VALUES (%s, %s, pg_current_wal_insert_lsn())",
                (tunnel.id, layout.oid),
            )
            stored_tunnels.add_base_channels(statements, tunnel.id, [(layout.oid, each) for each in keys])
            return True

        return database.run(join)

    def _publish(self, statements: PostgresStatements, table: PublishedTable, *, generated: bool) -> None:
        """Add a table to the publication, unless it has all tables of a schema or database."""
        name = self._tunnel.publication
        assert name is not None
        state, fault = publications.inspect(statements, name, [table])
        if fault is not None and self._tunnel.own_publication:
            slots.add_to_publication(statements, name, TableName.parse(table.name), generated=generated)
            state, fault = publications.inspect(statements, name, [table])
        if fault is not None:
            raise fault.error(name)
        publications.add_state(statements, self._tunnel.id, state)


def _state(statements: PostgresStatements, name: TableName) -> catalog.TableState:
    relation = statements.first(
        "SELECT c.oid::bigint FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname = %s AND c.relname = %s",
        (name.schema, name.table),
    )
    states = [] if relation is None else catalog.states(statements, [relation[0]])
    if not states:
        raise _ChangedError
    return states[0]


def _lock(statements: PostgresStatements, name: TableName) -> None:
    """Lock out the writers of a table until the end of the transaction.

    Raises:
        StoreBusyError: a transaction that has written it is open for long.
        StoreError: the user may only read the table.
    """
    statements.execute(f"SET LOCAL lock_timeout = '{_LOCK_SECONDS}s'")
    try:
        statements.connection.execute(sql.SQL("LOCK TABLE {} IN SHARE ROW EXCLUSIVE MODE").format(name.sql))
    except psycopg.errors.LockNotAvailable:
        raise StoreBusyError(
            "a transaction that has written the table is still open",
            received=f"table {name.text!r}, for {_LOCK_SECONDS} s",
            remedy="end the transaction; the next look takes the table in",
        ) from None
    except psycopg.errors.InsufficientPrivilege:
        raise StoreError(
            "the user may not lock out the writers of the table for the moment in which it joins",
            received=f"table {name.text!r}, with SELECT alone or no right",
            remedy="GRANT UPDATE, DELETE, TRUNCATE, or, from PostgreSQL 17 on, MAINTAIN on the table",
        ) from None
