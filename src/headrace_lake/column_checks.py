"""What the columns of all lake tables must be: names that differ without regard to case, and types that files have."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from headrace.errors import SchemaError
from headrace.model.tables.schema import TableSchema
from headrace.model.types import type_name


def check_columns_in_files(schema: TableSchema, system: str, *, empty_structs: bool = True) -> None:
    """Raise `SchemaError` if a table of a format cannot have these columns.

    Args:
        system: the name of the format.
        empty_structs: whether it has structs without fields.
    """
    _check_names(schema.names, system)
    for column in schema.columns:
        _check_type(column.name, column.type, system, empty_structs)


def _check_type(column: str, kind: pa.DataType, system: str, empty_structs: bool) -> None:
    if pa.types.is_duration(kind):
        raise SchemaError(
            f"column {column!r} has a type that {system} does not have",
            received=type_name(kind),
            remedy="store the interval as a long, in microseconds",
        )
    inner = [kind.field(n) for n in range(kind.num_fields)]
    if pa.types.is_struct(kind):
        if not inner and not empty_structs:
            raise SchemaError(f"column {column!r} has a struct without fields, which {system} does not have")
        _check_names([field.name for field in inner], system)
    for field in inner:
        _check_type(column, field.type, system, empty_structs)


def _check_names(names: Iterable[str], system: str) -> None:
    spellings: dict[str, str] = {}
    for name in names:
        other = spellings.setdefault(name.lower(), name)
        if other != name:
            raise SchemaError(
                f"two columns in {system} cannot differ in upper and lower case only",
                received=f"{other!r}, {name!r}",
                remedy="rename one of them",
            )
        if "\0" in name or not name:
            raise SchemaError(f"a column in {system} cannot have this name", received=repr(name))
