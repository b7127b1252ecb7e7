"""The limits of columns: their number, and the nesting of their types. All stores check new columns.

The number of columns of existing tables and queues is not checked.
"""

from __future__ import annotations

from headrace.errors import SchemaError, UnsupportedError
from headrace.model.tables.schema import MAX_KEY_COLUMNS, RowSchema, TableSchema
from headrace.model.types import KEY_TYPES, check_nesting, type_name

MAX_COLUMNS = 1900
"""The maximum number of columns of a table or queue. SQLite allows 2,000; headrace needs some of them."""


def check_key_types(schema: TableSchema) -> None:
    """Raise `UnsupportedError` if a key column has a type that only some stores have, see `Capabilities`."""
    for name in schema.primary_key:
        found = schema.column(name).type
        if found not in KEY_TYPES:
            raise UnsupportedError(
                f"a key column of this store cannot have the type of {name!r}",
                received=type_name(found),
                valid=[type_name(known) for known in KEY_TYPES],
                remedy="use a long for whole numbers, and a string in ISO 8601 for dates and times",
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
