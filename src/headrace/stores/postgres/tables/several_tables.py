"""`SeveralTables`: the table of a tunnel that follows several tables: their changes, and no rows to read."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from headrace.errors import UnsupportedError
from headrace.model.tables.conditions import KeyRange, Where
from headrace.model.tables.options import TableOptions
from headrace.model.tables.schema import KeyValue, TableSchema
from headrace.ports import Rows, Table, TableDescription, TrimReport
from headrace.stores.postgres.schemas import TableLayout
from headrace.stores.postgres.tables.stored_tables import FIXED_OPTIONS


class SeveralTables(Table):
    """The table whose changes a tunnel of several tables has. It can be described, and not be read or written.

    Args:
        name: the patterns of the names of the tables.
        schema: the columns of the rows.
        layouts: returns the tables.
    """

    def __init__(self, name: str, schema: TableSchema, layouts: Callable[[], Sequence[TableLayout]]) -> None:
        self.name = name
        self._schema = schema
        self._layouts = layouts

    def __repr__(self) -> str:
        return f"SeveralTables({self.name!r})"

    @property
    def schema(self) -> TableSchema:
        return self._schema

    def identity(self) -> str:
        return ""

    def describe(self) -> TableDescription:
        """Describe the table. It has pre-images if all its tables have them."""
        pre_images = all(layout.pre_images for layout in self._layouts())
        options = dataclasses.replace(FIXED_OPTIONS, pre_images=pre_images)
        return TableDescription(name=self.name, schema=self.schema, options=options, rows=None, partitions=())

    def put(self, rows: Rows) -> int:
        raise self._no_table()

    def update(self, rows: Rows, *, keep_nulls: bool = True) -> int:
        raise self._no_table()

    def delete(self, keys: Rows) -> int:
        raise self._no_table()

    def get(self, key: Mapping[str, KeyValue], columns: Sequence[str] | None = None) -> dict[str, Any] | None:
        raise self._no_table()

    def get_many(self, keys: Rows, columns: Sequence[str] | None = None) -> pa.Table:
        raise self._no_table()

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
        raise self._no_table()

    def splits(self, count: int, *, size: int | None = None) -> list[KeyRange]:
        raise self._no_table()

    def add_columns(self, columns: Mapping[str, str | pa.DataType]) -> None:
        raise self._no_table()

    def set_options(self, **changes: Any) -> TableOptions:
        raise self._no_table()

    def trim(self, *, before: Mapping[int, int] | None = None, cut_tunnels: bool = False) -> TrimReport:
        raise self._no_table()

    def _no_table(self) -> UnsupportedError:
        return UnsupportedError(
            "a tunnel of several tables has only their changes",
            received=self.name,
            remedy="use the tables one by one, by their names",
        )
