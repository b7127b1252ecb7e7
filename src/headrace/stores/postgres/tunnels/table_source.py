"""The table of a tunnel: its columns as a slot sends them, and the rows of a key range in one snapshot."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from psycopg import sql

from headrace.cached import cached_property
from headrace.stores.postgres.connection import Bulk
from headrace.stores.postgres.schemas import TableLayout
from headrace.stores.postgres.tables.conditions import where
from headrace.stores.postgres.tables.reading import fetch, key_order, selected
from headrace.stores.postgres.tunnels.base_data import ChunkRows
from headrace.stores.postgres.tunnels.meta_tables import Database
from headrace.stores.postgres.tunnels.pages import TableColumns
from headrace.stores.postgres.tunnels.positions import parse_lsn
from headrace.tables.conditions import KeyRange
from headrace.wire.pgoutput import types

_TYPES = """
WITH RECURSIVE based AS (
    SELECT atttypid AS declared, atttypid AS type FROM pg_attribute
    WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped
    UNION
    SELECT b.declared, y.typbasetype FROM based b JOIN pg_type y ON y.oid = b.type WHERE y.typtype = 'd'
)
SELECT b.declared, CASE
    WHEN y.typtype = 'e' THEN 'text'::regtype::oid
    WHEN e.typtype = 'e' THEN 'text[]'::regtype::oid
    ELSE b.type END
FROM based b JOIN pg_type y ON y.oid = b.type
LEFT JOIN pg_type e ON e.oid = y.typelem AND y.typlen = -1
WHERE y.typtype <> 'd'
"""


class TableSource:
    """The table of a tunnel.

    Args:
        layout: the table in the catalog.
    """

    def __init__(self, database: Database, layout: TableLayout) -> None:
        self._database = database
        self.layout = layout

    @cached_property
    def base_types(self) -> Mapping[int, int]:
        """The declared types of the columns → types with the same format: of domains and enums, another one."""
        found = self._database.query(_TYPES, (self.layout.oid,))
        return {int(declared): int(base) for declared, base in found}

    @property
    def binary(self) -> bool:
        """Whether the decoder reads all columns in binary format."""
        return all(map(types.in_binary, self.base_types.values()))

    def columns(self) -> TableColumns:
        """Return the columns as images of the table are decoded."""
        return TableColumns(self.layout.name.text, self.layout.schema, self.base_types)

    def snapshot(self, keys: KeyRange) -> ChunkRows:
        """Return the rows of a key range in key order, with their snapshot, from one short transaction."""
        table = self.layout
        names = table.schema.names
        statement = sql.SQL("SELECT {} FROM {} t WHERE {} ORDER BY {}").format(
            selected(table, names), table.name.sql, where(table, keys, ()), key_order(table)
        )
        columns = [table.column(name) for name in names]
        # Before the snapshot, so that the changes that follow base data have higher versions.
        ((lsn,),) = self._database.query("SELECT pg_current_wal_insert_lsn()::text")

        def read(bulk: Bulk) -> tuple[str, pa.Table]:
            with bulk.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                cursor.execute("SELECT pg_current_snapshot()::text")
                ((text,),) = cursor.fetchall()
            return text, fetch(bulk, statement, columns, table.schema.changes)

        text, rows = self._database.connection.run_bulk(read, repeatable=True)
        return ChunkRows(text, parse_lsn(lsn), rows.to_batches())
