"""The columns of DuckLake tables in headrace's types, and back. No I/O.

DuckLake has a number for each column, also for each element of a list, key and value of a map, and field of a struct.
Parquet files have these numbers as field ids.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.errors import SchemaError, UnsupportedError
from headrace.model.tables.column_limits import check_columns
from headrace.model.tables.schema import TableSchema
from headrace_lake.column_checks import check_columns_in_files

_TYPES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "varchar": pa.string(),
    "blob": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", tz="UTC"),
}
_NAMES = {kind: name for name, kind in _TYPES.items()}
_DECIMAL = re.compile(r"decimal\((\d+),\s*(\d+)\)")
# Columns of the tables with inlined rows, and columns that DuckLake adds to files.
_RESERVED = ("row_id", "begin_snapshot", "end_snapshot")
_RESERVED_PREFIX = "_ducklake_internal_"
MAX_COLUMNS = 1_500
"""The maximum number of columns: PostgreSQL's is 1,600."""
_LONGEST_NAME = 63


@dataclass(frozen=True)
class LakeColumn:
    """A column, or an inner part of a nested one.

    Attributes:
        id: its number in the table.
        kind: its type in the catalog.
        inner: the element of a list, the key and value of a map, or the fields of a struct.
    """

    id: int
    name: str
    kind: str
    nullable: bool
    inner: tuple[LakeColumn, ...] = ()

    @property
    def type(self) -> pa.DataType:
        """The type without numbers: the one of headrace."""
        return self.field(numbered=False).type

    def field(self, *, numbered: bool = True) -> pa.Field:
        """Return the Arrow field; with ``numbered`` with the field ids of Parquet, also inside."""
        inner = [each.field(numbered=numbered) for each in self.inner]
        kind = self._kind(inner)
        metadata = {b"PARQUET:field_id": str(self.id).encode()} if numbered else None
        return pa.field(self.name, kind, self.nullable, metadata)

    def _kind(self, inner: Sequence[pa.Field]) -> pa.DataType:
        match self.kind:
            case "list":
                return pa.list_(inner[0])
            case "map":
                return pa.map_(inner[0].with_nullable(False), inner[1])
            case "struct":
                return pa.struct(inner)
        found = _DECIMAL.fullmatch(self.kind)
        return pa.decimal128(int(found[1]), int(found[2])) if found else _TYPES[self.kind]

    def leaves(self) -> Iterator[LakeColumn]:
        """Yield the columns inside that have values: those with statistics."""
        if not self.inner:
            yield self
        for each in self.inner:
            yield from each.leaves()


def numbered(fields: Iterable[pa.Field], first: int) -> list[LakeColumn]:
    """Return the columns of new fields, with numbers from ``first`` on, in DuckLake's order."""
    found: list[LakeColumn] = []
    for field in fields:
        column = _numbered(field.name, field.type, field.nullable, first)
        first += sum(1 for _ in every([column]))
        found.append(column)
    return found


def _numbered(name: str, kind: pa.DataType, nullable: bool, number: int) -> LakeColumn:
    if pa.types.is_list(kind):
        inner = [("element", kind.value_type, kind.value_field.nullable)]
        text = "list"
    elif pa.types.is_map(kind):
        # A key is never null, which DuckLake does not say.
        inner = [("key", kind.key_type, True), ("value", kind.item_type, kind.item_field.nullable)]
        text = "map"
    elif pa.types.is_struct(kind):
        inner = [(each.name, each.type, each.nullable) for each in kind]
        text = "struct"
    else:
        text = f"decimal({kind.precision},{kind.scale})" if pa.types.is_decimal(kind) else _NAMES[kind]
        return LakeColumn(number, name, text, nullable)
    parts: list[LakeColumn] = []
    following = number + 1
    for part in inner:
        parts.append(_numbered(*part, following))
        following += sum(1 for _ in every(parts[-1:]))
    return LakeColumn(number, name, text, nullable, tuple(parts))


def every(columns: Iterable[LakeColumn]) -> Iterator[LakeColumn]:
    """Yield columns and all that is inside, in the order of their numbers."""
    for column in columns:
        yield column
        yield from every(column.inner)


def parse(table: str, rows: Sequence[dict[str, Any]]) -> tuple[LakeColumn, ...]:
    """Return the columns of a table from rows of ``ducklake_column``, of which some are former versions.

    Raises:
        UnsupportedError: a column has a type that headrace does not have, or had another name or type before.
    """
    current = [row for row in rows if row["end_snapshot"] is None]
    now = {row["column_id"]: row for row in current}
    for row in rows:
        there = now.get(row["column_id"])
        same = ("column_name", "column_type", "parent_column")
        if there is None or any(row[name] != there[name] for name in same):
            raise UnsupportedError(
                f"DuckLake table {table!r} has a column that was dropped, renamed or changed, which headrace does not "
                "support",
                received=f"{row['column_name']}: {row['column_type']}",
                remedy="copy the rows into a new table",
            )
    for row in current:
        if row["initial_default"] is not None:
            raise UnsupportedError(
                f"DuckLake table {table!r} has a column with a default value for existing rows, which headrace does "
                "not support",
                received=row["column_name"],
                remedy="copy the rows into a new table",
            )
    return tuple(_parse(table, row, current) for row in current if row["parent_column"] is None)


def _parse(table: str, row: dict[str, Any], rows: Sequence[dict[str, Any]]) -> LakeColumn:
    kind = row["column_type"].lower()
    inner = tuple(_parse(table, each, rows) for each in rows if each["parent_column"] == row["column_id"])
    if kind not in _TYPES and not _DECIMAL.fullmatch(kind) and kind not in ("list", "map", "struct"):
        raise UnsupportedError(
            f"DuckLake table {table!r} has a column of a type that headrace does not have",
            received=f"{row['column_name']}: {row['column_type']}",
            valid=[*_TYPES, "decimal", "list", "map", "struct"],
        )
    return LakeColumn(row["column_id"], row["column_name"], kind, row["nulls_allowed"], inner)


def check_schema(schema: TableSchema) -> None:
    """Raise `SchemaError` if a DuckLake table cannot have these columns."""
    check_columns(schema, MAX_COLUMNS)
    check_columns_in_files(schema, "DuckLake", empty_structs=False)
    for name in schema.names:
        short = len(name.encode()) <= _LONGEST_NAME
        if not short or name.lower() in _RESERVED or name.lower().startswith(_RESERVED_PREFIX):
            raise SchemaError(
                "a column of a DuckLake table cannot have this name",
                received=repr(name)[:200],
                valid=f"up to {_LONGEST_NAME} bytes, and none of {', '.join(_RESERVED)}",
            )
