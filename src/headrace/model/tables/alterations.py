"""`Alteration`: changes of a table's columns. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from headrace.errors import SchemaError
from headrace.model.tables.schema import Column, TableSchema
from headrace.model.types import type_name

_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_FLOATS = (pa.float32(), pa.float64())


@dataclass(frozen=True)
class Alteration:
    """Changes of a table's columns, of which a store makes all or none: in the order of the attributes.

    Attributes:
        dropped: the names of columns outside the key.
        renamed: names → new names. Several columns can exchange theirs.
        widened: names → types that have each value of the former type, see `widens`.
        relaxed: the names of columns that may be null from now on.
        added: new columns, which may be null.
        values: the values that existing rows have in new columns, by their names; null in others.
    """

    dropped: Sequence[str] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    widened: Mapping[str, pa.DataType] = field(default_factory=dict)
    relaxed: Sequence[str] = ()
    added: Sequence[Column] = ()
    values: Mapping[str, Any] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.dropped or self.renamed or self.widened or self.relaxed or self.added)

    def name_before(self, name: str) -> str | None:
        """Return the name that a column had before; None for a new one."""
        former = {new: old for old, new in self.renamed.items()}
        return None if any(column.name == name for column in self.added) else former.get(name, name)

    def applied(self, schema: TableSchema) -> TableSchema:
        """Return the columns after the changes.

        Raises:
            SchemaError: a column does not exist, or cannot have the change.
        """
        for name in (*self.dropped, *self.renamed):
            schema.column(name)
        if in_key := [name for name in self.dropped if name in schema.primary_key]:
            raise SchemaError(
                "a column of the primary key cannot be dropped",
                received=", ".join(in_key),
                valid=[column.name for column in schema.attributes],
                remedy="create another table, and INSERT INTO it the rows of this one",
            )
        columns = [
            replace(column, name=self.renamed.get(column.name, column.name))
            for column in schema.columns
            if column.name not in self.dropped
        ]
        key = tuple(self.renamed.get(name, name) for name in schema.primary_key)
        changed = TableSchema(tuple(columns), key)
        for name, data_type in self.widened.items():
            _check_wider(changed, name, data_type)
        for name in self.relaxed:
            changed.column(name)
        columns = [
            replace(
                column,
                type=self.widened.get(column.name, column.type),
                nullable=column.nullable or column.name in self.relaxed,
            )
            for column in changed.columns
        ]
        changed = TableSchema(tuple(columns), key)
        return changed.with_columns(pa.schema([pa.field(each.name, each.type, each.nullable) for each in self.added]))


def _check_wider(schema: TableSchema, name: str, data_type: pa.DataType) -> None:
    column = schema.column(name)
    if name in schema.primary_key:
        raise SchemaError(
            "a column of the primary key keeps its type: other values would have other places",
            received=name,
            remedy="create another table, and INSERT INTO it the rows of this one",
        )
    if column.type != data_type and not widens(column.type, data_type):
        raise SchemaError(
            f"not every value of column {name!r} is a value of the other type",
            received=type_name(data_type),
            valid=f"a wider type than {type_name(column.type)}: "
            "byte → short → int → long, float → double, decimal(p,s) → a larger p, or string",
        )


def widens(before: pa.DataType, after: pa.DataType) -> bool:
    """Return whether a type has each value of another one, and it is another one."""
    for types in (_INTEGERS, _FLOATS):
        if before in types and after in types:
            return types.index(before) < types.index(after)
    if not pa.types.is_decimal(before):
        return False
    if pa.types.is_decimal(after):
        return bool(before.scale == after.scale and before.precision < after.precision)
    return bool(after == pa.string())
