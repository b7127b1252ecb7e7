"""The limits of columns: their number, and the nesting of their types. All stores check new columns.

The number of columns of existing tables and queues is not checked.
"""

from __future__ import annotations

from headrace.errors import SchemaError, UnsupportedError
from headrace.tables.schema import RowSchema, TableSchema
from headrace.types import KEY_TYPES, check_nesting, type_name

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


def check_columns(schema: RowSchema, most: int = MAX_COLUMNS) -> None:
    """Raise `SchemaError` if a table or queue cannot have these columns.

    Args:
        most: the maximum number of columns in the store, see `Capabilities.max_columns`.
    """
    if len(schema.columns) > most:
        raise SchemaError(
            "too many columns",
            received=len(schema.columns),
            valid=f"at most {most} columns",
            remedy="combine related columns in a column of a struct or map, or move them to another table",
        )
    for column in schema.columns:
        check_nesting(column.type, column.name)
