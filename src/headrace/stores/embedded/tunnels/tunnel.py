"""`EmbeddedTunnel`: a tunnel of the embedded store."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import apsw

from headrace.errors import DataLossError, NotFoundError, OptionError, UnsupportedError
from headrace.model.tables.json_forms import JsonForm
from headrace.model.tables.schema import TableSchema
from headrace.model.tables.several_tables import schema_of, together
from headrace.model.tunnels.channels import channel_states, stage_of
from headrace.model.tunnels.leases import LeaseStatus
from headrace.model.tunnels.losses import already_read
from headrace.model.tunnels.validation import microseconds
from headrace.model.tunnels.values import (
    FINISHED,
    Backlog,
    Channel,
    ChannelKind,
    ChannelState,
    Page,
    Position,
    Start,
    StartKind,
    TunnelKind,
)
from headrace.ports import ChannelDescription, Table, Tunnel, TunnelDescription
from headrace.stores.embedded.connection import Database, SeenVersion
from headrace.stores.embedded.tunnels import base_data, stored_tunnels
from headrace.stores.embedded.tunnels.channel_rows import (
    ChannelRow,
    channels_of,
    log_in,
    logs_in,
    rows_in,
)
from headrace.stores.embedded.tunnels.positions import (
    check_key_position,
    is_after,
    key_of,
    position_text,
    rows_after,
)
from headrace.stores.embedded.tunnels.records import EmbeddedRecords, SqliteStatements
from headrace.stores.embedded.tunnels.several_logs import SeveralLogs
from headrace.stores.embedded.tunnels.stream_log import StreamLog
from headrace.stores.shared.tunnel_batches import TunnelBatches
from headrace.stores.shared.tunnel_clients import Holder, SharedTunnel, holders

# Returns the log of a stream channel.
_Logs: TypeAlias = Callable[[ChannelRow], StreamLog]
# A log that is kept is read from the beginning by any number of queries.
_FIRST = (StartKind.EARLIEST, StartKind.BEGINNING)
# The number of finished channels that are kept for descriptions of the tunnel while clients read it.
_FINISHED_KEPT = 64
# The number of finished channels that are examined at once for deletion.
_FORGET_AT_ONCE = 64


class EmbeddedTunnel(SharedTunnel[SqliteStatements]):
    """A tunnel of the embedded store, created by `headrace.stores.embedded.store.EmbeddedStore`."""

    def __init__(
        self,
        database: Database,
        table: Table,
        object_id: int,
        id: str,
        name: str,
        kind: TunnelKind,
        created: float,
    ) -> None:
        self._database = database
        self.several = object_id == stored_tunnels.SEVERAL
        self.whole_transactions = self.several
        self._object_id = object_id
        self.records = EmbeddedRecords(database)
        self.batches = TunnelBatches(self.records, id, functools.partial(_forget_finished, tunnel=id, name=name))
        self._seen = SeenVersion()
        self.table = table
        self.id = id
        self.name = name
        self.kind = kind
        self.created = created

    def __repr__(self) -> str:
        tables = f"tables {self.table.name}" if self.several else f"table {self.table.name!r}"
        return f"EmbeddedTunnel({self.name!r} of {tables}, {self.kind}, id {self.id})"

    @property
    def tables(self) -> dict[str, TableSchema]:
        if not self.several:
            return {}
        with self._database.read() as connection:
            return stored_tunnels.schemas_in(connection, self.id)

    def typed(self) -> Tunnel:
        return self if self.several else super().typed()

    def with_json(self, form: JsonForm) -> Tunnel:
        if not self.several:
            return super().with_json(form)
        raise UnsupportedError(
            "a tunnel of several tables of an embedded store has typed rows, and no JSON",
            received=f"tunnel {self.name!r} of {self.table.name}",
            valid="rows=typed",
        )

    def describe(self) -> TunnelDescription:
        with self._database.read() as connection:
            rows, logs = self._rows(connection), self._logs(connection)
            channels = channels_of(rows)
            statements = SqliteStatements(connection)
            clients, suspended = holders(statements, self.id), self.suspended(statements)
            return TunnelDescription(
                id=self.id,
                name=self.name,
                table=self.table.name,
                kind=self.kind,
                stage=str(stage_of(self.kind, channels)),
                created=self.created,
                channels=tuple(
                    self._describe_channel(
                        logs, channel, row, clients.get(channel.id), suspended=channel.id in suspended
                    )
                    for channel, row in zip(channels, rows, strict=True)
                ),
                details=self._unread_by_table(connection, rows),
            )

    def _describe_channel(
        self, logs: _Logs, channel: Channel, row: ChannelRow, holder: Holder | None, *, suspended: bool
    ) -> ChannelDescription:
        backlog = _backlog(logs, row, channel.committed, None)
        closing = LeaseStatus.CLOSING if suspended else None
        if holder is None:
            return ChannelDescription(channel, backlog, lease=closing)
        return ChannelDescription(channel, backlog, holder.client, holder.tag, closing or holder.status)

    # -- channels -----------------------------------------------------------------------------------

    def channels(self, known: Mapping[str, Position] | None = None) -> list[Channel]:
        with self._database.read() as connection:
            return channels_of(self._rows(connection))

    def start_positions(self, start: Start) -> dict[str, Position]:
        """Return the first positions of a new reader; none is before the beginning of the tunnel."""
        if start.kind is StartKind.COMMITTED:
            raise OptionError(
                "a query that begins at the committed positions needs no start positions", received="committed"
            )
        if start.kind is StartKind.BATCH:
            raise UnsupportedError(
                "a query on an embedded store cannot start after a batch of another query",
                received=f"startingPosition batch:{start.batch}",
                valid="committed, earliest, latest or a timestamp",
            )
        with self._database.read() as connection:
            rows, logs = self._rows(connection), self._logs(connection)
            if start.kind in _FIRST:
                self._check_complete(rows)
            return {row.id: self._start_position(logs, row, start) for row in rows}

    def _start_position(self, logs: _Logs, row: ChannelRow, start: Start) -> Position:
        if row.kind is ChannelKind.BASE_DATA:
            if start.kind in _FIRST and row.finished:
                raise already_read(row.id)
            return row.start if start.kind in _FIRST else FINISHED
        log = logs(row)
        if start.kind is StartKind.LATEST:
            return log.end
        ts = 0 if start.timestamp is None else microseconds(start.timestamp)
        if log.lost(row.start) and log.lost_before(ts):
            raise DataLossError(
                f"changes of table {self.table.name!r} after this position have been removed",
                received=f"startingPosition {start.timestamp or start.kind} for {row.id}",
                remedy="start at latest, at a later timestamp, or with a new tunnel",
            )
        return row.start if start.kind in _FIRST else log.at_time(row.start, ts)

    def _check_complete(self, rows: list[ChannelRow]) -> None:
        present = {row.id for row in rows}
        forgotten = sorted({parent for row in rows for parent in row.parents} - present)
        if forgotten:
            raise DataLossError(
                f"the first channels of tunnel {self.name!r} were finished and deleted",
                received=", ".join(forgotten),
                remedy="start at latest or at a timestamp, or create a new tunnel",
            )

    def latest_positions(self) -> dict[str, Position]:
        with self._database.read() as connection:
            logs = self._logs(connection)
            return {
                row.id: FINISHED if row.kind is ChannelKind.BASE_DATA else logs(row).end
                for row in self._rows(connection)
            }

    def backlog(self, channel: str, position: Position, until: Position | None = None) -> Backlog:
        with self._database.read() as connection:
            row = self._row(connection, channel)
            return _backlog(lambda _: self._log(connection, row), row, position, until)

    def backlogs(
        self, positions: Mapping[str, Position], until: Mapping[str, Position] | None = None
    ) -> dict[str, Backlog]:
        bounds = until or {}
        with self._database.read() as connection:
            rows, logs = self._rows_by_id(connection), self._logs(connection)
            return {
                channel: _backlog(logs, rows.get(channel) or self._row(connection, channel), at, bounds.get(channel))
                for channel, at in positions.items()
            }

    def shown_position(self, position: Position) -> str:
        return position_text(position)

    def waiting_backlogs(
        self, positions: Mapping[str, Position], until: Mapping[str, Position] | None = None
    ) -> dict[str, Backlog]:
        return self.backlogs(positions, until)

    def read(
        self,
        channel: str,
        position: Position,
        max_rows: int,
        until: Position | None = None,
        *,
        total: int | None = None,
    ) -> Page:
        with self._database.read() as connection:
            row = self._row(connection, channel)
            if position == FINISHED:
                return base_data.no_rows(self._schema(connection))
            if row.kind is ChannelKind.STREAM:
                return self._log(connection, row).read(position, max_rows, until)
            last = None
            if until is not None and until != FINISHED:
                last = key_of(self._advance(connection, row, until, 0))
            snapshot = self._snapshot(connection, row)
            table = stored_tunnels.physical_table(connection, row.table)
            check_key_position(position, table.schema)
            page = base_data.read(connection, table, row.keys, snapshot, position, max_rows, last)
            if not self.several:
                return page
            part = (self._name_of(connection, row), page.changes)
            return Page(together(self._schema(connection), [part]), page.next)

    def skip_lost(self, channel: str, position: Position) -> tuple[Position, int | None]:
        """Return the first readable position, and the number of lost rows; released base data is not lost."""
        with self._database.read() as connection:
            row = self._row(connection, channel)
            if position == FINISHED:
                return FINISHED, 0
            if row.kind is ChannelKind.BASE_DATA:
                return (FINISHED, 0) if row.finished else (position, 0)
            return self._log(connection, row).first_readable(position)

    def advance(self, channel: str, position: Position, rows: int) -> Position:
        with self._database.read() as connection:
            return self._advance(connection, self._row(connection, channel), position, rows)

    def _advance(self, connection: apsw.Connection, row: ChannelRow, position: Position, rows: int) -> Position:
        if position == FINISHED:
            return FINISHED
        if row.kind is ChannelKind.STREAM:
            return self._log(connection, row).after(position, rows)
        table = stored_tunnels.physical_table(connection, row.table)
        check_key_position(position, table.schema)
        if position.skip + rows == 0:
            return position
        return base_data.advance(connection, table, row.keys, self._snapshot(connection, row), position, rows)

    def commit(self, positions: Mapping[str, Position]) -> None:
        """Save committed positions in one transaction; a channel that is already further is not changed.

        Base data of channels that become finished is released: it cannot be read again.

        Raises:
            NotFoundError: the tunnel does not have one of the channels; nothing is saved.
        """
        with self._database.read() as connection:
            if not self._moves(connection, positions):
                return
        with self._database.write() as connection:
            self.save_positions(connection, positions)

    def save_positions(self, connection: apsw.Connection, positions: Mapping[str, Position]) -> None:
        """Save committed positions like `commit`, inside the caller's write transaction."""
        moves = self._moves(connection, positions)
        connection.executemany(
            "UPDATE channel SET checkpoint = ?, finished = ? WHERE tunnel = ? AND id = ?",
            [(to.token, to == FINISHED, self.id, row.id) for row, to in moves],
        )
        released = [row for row, to in moves if row.kind is ChannelKind.BASE_DATA and to == FINISHED]
        if released:
            self._release(connection, released)

    def _moves(
        self, connection: apsw.Connection, positions: Mapping[str, Position]
    ) -> list[tuple[ChannelRow, Position]]:
        """Return the channels that the positions advance, with positions without rows to skip."""
        moves = []
        rows = self._rows_by_id(connection) if positions else {}
        for channel, position in positions.items():
            row = rows.get(channel) or self._row(connection, channel)
            if not row.finished and position != row.committed:
                to = self._advance(connection, row, position, 0)
                if is_after(to, row.committed):
                    moves.append((row, to))
        return moves

    def _release(self, connection: apsw.Connection, released: list[ChannelRow]) -> None:
        for table in {row.table for row in released}:
            ((unfinished,),) = connection.execute(
                "SELECT count(*) FROM channel WHERE tunnel = ?1 AND kind = ?2 AND NOT finished"
                " AND ifnull(object, ?3) = ?3",
                (self.id, ChannelKind.BASE_DATA.value, table),
            )
            if unfinished == 0:
                stored_tunnels.release_snapshots(connection, self.id, table)
                continue
            stored = stored_tunnels.physical_table(connection, table)
            snapshot = base_data.snapshot_of(connection, table, self.id)
            for row in released:
                if row.table == table:
                    stored.release(connection, snapshot.id, row.keys)

    # -- clients that share the channels -------------------------------------------------------------

    def channels_in(self, statements: SqliteStatements) -> list[Channel]:
        return channels_of(self._rows(statements.connection))

    def suspended(self, statements: SqliteStatements) -> frozenset[str]:
        channels = statements.connection.execute("SELECT id FROM channel WHERE tunnel = ? AND suspended", (self.id,))
        return frozenset(row[0] for row in channels)

    def committed(self, statements: SqliteStatements, channel: str) -> Position:
        return self._row(statements.connection, channel).committed

    def save_position(self, statements: SqliteStatements, channel: str, position: Position) -> None:
        self.save_positions(statements.connection, {channel: position})
        if position == FINISHED:
            _forget_finished(statements, self.id, self.name, keep=_FINISHED_KEPT)

    def suspend(self, channel: str, *, suspended: bool = True) -> None:
        """Suspend or resume a channel. A client that has it must return it with its next heartbeat."""
        with self._database.write() as connection:
            self._row(connection, channel)
            connection.execute(
                "UPDATE channel SET suspended = ? WHERE tunnel = ? AND id = ?", (suspended, self.id, channel)
            )

    def wait_for_change(self, timeout: float) -> bool:
        return self._database.wait_for_change(timeout, self._seen)

    # -- rows of the database -------------------------------------------------------------------------

    def _rows(self, connection: apsw.Connection) -> list[ChannelRow]:
        return rows_in(connection, self.id, self.name)

    def _rows_by_id(self, connection: apsw.Connection) -> dict[str, ChannelRow]:
        return {row.id: row for row in self._rows(connection)}

    def _row(self, connection: apsw.Connection, channel: str) -> ChannelRow:
        rows = rows_in(connection, self.id, self.name, channel)
        if not rows:
            raise NotFoundError(
                f"tunnel {self.name!r} has no such channel",
                received=repr(channel),
                valid=[row.id for row in self._rows(connection)],
            )
        return rows[0]

    def _snapshot(self, connection: apsw.Connection, row: ChannelRow) -> base_data.Snapshot:
        if row.finished:
            raise already_read(row.id)
        return base_data.snapshot_of(connection, row.table, self.id)

    # -- tables and logs --------------------------------------------------------------------------------

    def _schema(self, connection: apsw.Connection) -> TableSchema:
        """Return the columns of the tunnel's rows."""
        if not self.several:
            return stored_tunnels.physical_table(connection, self._object_id).schema
        return schema_of(stored_tunnels.schemas_in(connection, self.id))

    def _log(self, connection: apsw.Connection, row: ChannelRow) -> StreamLog:
        """Return the log of a stream channel."""
        if self.several:
            return self._several_logs(connection)
        return log_in(connection, row.partition)

    def _logs(self, connection: apsw.Connection) -> _Logs:
        """Return a function that returns the logs of all stream channels."""
        if self.several:
            several = self._several_logs(connection)
            return lambda _: several
        logs = logs_in(connection, self.id)
        return lambda row: logs[row.partition]

    def _several_logs(self, connection: apsw.Connection) -> SeveralLogs:
        return SeveralLogs(connection, self.id, lambda: self._schema(connection))

    def _unread_by_table(self, connection: apsw.Connection, rows: Sequence[ChannelRow]) -> dict[str, int | None]:
        """Return the number of unread rows of each of several tables; None if it is unknown."""
        if not self.several:
            return {}
        log = self._several_logs(connection)
        unread: dict[str, int | None] = dict.fromkeys(log.tables, 0)
        for row in rows:
            if row.finished:
                continue
            counts: Mapping[str, int | None] = (
                {self._name_of(connection, row): rows_after(row.committed)}
                if row.kind is ChannelKind.BASE_DATA
                else log.unread(row.committed)
            )
            for name, count in counts.items():
                before = unread[name]
                unread[name] = None if before is None or count is None else before + count
        return {f"{name}_unread": count for name, count in unread.items()}

    def _name_of(self, connection: apsw.Connection, row: ChannelRow) -> str:
        """Return the name of the table of a base channel."""
        ((name,),) = connection.execute("SELECT name FROM object WHERE id = ?", (row.table,))
        return str(name)


def _backlog(logs: _Logs, row: ChannelRow, position: Position, until: Position | None) -> Backlog:
    if position == FINISHED:
        return Backlog(rows=0, bytes=0, seconds=0.0, ends=True)
    if row.kind is ChannelKind.BASE_DATA:
        return Backlog(rows=None, ends=True, counted=rows_after(position))
    return logs(row).backlog(position, until)


def _forget_finished(statements: SqliteStatements, tunnel: str, name: str, *, keep: int = 0) -> None:
    """Delete old finished channels of closed partitions, inside the caller's write transaction.

    The ``keep`` newest are kept, and channels that another channel waits for or a batch names.
    """
    connection = statements.connection
    channels = connection.execute(
        "SELECT c.id FROM channel c LEFT JOIN partition p ON p.id = c.partition WHERE c.tunnel = ?"
        " AND c.kind = ? AND c.finished AND NOT ifnull(p.open, 0) ORDER BY c.seq",
        (tunnel, ChannelKind.STREAM.value),
    )
    old = [row[0] for row in channels]
    finished = old[: max(0, len(old) - keep)][:_FORGET_AT_ONCE]
    if not finished:
        return
    rows = rows_in(connection, tunnel, name)
    states = channel_states({row.id: row.parents for row in rows}, {row.id for row in rows if row.finished})
    awaited = {parent for row in rows if states[row.id] is ChannelState.WAITING for parent in row.parents}
    forgotten = [
        channel for channel in finished if channel not in awaited and not _in_batch(connection, tunnel, channel)
    ]
    connection.executemany(
        "DELETE FROM channel WHERE tunnel = ? AND id = ?", [(tunnel, channel) for channel in forgotten]
    )


def _in_batch(connection: apsw.Connection, tunnel: str, channel: str) -> bool:
    """Return whether the plan or an end of a batch names a channel."""
    named = connection.execute(
        "SELECT EXISTS (SELECT 1 FROM batch_end WHERE tunnel = ?1 AND channel = ?2)"
        " OR EXISTS (SELECT 1 FROM batch_plan WHERE tunnel = ?1 AND instr(plan, ?3))",
        (tunnel, channel, json.dumps(channel)),
    )
    return any(row[0] for row in named)
