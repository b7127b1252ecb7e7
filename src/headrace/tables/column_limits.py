"""How many columns a table or queue may have, and how deep their types: what every store checks when it is given them.

Tables and queues that are there already, from an earlier version or made by others, are not checked for their width.
"""

from __future__ import annotations

from headrace.errors import SchemaError
from headrace.tables.schema import RowSchema
from headrace.types import check_nesting

MAX_COLUMNS = 1900
"""Columns of a table or queue. SQLite has 2,000 in a table, of which headrace takes some for itself."""


def check_columns(schema: RowSchema, most: int = MAX_COLUMNS) -> None:
    """Raise `SchemaError` if a table or queue cannot be created with these columns, or be given them.

    Args:
        most: how many columns the store allows, see `Capabilities.max_columns`.
    """
    if len(schema.columns) > most:
        raise SchemaError(
            "too many columns",
            received=len(schema.columns),
            valid=f"at most {most} columns",
            remedy="keep columns that belong together in one column of a struct or map, or in a table of their own",
        )
    for column in schema.columns:
        check_nesting(column.type, column.name)
