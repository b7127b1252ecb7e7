"""`PostgresTable`: a table of a PostgreSQL database."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from psycopg import sql

from headrace.errors import UnsupportedError
from headrace.model.tables.alterations import Alteration
from headrace.model.tables.changes import RowChange
from headrace.model.tables.column_limits import check_columns
from headrace.model.tables.conditions import KeyRange, Predicate, Where, parse_where
from headrace.model.tables.options import TableOptions
from headrace.model.tables.schema import KeyValue, TableSchema
from headrace.ports import Rows, Table, TableDescription, TableSize, TrimReport
from headrace.ports.arguments import checked_prefixes
from headrace.rows import check_not_null, check_sets, to_arrow
from headrace.rows.by_position import aligned, last_rows
from headrace.rows.conditions import typed_range, whole_key
from headrace.stores.postgres.connection import execute
from headrace.stores.postgres.failures import RefusedValueError
from headrace.stores.postgres.names import TableName
from headrace.stores.postgres.schemas import TableLayout
from headrace.stores.postgres.tables import alterations, stored_tables
from headrace.stores.postgres.tables.alterations import MAX_COLUMNS, MAX_KEY_COLUMNS, AlteredTable
from headrace.stores.postgres.tables.attempts import Care, attempts
from headrace.stores.postgres.tables.reading import fetch, scan, selected, splits
from headrace.stores.postgres.tables.refused_values import refusal
from headrace.stores.postgres.tables.statements import STAGE, STAGED, Given, same_key
from headrace.stores.postgres.tables.writing import apply, check_values, committed_version, stage, without_nul

if TYPE_CHECKING:
    import psycopg

    from headrace.stores.postgres.connection import Bulk, PostgresConnection

# The limit, for a database with many tables.
_MOST_LAYOUTS = 1000


class PostgresTable(Table):
    """A table of a database, by its name.

    Each call looks whether the definition has changed in the catalog, because others may change it.

    Args:
        connection: the connections to the database.
        name: ``schema.table``, or the name of a table in schema ``public``.
        own: the schema of headrace's own tables.

    Attributes:
        name: the name in the store, which the store of a lake changes.
    """

    def __init__(self, connection: PostgresConnection, name: str, own: str) -> None:
        self._parsed = TableName.parse(name)
        self.name = self._parsed.text
        self._connection = connection
        self._own = own

    def __repr__(self) -> str:
        return f"PostgresTable({self.name!r})"

    @property
    def schema(self) -> TableSchema:
        return self.layout().schema

    def identity(self) -> str:
        return str(self.layout().oid)

    def covers(self, name: str, identity: str) -> bool:
        relation = self.layout().oid
        return bool(identity) and self._connection.ask(
            lambda session: stored_tables.overlap(session, [relation], int(identity))
        )

    def layout(self) -> TableLayout:
        """Return the table as the catalog has it; see `headrace.stores.postgres.tables.stored_tables.layout`."""
        layouts = self._connection.layouts
        name = self._parsed.text
        known, state = layouts.get(name), stored_tables.state(self._connection, self._parsed)
        if known is not None and state is not None and known[0] == state:
            last: TableLayout = known[1]
            return last
        # The state is older than the layout: a change between the two is noticed at the next call.
        found = self._connection.run(
            lambda session: stored_tables.layout(session, name, self._own, self._connection.address.unrepresentable),
            repeatable=True,
        )
        if len(layouts) >= _MOST_LAYOUTS:
            layouts.clear()
        layouts[name] = state, found
        return found

    # -- writing ----------------------------------------------------------------------------------------

    def put(self, rows: Rows) -> int:
        """Write whole rows; see `headrace.ports.Table.put`.

        Missing columns become null. A missing NOT NULL column with a default value or an identity has its default in a
        new row, and keeps its value in an existing one. Generated columns are computed by the server.

        Returns:
            A position in the write-ahead log after the commit: changes of this write have a smaller commit version,
            and changes of transactions that begin to commit later have this version or a greater one.
        """
        layout = self.layout()
        typed = to_arrow(_without_generated(rows, layout), layout.written, columns="all")
        return self._write(layout, RowChange.PUT, typed)

    def update(self, rows: Rows, *, keep_nulls: bool = True) -> int:
        layout = self.layout()
        typed = to_arrow(rows, layout.written, columns="given")
        check_sets(typed, layout.written)
        if keep_nulls:
            check_not_null(typed, layout.written)
        return self._write(layout, RowChange.UPDATE, typed, keep_nulls=keep_nulls)

    def delete(self, keys: Rows) -> int:
        layout = self.layout()
        return self._write(layout, RowChange.DELETE, to_arrow(keys, layout.written, columns="keys"))

    def _write(self, layout: TableLayout, change: RowChange, rows: pa.Table, *, keep_nulls: bool = True) -> int:
        check_values(rows, layout)
        path = self._connection.server.writing_path

        def write(care: Care) -> None:
            self._connection.run_bulk(
                lambda bulk: apply(bulk, layout, change, rows, path, keep_nulls=keep_nulls, care=care)
            )

        try:
            attempts(write, rows.num_rows)
        except RefusedValueError as error:
            raise refusal(self._connection, layout, rows) or error from None
        return self._connection.run_bulk(committed_version, repeatable=True)

    # -- reading ----------------------------------------------------------------------------------------

    def get(self, key: Mapping[str, KeyValue], columns: Sequence[str] | None = None) -> dict[str, Any] | None:
        layout = self.layout()
        schema = layout.schema
        schema.check_keyed()
        values = whole_key(schema, key)
        names = [schema.column(name).name for name in (schema.names if columns is None else columns)]
        equal = [Predicate(name, "=", value) for name, value in zip(schema.primary_key, values, strict=True)]
        rows = scan(self._connection, layout, names, equal, KeyRange(), None, 1).read_all().to_pylist()
        return rows[0] if rows else None

    def get_many(self, keys: Rows, columns: Sequence[str] | None = None) -> pa.Table:
        layout = self.layout()
        fields = layout.schema.nullable(columns)
        typed = to_arrow(keys, layout.schema, columns="keys")
        names = list(dict.fromkeys([*layout.primary_key, *fields.names]))
        wanted = layout.schema.nullable(names)
        if not typed.num_rows:
            return fields.empty_table()
        unique = without_nul(typed.take(pa.array(last_rows(typed, layout.primary_key))))
        rows = self._of_staged(layout, unique, wanted)
        return aligned(typed, rows, layout.primary_key, fields)

    def get_by_prefix(self, prefixes: pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
        layout = self.layout()
        names = list(layout.schema.names if columns is None else columns)
        wanted = pa.schema([layout.schema.arrow.field(name) for name in names])
        prefixes = checked_prefixes(prefixes, layout.schema)
        if not prefixes.num_rows:
            return wanted.empty_table()
        return self._of_staged(layout, without_nul(prefixes), wanted)

    def _of_staged(self, layout: TableLayout, keys: pa.Table, wanted: pa.Schema) -> pa.Table:
        """Return the rows of the table with some keys, or with some beginnings of keys."""
        return self._connection.run_bulk(lambda bulk: rows_of_keys(bulk, layout, keys, wanted), repeatable=True)

    def scan(
        self,
        columns: Sequence[str] | None = None,
        where: Where | None = None,
        *,
        keys: KeyRange | None = None,
        limit: int | None = None,
        batch_rows: int = 65536,
        read_ahead: bool = True,
    ) -> pa.RecordBatchReader:
        layout = self.layout()
        names = [layout.schema.column(name).name for name in (layout.schema.names if columns is None else columns)]
        bounds = typed_range(layout.schema, keys or KeyRange())
        return scan(self._connection, layout, names, parse_where(where), bounds, limit, batch_rows)

    def splits(self, count: int, *, size: int | None = None) -> list[KeyRange]:
        return splits(self._connection, self.layout(), count, size)

    # -- definition --------------------------------------------------------------------------------------

    def add_columns(self, columns: Mapping[str, str | pa.DataType]) -> None:
        layout = self.layout()
        wider = layout.schema.with_columns(columns)
        check_columns(wider, MAX_COLUMNS, MAX_KEY_COLUMNS)
        added = wider.columns[len(layout.columns) :]
        self._connection.run(lambda session: stored_tables.add_columns(session, layout, added, self._own))

    def alter(self, alteration: Alteration) -> None:
        statements = alterations.statements(self.layout(), alteration, self._own)

        def run(session: psycopg.Connection) -> None:
            stored_tables.create_types(session, alteration.added, self._own)
            stored_tables.limit_lock_wait(session)
            for each in statements:
                session.execute(each)

        self._connection.run(run)

    def altered(self, alteration: Alteration) -> AlteredTable:
        """Return changes of the columns for a transaction of ADBC, and create what new columns need besides."""
        self._connection.run(lambda session: stored_tables.create_types(session, alteration.added, self._own))
        return AlteredTable(self.layout(), alteration, self._own)

    def column_numbers(self) -> Mapping[str, int]:
        return self.layout().numbers

    def numbered_schema(self) -> tuple[TableSchema, Mapping[str, int]]:
        layout = self.layout()
        return layout.schema, layout.numbers

    def set_options(self, **changes: Any) -> TableOptions:
        """Change ``pre_images``, which is the replica identity of the table: FULL or DEFAULT."""
        pre_images = stored_tables.check_changes(changes)
        layout = self.layout()
        if pre_images is not None and pre_images != layout.pre_images:
            self._connection.run(lambda session: stored_tables.set_pre_images(session, layout, pre_images))
        return self.describe().options

    def size(self) -> TableSize:
        """Return the rows by the server's statistics, and the bytes on its disk with indexes."""
        layout = self.layout()
        rows, size = self._connection.run(lambda session: stored_tables.statistics(session, layout), repeatable=True)
        return TableSize(rows, size, rows_exact=False)

    def describe(self) -> TableDescription:
        """Describe the table. PostgreSQL has only an estimate of the number of rows, so it is None."""
        layout = self.layout()
        followed = layout.logged and bool(layout.primary_key)
        options = dataclasses.replace(stored_tables.FIXED_OPTIONS, pre_images=layout.pre_images, change_log=followed)
        return TableDescription(name=self.name, schema=layout.schema, options=options, rows=None, partitions=())

    def trim(self, *, before: Mapping[int, int] | None = None, cut_tunnels: bool = False) -> TrimReport:
        raise UnsupportedError(
            "PostgreSQL removes changes from its write-ahead log itself, when all slots have read them",
            received=repr(self.name),
        )


def rows_of_keys(
    bulk: Bulk, layout: TableLayout, keys: pa.Table, wanted: pa.Schema, *, locked: bool = False
) -> pa.Table:
    """Return the rows of a table with some keys, or with some beginnings of keys, in a transaction of ADBC.

    Args:
        locked: lock the rows until the end of the transaction, by a connection of `headrace.stores.postgres.guarded`,
            whose statements have no parameters.
    """
    few = None if locked else Given.of(keys)
    # The planner knows nothing of a table that was just filled: it would read all of it for a few beginnings of keys.
    by_index = not locked and keys.num_columns < len(layout.primary_key)
    joined = "{} CROSS JOIN LATERAL (SELECT * FROM {} t WHERE {} OFFSET 0) t" if by_index else "{} JOIN {} t ON {}"
    statement = sql.SQL("SELECT {} FROM " + joined + "{}").format(
        selected(layout, wanted.names),
        STAGED if few is None else few.source,
        layout.name.sql,
        same_key([layout.column(name) for name in keys.column_names]),
        sql.SQL(" FOR UPDATE OF t" if locked else ""),
    )
    columns = [layout.column(name) for name in wanted.names]
    if few is not None:
        return fetch(bulk, statement, columns, wanted, few.parameters).combine_chunks()
    stage(bulk, keys)
    rows = fetch(bulk, statement, columns, wanted)
    execute(bulk, f'DROP TABLE pg_temp."{STAGE}"')
    return rows.combine_chunks()


def _without_generated(rows: Rows, layout: TableLayout) -> Rows:
    """Return rows without their values of generated columns: rows that were read can be written again."""
    generated = {column.name for column in layout.columns if column.generated}
    if not generated:
        return rows
    if isinstance(rows, pa.Table | pa.RecordBatch):
        return rows.select([name for name in rows.column_names if name not in generated])
    if isinstance(rows, Mapping):
        return {name: value for name, value in rows.items() if name not in generated}
    if not isinstance(rows, Sequence):
        return rows[[name for name in rows.columns if name not in generated]]
    return [{name: value for name, value in row.items() if name not in generated} for row in rows]
