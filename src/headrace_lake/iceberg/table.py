"""An Iceberg table as a table of headrace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from headrace.errors import UnsupportedError
from headrace.model.tables.alterations import Alteration
from headrace.model.tables.changes import RowChange
from headrace.model.tables.conditions import Predicate
from headrace.model.tables.options import PARTITION_BY, TableOptions, check_option_names
from headrace.model.tables.schema import TableSchema, parse_columns
from headrace.ports import TableDescription
from headrace.ports.arguments import flag
from headrace_lake import data_files
from headrace_lake.folding import TableWrite
from headrace_lake.iceberg.catalog import Tables, translated
from headrace_lake.iceberg.commits import NewFiles, Planner, commit, repeated
from headrace_lake.iceberg.partitions import texts_of
from headrace_lake.iceberg.schemas import check_schema, column_type
from headrace_lake.iceberg.version import Version, number_of
from headrace_lake.partitions import check_not_set
from headrace_lake.tables import FileTable

_DEFAULT = TableOptions()


def check_options(given: Mapping[str, Any]) -> None:
    """Raise `UnsupportedError` for options of a change log, which an Iceberg table does not have."""
    check_option_names(given, [PARTITION_BY])
    for name, value in given.items():
        if name == "change_log":
            flag(value, f"option {name}")
        elif name != PARTITION_BY and value not in (None, getattr(_DEFAULT, name)):
            raise UnsupportedError("an Iceberg table has no log of changes", received=f"{name}={value}")


class IcebergTable(FileTable):
    """A table of a catalog.

    Args:
        name: its name in the store.
    """

    def __init__(self, tables: Tables, name: str) -> None:
        self.name = name
        self._tables = tables

    def __repr__(self) -> str:
        return f"IcebergTable({self.name!r})"

    def _version(self, conditions: Sequence[Predicate] = ()) -> Version:
        """Return the newest version.

        Raises:
            NotFoundError: the table does not exist.
        """
        return self._tables.load(self.name)

    @property
    def schema(self) -> TableSchema:
        return self._version().schema

    def identity(self) -> str:
        return self._version().id

    def _write(self, change: RowChange, rows: pa.Table, *, keep_nulls: bool = True) -> int:
        if not rows.num_rows:
            return self._version().number
        number = commit(self._version, Planner([TableWrite(change, rows, keep_nulls)], NewFiles(data_files.PREFIX)))
        assert number is not None
        return number

    # -- columns, options ---------------------------------------------------------------------------------

    def add_columns(self, columns: Mapping[str, str | pa.DataType]) -> None:
        self.alter(Alteration(added=parse_columns(columns)))

    def alter(self, alteration: Alteration) -> None:
        if alteration.dropped or alteration.renamed or alteration.widened or alteration.values:
            raise UnsupportedError("headrace adds columns to Iceberg tables, and makes none of the other changes")

        def attempt(version: Version) -> int:
            version.check_writable()
            check_schema(alteration.applied(version.schema))
            transaction = version.table.transaction()
            with transaction.update_schema() as update:
                for name in alteration.relaxed:
                    update.make_column_optional(name)
                for column in alteration.added:
                    update.add_column(column.name, column_type(column.type))
            with translated():
                return number_of(transaction.commit_transaction())

        repeated(self._version, attempt)

    def set_options(self, **changes: Any) -> TableOptions:
        check_options(changes)
        check_not_set(changes)
        return self._options()

    def _options(self) -> TableOptions:
        return TableOptions(retention_seconds=None)

    def describe(self) -> TableDescription:
        version = self._version()
        rows = sum(file.entry.record_count for file in version.files)
        by = texts_of(version.spec, version.table.schema())
        return TableDescription(self.name, version.schema, self._options(), rows, (), partition_by=by)
