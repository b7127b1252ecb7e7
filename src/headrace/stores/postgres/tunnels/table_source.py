"""The table of a tunnel: its columns as a slot sends them, and the rows of a key range in one snapshot."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
from psycopg import sql

from headrace.errors import UnsupportedError
from headrace.stores.postgres.connection import Bulk
from headrace.stores.postgres.schemas import TableLayout
from headrace.stores.postgres.tables.conditions import where
from headrace.stores.postgres.tables.reading import fetch, key_order, selected
from headrace.stores.postgres.tunnels.base_data import ChunkRows
from headrace.stores.postgres.tunnels.meta_tables import Database
from headrace.stores.postgres.tunnels.pages import TableColumns, Visibility, Window, window
from headrace.stores.postgres.tunnels.positions import parse_lsn
from headrace.stores.postgres.tunnels.publications import PublishedTable
from headrace.stores.postgres.unrepresentable import Choices
from headrace.tables.conditions import KeyRange
from headrace.tables.schema import TableSchema
from headrace.types import type_name
from headrace.wire.pgoutput import types
from headrace.wire.pgoutput.messages import Images

_TYPES = """
WITH RECURSIVE based AS (
    SELECT atttypid AS declared, atttypid AS type FROM pg_attribute
    WHERE attrelid = ANY(%s) AND attnum > 0 AND NOT attisdropped
    UNION
    SELECT b.declared, y.typbasetype FROM based b JOIN pg_type y ON y.oid = b.type WHERE y.typtype = 'd'
), elements AS (
    SELECT b.declared, y.typelem AS type FROM based b JOIN pg_type y ON y.oid = b.type
    WHERE y.oid = (SELECT e.typarray FROM pg_type e WHERE e.oid = y.typelem)
    UNION
    SELECT e.declared, y.typbasetype FROM elements e JOIN pg_type y ON y.oid = e.type WHERE y.typtype = 'd'
)
SELECT b.declared, EXISTS (
    SELECT FROM pg_attribute a JOIN pg_index i ON i.indrelid = a.attrelid AND i.indisprimary
    WHERE a.attrelid = ANY(%s) AND a.atttypid = b.declared AND a.attnum = ANY(i.indkey)
), CASE
    WHEN y.typtype = 'e' THEN 'text'::regtype::oid
    WHEN e.typtype = 'e' THEN 'text[]'::regtype::oid
    WHEN e.typarray <> 0 THEN e.typarray
    ELSE b.type END
FROM based b JOIN pg_type y ON y.oid = b.type
LEFT JOIN (elements l JOIN pg_type e ON e.oid = l.type AND e.typtype <> 'd') ON l.declared = b.declared
WHERE y.typtype <> 'd'
"""


class BaseType(NamedTuple):
    """A type with the same format as a declared type, and whether a column of the declared type is in a primary key."""

    oid: int
    in_key: bool


def base_types(database: Database, relations: Sequence[int]) -> Mapping[int, BaseType]:
    """Return the declared types of the columns of tables → types with the same format.

    It is another type only for domains and enums.
    """
    found = database.query(_TYPES, (list(relations), list(relations)))
    return {int(declared): BaseType(int(base), in_key) for declared, in_key, base in found}


def in_binary(declared: Mapping[int, BaseType], choices: Choices) -> bool:
    """Return whether the slot of tables is read in binary format.

    Args:
        declared: the types of their columns.
        choices: the option ``unrepresentable``.
    """
    return not choices.has_texts and all(types.in_binary(base.oid, in_key=base.in_key) for base in declared.values())


class TableSource:
    """The table of a tunnel; see `headrace.stores.postgres.tunnels.followed.Followed`.

    Args:
        current: returns the table as the catalog has it now; the same object if it has not changed.
    """

    def __init__(self, database: Database, current: Callable[[], TableLayout]) -> None:
        self._database = database
        self._current = current
        self._types: Mapping[int, BaseType] | None = None
        self.layout = current()
        """The table at the time of the last `refresh`."""

    def refresh(self) -> bool:
        layout = self._current()
        if layout is self.layout:
            return False
        self.layout, self._types = layout, None
        return True

    @property
    def schema(self) -> TableSchema:
        return self.layout.schema

    @property
    def relations(self) -> Collection[int]:
        return (self.layout.oid,)

    @property
    def binary(self) -> bool:
        return in_binary(self._base_types(), self._database.connection.address.unrepresentable)

    @property
    def published(self) -> Sequence[PublishedTable]:
        return [PublishedTable.of(self.layout)]

    def warnings(self) -> list[str]:
        return []

    def name_of(self, relation: int) -> str:
        return self.layout.name.text

    def columns(self) -> TableColumns:
        """Return the columns as images of the table are decoded."""
        return TableColumns(
            self.layout.name.text,
            self.layout.schema,
            {declared: base.oid for declared, base in self._base_types().items()},
            {each.name: each.shown_as_null for each in self.layout.columns if each.shown_as_null is not None},
        )

    def window(self, images: Sequence[Images], start: int, end: int, in_base: Visibility | None) -> Window:
        return window(images, self.columns(), start, end, in_base)

    def base_rows(self, relation: int, rows: pa.RecordBatch) -> pa.RecordBatch:
        schema = self.layout.schema.changes
        for field in schema:
            if field.name in rows.schema.names and rows.schema.field(field.name).type != field.type:
                raise UnsupportedError(
                    f"base data of table {self.layout.name.text!r} was read with another type of column {field.name!r}",
                    received=type_name(rows.schema.field(field.name).type),
                    valid=type_name(field.type),
                    remedy="create a new tunnel after a change of the type, or with the same option unrepresentable",
                )
        columns = [
            # A column that is newer than the rows is null.
            rows.column(field.name) if field.name in rows.schema.names else pa.nulls(rows.num_rows, field.type)
            for field in schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _base_types(self) -> Mapping[int, BaseType]:
        if self._types is None:
            self._types = base_types(self._database, [self.layout.oid])
        return self._types

    def snapshot(self, relation: int, keys: KeyRange) -> ChunkRows:
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
                cursor.execute("SELECT pg_current_snapshot()::text")
                ((text,),) = cursor.fetchall()
            return text, fetch(bulk, statement, columns, table.schema.changes)

        text, rows = self._database.connection.run_bulk(read, repeatable=True, one_snapshot=True)
        return ChunkRows(text, parse_lsn(lsn), rows.to_batches())
