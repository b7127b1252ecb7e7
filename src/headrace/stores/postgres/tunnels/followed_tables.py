"""Several tables that a tunnel follows as one, see `headrace.stores.postgres.tunnels.json_rows`."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar

import pyarrow as pa

from headrace.errors import NotFoundError
from headrace.model.tables.changes import Changes
from headrace.model.tables.conditions import KeyRange
from headrace.model.tables.json_forms import PLAIN, JsonForm
from headrace.model.tables.schema import TableSchema
from headrace.stores.postgres.connection import Bulk
from headrace.stores.postgres.names import TableName
from headrace.stores.postgres.schemas import TableLayout
from headrace.stores.postgres.tables.table import PostgresTable
from headrace.stores.postgres.tunnels import json_rows
from headrace.stores.postgres.tunnels.base_data import ChunkRows, TableRows
from headrace.stores.postgres.tunnels.followed import FollowedTable, name_when_read, one_snapshot
from headrace.stores.postgres.tunnels.json_rows import JsonTable
from headrace.stores.postgres.tunnels.members import Member, members, others
from headrace.stores.postgres.tunnels.meta_tables import TunnelDatabase
from headrace.stores.postgres.tunnels.publications import PublishedTable
from headrace.stores.postgres.tunnels.seen_definitions import SeenDefinitions
from headrace.stores.postgres.tunnels.snapshots import Snapshots
from headrace.stores.postgres.tunnels.table_images import Ops, TableImages, changes
from headrace.wire.pgoutput.messages import Images, Truncation

_log = logging.getLogger("headrace")


class ManyTables:
    """The tables of a tunnel; see `headrace.stores.postgres.tunnels.followed.Followed`.

    The definition of a table is read when the first of its changes is decoded, because a tunnel can have hundreds.

    Args:
        tunnel: the id of the tunnel.
        patterns: the patterns of the names of its tables.
        form: the form of the rows.
    """

    typed: ClassVar[bool] = False
    """Whether the columns of the tables are columns of the rows."""

    def __init__(self, database: TunnelDatabase, tunnel: str, patterns: str, form: JsonForm = PLAIN) -> None:
        self._database = database
        self._patterns = patterns
        self._form = form
        self._tunnel = tunnel
        self._members = self._read_members()
        # The names when the tables became members, and the current names of those that exist.
        self._names = {relation: each.name for relation, each in self._members.items()}
        self._current: dict[int, TableName] = {}
        self.definitions = SeenDefinitions(database, tunnel, list(self._names), as_columns=self.typed)
        self._tables: dict[int, FollowedTable] = {}
        self._choices = database.connection.address.unrepresentable
        self.refresh()

    @property
    def schema(self) -> TableSchema:
        return json_rows.SCHEMA

    def layouts(self) -> list[TableLayout]:
        """Return the tables that exist."""
        tables = [self._table(relation) for relation in list(self._current)]
        return [table.layout for table in tables if table is not None]

    @property
    def members(self) -> Mapping[int, Member]:
        return self._members

    def are_current(self) -> bool:
        return self._read_members() == self._members

    def _read_members(self) -> dict[int, Member]:
        return self._database.ask(lambda statements: members(statements, self._tunnel))

    def refresh(self) -> bool:
        if not self.definitions.refresh():
            return False
        self._tables = {}
        self._current = {state.relation: state.name for state in self.definitions.states}
        for relation in self._names.keys() - self._current.keys():
            _warn_of_dropped(self._tunnel, relation, self._names[relation])
        return True

    @property
    def relations(self) -> Collection[int]:
        return self._current.keys()

    @property
    def binary(self) -> bool:
        histories = map(self.definitions.history, self._current)
        return not self._choices.has_texts and all(history.now.in_binary for history in histories)

    def pieces(self, images: Sequence[Images]) -> Sequence[TableImages]:
        # All tables first: one that is opened for the first time can make all definitions newer.
        for relation in {each.relation.oid for each in images}:
            self._table(relation)
        tables = [(each, self._table(each.relation.oid)) for each in images]
        return [piece for each, table in tables if table is not None for piece in table.pieces(each)]

    @property
    def published(self) -> Sequence[PublishedTable]:
        # Not those of the last `refresh`: DROP TABLE removes a table from its publication.
        return [
            PublishedTable(state.relation, state.name.text, state.columns) for state in self.definitions.read_states()
        ]

    def check(self) -> None:
        self.definitions.check()

    def values_of_new_columns(self, names: Sequence[str]) -> Mapping[str, Any]:
        """Return nothing. The columns of the rows are always the same, or those of the first read."""
        return {}

    def warnings(self) -> list[str]:
        names = ", ".join(name.text for name in others(self._database, self._tunnel, self._patterns))
        newer = [f"tables that match {self._patterns} have not joined the tunnel: {names}"] if names else []
        return [*self.definitions.warnings(), *newer]

    def name_of(self, relation: int) -> str:
        return self._names.get(relation, str(relation))

    def changes(
        self, pieces: Sequence[TableImages], snapshots: Snapshots | None, truncations: Sequence[Truncation] = ()
    ) -> Changes:
        tables = {relation: self._json_table(relation) for relation in {each.images.relation.oid for each in pieces}}
        existing = {relation: table for relation, table in tables.items() if table is not None}
        pieces = [each for each in pieces if each.images.relation.oid in existing]

        def as_changes(part: TableImages, ops: Ops) -> Changes:
            return json_rows.as_changes(part, ops, existing[part.images.relation.oid])

        return changes(pieces, json_rows.SCHEMA, as_changes, json_rows.truncated, snapshots, truncations)

    def snapshots(self, parts: Sequence[tuple[int, KeyRange]]) -> list[ChunkRows]:
        tables = [(self._table(relation), keys) for relation, keys in parts]
        return one_snapshot(
            self._database, [_no_rows if table is None else table.reading(keys) for table, keys in tables]
        )

    def base_rows(self, relation: int, rows: pa.RecordBatch) -> pa.RecordBatch:
        table, as_json = self._table(relation), self._json_table(relation)
        if table is None or as_json is None:
            return pa.RecordBatch.from_pylist([], self.schema.changes)
        # Changes after the snapshot have this name, too. Rows of an earlier release do not have it.
        name = name_when_read(rows) or TableName.parse(self._names[relation])
        return json_rows.base_rows(name, table.base_columns(rows), rows.num_rows, as_json)

    def _json_table(self, relation: int) -> JsonTable | None:
        table = self._table(relation)
        if table is None:
            return None
        first = self.definitions.history(relation).first
        now = table.layout
        key = {
            name: first.name_of(number, name)
            for name, number in zip(now.primary_key, self.definitions.history(relation).now.key, strict=True)
        }
        return JsonTable(now, self._form, key)

    def _table(self, relation: int) -> FollowedTable | None:
        """Return a table; None if it was dropped."""
        while True:
            table = self._tables.get(relation)
            if table is not None or relation not in self._current:
                return table
            layout = self._layout(self._current[relation])
            if layout is not None and layout.oid == relation:
                history = self.definitions.history(relation)
                table = FollowedTable(self._database, layout, history, whole=self.typed)
            if (table is None or not table.is_consistent) and self.refresh():
                # It was changed, renamed or dropped since the last `refresh`; the next one must say so, too.
                self.definitions.forget()
                continue
            if table is not None:
                self._tables[relation] = table
            return table

    def _layout(self, name: TableName) -> TableLayout | None:
        try:
            return PostgresTable(self._database.connection, name.text, self._database.schema).layout()
        except NotFoundError:
            return None


@cache
def _warn_of_dropped(tunnel: str, relation: int, name: str) -> None:
    """Log, once in a process, that a table of a tunnel was dropped."""
    _log.warning("table %s was dropped: its rows and changes that were not read are left out", name)


def _no_rows(_: Bulk) -> TableRows:
    """Return the rows of a table that was dropped."""
    return TableRows([])
