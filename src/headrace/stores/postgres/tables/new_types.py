"""PostgreSQL's types for new columns of headrace's types."""

from __future__ import annotations

import pyarrow as pa
from psycopg import sql

from headrace.errors import UnsupportedError
from headrace.model.tables.schema import Column
from headrace.model.types import type_name
from headrace.stores.postgres.schemas import BYTE_DOMAIN

_NAMES: dict[pa.DataType, str] = {
    pa.bool_(): "boolean",
    pa.int16(): "smallint",
    pa.int32(): "integer",
    pa.int64(): "bigint",
    pa.float32(): "real",
    pa.float64(): "double precision",
    pa.string(): "text",
    pa.binary(): "bytea",
    pa.date32(): "date",
    pa.timestamp("us", tz="UTC"): "timestamp with time zone",
    pa.timestamp("us"): "timestamp without time zone",
}


def sql_type(column: Column, schema: str) -> sql.Composable:
    """Return the type of PostgreSQL for a new column.

    Args:
        schema: the schema of headrace's own objects, which has the domain of bytes.

    Raises:
        UnsupportedError: PostgreSQL has no type for the values.
    """
    if pa.types.is_list(column.type) and not pa.types.is_nested(column.type.value_type):
        if not column.type.value_field.nullable:
            raise _no_type(column, "elements of arrays may be null in PostgreSQL: leave out NOT NULL")
        return sql.SQL("{}[]").format(_simple_sql_type(Column(column.name, column.type.value_type), schema))
    return _simple_sql_type(column, schema)


def _simple_sql_type(column: Column, schema: str) -> sql.Composable:
    if pa.types.is_decimal(column.type):
        return sql.SQL(f"numeric({column.type.precision},{column.type.scale})")
    if column.type == pa.int8():
        return sql.Identifier(schema, BYTE_DOMAIN)
    if column.type not in _NAMES:
        raise _no_type(column, "use a string, for example with JSON")
    return sql.SQL(_NAMES[column.type])


def _no_type(column: Column, remedy: str) -> UnsupportedError:
    return UnsupportedError(
        f"PostgreSQL has no type for column {column.name!r}", received=type_name(column.type), remedy=remedy
    )
