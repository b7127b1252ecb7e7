"""The limits of columns: their number, and the nesting of their types. All stores check new columns.

The number of columns of existing tables and queues is not checked.
"""

from __future__ import annotations

from headrace.errors import SchemaError
from headrace.tables.schema import RowSchema
from headrace.types import check_nesting

MAX_COLUMNS = 1900
"""The maximum number of columns of a table or queue. SQLite allows 2,000; headrace needs some of them."""


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
