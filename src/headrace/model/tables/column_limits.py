"""The limits of columns: their number, and the nesting of their types. All stores check new columns.

The number of columns of existing tables and queues is not checked.
"""

from __future__ import annotations

from collections.abc import Collection

from headrace.errors import SchemaError, UnsupportedError
from headrace.model.tables.schema import MAX_KEY_COLUMNS, RowSchema, TableSchema
from headrace.model.types import COMMON_KEY_TYPES, check_nesting, is_one_of, type_name

MAX_COLUMNS = 1900
"""The maximum number of columns of a table or queue. SQLite allows 2,000; headrace needs some of them."""

# What keeps values apart in a key of another type. Texts of timestamps are ambiguous in one hour of a year.
_OTHER_KEYS = {
    **dict.fromkeys(("boolean", "byte", "short", "int"), "cast it to a bigint"),
    "timestamp": "use unix_micros(…), a bigint",
}


def check_key_types(schema: TableSchema, system: str, valid: Collection[str] = COMMON_KEY_TYPES) -> None:
    """Raise `UnsupportedError` if a key column has a type that a store does not have.

    Args:
        system: the name of the system that keeps the tables.
        valid: the names of its types of keys.
    """
    for name in schema.primary_key:
        data_type = schema.column(name).type
        if not is_one_of(data_type, valid):
            kind = type_name(data_type)
            raise UnsupportedError(
                f"a key column of {system} cannot have the type of {name!r}",
                received=kind,
                valid=valid,
                remedy=_OTHER_KEYS.get(kind, "cast it to a string")
                + ", or use a store whose keys have this type, such as an embedded store or PostgreSQL",
            )


def check_key_length(schema: TableSchema, most: int = MAX_KEY_COLUMNS) -> None:
    """Raise `SchemaError` if a primary key has more columns than a store allows."""
    if len(schema.primary_key) > most:
        raise SchemaError(
            "the primary key has too many columns",
            received=", ".join(schema.primary_key),
            valid=f"1 to {most} columns",
            remedy="join some of its columns into one, for example as a JSON text",
        )


def check_columns(schema: RowSchema, most: int = MAX_COLUMNS, most_in_key: int = MAX_KEY_COLUMNS) -> None:
    """Raise `SchemaError` if a table or queue cannot have these columns.

    Args:
        most: the maximum number of columns in the store, see `Capabilities.max_columns`.
        most_in_key: the maximum number of columns of a primary key in the store.
    """
    if isinstance(schema, TableSchema):
        check_key_length(schema, most_in_key)
    if len(schema.columns) > most:
        raise SchemaError(
            "too many columns",
            received=len(schema.columns),
            valid=f"at most {most} columns",
            remedy="combine related columns in a column of a struct or map, or move them to another table",
        )
    for column in schema.columns:
        check_nesting(column.type, column.name)
