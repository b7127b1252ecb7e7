"""A DuckLake table as a table of headrace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from headrace.errors import UnsupportedError
from headrace.model.tables.changes import RowChange
from headrace.model.tables.conditions import Predicate
from headrace.model.tables.options import PARTITION_BY, TableOptions, check_option_names
from headrace.model.tables.schema import TableSchema
from headrace.ports import TableDescription
from headrace.stores.postgres.for_lakes import Bulk
from headrace_lake.ducklake.catalog import Definition, Snapshot
from headrace_lake.ducklake.columns import check_schema, every, numbered
from headrace_lake.ducklake.database import LakeDatabase
from headrace_lake.ducklake.state import State
from headrace_lake.ducklake.writing import NewFiles
from headrace_lake.folding import TableWrite
from headrace_lake.partitions import check_not_set
from headrace_lake.tables import FileTable

_OPTIONS = TableOptions(change_log=False, retention_seconds=None)
_DEFAULT = TableOptions()


def check_options(given: Mapping[str, Any]) -> None:
    """Raise `UnsupportedError` for options of a change log, which DuckLake tables do not have."""
    check_option_names(given, [PARTITION_BY])
    for name, value in given.items():
        if name != PARTITION_BY and value not in (None, getattr(_DEFAULT, name), getattr(_OPTIONS, name)):
            raise UnsupportedError(
                "headrace reads no changes of DuckLake tables",
                received=f"{name}={value}",
                remedy="leave out the option; in DuckDB, ducklake_table_changes has the changes",
            )


class LakeTable(FileTable):
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

    def _version(self, conditions: Sequence[Predicate] = ()) -> State:
        return self._database.state(self.name, conditions)

    def _write(self, change: RowChange, rows: pa.Table, *, keep_nulls: bool = True) -> int:
        files = NewFiles()
        writes = {self.name: lambda _: [TableWrite(change, rows, keep_nulls)] if rows.num_rows else []}
        try:
            snapshot, crowded = self._database.write(lambda bulk: self._database.change(bulk, writes, files))
        finally:
            self._database.clean(files)
        self._database.tidy(crowded)
        return snapshot

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
        check_not_set(changes)
        return _OPTIONS

    def describe(self) -> TableDescription:
        state = self._version()
        partitioning = state.definition.partitioning
        by = () if partitioning is None else tuple(map(str, partitioning.fields))
        return TableDescription(self.name, state.schema, _OPTIONS, state.count(), (), partition_by=by)
