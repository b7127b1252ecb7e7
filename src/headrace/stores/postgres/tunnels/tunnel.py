"""`PostgresTunnel`: a tunnel of a PostgreSQL database."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from headrace.errors import (
    DataLossError,
    NotFoundError,
    OptionError,
    SchemaError,
    StoreBusyError,
    UnsupportedError,
)
from headrace.model.tables.changes import Changes
from headrace.model.tables.json_forms import PLAIN, JsonForm, Origin
from headrace.model.tables.schema import TableSchema
from headrace.model.tables.several_tables import TABLE
from headrace.model.tunnels.channels import stage_of
from headrace.model.tunnels.lag import Slot
from headrace.model.tunnels.losses import already_read
from headrace.model.tunnels.validation import microseconds
from headrace.model.tunnels.values import (
    FINISHED,
    Backlog,
    Channel,
    ChannelKind,
    Page,
    Position,
    Start,
    StartKind,
)
from headrace.ports import ChannelDescription, Table, Tunnel, TunnelDescription
from headrace.stores.postgres.log_growth import LogGrowth
from headrace.stores.postgres.names import TableName
from headrace.stores.postgres.tunnels import base_data, retention, selections
from headrace.stores.postgres.tunnels.channel_rows import ChannelRow, channels_of, rows_in
from headrace.stores.postgres.tunnels.followed import Followed
from headrace.stores.postgres.tunnels.joining import Joining
from headrace.stores.postgres.tunnels.log import WINDOW_BYTES, ChangeLog, JoinedError, truncated
from headrace.stores.postgres.tunnels.meta_tables import PostgresStatements, TunnelDatabase
from headrace.stores.postgres.tunnels.positions import is_after, lsn_of, parse_lsn, row_of, row_position
from headrace.stores.postgres.tunnels.retention import LogRelease
from headrace.stores.postgres.tunnels.stored_tunnels import (
    BYTES_PER_CHUNK,
    ROWS_PER_CHUNK,
    STREAM,
    StoredTunnel,
)
from headrace.stores.postgres.tunnels.typed_tables import TypedTables
from headrace.stores.shared.several_tables import SeveralTables
from headrace.stores.shared.tunnel_batches import TunnelBatches
from headrace.stores.shared.tunnel_clients import SharedTunnel, holders
from headrace.stores.shared.tunnel_records import lock_tunnel
from headrace.support.cached import cached_property

LOOK_BYTES = 8 << 20
"""The log in bytes that is decoded to plan a batch. The tasks of the batch decode it again."""

_SETTLING_SECONDS = 30.0
# Between two looks of a worker at the end of the log, in seconds.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 0.02
# At the begin of a page the position has its header behind it, which is not on disk before the next record.
_WRITTEN = """
SELECT (end_of_log - CASE WHEN in_page <= 40 THEN in_page ELSE 0 END)::text
FROM (SELECT CASE WHEN pg_is_in_recovery() THEN '0/0' ELSE pg_current_wal_insert_lsn() END AS end_of_log) AS now,
    LATERAL (SELECT mod(end_of_log - '0/0', 8192) AS in_page) AS place
"""
_IS_ON_DISK = """
SELECT CASE WHEN pg_is_in_recovery() THEN true ELSE pg_current_wal_flush_lsn() >= %(lsn)s::pg_lsn END
"""


class _View:
    """The tables with the columns that they had at the begin of a call, and the log in which they have changed."""

    def __init__(self, database: TunnelDatabase, stored: StoredTunnel, tables: Followed) -> None:
        self.tables = tables
        self._database = database
        self._stored = stored

    @cached_property
    def log(self) -> ChangeLog:
        return ChangeLog(self._database, self._stored, self.tables)


class PostgresTunnel(SharedTunnel[PostgresStatements]):
    """A tunnel of a database, created by `headrace.stores.postgres.store.PostgresStore`.

    Args:
        table: the table whose changes the tunnel has.
        follow: opens the tables in the database, for a form of rows.
        joining: takes new tables into a tunnel of several; None if it takes in none.
        form: the form of the rows of several tables: JSON, or typed if it is None.
        truncations: whether a TRUNCATE is an entry of the changes; otherwise it is a `DataLossError`.
    """

    def __init__(
        self,
        database: TunnelDatabase,
        table: Table,
        stored: StoredTunnel,
        follow: Callable[[JsonForm | None], Followed],
        joining: Joining | None = None,
        form: JsonForm | None = PLAIN,
        *,
        truncations: bool = False,
    ) -> None:
        self._database = self.records = database
        self._stored = stored
        self._follow = follow
        self._joining = joining
        self._form = form
        self._truncations = truncations
        self.batches = TunnelBatches(database, stored.id)
        self._release = None if stored.slot is None else LogRelease(database, stored.id, stored.slot)
        self._growth = LogGrowth(database.connection, _FIRST_PAUSE, _LONGEST_PAUSE)
        self._view: _View | None = None
        # The channels of base data that cannot be read as rows of the table now.
        self._unreadable: set[str] = set()
        self.table = table
        self.id = stored.id
        self.name = stored.name
        self.kind = stored.kind
        self.created = stored.created
        self.borrowed = stored.borrowed
        self.whole_transactions = not stored.relation

    def __repr__(self) -> str:
        return f"PostgresTunnel({self.name!r} of table {self.table.name!r}, {self.kind}, id {self.id})"

    @property
    def origin(self) -> Origin:
        ((database,),) = self._database.query("SELECT current_database()")
        return Origin("postgresql", database)

    @property
    def tables(self) -> Mapping[str, TableSchema]:
        if self._form is not None:
            return {}
        tables = self._fresh().tables
        assert isinstance(tables, TypedTables)
        return tables.tables

    def typed(self) -> Tunnel:
        if self._stored.relation:
            return super().typed()
        json = self.table
        table = SeveralTables(
            json.name,
            lambda: tunnel._fresh().tables.schema,
            lambda: [json.describe().options],
            json.covers,
            lambda names: json.without(names) or "",
        )
        tunnel = self._again(table, None, None, truncations=self._truncations)
        return tunnel

    def with_json(self, form: JsonForm) -> Tunnel:
        if self._stored.relation:
            return super().with_json(form)
        return self._again(self.table, self._joining, form, truncations=self._truncations)

    def with_truncations(self) -> Tunnel:
        return self._again(self.table, self._joining, self._form, truncations=True)

    def _again(
        self, table: Table, joining: Joining | None, form: JsonForm | None, *, truncations: bool
    ) -> PostgresTunnel:
        """Return the tunnel for readers of other rows."""
        return PostgresTunnel(self._database, table, self._stored, self._follow, joining, form, truncations=truncations)

    def describe(self) -> TunnelDescription:
        view, rows = self._fresh(), self._rows()
        channels = channels_of(rows)
        clients = self._database.ask(lambda statements: holders(statements, self.id))
        described = []
        details, warnings = (
            ({}, []) if self._stored.slot is None else retention.describe(self._database, self._stored.slot)
        )
        if (selection := self._stored.selection) is not None:
            stored = self._stored
            selection = selection.over(view.tables.definitions.history(stored.relation).versions)
            details = {
                **self._database.ask(
                    lambda statements: selections.described(statements, selection, stored.publication, stored.relation)
                ),
                **details,
            }
        spooled = self._database.ask(lambda statements: base_data.row_counts(statements, self.id))
        warnings += view.tables.warnings()
        for row, channel in zip(rows, channels, strict=True):
            try:
                backlog = self._backlog(view, row, channel.committed, None, WINDOW_BYTES, spooled.get(row.id))
            except JoinedError:
                backlog = Backlog(rows=None)
            except (DataLossError, NotFoundError, SchemaError, UnsupportedError) as error:
                backlog = Backlog(rows=None)
                details = {**details, "last_error": f"{type(error).__name__}: {error.problem}"}
                if not any(error.problem in warning for warning in warnings):
                    warnings.append(error.problem)
            holder = clients.get(row.id)
            described.append(
                ChannelDescription(channel, backlog)
                if holder is None
                else ChannelDescription(channel, backlog, holder.client, holder.tag, holder.status)
            )
        if details.get("retained_bytes") is not None:
            (stream,) = [each for each in described if each.channel.kind is ChannelKind.STREAM]
            end = parse_lsn(str(details["current_lsn"]))
            unread = 0 if stream.backlog.rows == 0 else max(0, end - lsn_of(stream.channel.committed))
            details = {**details, "lag_bytes": unread}
        return TunnelDescription(
            id=self.id,
            name=self.name,
            table=self.table.name,
            kind=self.kind,
            stage=str(stage_of(self.kind, channels)),
            created=self.created,
            channels=tuple(described),
            details=details,
            warnings=tuple(warnings),
        )

    def slot(self) -> Slot | None:
        return None if self._stored.slot is None else retention.slot_of(self._database, self._stored.slot)

    def take_in_tables(self) -> list[str]:
        return [] if self._joining is None else self._joining.look()

    # -- channels -----------------------------------------------------------------------------------

    def channels(self, known: Mapping[str, Position] | None = None) -> list[Channel]:
        return channels_of(self._rows())

    def start_positions(self, start: Start) -> dict[str, Position]:
        if start.kind in (StartKind.COMMITTED, StartKind.BATCH):
            raise OptionError(
                "a query that begins at the committed positions or at a batch needs no start positions",
                received=str(start.kind),
            )
        if start.kind is StartKind.EARLIEST:
            raise UnsupportedError(
                "a replication slot keeps no changes before the committed positions of a tunnel",
                received="startingPosition earliest",
                valid="committed, latest or a timestamp",
                remedy="create a tunnel of its own, of kind BaseAndStream",
            )
        rows = self._rows()
        if start.kind is StartKind.BEGINNING:
            self._check_unread(rows)
            return {row.id: row.start for row in rows}
        positions, view = {}, self._fresh()
        for row in rows:
            if row.kind is ChannelKind.BASE_DATA or row.finished:
                positions[row.id] = FINISHED
            elif start.timestamp is None:
                positions[row.id] = view.log.end()
            else:
                positions[row.id] = view.log.at_time(row.committed, microseconds(start.timestamp))
        return positions

    def _check_unread(self, rows: list[ChannelRow]) -> None:
        """Raise `DataLossError` if rows of the tunnel were committed: they cannot be read again."""
        read = [row.id for row in rows if row.committed != row.start]
        if read:
            raise DataLossError(
                f"the first rows of tunnel {self.name!r} were read by another query, and cannot be read again",
                received=f"committed channels {', '.join(read[:3])}",
                remedy="create a tunnel of its own for each query",
            )

    def latest_positions(self) -> dict[str, Position]:
        rows = self._rows()
        end = self._last().log.end() if self._stored.slot is not None else FINISHED
        return {row.id: FINISHED if row.kind is ChannelKind.BASE_DATA else end for row in rows}

    def settled_positions(self) -> dict[str, Position]:
        # A transaction with synchronous_commit = off is visible before it is in the log on disk.
        ((written,),) = self._database.query(_WRITTEN)
        deadline = time.monotonic() + _SETTLING_SECONDS
        while not self._database.query(_IS_ON_DISK, {"lsn": written})[0][0]:
            if time.monotonic() > deadline:
                raise StoreBusyError(
                    "the server has not written its log to disk",
                    received=f"up to {written}, within {_SETTLING_SECONDS:g} s",
                    remedy="try again; if it repeats, look at the server's disk and at its setting wal_writer_delay",
                )
            time.sleep(0.05)
        return self.latest_positions()

    def backlog(self, channel: str, position: Position, until: Position | None = None) -> Backlog:
        return self.backlogs({channel: position}, None if until is None else {channel: until})[channel]

    def backlogs(
        self, positions: Mapping[str, Position], until: Mapping[str, Position] | None = None
    ) -> dict[str, Backlog]:
        view, rows = self._fresh(), {row.id: row for row in self._rows()}
        spooled = self._database.ask(lambda statements: base_data.row_counts(statements, self.id))
        backlogs: dict[str, Backlog] = {}
        for channel, position in positions.items():
            if channel not in rows:
                raise self._no_channel(channel, list(rows.values()))
            bound = None if until is None else until.get(channel)
            try:
                view.tables.check()
                backlogs[channel] = self._backlog(
                    view, rows[channel], position, bound, LOOK_BYTES, spooled.get(channel)
                )
            except (DataLossError, JoinedError):
                # The reader fails, accepts the loss, or has the new table.
                backlogs[channel] = Backlog(rows=None)
            if backlogs[channel].empty:
                self._release_idle_log(rows[channel], position)
        return backlogs

    def _release_idle_log(self, row: ChannelRow, position: Position) -> None:
        """Let the server forget the log of others, which may be busy while this table is idle."""
        if row.kind is ChannelKind.STREAM and position == row.committed:
            self.release_log()

    def _backlog(
        self, view: _View, row: ChannelRow, position: Position, until: Position | None, reach: int, spooled: int | None
    ) -> Backlog:
        """Return the backlog of a channel; of a stream, the rows in the first ``reach`` bytes of the log with rows.

        ``spooled`` is the number of rows of a chunk of base data, None if it has not been read.
        """
        if position == FINISHED:
            return Backlog(rows=0, bytes=0, seconds=0.0, ends=True)
        if row.kind is ChannelKind.BASE_DATA:
            if spooled is None:
                return Backlog(rows=None, bytes=BYTES_PER_CHUNK, ends=True, copied=ROWS_PER_CHUNK)
            rows = max(0, spooled - row_of(position))
            return Backlog(rows=rows, bytes=rows * BYTES_PER_CHUNK // ROWS_PER_CHUNK, ends=True, copied=spooled)
        return view.log.backlog(position, _bound(until), reach)

    def read(
        self,
        channel: str,
        position: Position,
        max_rows: int,
        until: Position | None = None,
        *,
        total: int | None = None,
    ) -> Page:
        try:
            view = self._fresh()
            try:
                return self._read(view, channel, position, max_rows, until, total)
            except DataLossError:
                # The error may be of the former definition of a table that has changed meanwhile.
                newer = self._fresh()
                if newer is view:
                    raise
            return self._read(newer, channel, position, max_rows, until, total)
        except JoinedError:
            return self.read(channel, position, max_rows, until, total=total)

    def _read(
        self, view: _View, channel: str, position: Position, max_rows: int, until: Position | None, total: int | None
    ) -> Page:
        row = self._row(channel)
        if position == FINISHED:
            return base_data.no_rows(view.tables.schema)
        view.tables.check()
        if row.kind is ChannelKind.BASE_DATA:
            return self._read_base_data(row, position, max_rows, until)
        rows = view.log.rows(position, _bound(until), total)
        if rows.count:
            if not self._truncations and rows.changes.begin_with_truncation:
                raise self._truncated(rows.changes)
            if not isinstance(view.tables, TypedTables):
                return rows.to_truncation().page(max_rows)
            # All truncations of a transaction are the first rows of one page.
            first = max(1, rows.changes.truncations_of_first)
            return rows.to_truncation(first).page(max(max_rows, first))
        self._release_idle_log(row, position)
        # The end of the log is no part of the position: it grows without changes of the table.
        return Page(rows.changes, view.log.canonical(position))

    def _truncated(self, changes: Changes) -> DataLossError:
        (row,), version = changes.rows.slice(0, 1).to_pylist(), changes.versions[0].as_py()
        if self._stored.relation:
            return truncated(self.table.name, f"commit version {version}")
        name = row[TABLE] if self._form is None else TableName(row["schema"], row["table"]).text
        return truncated(name, f"commit version {version}")

    def _read_base_data(self, row: ChannelRow, position: Position, max_rows: int, until: Position | None) -> Page:
        # After the chunk: the tables may have changed while it was read.
        chunk = self._chunk(row)
        tables = self._last().tables

        def rows_of(rows: pa.RecordBatch) -> pa.RecordBatch:
            try:
                return tables.base_rows(row.relation, rows)
            except DataLossError:
                self._unreadable.add(row.id)
                raise

        return self._database.ask(
            lambda statements: base_data.read(
                statements, self.id, row.id, chunk, tables.schema, rows_of, position, max_rows, until
            )
        )

    def skip_lost(self, channel: str, position: Position) -> tuple[Position, int | None]:
        """Return the first readable position; released base data is not lost."""
        row = self._row(channel)
        if position == FINISHED:
            return FINISHED, 0
        if row.kind is ChannelKind.BASE_DATA:
            return (FINISHED, None) if channel in self._unreadable else (FINISHED, 0) if row.finished else (position, 0)
        return self._last().log.skip_lost(position)

    def accept_lost(self, channel: str, position: Position) -> bool:
        view = self._last()
        if view.tables.definitions.accept():
            return True
        return self._row(channel).kind is ChannelKind.STREAM and view.log.accept_publication()

    def values_of_new_columns(self, names: Sequence[str]) -> Mapping[str, Any]:
        return self._fresh().tables.values_of_new_columns(names)

    def advance(self, channel: str, position: Position, rows: int) -> Position:
        row = self._row(channel)
        if position == FINISHED:
            return FINISHED
        if row.kind is ChannelKind.STREAM:
            return Position(position.token, position.skip + rows)
        after = row_of(position) + rows
        return position if rows == 0 else FINISHED if after >= self._chunk(row).rows else row_position(after)

    def commit(self, positions: Mapping[str, Position]) -> None:
        """Save committed positions in one transaction, and then let the server forget the log before them.

        Base data of channels that become finished is released: it cannot be read again.

        Raises:
            NotFoundError: the tunnel does not have one of the channels; nothing is saved.
        """
        try:
            self._database.run(lambda statements: self.save_positions(statements, positions))
        except JoinedError:
            self._fresh()
            self._database.run(lambda statements: self.save_positions(statements, positions))
        self.release_log()

    def save_positions(self, statements: PostgresStatements, positions: Mapping[str, Position]) -> None:
        """Save committed positions like `commit`, inside the caller's transaction."""
        lock_tunnel(statements, self.id)
        rows = {row.id: row for row in rows_in(statements, self._stored)}
        spooled = base_data.row_counts(statements, self.id)
        released = []
        for channel, position in positions.items():
            if channel not in rows:
                raise self._no_channel(channel, list(rows.values()))
            row = rows[channel]
            to = self._normal(row, position, spooled.get(channel))
            if not is_after(to, row.committed):
                continue
            statements.execute(
                "UPDATE headrace.channel SET committed = %s, skip = %s WHERE tunnel = %s AND id = %s",
                (to.token, to.skip, self.id, channel),
            )
            if row.kind is ChannelKind.BASE_DATA and to == FINISHED:
                released.append(channel)
        if released:
            base_data.release(statements, self.id, released)

    def _normal(self, row: ChannelRow, position: Position, spooled: int | None) -> Position:
        """Return a position in the form in which positions of its channel can be compared."""
        if position == FINISHED:
            return position
        if row.kind is ChannelKind.BASE_DATA:
            index = row_of(position)
            return FINISHED if spooled is not None and index >= spooled else row_position(index)
        if lsn_of(position) and (position.skip == 0 or position.token == row.committed.token):
            return position
        return self._last().log.canonical(position)

    def release_log(self) -> None:
        """Advance the slot, if the server keeps much log that the tunnel no longer needs; see `LogRelease`."""
        if self._release is None:
            return
        committed = next(row.committed for row in self._rows() if row.id == STREAM)
        if committed == FINISHED:
            return
        lsn = lsn_of(committed)
        idle = self._last().log.idle_until(lsn) if committed.skip == 0 else lsn
        self._release.release(lsn, idle, self._look)

    # -- clients that share the channels -------------------------------------------------------------

    def channels_in(self, statements: PostgresStatements) -> list[Channel]:
        return channels_of(rows_in(statements, self._stored))

    def committed(self, statements: PostgresStatements, channel: str) -> Position:
        for row in rows_in(statements, self._stored, channel):
            return row.committed
        raise self._no_channel(channel, rows_in(statements, self._stored))

    def save_position(self, statements: PostgresStatements, channel: str, position: Position) -> None:
        self.save_positions(statements, {channel: position})

    def after_save(self) -> None:
        self.release_log()

    def wait_for_change(self, timeout: float) -> bool:
        return self._growth.wait(timeout)

    # -- base data and log ----------------------------------------------------------------------------

    def read_base_data(self) -> None:
        """Spool all chunks of base data now, with one snapshot."""
        if rows := [row for row in self._rows() if row.kind is ChannelKind.BASE_DATA]:
            self._spool(rows)

    def _chunk(self, row: ChannelRow) -> base_data.Chunk:
        """Return a chunk; read and spool it, if this is its first read."""
        if row.finished:
            raise already_read(row.id)
        chunk = self._database.ask(lambda statements: base_data.find(statements, self.id, row.id))
        return chunk or self._spool([row])[0]

    def _spool(self, rows: Sequence[ChannelRow]) -> list[base_data.Chunk]:
        """Read and save chunks of one snapshot."""
        parts = [(row.relation, row.keys) for row in rows]
        view = self._last()
        while True:
            try:
                chunks = view.tables.snapshots(parts)
            except (NotFoundError, SchemaError):
                # A table or a column may have been dropped or renamed since the view was opened.
                if (newer := self._fresh()) is view:
                    raise
            else:
                newer = self._fresh()
                if newer is view and all(
                    view.tables.definitions.know(relation, chunk.rows.leaves)
                    for (relation, _), chunk in zip(parts, chunks, strict=True)
                ):
                    break
            # A table has changed in the meantime: names may be those of other columns, and rows those of a partition
            # that has come and left.
            view = newer
        if self._stored.selection is not None and self._stored.publication is not None:
            # The rows are those of the publication, in which others may have changed the choice.
            view.log.check_publication()
        return self._database.run(
            lambda statements: [
                base_data.spool(statements, self.id, row.id, chunk) for row, chunk in zip(rows, chunks, strict=True)
            ]
        )

    def _fresh(self) -> _View:
        """Return the tables and their log with the present definitions: others can change them at any time."""
        view = self._view
        if view is None or not view.tables.are_current():
            view = self._view = _View(self._database, self._stored, self._follow(self._form))
        elif view.tables.refresh():
            view = self._view = _View(self._database, self._stored, view.tables)
        return view

    def _last(self) -> _View:
        """Return the view of the last `_fresh`, for a part of its call, or a call that decodes no row."""
        return self._view or self._fresh()

    def _look(self) -> None:
        """Record the present definitions, without an effect on the view."""
        self._last().tables.definitions.look()

    # -- rows of the database -------------------------------------------------------------------------

    def _rows(self) -> list[ChannelRow]:
        return self._database.ask(lambda statements: rows_in(statements, self._stored))

    def _row(self, channel: str) -> ChannelRow:
        for row in self._database.ask(lambda statements: rows_in(statements, self._stored, channel)):
            return row
        raise self._no_channel(channel, self._rows())

    def _no_channel(self, channel: str, rows: list[ChannelRow]) -> NotFoundError:
        return NotFoundError(
            f"tunnel {self.name!r} has no such channel", received=repr(channel), valid=[row.id for row in rows]
        )


def _bound(until: Position | None) -> Position | None:
    return None if until is None or until == FINISHED else until
