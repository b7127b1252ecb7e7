"""`SelectedTable`: the table of a tunnel that leaves out a part of it, or masks columns."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Never

from headrace.errors import UnsupportedError
from headrace.model.tables.schema import TableSchema
from headrace.ports import Table, TableDescription


class SelectedTable(Table):
    """The table whose changes a tunnel has, with the columns of the tunnel. It is read and written by its own name.

    Args:
        table: the whole table.
        schema: returns the columns of the tunnel.
    """

    def __init__(self, table: Table, schema: Callable[[], TableSchema]) -> None:
        self.name = table.name
        self._table = table
        self._schema = schema

    def __repr__(self) -> str:
        return f"SelectedTable({self.name!r})"

    @property
    def schema(self) -> TableSchema:
        return self._schema()

    def identity(self) -> str:
        return self._table.identity()

    def covers(self, name: str, identity: str) -> bool:
        return self._table.covers(name, identity)

    def column_numbers(self) -> Mapping[str, int] | None:
        return self.numbered_schema()[1] or None

    def numbered_schema(self) -> tuple[TableSchema, Mapping[str, int]]:
        schema = self.schema
        while True:
            numbers, before = self._table.column_numbers() or {}, schema
            schema = self.schema
            if schema == before:
                return schema, {name: numbers[name] for name in schema.names if name in numbers}

    def describe(self) -> TableDescription:
        return dataclasses.replace(self._table.describe(), schema=self.schema)

    def _of_tunnel(self, *_: Any, **__: Any) -> Never:
        raise UnsupportedError(
            "the table of a tunnel that leaves out columns, rows or values has only changes",
            received=self.name,
            remedy=f"open the table itself: store.table({self.name!r})",
        )

    put = update = delete = get = get_many = scan = splits = add_columns = alter = set_options = trim = _of_tunnel
