"""`SeveralTables`: the table of a tunnel that follows several tables: their changes, and no rows to read."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Never

from headrace.errors import UnsupportedError
from headrace.model.tables.options import TableOptions
from headrace.model.tables.schema import TableSchema
from headrace.ports import Table, TableDescription


class SeveralTables(Table):
    """The table whose changes a tunnel of several tables has. It can be described, and not be read or written.

    Args:
        name: the names of the tables, or patterns of them.
        schema: returns the columns of the rows.
        options: returns the options of each table.
        covers: see `headrace.ports.Table.covers`.
        without: see `headrace.ports.Table.without`.
    """

    def __init__(
        self,
        name: str,
        schema: Callable[[], TableSchema],
        options: Callable[[], Sequence[TableOptions]],
        covers: Callable[[str, str], bool],
        without: Callable[[Sequence[str]], str],
    ) -> None:
        self.name = name
        self._schema = schema
        self._options = options
        self._covers = covers
        self._without = without

    def __repr__(self) -> str:
        return f"SeveralTables({self.name!r})"

    @property
    def schema(self) -> TableSchema:
        return self._schema()

    def identity(self) -> str:
        return ""

    def covers(self, name: str, identity: str) -> bool:
        return self._covers(name, identity)

    def without(self, names: Sequence[str]) -> str:
        return self._without(names)

    def describe(self) -> TableDescription:
        """Describe the table. It has pre-images if all its tables have them."""
        options = self._options()
        pre_images = all(each.pre_images for each in options)
        shown = dataclasses.replace(options[0] if options else TableOptions(), pre_images=pre_images)
        return TableDescription(name=self.name, schema=self.schema, options=shown, rows=None, partitions=())

    def _no_table(self, *_: Any, **__: Any) -> Never:
        raise UnsupportedError(
            "a tunnel of several tables has only their changes",
            received=self.name,
            remedy="use the tables one by one, by their names",
        )

    put = update = delete = get = get_many = scan = splits = add_columns = alter = set_options = trim = _no_table
