"""`SeveralTables`: the table of a tunnel that follows several tables: their changes, and no rows to read."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Never

from headrace.errors import UnsupportedError
from headrace.model.tables.schema import TableSchema
from headrace.ports import Table, TableDescription
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

    def _no_table(self, *_: Any, **__: Any) -> Never:
        raise UnsupportedError(
            "a tunnel of several tables has only their changes",
            received=self.name,
            remedy="use the tables one by one, by their names",
        )

    put = update = delete = get = get_many = scan = splits = add_columns = set_options = trim = _no_table
