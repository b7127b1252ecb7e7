"""What the name of a new table finds."""

from __future__ import annotations

from headrace.errors import AlreadyExistsError, SchemaError
from headrace.model.tables.schema import TableSchema
from headrace.ports import Table


def check_may_exist(name: str, url: str, *, exist_ok: bool, what: str = "a table") -> None:
    """Raise `AlreadyExistsError` for the name of a new table that another one has, unless that is allowed."""
    if not exist_ok:
        raise AlreadyExistsError(
            f"{what} of this name exists in {url}",
            received=repr(name),
            remedy="pass exist_ok=True (on the command line --if-not-exists) to use it as it is",
        )


def check_same(name: str, table: Table, schema: TableSchema) -> None:
    """Raise `SchemaError` if an existing table has other columns, or another key."""
    if table.schema != schema:
        raise SchemaError(
            f"{name!r} exists with other columns or another key",
            received=f"{', '.join(schema.names)}; key {', '.join(schema.primary_key)}",
            valid=f"{', '.join(table.schema.names)}; key {', '.join(table.schema.primary_key)}",
        )
