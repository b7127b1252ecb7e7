"""What a tunnel follows, as its change log and its base data need it: `Followed`, of which one table is `OneTable`.

A `FollowedTable` has the columns of a table as a slot sends them, and the rows of a key range in one snapshot.
`headrace.stores.postgres.tunnels.followed_tables` has several tables.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa
from psycopg import sql

from headrace.errors import DataLossError, NotFoundError, SchemaError, UnsupportedError
from headrace.model.tables.changes import Changes
from headrace.model.tables.conditions import KeyRange
from headrace.model.tables.schema import TableSchema
from headrace.model.tunnels.masks import Masked
from headrace.model.types import type_name
from headrace.stores.postgres.connection import Bulk, value_of
from headrace.stores.postgres.failures import COPIES, SAFE_FILTER, RefusedValueError
from headrace.stores.postgres.names import TableName
from headrace.stores.postgres.schemas import TableLayout
from headrace.stores.postgres.tables.conditions import where
from headrace.stores.postgres.tables.reading import fetch, key_order, selected
from headrace.stores.postgres.tables.table import PostgresTable
from headrace.stores.postgres.tunnels import selections
from headrace.stores.postgres.tunnels.base_data import ChunkRows, TableRows
from headrace.stores.postgres.tunnels.definitions import CatalogColumn
from headrace.stores.postgres.tunnels.histories import History
from headrace.stores.postgres.tunnels.members import Member
from headrace.stores.postgres.tunnels.meta_tables import TunnelDatabase
from headrace.stores.postgres.tunnels.positions import parse_lsn
from headrace.stores.postgres.tunnels.publications import PublishedTable
from headrace.stores.postgres.tunnels.seen_definitions import SeenDefinitions
from headrace.stores.postgres.tunnels.selections import Selection
from headrace.stores.postgres.tunnels.snapshots import Snapshots, bound_scalar
from headrace.stores.postgres.tunnels.table_images import OldValue, Ops, TableColumns, TableImages, changes, nulls
from headrace.support.cached import cached_property
from headrace.wire.pgoutput.messages import Images, Truncation

# The metadata of a field of base data: the column when it was read, as JSON.
_COLUMN = b"column"
# The metadata of rows of base data: the name of their table when they were read.
_NAME = b"table"
_LEAVES = "SELECT coalesce(string_agg(relid::oid::text, ' '), '') FROM pg_partition_tree($1) WHERE isleaf"


class Followed(Protocol):
    """The tables of a tunnel, and the rows that the tunnel makes of their changes.

    The definitions of the tables are those at the time of the last `refresh`.
    """

    @property
    def definitions(self) -> SeenDefinitions:
        """The definitions of the tables that the tunnel has seen."""

    @property
    def schema(self) -> TableSchema:
        """The columns of the tunnel's rows."""

    @property
    def relations(self) -> Collection[int]:
        """The oids of the tables in the messages of the slot."""

    @property
    def binary(self) -> bool:
        """Whether the decoder reads all columns in binary format."""

    def pieces(self, images: Sequence[Images]) -> Sequence[TableImages]:
        """Return images with their columns in the tables now, in smaller pieces where a definition has changed."""

    @property
    def published(self) -> Sequence[PublishedTable]:
        """The tables as a publication should have them."""

    @property
    def members(self) -> Mapping[int, Member]:
        """The tables of a tunnel of several tables; see `headrace.stores.postgres.tunnels.members`."""

    def are_current(self) -> bool:
        """Return whether no table has joined the tunnel, or had its base data committed, since this was opened."""

    def refresh(self) -> bool:
        """Read the definitions of the tables, if they have changed; return whether they have."""

    def check(self) -> None:
        """Check that the tables can be followed, and that the log has all changes of their rows.

        Raises:
            UnsupportedError: a table cannot be followed any more.
            DataLossError: rows have changed without changes in the log.
        """

    def values_of_new_columns(self, names: Sequence[str]) -> Mapping[str, Any]:
        """See `headrace.ports.Tunnel.values_of_new_columns`."""

    def warnings(self) -> list[str]:
        """Return what `check` fails for, and what is not followed and may be expected to be, in sentences."""

    def name_of(self, relation: int) -> str:
        """Return the name of a table, for errors."""

    def changes(
        self, pieces: Sequence[TableImages], snapshots: Snapshots | None, truncations: Sequence[Truncation] = ()
    ) -> Changes:
        """Return the changes of images; see `headrace.stores.postgres.tunnels.table_images.changes`."""

    def snapshots(self, parts: Sequence[tuple[int, KeyRange]]) -> list[ChunkRows]:
        """Return the rows of key ranges of tables, with one snapshot of all, from one short transaction."""

    def base_rows(self, relation: int, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows of `snapshots`, which may be older than the last change of the table, as rows of the tunnel."""


def one_snapshot(database: TunnelDatabase, reads: Sequence[Callable[[Bulk], TableRows]]) -> list[ChunkRows]:
    """Return the rows of several reads with the snapshot of all of them."""
    # Before the snapshot, so that the changes that follow base data have higher versions.
    ((lsn,),) = database.query("SELECT pg_current_wal_insert_lsn()::text")
    now = time.time()

    def read(bulk: Bulk) -> list[ChunkRows]:
        text = value_of(bulk, "SELECT pg_current_snapshot()::text")
        return [ChunkRows(text, parse_lsn(lsn), now, each(bulk)) for each in reads]

    return database.connection.run_bulk(read, repeatable=True, one_snapshot=True)


def name_when_read(rows: pa.RecordBatch) -> TableName | None:
    """Return the name that the table of base data had when the rows were read; None for rows of earlier releases."""
    name = (rows.schema.metadata or {}).get(_NAME)
    return None if name is None else TableName.parse(name.decode())


class FollowedTable:
    """A table of a tunnel with a definition that does not change, and the former definitions.

    Args:
        layout: the table as the catalog has it.
        history: the versions of its definition that the tunnel has seen.
        whole: whether rows of the tunnel have all columns of the table now, also newer ones.
        selection: what the tunnel leaves out; None if it has all of the table.
        publication: the publication with the condition of the rows.
    """

    def __init__(
        self,
        database: TunnelDatabase,
        layout: TableLayout,
        history: History,
        *,
        whole: bool,
        selection: Selection | None = None,
        publication: str | None = None,
    ) -> None:
        self._database = database
        self._history = history
        self._whole = whole
        self._selection = (selection or Selection()).over(history.versions)
        self._publication = publication
        self.layout = layout
        if selection is not None:
            self.layout = selections.only(layout, [column.name for column in history.now.columns])

    @property
    def is_consistent(self) -> bool:
        """Whether the layout and the last version have the same columns: a table can change between the two reads."""
        known, read = {column.name: column.number for column in self._history.now.columns}, self.layout.numbers
        return all(read.get(name) == known.get(name) for name in [*known, *self.layout.schema.names])

    @cached_property
    def columns(self) -> TableColumns:
        """The columns of the table, for its images."""
        history = self._history
        return TableColumns(
            self.layout.name.text,
            selections.masked_schema(self.layout.schema, self._masked),
            history.base_types,
            {each.name: each.shown_as_null for each in self.layout.columns if each.shown_as_null is not None},
            {name: OldValue(*value) for name, value in history.missing.items()},
            self._masked,
            bytes.fromhex(self._selection.key),
        )

    @cached_property
    def _masked(self) -> Mapping[str, Masked]:
        return self._selection.masked(self.layout, self._history.now)

    def pieces(self, images: Images) -> list[TableImages]:
        """Return images of the table in pieces; see `Followed.pieces`."""
        return [
            TableImages(piece, self.columns, places, problem or (newer if self._whole else None))
            for piece, (places, problem, newer) in self._history.pieces(images)
        ]

    def reading(self, keys: KeyRange) -> Callable[[Bulk], TableRows]:
        """Return a function that reads the rows of a key range in key order, in a transaction."""
        table, masked, selection = self.layout, self._masked, self._selection
        for bound in (keys.low, keys.high):
            for name, value in zip(table.primary_key, bound or (), strict=False):
                bound_scalar(value, table.schema.column(name).type)
        names = [name for name in table.schema.names if name not in masked or masked[name].mask.reads]
        columns = [table.column(name) for name in names]
        stored = pa.schema([table.schema.changes.field(name) for name in names])
        condition: sql.Composable = sql.SQL("")
        if selection.filtered and self._publication is not None:
            name = self._publication
            text = self._database.ask(lambda statements: selections.condition(statements, name, table.oid))
            condition = sql.SQL(" AND ({})").format(sql.SQL(text))
        statement = sql.SQL("SELECT {} FROM {} t WHERE {}{} ORDER BY {}").format(
            selected(table, names), table.name.sql, where(table, keys, ()), condition, key_order(table)
        )
        now = {column.name: column for column in self._history.now.columns}
        schema = pa.schema(
            [field.with_metadata({_COLUMN: json.dumps(now[field.name])}) for field in self.columns.schema.changes],
            {_NAME: table.name.text},
        )

        def read(bulk: Bulk) -> TableRows:
            rows = [self._hidden(batch, schema) for batch in fetch(bulk, statement, columns, stored).to_batches()]
            # After the rows: the partitions that they are from stay until the end of the transaction.
            leaves = value_of(bulk, _LEAVES, table.oid) if table.partitioned else ""
            return TableRows(rows, [int(oid) for oid in leaves.split()])

        return read

    def _hidden(self, rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
        """Return rows with masked values, before they are saved."""

        def values(name: str) -> pa.Array:
            if name not in self._masked:
                return rows.column(name)
            return self.columns.hidden(name, lambda _: rows.column(name), rows.num_rows)

        columns = [values(name) for name in schema.names]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def base_columns(self, rows: pa.RecordBatch) -> dict[str, tuple[str, pa.Array]]:
        """Return columns of rows that `reading` has read: by their present names, with their former names.

        Raises:
            DataLossError: the rows are no rows of the table now.
        """
        first = {column.name: column for column in self._history.first.columns}
        read: dict[int, tuple[CatalogColumn, pa.Array]] = {}
        for place, field in enumerate(rows.schema):
            # Without metadata, the rows are those of an earlier release.
            described = (field.metadata or {}).get(_COLUMN)
            column = first.get(field.name) if described is None else CatalogColumn(*json.loads(described))
            if column is not None:
                read[column.number] = column, rows.column(place)
        problem = self._history.changed({number: column for number, (column, _) in read.items()})
        if self._whole and problem is None:
            problem = self._history.newer(read)
        if problem is not None:
            raise DataLossError(
                f"rows of base data cannot be read as rows of table {self.layout.name.text!r} any more",
                received=problem,
                remedy="create a new tunnel of kind BaseAndStream, or continue without these rows with "
                "failOnDataLoss=false" + COPIES,
            )
        columns = {}
        for now in self._history.now.columns:
            if now.number in read:
                column, values = read[now.number]
                data_type = self.columns.schema.changes.field(now.name).type
                if values.type != data_type and (column.type, column.modifier) == (now.type, now.modifier):
                    raise UnsupportedError(
                        f"base data of table {self.layout.name.text!r} was read with another type of column "
                        f"{now.name!r}",
                        received=type_name(values.type),
                        valid=type_name(data_type),
                        remedy="create a new tunnel, or open the store with the same option unrepresentable",
                    )
                columns[now.name] = column.name, values if values.type == data_type else values.cast(data_type)
        return columns

    def whole_rows(self, rows: pa.RecordBatch, schema: TableSchema) -> pa.RecordBatch:
        """Return rows that `reading` has read, with the columns that rows of the tunnel have now."""
        read = self.base_columns(rows)
        columns = [read[name][1] if name in read else self.columns.older(name, rows.num_rows) for name in schema.names]
        return pa.RecordBatch.from_arrays(columns, schema=schema.changes)


class OneTable:
    """The table of a tunnel of one table; see `Followed`.

    Args:
        tunnel: the id of the tunnel.
        relation: the oid of the table.
        name: its name when the tunnel was created.
        selection: what the tunnel leaves out; None if it has all of the table.
        publication: the publication of the tunnel; None without a stream.
    """

    def __init__(
        self,
        database: TunnelDatabase,
        tunnel: str,
        relation: int,
        name: str,
        selection: Selection | None = None,
        publication: str | None = None,
    ) -> None:
        self._database = database
        self._relation = relation
        self._name = TableName.parse(name)
        self._selection = selection
        self._publication = publication
        part = None if selection is None else selection.definition
        self.definitions = SeenDefinitions(database, tunnel, [relation], as_columns=True, part=part)
        self._opened: FollowedTable | None = None
        self._has_changed = False
        self.refresh()

    @property
    def members(self) -> Mapping[int, Member]:
        return {}

    def are_current(self) -> bool:
        return True

    def refresh(self) -> bool:
        if not self.definitions.refresh() and not self._has_changed:
            return False
        self._opened, self._has_changed = None, False
        return True

    @property
    def schema(self) -> TableSchema:
        return self._table.columns.schema

    @property
    def relations(self) -> Collection[int]:
        return (self._relation,)

    @property
    def binary(self) -> bool:
        texts = self._database.connection.address.unrepresentable.has_texts
        return not texts and self.definitions.history(self._relation).now.in_binary

    def pieces(self, images: Sequence[Images]) -> Sequence[TableImages]:
        return [piece for each in images for piece in self._table.pieces(each)]

    @property
    def published(self) -> Sequence[PublishedTable]:
        filtered = self._selection is not None and self._selection.filtered
        return [PublishedTable.of(self._table.layout, filtered=filtered)]

    def check(self) -> None:
        self._check_name()
        self.definitions.check()

    def values_of_new_columns(self, names: Sequence[str]) -> Mapping[str, Any]:
        history, table = self.definitions.history(self._relation), self._name.text
        numbers = [column.number for column in history.now.columns if column.name not in names]
        if (problem := history.newer(numbers)) is not None:
            raise SchemaError(
                f"rows of table {table!r} that were read before have unknown values in a new column",
                received=problem,
                remedy="drop the target, and start with a new checkpoint location: all rows are read again",
            )
        values = {name: self._table.columns.older(name, 1)[0].as_py() for name in names}
        return {name: value for name, value in values.items() if value is not None}

    def warnings(self) -> list[str]:
        try:
            self._check_name()
        except (NotFoundError, DataLossError) as error:
            return [f"{error.problem}: {error.remedy}"]
        return self.definitions.warnings()

    def name_of(self, relation: int) -> str:
        return self._name.text

    def changes(
        self, pieces: Sequence[TableImages], snapshots: Snapshots | None, truncations: Sequence[Truncation] = ()
    ) -> Changes:
        schema = self.schema

        def as_changes(part: TableImages, ops: Ops) -> Changes:
            return part.as_changes(schema, ops)

        return changes(pieces, schema, as_changes, lambda _: nulls(schema), snapshots, truncations)

    def snapshots(self, parts: Sequence[tuple[int, KeyRange]]) -> list[ChunkRows]:
        try:
            return one_snapshot(self._database, [self._table.reading(keys) for _, keys in parts])
        except RefusedValueError as error:
            if self._selection is None or not self._selection.filtered:
                raise
            raise UnsupportedError(
                f"the filter of rows of a tunnel fails for a row of table {self._name.text!r}",
                received=error.message,
                remedy=f"create a new tunnel. {SAFE_FILTER}",
            ) from None

    def base_rows(self, relation: int, rows: pa.RecordBatch) -> pa.RecordBatch:
        return self._table.whole_rows(rows, self.schema)

    @property
    def _table(self) -> FollowedTable:
        opened = self._opened
        while opened is None:
            self._check_name()
            layout = PostgresTable(self._database.connection, self._name.text, self._database.schema).layout()
            if layout.oid != self._relation:
                raise self._replaced(None)
            opened = FollowedTable(
                self._database,
                layout,
                self.definitions.history(self._relation),
                whole=True,
                selection=self._selection,
                publication=self._publication,
            )
            if not opened.is_consistent and self.definitions.refresh():
                # The table has changed since the last `refresh`; the next one must say so, too.
                opened, self._has_changed = None, True
        self._opened = opened
        return opened

    def _check_name(self) -> None:
        """Raise an error unless the table has its name."""
        state = self.definitions.state(self._relation)
        if state is not None and state.name == self._name:
            return
        other = self._database.run(
            lambda statements: statements.first(
                "SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
                " WHERE n.nspname = %s AND c.relname = %s",
                (self._name.schema, self._name.table),
            )
        )
        if other is not None:
            raise self._replaced(None if state is None else state.name)
        if state is None:
            raise NotFoundError(
                "the table of the tunnel was dropped",
                received=repr(self._name.text),
                remedy="drop the tunnel: its slot keeps the log of the server",
            )
        raise NotFoundError(
            "the table of the tunnel has another name",
            received=f"{state.name.text!r}, formerly {self._name.text!r}",
            remedy="give the table its name again, or drop the tunnel, and create a new one for the new name",
        )

    def _replaced(self, now: TableName | None) -> DataLossError:
        return DataLossError(
            f"table {self._name.text!r} is another table than when the tunnel was created",
            received="that table was dropped" if now is None else f"that table is {now.text!r} now",
            remedy="drop the tunnel, and create a new one of kind BaseAndStream"
            + ("" if now is None else "; or give that table its name again"),
        )
