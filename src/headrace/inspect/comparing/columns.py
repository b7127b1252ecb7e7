"""The columns of two tables: which of them are compared, and how the schemas differ."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headrace.errors import OptionError, SchemaError, shown
from headrace.inspect.comparing.canonical import comparable
from headrace.model.tables.schema import TableSchema
from headrace.model.types import type_name


@dataclass(frozen=True)
class ColumnDifference:
    """A column that differs in the schemas of two tables.

    Attributes:
        column: the name.
        a: the name of its type in the first table; None if it is missing there.
        b: the name of its type in the second table; None if it is missing there.
        compared: whether its values are compared, because the types have common values (``short`` and ``long``).
            Such a difference of types does not make tables different; other differences of columns do.
    """

    column: str
    a: str | None
    b: str | None
    compared: bool


@dataclass(frozen=True)
class ComparedColumns:
    """The columns of a comparison.

    Attributes:
        key: the key columns, in key order.
        attributes: the other columns whose values are compared, in the order of the first table.
        differences: the columns that differ in the schemas.
    """

    key: tuple[str, ...]
    attributes: tuple[str, ...]
    differences: tuple[ColumnDifference, ...]


def compared_columns(a: TableSchema, b: TableSchema, wanted: Iterable[str] | None = None) -> ComparedColumns:
    """Return the columns to compare: all, or the wanted ones.

    Raises:
        SchemaError: the tables have different key columns, key columns without common values, or a table does not have
            a wanted column.
    """
    a.check_keyed()
    b.check_keyed()
    if a.primary_key != b.primary_key:
        raise SchemaError(
            "the tables have different primary keys, so their rows cannot be matched",
            received=f"({', '.join(a.primary_key)}) and ({', '.join(b.primary_key)})",
            valid="the same key columns in the same order",
        )
    for name in a.primary_key:
        types = a.column(name).type, b.column(name).type
        if not comparable(*types):
            raise SchemaError(
                f"the key column {name!r} has types without common values, so rows cannot be matched",
                received=" and ".join(type_name(each) for each in types),
                valid="long in both tables, or string or binary in both",
            )
    names = list(dict.fromkeys((*a.names, *b.names))) if wanted is None else chosen((a, b), wanted)
    differing = [found for name in names if (found := _difference(a, b, name)) is not None]
    left_out = {found.column for found in differing if not found.compared}
    attributes = [name for name in names if name not in a.primary_key and name not in left_out]
    return ComparedColumns(a.primary_key, tuple(attributes), tuple(differing))


def chosen(schemas: Sequence[TableSchema], wanted: Iterable[str]) -> list[str]:
    """Return the wanted columns without repetitions, and check that all tables have them.

    Raises:
        OptionError: ``wanted`` is not a list of names.
        SchemaError: a table does not have a column.
    """
    single = isinstance(wanted, str | bytes) or not isinstance(wanted, Iterable)
    names = [] if single else list(wanted)
    if single or not all(isinstance(name, str) for name in names):
        raise OptionError("columns is a list of names", received=shown(wanted), valid='["price", "status"]')
    for schema in schemas:
        for name in names:
            schema.column(name)
    return list(dict.fromkeys(names))


def _difference(a: TableSchema, b: TableSchema, name: str) -> ColumnDifference | None:
    one = a.column(name).type if name in a else None
    other = b.column(name).type if name in b else None
    if one is None or other is None:
        return ColumnDifference(name, one and type_name(one), other and type_name(other), compared=False)
    names = type_name(one), type_name(other)
    return None if names[0] == names[1] else ColumnDifference(name, *names, compared=comparable(one, other))
