"""Several tables that a tunnel follows as one, see `headrace.stores.postgres.tunnels.json_rows`."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from functools import partial

import pyarrow as pa

from headrace.errors import NotFoundError
from headrace.stores.postgres.names import TableName
from headrace.stores.postgres.schemas import TableLayout
from headrace.stores.postgres.tables import stored_tables
from headrace.stores.postgres.tunnels import json_rows
from headrace.stores.postgres.tunnels.base_data import ChunkRows
from headrace.stores.postgres.tunnels.json_rows import JsonTable
from headrace.stores.postgres.tunnels.meta_tables import Database
from headrace.stores.postgres.tunnels.pages import Visibility, Window
from headrace.stores.postgres.tunnels.publications import PublishedTable
from headrace.stores.postgres.tunnels.table_source import TableSource
from headrace.tables.conditions import KeyRange
from headrace.tables.json_forms import PLAIN, JsonForm
from headrace.tables.schema import TableSchema
from headrace.wire.pgoutput.messages import Images

_log = logging.getLogger("headrace")
# One row for each table; a change of a table or column is a new row of the catalog.
_STATES = """
SELECT t.relation::bigint, t.table_name, n.nspname::text, c.relname::text, c.xmin::text, i.indexrelid::bigint,
    (SELECT string_agg(a.xmin::text, ' ' ORDER BY a.attnum) FROM pg_attribute a WHERE a.attrelid = c.oid)
FROM headrace.tunnel_table t
LEFT JOIN pg_class c ON c.oid = t.relation
LEFT JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary
WHERE t.tunnel = %s ORDER BY t.relation
"""


def _same(layout: TableLayout) -> TableLayout:
    return layout


class TablesSource:
    """The tables of a tunnel; see `headrace.stores.postgres.tunnels.followed.Followed`.

    Args:
        tunnel: the id of the tunnel.
        form: the form of the rows.
    """

    schema: TableSchema = json_rows.SCHEMA

    def __init__(self, database: Database, tunnel: str, form: JsonForm = PLAIN) -> None:
        self._database = database
        self._tunnel = tunnel
        self._form = form
        self._states: list[tuple[object, ...]] | None = None
        self._names: dict[int, str] = {}
        self._sources: dict[int, TableSource] = {}
        self._known: dict[int, JsonTable] | None = None
        self.refresh()

    def layouts(self) -> list[TableLayout]:
        """Return the tables that exist."""
        return [source.layout for source in self._sources.values()]

    def refresh(self) -> bool:
        states = self._database.query(_STATES, (self._tunnel,))
        if states == self._states:
            return False
        sources = {}
        for relation, name, schema, table, *_ in states:
            if table is None:
                _log.warning("table %s was dropped: its changes that were not read are left out", name)
                continue
            layout = self._layout(TableName(schema, table))
            sources[int(relation)] = TableSource(self._database, partial(_same, layout))
        # The states are older than the layouts: a change between the two is noticed at the next call.
        self._states, self._sources, self._known = states, sources, None
        self._names = {int(relation): name for relation, name, *_ in states}
        return True

    @property
    def relations(self) -> Collection[int]:
        return self._sources.keys()

    @property
    def binary(self) -> bool:
        return all(source.binary for source in self._sources.values())

    @property
    def published(self) -> Sequence[PublishedTable]:
        return [PublishedTable.of(layout) for layout in self.layouts()]

    def name_of(self, relation: int) -> str:
        return self._names.get(relation, str(relation))

    def window(self, images: Sequence[Images], start: int, end: int, in_base: Visibility | None) -> Window:
        return json_rows.window(images, self._tables(), start, end, in_base)

    def snapshot(self, relation: int, keys: KeyRange) -> ChunkRows:
        return self._source(relation).snapshot(relation, keys)

    def base_rows(self, relation: int, rows: pa.RecordBatch) -> pa.RecordBatch:
        self._source(relation)
        return json_rows.base_rows(rows, self._tables()[relation])

    def _layout(self, name: TableName) -> TableLayout:
        return self._database.run(
            lambda statements: stored_tables.layout(statements.connection, name.text, self._database.schema)
        )

    def _tables(self) -> Mapping[int, JsonTable]:
        if self._known is None:
            self._known = {
                relation: JsonTable(source.layout, source.columns(), self._form)
                for relation, source in self._sources.items()
            }
        return self._known

    def _source(self, relation: int) -> TableSource:
        if relation not in self._sources:
            raise NotFoundError(
                "a table was dropped before its base data was read",
                received=self.name_of(relation),
                remedy="create a new tunnel",
            )
        return self._sources[relation]
