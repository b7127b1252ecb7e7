"""Conditions and key ranges as SQL.

Comparisons follow Spark, as PostgreSQL's do for numbers: NaN equals NaN and is greater than every number, -0.0 equals
0.0. Texts are compared by their bytes in UTF-8, whatever the collation of their column.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from psycopg import sql

from headrace.errors import SchemaError
from headrace.model.tables.conditions import KeyRange, Predicate
from headrace.model.tables.schema import Key, KeyValue
from headrace.rows.conditions import after_prefix, check_comparable, operands
from headrace.stores.postgres.schemas import PgColumn, TableLayout

_NOTHING = sql.SQL("false")
_ALL = sql.SQL("true")


def where(table: TableLayout, keys: KeyRange, predicates: Sequence[Predicate]) -> sql.Composable:
    """Return the condition for the rows of alias ``t`` in a key range that satisfy all predicates.

    Raises:
        SchemaError: a column does not exist, or its type does not have a value.
        OptionError: an operator cannot be used with a column or value.
    """
    parts = [_bound(table, keys.low, ">="), _bound(table, keys.high, "<")]
    parts += [_predicate(table, predicate) for predicate in predicates]
    return (
        sql.SQL(" AND ").join(part for part in parts if part is not _ALL)
        if any(part is not _ALL for part in parts)
        else _ALL
    )


def literal(value: Any, data_type: pa.DataType) -> sql.Composable:
    """Return a value as SQL; strings are sorted by their bytes.

    Raises:
        SchemaError: the value is a string with the character NUL, which PostgreSQL does not have.
    """
    if isinstance(value, str):
        if "\0" in value:
            raise SchemaError("PostgreSQL has no strings with the character NUL", received=repr(value)[:200])
        return sql.SQL("{}::text").format(sql.Literal(value))
    if isinstance(value, bytes):
        return sql.SQL(f"'\\x{value.hex()}'::bytea")
    if pa.types.is_floating(data_type):
        kind = "real" if data_type == pa.float32() else "double precision"
        return sql.SQL(f"'{value!r}'::{kind}")
    if isinstance(value, int) and not isinstance(value, bool):
        # The smallest number has no positive counterpart, so a minus before a literal would overflow.
        return sql.SQL(f"'{value}'::bigint")
    if pa.types.is_timestamp(data_type):
        kind = "timestamptz" if data_type.tz else "timestamp"
        return sql.SQL(f"'{value.isoformat(sep=' ')}'::{kind}")
    if pa.types.is_decimal(data_type):
        return sql.SQL(f"'{value:f}'::numeric")
    return sql.Literal(value)


def _bound(table: TableLayout, bound: Key | None, operator: str) -> sql.Composable:
    if not bound:
        return _ALL
    columns = [table.column(name) for name in table.primary_key[: len(bound)]]
    values: list[KeyValue] = []
    for value in bound:
        if isinstance(value, str) and "\0" in value:
            # No stored string lies between a and a\0b, so the rest of the bound has no effect.
            values.append(value.partition("\0")[0])
            operator = ">" if operator == ">=" else "<="
            break
        values.append(value)
    sides = [_sides(column, value) for value, column in zip(values, columns, strict=False)]
    left, right = (sql.SQL(", ").join(side) for side in zip(*sides, strict=True))
    return sql.SQL(f"({{}}) {operator} ({{}})").format(left, right)


def _predicate(table: TableLayout, predicate: Predicate) -> sql.Composable:
    column, operator = table.schema.column(predicate.column), predicate.operator
    stored = table.column(predicate.column)
    if operator in ("is null", "is not null"):
        return sql.SQL("{} {}").format(stored.shown(), sql.SQL(operator.upper()))
    check_comparable(column, operator)
    # No row has a string with the character NUL, but such a string may be a bound of others.
    values = [value.as_py() for value in operands(column, predicate)]
    if not values:
        return _NOTHING
    if operator == "starts with":
        return _starts_with(stored, values[0])
    if isinstance(values[0], str) and any("\0" in value for value in values):
        return _with_nul(stored, operator, values)
    if operator in ("=", "in"):
        return _equal(stored, values)
    left, right = _sides(stored, values[0])
    return _compared(left, operator, right)


def _equal(column: PgColumn, values: list[Any]) -> sql.Composable:
    """Return the condition that a column has one of some values.

    An index has the type and the collation of its column. So the column is compared as it is, too: an index finds the
    rows, and the comparison of texts excludes those that are only similar, such as 1.0 and 1.
    """
    found = _one_of(column.ordered(), [literal(value, column.type) for value in values])
    is_text = column.type == pa.string()
    if not is_text or (column.base == "text" and column.sorted_by_bytes) or not all(map(column.is_value, values)):
        return found
    native = _one_of(sql.Identifier("t", column.name), [_native(column, value) for value in values])
    return sql.SQL("{} AND {}").format(found, native)


def _compared(left: sql.Composable, operator: str, right: sql.Composable) -> sql.Composable:
    """Return a comparison: a view is read under the user's search path, see `headrace.stores.postgres.session`."""
    return sql.SQL(f"{{}} OPERATOR(pg_catalog.{operator}) {{}}").format(left, right)


def _one_of(side: sql.Composable, values: Sequence[sql.Composable]) -> sql.Composable:
    if len(values) == 1:
        return _compared(side, "=", values[0])
    return _compared(side, "=", sql.SQL("ANY (ARRAY[{}])").format(sql.SQL(", ").join(values)))


def _native(column: PgColumn, value: str) -> sql.Composable:
    return sql.SQL("{}::{}").format(sql.Literal(value), sql.SQL(column.base))


def _sides(column: PgColumn, value: Any) -> tuple[sql.Composable, sql.Composable]:
    """Return a column and a value as the sides of a comparison of their order."""
    if column.base == "uuid" and not column.is_array and column.is_value(value):
        return column.sorted(), _native(column, value)
    return column.ordered(), literal(value, column.type)


def _with_nul(column: PgColumn, operator: str, values: list[str]) -> sql.Composable:
    """Return a comparison with a string that PostgreSQL does not have, by its neighbours.

    All stored strings that are not greater than ``a\\0b`` are not greater than ``a``.
    """
    if operator in ("=", "in"):
        kept = [value for value in values if "\0" not in value]
        return _equal(column, kept) if kept else _NOTHING
    if operator == "!=":
        return sql.SQL("{} IS NOT NULL").format(sql.Identifier("t", column.name))
    known = literal(values[0].partition("\0")[0], column.type)
    return _compared(column.ordered(), "<=" if operator[0] == "<" else ">", known)


def _starts_with(column: PgColumn, prefix: str | bytes) -> sql.Composable:
    if isinstance(prefix, str) and "\0" in prefix:
        return _NOTHING
    if not prefix:
        return sql.SQL("{} IS NOT NULL").format(sql.Identifier("t", column.name))
    low = _compared(column.ordered(), ">=", literal(prefix, column.type))
    end = after_prefix(prefix)
    if end is None:
        return low
    return sql.SQL("{} AND {}").format(low, _compared(column.ordered(), "<", literal(end, column.type)))
