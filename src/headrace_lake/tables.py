"""`FileTable`: what the tables of all formats have in common: rows that are read from the files of one version."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from headrace.errors import SchemaError
from headrace.model.tables.changes import RowChange
from headrace.model.tables.conditions import KeyRange, Predicate, Where, parse_where
from headrace.model.tables.schema import KeyValue, TableSchema
from headrace.ports import Rows, Table, TrimReport
from headrace.rows import check_not_null, to_arrow
from headrace.rows.by_position import aligned, last_rows
from headrace.rows.conditions import check_scan_sizes, typed_range, whole_key
from headrace.rows.fields import with_fields
from headrace_lake.data_files import MissingFileError
from headrace_lake.scanning import Selection

_READS = 5
_Found = TypeVar("_Found")


class Version(Protocol):
    """The rows of a table at one moment."""

    @property
    def schema(self) -> TableSchema:
        """The columns and the key."""

    def find(self, keys: pa.Table, columns: Sequence[str]) -> pa.Table:
        """Return the rows with some different keys, in no order: the columns of the key, and further ones."""

    def scan(self, selection: Selection) -> Iterator[pa.RecordBatch]:
        """Yield rows in key order; of a table without a key in no order."""

    def ranges(self, count: int) -> list[KeyRange]:
        """Return at most ``count`` ranges of keys of about equal size."""


class FileTable(Table):
    """A table whose rows are in files."""

    @abstractmethod
    def _version(self, conditions: Sequence[Predicate] = ()) -> Version:
        """Return the newest version.

        Args:
            conditions: the conditions of a scan: files without rows that satisfy them can be left out.
        """

    @abstractmethod
    def _write(self, change: RowChange, rows: pa.Table, *, keep_nulls: bool = True) -> int:
        """Apply a change, and return the number of the version that has it."""

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

    # -- reading ------------------------------------------------------------------------------------------

    def get(self, key: Mapping[str, KeyValue], columns: Sequence[str] | None = None) -> dict[str, Any] | None:
        def find(version: Version) -> dict[str, Any] | None:
            schema = version.schema
            schema.check_keyed()
            values = whole_key(schema, key)
            names = _names(schema, columns)
            fields = pa.schema([schema.arrow.field(name) for name in schema.primary_key])
            keys = pa.table([pa.array([value], each.type) for value, each in zip(values, fields, strict=True)], fields)
            rows: list[dict[str, Any]] = version.find(keys, names).select(names).to_pylist()
            return rows[0] if rows else None

        return self._read(find)

    def get_many(self, keys: Rows, columns: Sequence[str] | None = None) -> pa.Table:
        def find(version: Version) -> pa.Table:
            schema = version.schema
            typed = to_arrow(keys, schema, columns="keys")
            different = typed.take(pa.array(last_rows(typed, schema.primary_key)))
            fields = schema.nullable(_names(schema, columns))
            return aligned(typed, version.find(different, fields.names), schema.primary_key, fields)

        return self._read(find)

    def _read(self, find: Callable[[Version], _Found]) -> _Found:
        """Read the newest version, and again if VACUUM deletes a file that was replaced meanwhile."""
        for _ in range(_READS - 1):
            with suppress(MissingFileError):
                return find(self._version())
        return find(self._version())

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
        conditions = parse_where(where)
        version = self._version(conditions)
        schema = version.schema
        names = _names(schema, columns)
        for condition in conditions:
            schema.column(condition.column)
        selection = Selection(names, typed_range(schema, keys or KeyRange()), conditions)
        fields = pa.schema([schema.arrow.field(name) for name in names])

        def parts() -> Iterator[pa.RecordBatch]:
            left = limit
            for rows in version.scan(selection):
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
        return self._version().ranges(count)

    def trim(self, *, before: Mapping[int, int] | None = None, cut_tunnels: bool = False) -> TrimReport:
        return TrimReport(0, 0)


def _names(schema: TableSchema, columns: Sequence[str] | None) -> list[str]:
    return [schema.column(name).name for name in (schema.names if columns is None else columns)]
