"""The primary key of a lake table, which its format does not have: a property with a JSON list of columns."""

from __future__ import annotations

import json

from headrace.errors import StoreDamagedError
from headrace.model.tables.schema import Column, KeylessSchema, TableSchema

PRIMARY_KEY = "headrace.primaryKey"
"""The name of the property."""


def key_text(schema: TableSchema) -> str:
    """Return the primary key as the value of `PRIMARY_KEY`."""
    return json.dumps(list(schema.primary_key), ensure_ascii=False)


def schema_with_key(
    columns: tuple[Column, ...], key: str | None, *, name: str, missing: str, remedy: str, kind: str = "property"
) -> TableSchema:
    """Return the schema of a table.

    Args:
        columns: its columns.
        key: the value of `PRIMARY_KEY`; None if the table has none.
        name: the table's name, for messages.
        missing: why the table has no key, if it has none.
        remedy: what then gives it one.
        kind: what the format calls a property.

    Raises:
        StoreDamagedError: the value is invalid.
    """
    if key is None:
        return KeylessSchema(columns, (), missing, remedy, appends=True)
    try:
        return TableSchema(columns, tuple(json.loads(key)))
    except (ValueError, TypeError) as error:
        raise StoreDamagedError(
            f"the {kind} {PRIMARY_KEY} of table {name!r} is not a list of columns", received=f"{key[:200]}: {error}"
        ) from None
