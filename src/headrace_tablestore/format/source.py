"""Format ``tablestore``: the option names and columns of Tablestore's connector (docs/tablestore.md)."""

from __future__ import annotations

import pyarrow as pa

from headrace.errors import SchemaError, UnsupportedError
from headrace.formats.format import Format
from headrace.formats.source import Source, TableRead, TunnelRead, nullable, splits
from headrace.model.tables.change_columns import Shape
from headrace.model.tables.conditions import KeyRange
from headrace.ports import Store, Table, Tunnel
from headrace_tablestore.format.columns import TablestoreShape, checked_catalog, parse_catalog
from headrace_tablestore.format.location import add_environment, find
from headrace_tablestore.format.options import OPTIONS

TABLESTORE = Format(
    name="tablestore",
    options=OPTIONS,
    add_environment=add_environment,
    environment=("HEADRACE_",),
    find=find,
    row_change_option="writer.row.change.type",
    channel_limit_options=("maxoffsetsperchannel",),
    batch_limit_option="maxoffsetspertrigger",
    tunnel_option="tunnel.id",
    missing_columns_are_null=True,
    schemes_without_files=("tablestore", "tablestore+http", "tablestore+https"),
)


class TablestoreTunnel(TunnelRead):
    def shape(self, tunnel: Tunnel, wanted: pa.Schema | None) -> Shape:
        schema = tunnel.table.schema
        catalog = checked_catalog(parse_catalog(self.source.settings.need("catalog", " for a stream")), schema)
        shape = TablestoreShape(schema, catalog)
        if wanted is not None and wanted.names != shape.schema.names:
            raise SchemaError(
                "a stream of format tablestore has the columns that option catalog makes",
                received=wanted.names,
                valid=shape.schema.names,
                remedy="leave out .schema(…) and select columns instead",
            )
        return shape


class TablestoreTable(TableRead):
    def open(self, store: Store) -> Table:
        return store.table(self.source.settings.need("table.name"), self.source.location.columns)

    def columns(self, table: Table) -> pa.Schema:
        settings = self.source.settings
        if settings.get("search.index.name") or str(settings.get("compute.mode")).lower() == "search":
            raise UnsupportedError(
                "this store has no search index",
                remedy="leave out search.index.name and compute.mode=Search: filters are evaluated by the table scan",
            )
        if not settings.get("catalog"):
            return nullable(table.schema.arrow)
        return checked_catalog(parse_catalog(settings.need("catalog")), table.schema)

    def splits(self, table: Table) -> list[KeyRange]:
        settings = self.source.settings
        return splits(table, most=settings.get("max.split.count"), size=settings.get("split.size.mbs") << 20)


class TablestoreSource(Source):
    format = TABLESTORE
    tunnel_read = TablestoreTunnel
    table_read = TablestoreTable
