"""`EmbeddedTable`: a table of the embedded store."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import apsw
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import NotFoundError, OptionError, SchemaError
from headrace.model.tables.alterations import Alteration
from headrace.model.tables.changes import RowChange
from headrace.model.tables.conditions import KeyRange, Where, parse_where
from headrace.model.tables.options import TableOptions
from headrace.model.tables.schema import KeyValue, TableSchema, parse_columns
from headrace.ports import Rows, Table, TableDescription, TableSize, TrimReport
from headrace.rows import check_not_null, check_sets, to_arrow
from headrace.rows.conditions import typed_key, typed_range, whole_key
from headrace.stores.embedded import catalog
from headrace.stores.embedded.connection import Database, stamp
from headrace.stores.embedded.tables import alterations, change_log, partitions, retention
from headrace.stores.embedded.tables.keys import stored_key
from headrace.stores.embedded.tables.lookups import first_rows, get_by_prefix, get_many
from headrace.stores.embedded.tables.physical import PhysicalTable
from headrace.stores.embedded.tables.physical import Rows as TableRows
from headrace.stores.embedded.tables.reading import scan
from headrace.stores.embedded.tables.stored_tables import save_schema, table_options
from headrace.stores.embedded.tables.writing import Prepared, Writer, one_batch

_COLUMNS_OF: dict[RowChange, Any] = {
    RowChange.PUT: "all",
    RowChange.REPLACE_ALL: "all",
    RowChange.UPDATE: "given",
    RowChange.DELETE: "keys",
}


class _State(NamedTuple):
    """The state of a table in a transaction."""

    table: PhysicalTable
    options: TableOptions
    options_text: str


class EmbeddedTable(Table):
    """A table of the embedded store, by its name.

    A handle caches the schema, and checks in each transaction whether the schema has changed.
    """

    def __init__(self, database: Database, name: str) -> None:
        self.name = name
        self._database = database
        self._state: _State | None = None

    def __repr__(self) -> str:
        return f"EmbeddedTable({self.name!r})"

    @property
    def database(self) -> Database:
        """The database of the store, for transactions with `fetch` and `apply`."""
        return self._database

    @property
    def schema(self) -> TableSchema:
        return self._load_now().table.schema

    def identity(self) -> str:
        # The numbers of dropped objects are not used again.
        return str(self._load_now().table.object_id)

    # -- writing ----------------------------------------------------------------------------------------

    def put(self, rows: Rows) -> int:
        return self._write(RowChange.PUT, rows)

    def update(self, rows: Rows, *, keep_nulls: bool = True) -> int:
        return self._write(RowChange.UPDATE, rows, keep_nulls=keep_nulls)

    def delete(self, keys: Rows) -> int:
        return self._write(RowChange.DELETE, keys)

    def prepare(self, change: RowChange, rows: Rows, *, keep_nulls: bool = False) -> Prepared:
        """Check, sort and encode rows for `apply`, without a lock."""
        table = self._load_now().table
        return _prepared(table, change, rows, keep_nulls=keep_nulls)

    def apply(
        self, connection: apsw.Connection, change: RowChange, rows: Rows | Prepared, version: int, ts: int
    ) -> None:
        """Apply rows inside a write transaction of the caller.

        Args:
            connection: the connection of the transaction.
            change: the kind of change. UPDATE sets the cells that are not null. REPLACE_ALL logs only differences.
            rows: rows, or the result of `prepare` before the transaction.
            version: the version of the commit; ``ts`` is its timestamp (µs since 1970). Both come from `stamp`.
        """
        state = self._load(connection)
        if not isinstance(rows, Prepared):
            rows = _prepared(state.table, change, rows)
        elif rows.table.identity != state.table.identity:
            # After `prepare`, columns were added, or the table was dropped and created again.
            rows = _prepared(state.table, change, rows.rows, keep_nulls=rows.keep_nulls)
        Writer(connection, state.table, state.options, version, ts).apply(rows)

    def _write(self, change: RowChange, rows: Rows, *, keep_nulls: bool = False) -> int:
        prepared = self.prepare(change, rows, keep_nulls=keep_nulls)
        if change is RowChange.UPDATE:
            check_sets(prepared.rows, prepared.table.schema)
        if prepared.rows.num_rows == 0:
            ((version,),) = self._database.query("SELECT version FROM clock")
            return int(version)
        with self._database.write() as connection:
            version, ts = stamp(connection)
            self.apply(connection, change, prepared, version, ts)
        return version

    # -- reading ----------------------------------------------------------------------------------------

    def get(self, key: Mapping[str, KeyValue], columns: Sequence[str] | None = None) -> dict[str, Any] | None:
        with self._database.read() as connection:
            table = self._load(connection).table
            schema = table.schema
            values = whole_key(schema, key)
            names = [schema.column(name).name for name in (schema.names if columns is None else columns)]
            stored = stored_key(table.codec.key_types, values)
            rows, present = table.fetch(connection, [[value] for value in stored])
        if not present[0]:
            return None
        row: dict[str, Any] = rows.select(names).to_pylist()[0]
        return row

    def get_many(self, keys: Rows, columns: Sequence[str] | None = None) -> pa.Table:
        with self._database.read() as connection:
            table = self._load(connection).table
            typed = to_arrow(keys, table.schema, columns="keys")
            return get_many(connection, table, typed, columns)

    def first_rows(
        self, ranges: Sequence[KeyRange], columns: Sequence[str] | None = None, *, rows: int = 1
    ) -> pa.Table:
        with self._database.read() as connection:
            table = self._load(connection).table
            return first_rows(connection, table, [typed_range(table.schema, each) for each in ranges], columns, rows)

    def get_by_prefix(self, prefixes: pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
        with self._database.read() as connection:
            return get_by_prefix(connection, self._load(connection).table, prefixes, columns)

    def fetch(
        self, connection: apsw.Connection, keys: Rows
    ) -> tuple[TableSchema, pa.RecordBatch, npt.NDArray[np.bool_]]:
        """Read the rows of some keys inside a transaction of the caller.

        Args:
            connection: the connection of the transaction.
            keys: the keys; a key may occur several times.

        Returns:
            The table's schema, one row for each key in the order of the keys, and which of them exist. A row that does
            not exist has its key and nulls.
        """
        table = self._load(connection).table
        typed = one_batch(to_arrow(keys, table.schema, columns="keys"))
        rows, exist = table.fetch(connection, table.codec.encode_keys(typed))
        return table.schema, rows, exist

    def schema_in(self, connection: apsw.Connection) -> TableSchema:
        """Return the schema in a transaction of the caller."""
        return self._load(connection).table.schema

    def rows_in(self, connection: apsw.Connection, columns: Sequence[str]) -> pa.Table:
        """Return all rows in a transaction of the caller."""
        table = self._load(connection).table
        return pa.Table.from_batches([page.rows for page in table.pages(connection, columns)])

    def page(
        self,
        columns: Sequence[str],
        keys: KeyRange,
        where: Where | None = None,
        *,
        limit: int,
        reverse: bool = False,
    ) -> TableRows:
        """Return the first or last rows of a key range, see `headrace.stores.embedded.tables.physical.Rows`.

        Unlike a scan, this needs no separate connection, and each page sees the current state of the table.
        """
        with self._database.read() as connection:
            table = self._load(connection).table
            conditions = parse_where(where)
            return table.read(
                connection, columns, typed_range(table.schema, keys), conditions, limit=limit, reverse=reverse
            )

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
        return scan(
            self._database,
            lambda connection: self._load(connection).table,
            columns,
            parse_where(where),
            keys,
            limit,
            batch_rows,
            read_ahead,
        )

    def splits(self, count: int, *, size: int | None = None) -> list[KeyRange]:
        with self._database.read() as connection:
            return partitions.splits(connection, self._load(connection).table, count)

    # -- partitions, columns, options -------------------------------------------------------------------

    def split(self, partition: int | None = None, at: Mapping[str, KeyValue] | None = None) -> tuple[int, int]:
        with self._database.write() as connection:
            table = self._load(connection).table
            key = None
            if at is not None:
                names = table.schema.primary_key[: len(at)]
                if not at or set(names) != set(at):
                    raise SchemaError(
                        "a partition is split at a key or at a prefix of a key",
                        received=list(at),
                        valid=table.schema.primary_key,
                    )
                key = typed_key(table.schema, [at[name] for name in names])
            return partitions.split(connection, table, partition, key)

    def merge(self, left: int, right: int) -> int:
        with self._database.write() as connection:
            return partitions.merge(connection, self._load(connection).table.object_id, left, right)

    def add_columns(self, columns: Mapping[str, str | pa.DataType]) -> None:
        if not columns:
            return
        with self._database.write() as connection:
            self._alter(connection, Alteration(added=parse_columns(columns)))

    def alter(self, alteration: Alteration) -> None:
        with self._database.write() as connection:
            self.alter_in(connection, alteration, *stamp(connection))

    def alter_in(self, connection: apsw.Connection, alteration: Alteration, version: int, ts: int) -> None:
        """Change the columns inside a write transaction of the caller; see `alter` and `apply`.

        Values of new columns are logged as updates of the rows.
        """
        self._alter(connection, alteration)
        table = self._load(connection).table
        values = {name: value for name, value in alteration.values.items() if value is not None}
        for page in table.pages(connection, table.schema.primary_key) if values else ():
            rows = pa.table(page.rows)
            for name, value in values.items():
                filled = pa.repeat(pa.scalar(value, table.schema.column(name).type), rows.num_rows)
                rows = rows.append_column(name, filled)
            if rows.num_rows:
                self.apply(connection, RowChange.UPDATE, rows, version, ts)

    def _alter(self, connection: apsw.Connection, alteration: Alteration) -> None:
        before = self._load(connection).table
        numbers = change_log.stored_numbers(connection, *before.identity)
        after, stored = alterations.alter(connection, self.name, before, alteration, numbers)
        save_schema(connection, after, stored)
        connection.execute("UPDATE object SET schema_version = ? WHERE id = ?", (after.schema_version, after.object_id))

    def column_numbers(self) -> Mapping[str, int]:
        return self.numbered_schema()[1]

    def numbered_schema(self) -> tuple[TableSchema, Mapping[str, int]]:
        with self._database.read() as connection:
            table = self._load(connection).table
            numbers = change_log.stored_numbers(connection, *table.identity)
            return table.schema, dict(zip(table.schema.names, numbers.of_columns, strict=True))

    def set_options(self, **changes: Any) -> TableOptions:
        with self._database.write() as connection:
            state = self._load(connection)
            options = table_options(state.options, **changes)
            if options.change_log != state.options.change_log:
                raise OptionError(
                    "a table gets its change log when it is created, or never",
                    received=f"change_log={options.change_log}",
                    remedy="create another table, and copy the rows",
                )
            catalog.set_options(connection, state.table.object_id, options)
        return options

    def size(self) -> TableSize:
        """Return the counted rows, and their bytes by the mean of the first rows."""
        with self._database.read() as connection:
            table, _, _ = self._load(connection)
            rows = sum(partition.rows for partition in partitions.open_partitions(connection, table.object_id))
            return TableSize(rows, round(rows * table.mean_bytes(connection)), bytes_exact=False)

    def describe(self) -> TableDescription:
        with self._database.read() as connection:
            table, options, _ = self._load(connection)
            found = partitions.all_partitions(connection, table.object_id)
            return TableDescription(
                name=self.name,
                schema=table.schema,
                options=options,
                rows=sum(partition.rows for partition in found),
                partitions=found,
                held_by=retention.held_by(connection, table.object_id, options),
            )

    def trim(self, *, before: Mapping[int, int] | None = None, cut_tunnels: bool = False) -> TrimReport:
        with self._database.write() as connection:
            table, options, _ = self._load(connection)
            return retention.trim(connection, table.object_id, options, before, cut_tunnels)

    # -- the state of the table ---------------------------------------------------------------------------

    def _load_now(self) -> _State:
        with self._database.read() as connection:
            return self._load(connection)

    def _load(self, connection: apsw.Connection) -> _State:
        """Return the state of the table in a transaction. A cached state is used if it is still valid."""
        found = connection.execute(
            "SELECT id, schema_version, options FROM object WHERE name = ? AND kind = 'table'", (self.name,)
        ).fetchone()
        if found is None:
            raise NotFoundError("no such table", received=repr(self.name))
        object_id, version, options = found
        state = self._state
        if state is None or state.table.identity != (object_id, version):
            table = PhysicalTable(object_id, change_log.stored_schema(connection, object_id, version), version)
            state = _State(table, TableOptions(**json.loads(options)), options)
        elif state.options_text != options:
            state = _State(state.table, TableOptions(**json.loads(options)), options)
        self._state = state
        return state


def _prepared(table: PhysicalTable, change: RowChange, rows: Rows, *, keep_nulls: bool = False) -> Prepared:
    typed = to_arrow(rows, table.schema, columns=_COLUMNS_OF[change])
    if change is RowChange.UPDATE and keep_nulls:
        check_not_null(typed, table.schema)
    return Prepared(table, change, typed, keep_nulls=keep_nulls)
