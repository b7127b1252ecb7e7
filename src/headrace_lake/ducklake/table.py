"""A DuckLake table as a table of headrace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from headrace.errors import OptionError, SchemaError, UnsupportedError
from headrace.model.tables.changes import RowChange
from headrace.model.tables.conditions import KeyRange, Where, parse_where
from headrace.model.tables.options import TableOptions
from headrace.model.tables.schema import KeyValue, TableSchema
from headrace.options.names import check_names
from headrace.ports import Rows, Table, TableDescription, TrimReport
from headrace.rows import check_not_null, to_arrow
from headrace.rows.by_position import aligned, repeats
from headrace.rows.conditions import check_scan_sizes, typed_key, typed_range
from headrace.rows.fields import with_fields
from headrace.stores.postgres.for_lakes import Bulk
from headrace_lake.ducklake.catalog import Definition, Snapshot
from headrace_lake.ducklake.columns import check_schema, every, numbered
from headrace_lake.ducklake.database import LakeDatabase
from headrace_lake.ducklake.writing import NewFiles
from headrace_lake.folding import TableWrite
from headrace_lake.scanning import Selection

_OPTIONS = TableOptions(change_log=False, retention_seconds=None)
_DEFAULT = TableOptions()


def check_options(given: Mapping[str, Any]) -> None:
    """Raise `UnsupportedError` for options of a change log, which DuckLake tables do not have."""
    check_names("a table", given, sorted(vars(_DEFAULT)))
    for name, value in given.items():
        if value not in (None, getattr(_DEFAULT, name), getattr(_OPTIONS, name)):
            raise UnsupportedError("headrace reads no changes of DuckLake tables", received=f"{name}={value}")


class LakeTable(Table):
    """A table of a DuckLake.

    Args:
        name: ``schema.table``, or the name of a table in schema ``main``.
    """

    def __init__(self, database: LakeDatabase, name: str) -> None:
        self.name = name
        self._database = database

    def __repr__(self) -> str:
        return f"LakeTable({self.name!r})"

    def definition(self) -> Definition:
        """Return the table as the catalog has it.

        Raises:
            NotFoundError: there is no such table.
        """
        return self._database.read(lambda bulk: self._database.definition(bulk, self.name))

    @property
    def schema(self) -> TableSchema:
        return self.definition().schema

    def identity(self) -> str:
        return self.definition().uuid

    # -- writing ------------------------------------------------------------------------------------------

    def put(self, rows: Rows) -> int:
        return self._write(RowChange.PUT, to_arrow(rows, self._keyed(), columns="all"))

    def update(self, rows: Rows, *, keep_nulls: bool = True) -> int:
        schema = self._keyed()
        typed = to_arrow(rows, schema, columns="given")
        if typed.num_columns == len(schema.primary_key):
            raise SchemaError("an update needs a column to set besides the key", received=typed.column_names)
        if keep_nulls:
            check_not_null(typed, schema)
        return self._write(RowChange.UPDATE, typed, keep_nulls=keep_nulls)

    def delete(self, keys: Rows) -> int:
        return self._write(RowChange.DELETE, to_arrow(keys, self._keyed(), columns="keys"))

    def _keyed(self) -> TableSchema:
        schema = self.schema
        schema.check_keyed()
        return schema

    def _write(self, change: RowChange, rows: pa.Table, *, keep_nulls: bool = True) -> int:
        files = NewFiles()
        writes = {self.name: lambda _: [TableWrite(change, rows, keep_nulls)] if rows.num_rows else []}
        try:
            snapshot, full = self._database.write(lambda bulk: self._database.change(bulk, writes, files))
        finally:
            self._database.clean(files)
        self._database.flush_quietly(full)
        return snapshot

    # -- reading ------------------------------------------------------------------------------------------

    def get(self, key: Mapping[str, KeyValue], columns: Sequence[str] | None = None) -> dict[str, Any] | None:
        schema = self._keyed()
        if set(key) != set(schema.primary_key):
            raise SchemaError("a key needs exactly the key columns", received=list(key), valid=schema.primary_key)
        values = typed_key(schema, [key[name] for name in schema.primary_key])
        names = _names(schema, columns)
        fields = pa.schema([schema.arrow.field(name) for name in schema.primary_key])
        keys = pa.table([pa.array([value], each.type) for value, each in zip(values, fields, strict=True)], fields)
        rows: list[dict[str, Any]] = self._database.state(self.name).find(keys, names).select(names).to_pylist()
        return rows[0] if rows else None

    def get_many(self, keys: Rows, columns: Sequence[str] | None = None) -> pa.Table:
        state = self._database.state(self.name)
        schema = state.definition.schema
        typed = to_arrow(keys, schema, columns="keys")
        if typed.num_rows and repeats(typed, schema.primary_key):
            raise OptionError("keys of get_many must be different", received=f"{typed.num_rows} keys")
        fields = schema.nullable(_names(schema, columns))
        return aligned(typed, state.find(typed, fields.names), schema.primary_key, fields)

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
        check_scan_sizes(limit, batch_rows)
        state = self._database.state(self.name)
        schema = state.definition.schema
        names = _names(schema, columns)
        conditions = parse_where(where)
        for condition in conditions:
            schema.column(condition.column)
        selection = Selection(names, typed_range(schema, keys or KeyRange()), conditions)
        fields = pa.schema([schema.arrow.field(name) for name in names])

        def parts() -> Iterator[pa.RecordBatch]:
            left = limit
            for rows in state.scan(selection):
                for start in range(0, rows.num_rows, batch_rows):
                    part = rows.slice(start, batch_rows if left is None else min(batch_rows, left))
                    if left is not None:
                        left -= part.num_rows
                    yield with_fields(part, fields) if names else part
                    if left == 0:
                        return

        found = iter(()) if limit == 0 else parts()
        return pa.RecordBatchReader.from_batches(fields, found)

    def splits(self, count: int, *, size: int | None = None) -> list[KeyRange]:
        return self._database.state(self.name).ranges(count)

    # -- columns, options ---------------------------------------------------------------------------------

    def add_columns(self, columns: Mapping[str, str | pa.DataType]) -> None:
        database = self._database

        def add(bulk: Bulk) -> None:
            snapshot = Snapshot.next(database.lake, bulk)
            definition = database.definition(bulk, self.name, snapshot.schema_version)
            wider = definition.schema.with_columns(columns)
            check_schema(wider)
            fields = list(wider.arrow)[len(definition.columns) :]
            added = numbered(fields, max(column.id for column in every(definition.columns)) + 1)
            snapshot.schema_version += 1
            database.lake.add_columns(bulk, snapshot, definition.id, added, [*definition.columns, *added])
            snapshot.finish(bulk, [f"altered_table:{definition.id}"])

        database.write(add)

    def set_options(self, **changes: Any) -> TableOptions:
        check_options(changes)
        return _OPTIONS

    def describe(self) -> TableDescription:
        state = self._database.state(self.name)
        return TableDescription(self.name, state.definition.schema, _OPTIONS, state.count(), ())

    def trim(self, *, before: Mapping[int, int] | None = None, cut_tunnels: bool = False) -> TrimReport:
        return TrimReport(0, 0)


def _names(schema: TableSchema, columns: Sequence[str] | None) -> list[str]:
    return [schema.column(name).name for name in (schema.names if columns is None else columns)]
