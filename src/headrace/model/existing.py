"""What the name of a new table or queue finds. No I/O."""

from __future__ import annotations

from headrace.errors import AlreadyExistsError, SchemaError
from headrace.model.queues.columns import QueueSchema
from headrace.model.tables.schema import TableSchema


def already_exists(name: str, url: str, what: str = "a table") -> AlreadyExistsError:
    """Return the error for the name of a new table that another one has in a store."""
    return AlreadyExistsError(
        f"{what} of this name exists in {url}",
        received=repr(name),
        remedy="pass exist_ok=True (on the command line --if-not-exists) to use it as it is",
    )


def other_columns(what: str, wanted: TableSchema | QueueSchema, there: TableSchema | QueueSchema) -> SchemaError:
    """Return the error for an existing table with other columns, or another key; ``what`` is its kind and name."""
    return SchemaError(
        f"{what} exists with other columns or another key",
        received=f"{', '.join(wanted.names)}; key {', '.join(wanted.primary_key)}",
        valid=f"{', '.join(there.names)}; key {', '.join(there.primary_key)}",
    )
