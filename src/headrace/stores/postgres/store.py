"""The store of a PostgreSQL database: the tables and views of its users."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import psycopg
import pyarrow as pa

from headrace.errors import AlreadyExistsError, HeadraceError, NotFoundError, SchemaError
from headrace.model.existing import already_exists, other_columns
from headrace.model.findings import Finding
from headrace.model.tables.bad_rows import table_name
from headrace.model.tables.column_limits import check_columns
from headrace.model.tables.conditions import OPERATORS
from headrace.model.tables.json_forms import PLAIN, JsonForm
from headrace.model.tables.schema import TableSchema
from headrace.model.tunnels.validation import Named, check_start_of_several, find
from headrace.model.tunnels.values import Start, StartKind, TunnelKind
from headrace.ports import Capabilities, RetriedRows, Store, Tunnel
from headrace.stores.postgres import diagnosis
from headrace.stores.postgres.connection import Address, PostgresConnection
from headrace.stores.postgres.files import PostgresFiles
from headrace.stores.postgres.log_growth import LogGrowth
from headrace.stores.postgres.names import TableName, quoted
from headrace.stores.postgres.publication.bad_rows import check_keys, retry
from headrace.stores.postgres.publication.publisher import PostgresPublisher
from headrace.stores.postgres.schemas import COLUMN_TYPES
from headrace.stores.postgres.tables import stored_tables
from headrace.stores.postgres.tables.alterations import MAX_COLUMNS, MAX_KEY_COLUMNS
from headrace.stores.postgres.tables.selected_table import SelectedTable
from headrace.stores.postgres.tables.stored_tables import FIXED_OPTIONS
from headrace.stores.postgres.tables.table import PostgresTable
from headrace.stores.postgres.tunnels import members, stored_tunnels, table_patterns, tunnel_options
from headrace.stores.postgres.tunnels.followed import OneTable
from headrace.stores.postgres.tunnels.followed_tables import ManyTables
from headrace.stores.postgres.tunnels.joining import Joining
from headrace.stores.postgres.tunnels.json_rows import SCHEMA
from headrace.stores.postgres.tunnels.meta_tables import TunnelDatabase
from headrace.stores.postgres.tunnels.stored_tunnels import NewTable, StoredTunnel
from headrace.stores.postgres.tunnels.table_patterns import TablePattern
from headrace.stores.postgres.tunnels.tunnel import PostgresTunnel
from headrace.stores.postgres.tunnels.tunnel_options import TunnelOptions
from headrace.stores.postgres.tunnels.typed_tables import TypedTables
from headrace.stores.shared.several_tables import SeveralTables
from headrace.support import failpoints
from headrace.support.cached import cached_property

_FIRST_PAUSE, _LONGEST_PAUSE = 0.002, 0.1


class PostgresStore(Store):
    """The tables of one database.

    It can be pickled, with the password. No message contains the password.

    Args:
        address: the database and the settings of its connections.
        schema: the schema of headrace's own tables.
    """

    capabilities = Capabilities(
        backup_tool="pg_basebackup, pgBackRest or pg_dump; the replication slots of tunnels are not in a backup",
        transactions=True,
        whole_rows=True,
        pre_images=True,
        add_columns=True,
        alters=True,
        bad_rows=True,
        queues=False,
        predicates=frozenset(OPERATORS),
        column_types=COLUMN_TYPES,
        rewinds=False,
        trims=False,
        markers=True,
        writes_at_once=True,
        files=True,
        row_times=False,
        transaction_ids=True,
        several_tables=("json", "typed"),
        tunnel_options=tunnel_options.OPTIONS,
        max_columns=MAX_COLUMNS,
    )

    def __init__(self, address: Address, schema: str) -> None:
        self.url = address.url
        self._connection = PostgresConnection(address)
        self._schema = schema
        self._database = TunnelDatabase(self._connection, schema)
        self._growth = LogGrowth(self._connection, _FIRST_PAUSE, _LONGEST_PAUSE)

    def __repr__(self) -> str:
        return f"PostgresStore({self.url!r})"

    @property
    def connection(self) -> PostgresConnection:
        """The connections to the database, for stores with tables of another form in it."""
        return self._connection

    @cached_property
    def id(self) -> str:
        """The cluster's identifier and the database: the same for each address, and for a standby."""
        return self.instance()

    def instance(self) -> str:
        """Return the present `id`: of a store that stays open, the address can lead to another cluster later."""

        def read(session: psycopg.Connection) -> str:
            row = session.execute("SELECT system_identifier, current_database() FROM pg_control_system()").fetchone()
            assert row is not None
            return f"postgresql:{row[0]}/{row[1]}"

        return self._connection.ask(read)

    # -- tables -------------------------------------------------------------------------------------------

    def tables(self) -> list[str]:
        """Return the sorted names of the users' tables and views; those of schema ``public`` without their schema."""
        return self._connection.ask(lambda session: stored_tables.names(session, self._schema))

    def create_table(
        self,
        name: str,
        columns: Mapping[str, str | pa.DataType] | pa.Schema,
        primary_key: str | Sequence[str],
        *,
        exist_ok: bool = False,
        **options: Any,
    ) -> PostgresTable:
        schema = TableSchema.of(columns, primary_key)
        check_columns(schema, MAX_COLUMNS, MAX_KEY_COLUMNS)
        try:
            self._connection.run(lambda session: stored_tables.create(session, name, schema, options, self._schema))
        except AlreadyExistsError:
            if not exist_ok:
                raise already_exists(name, self.url) from None
            self._check_same(name, schema)
        return PostgresTable(self._connection, name, self._schema)

    def _check_same(self, name: str, schema: TableSchema) -> None:
        """Raise `SchemaError` unless a table has the same columns and key."""
        there = self.table(name).schema
        if (there.columns, there.primary_key) != (schema.columns, schema.primary_key):
            raise other_columns(f"table {name!r}", schema, there)

    def table(self, name: str, columns: Mapping[str, str | pa.DataType] | pa.Schema | None = None) -> PostgresTable:
        table = PostgresTable(self._connection, name, self._schema)
        table.layout()
        return table

    def drop_table(self, name: str, *, missing_ok: bool = False) -> None:
        try:
            canonical = TableName.parse(name).text
            self._connection.run(lambda session: stored_tables.drop(session, canonical, self._schema))
            for stored in stored_tunnels.known(self._database, canonical):
                # A tunnel of several tables goes on without the table.
                if stored.relation:
                    stored_tunnels.drop(self._database, stored)
        except NotFoundError:
            if not missing_ok:
                raise

    def beside(self, table: str, name: str) -> str:
        return TableName(TableName.parse(table).schema, name).text

    def changed_tables(self, table: str, store: str) -> list[str]:
        # A store with another schema for its own tables takes these for those of a user.
        return [TableName.parse(table).text, f"{quoted(self._schema)}.*"] if store == self.id else []

    # -- tunnels ------------------------------------------------------------------------------------------

    def create_tunnel(
        self,
        table: str | Sequence[str],
        name: str,
        kind: str | TunnelKind = TunnelKind.BASE_AND_STREAM,
        *,
        start: str | Start = "latest",
        base_channels: int | None = None,
        **options: Any,
    ) -> PostgresTunnel:
        """Subscribe to a table; see `headrace.ports.Store.create_tunnel`.

        The tunnel has a replication slot and a publication, for which the user needs the attribute REPLICATION, the
        table, and CREATE in the database. The server waits until all open write transactions have ended.

        Args:
            options: ``slot`` and ``publication`` are names of existing ones, which `drop_tunnel` leaves. A stream that
                begins with an existing slot has the changes after the slot's position. ``failover=True`` lets standbys
                keep a copy of the new slot (PostgreSQL 17 and later).
                ``columns`` are the names of the only columns, and ``exclude`` those of columns that are left out;
                ``where`` is the condition of the only rows, in SQL (PostgreSQL 15 and later). ``mask`` has the masks
                of columns by their names: ``null``, ``hash``, ``first(3)``, ``last(4)``, ``constant(…)``; ``mask_key``
                is the secret of hashes, by default that of the other tunnels of the database. ``max_slot_bytes``, such
                as ``"10g"``, limits the log that the server keeps for the slot, and ``at_slot_limit`` says what happens
                at the limit: ``"warn"``, or ``"drop"`` for the slot.
        """
        begin = start if isinstance(start, Start) else Start.parse(start)
        if not isinstance(table, str):
            check_start_of_several(begin)
            return self.create_tunnel_of_tables(table, name, kind, base_channels=base_channels, **options)
        found = self.table(table)
        found.schema.check_keyed()
        tunnel_kind = TunnelKind.parse(kind)
        return self._created(
            [NewTable(found.layout(), found.splits)],
            None,
            name,
            tunnel_kind,
            begin,
            base_channels,
            tunnel_options.parse(options, tunnel_kind),
        )

    def create_tunnel_of_tables(
        self,
        tables: str | Sequence[str],
        name: str,
        kind: str | TunnelKind = TunnelKind.BASE_AND_STREAM,
        *,
        base_channels: int | None = None,
        **options: Any,
    ) -> PostgresTunnel:
        """Subscribe to several tables by one replication slot; see `headrace.ports.Store.create_tunnel_of_tables`.

        Args:
            tables: names and patterns: ``public.*``, ``sales.order_*``, and ``!public.log`` for a table to leave out.
            base_channels: the number of channels for the base data of each table; by its size if None.
            options: see `create_tunnel`.
        """
        tunnel_kind = TunnelKind.parse(kind)
        patterns = table_patterns.parse(tables)
        names = self._connection.run(lambda session: table_patterns.matching(session, patterns, self._schema))
        followed = [self.table(each.text) for each in names]
        keyless = [each for each, table in zip(names, followed, strict=True) if not table.schema.primary_key]
        if keyless:
            leaving_out = [TablePattern(each.schema, each.table, left_out=True) for each in keyless[:3]]
            raise SchemaError(
                "tables of the tunnel have no primary key",
                received=[each.text for each in keyless],
                remedy="ALTER TABLE … ADD PRIMARY KEY (…), or leave them out: " + table_patterns.text_of(leaving_out),
            )
        return self._created(
            [NewTable(each.layout(), each.splits) for each in followed],
            table_patterns.text_of(patterns),
            name,
            tunnel_kind,
            Start(StartKind.LATEST),
            base_channels,
            tunnel_options.parse(options, tunnel_kind, several=True),
        )

    def _created(
        self,
        tables: Sequence[NewTable],
        patterns: str | None,
        name: str,
        kind: TunnelKind,
        start: Start,
        base_channels: int | None,
        options: TunnelOptions,
    ) -> PostgresTunnel:
        stored, small = stored_tunnels.create(
            self._database, tables, patterns, name, kind, start, base_channels, options
        )
        tunnel = self._opened(stored)
        if small:
            try:
                tunnel.read_base_data()
            except BaseException:
                # A tunnel without a user would keep the log of the server. The first error is more important.
                with suppress(HeadraceError):
                    stored_tunnels.drop(self._database, stored)
                raise
        return tunnel

    def tunnel(
        self,
        id_or_name: str,
        table: str | None = None,
        columns: Mapping[str, str | pa.DataType] | pa.Schema | None = None,
    ) -> PostgresTunnel:
        return self._opened(self._find(id_or_name, table))

    def tunnels(self, table: str | None = None) -> list[Tunnel]:
        return [self._opened(stored) for stored in self._known(table)[0]]

    def drop_tunnel(self, id_or_name: str, table: str | None = None, *, missing_ok: bool = False) -> None:
        try:
            stored_tunnels.drop(self._database, self._find(id_or_name, table))
        except NotFoundError:
            if not missing_ok:
                raise

    def _find(self, id_or_name: str, table: str | None) -> StoredTunnel:
        tunnels, canonical = self._known(table)
        return find(tunnels, lambda each: Named(each.id, each.name, each.table), id_or_name, canonical)

    def _known(self, table: str | None) -> tuple[list[StoredTunnel], str | None]:
        """Return the tunnels of a table or of patterns of names, and the name of these as tunnels have it."""
        if table is None:
            return stored_tunnels.known(self._database), None
        tunnels, canonical = list[StoredTunnel](), table
        for canonical in _canonical(table):
            if tunnels := stored_tunnels.known(self._database, canonical):
                break
        return tunnels, canonical

    def _opened(self, stored: StoredTunnel) -> PostgresTunnel:
        if stored.relation:
            table = PostgresTable(self._connection, stored.table, self._schema)

            def one(_: JsonForm | None) -> OneTable:
                publication = stored.publication
                return OneTable(self._database, stored.id, stored.relation, stored.table, stored.selection, publication)

            if stored.selection is None:
                return PostgresTunnel(self._database, table, stored, one)
            selected = SelectedTable(table, lambda: one(PLAIN).schema)
            return PostgresTunnel(self._database, selected, stored, one)

        def follow(form: JsonForm | None) -> ManyTables:
            if form is None:
                return TypedTables(self._database, stored.id, stored.table)
            return ManyTables(self._database, stored.id, stored.table, form)

        def opened(name: str) -> NewTable:
            table = self.table(name)
            return NewTable(table.layout(), table.splits)

        joining = None if stored.slot is None else Joining(self._database, stored, opened)
        several = SeveralTables(
            stored.table,
            lambda: SCHEMA,
            lambda: [replace(FIXED_OPTIONS, pre_images=layout.pre_images) for layout in follow(PLAIN).layouts()],
            lambda name, identity: members.covers(self._database, stored.id, stored.table, name, identity),
            lambda names: table_patterns.without(stored.table, names),
        )
        return PostgresTunnel(self._database, several, stored, follow, joining)

    def diagnose(self, table: str | None = None) -> list[Finding]:
        return diagnosis.diagnose(self._database, self.tunnels, table)

    # -- files, publication, waiting ----------------------------------------------------------------------

    def files(self) -> PostgresFiles:
        return PostgresFiles(self._connection, self._schema)

    def publisher(self, job: str, sink: str = "") -> PostgresPublisher:
        return PostgresPublisher(self._connection, self._schema, job, sink)

    def create_bad_rows(self, table: str) -> None:
        check_keys(self.table(table).layout())
        super().create_bad_rows(table)

    def retry_bad_rows(self, table: str) -> RetriedRows:
        self._check_has_bad_rows(table)
        written, bad = (self.table(name).layout() for name in (table, table_name(table)))
        retried = self._connection.run_bulk(lambda bulk: retry(bulk, self._connection, written, bad))
        failpoints.reach("published")
        return retried

    def wait_for_change(self, timeout: float) -> bool:
        return self._growth.wait(timeout)

    def stays_open(self) -> bool:
        return self._connection.may_idle

    def close(self) -> None:
        self._connection.close()


def _canonical(table: str) -> list[str]:
    """Return the name of a table as tunnels have it, and that of patterns of names, if the text can be both."""
    names = []
    if table_patterns.is_pattern(table):
        # The name of one table can have a comma or a star, too.
        with suppress(NotFoundError):
            names.append(table_patterns.text_of(table_patterns.parse(table)))
    if not names:
        return [TableName.parse(table).text]
    with suppress(NotFoundError):
        names.insert(0, TableName.parse(table).text)
    return names
