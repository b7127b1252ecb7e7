"""Tables in the transaction of a caller: creating and dropping them, and their options."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import apsw
import pyarrow as pa

from headrace.errors import OptionError
from headrace.model.tables.column_limits import check_columns
from headrace.model.tables.options import TableOptions, check_option_names
from headrace.model.tables.schema import TableSchema
from headrace.stores.embedded import catalog
from headrace.stores.embedded.tables import partitions, physical
from headrace.stores.embedded.tables.physical import PhysicalTable

_NO_NUMBER_OF_SQLITE = 1 << 63


def create(connection: apsw.Connection, name: str, schema: TableSchema, options: TableOptions) -> int:
    """Create a table inside the caller's write transaction and return its object id; the name must be free.

    Raises:
        SchemaError: too many columns, or a type is nested too deep.
    """
    check_columns(schema)
    table = PhysicalTable(catalog.create(connection, name, "table", options, 1), schema, 1)
    save_schema(connection, table)
    partitions.create_first(connection, table.object_id)
    table.create(connection)
    return table.object_id


def drop(connection: apsw.Connection, object_id: int) -> None:
    """Remove a table with its rows and change log inside the caller's write transaction, after its tunnels."""
    # The schema is not read: an earlier version could store types that are nested deeper than Arrow can read.
    physical.drop(connection, object_id)
    catalog.drop(connection, object_id)


def table_options(options: TableOptions, **changes: Any) -> TableOptions:
    """Return options with some changed.

    Raises:
        OptionError: an option is unknown, or has an invalid value.
    """
    check_option_names(changes)
    for name, value in changes.items():
        if name in ("retention_seconds", "retention_bytes"):
            allowed = int if name == "retention_bytes" else int | float
            if value is not None and (
                isinstance(value, bool) or not isinstance(value, allowed) or not 0 <= value < _NO_NUMBER_OF_SQLITE
            ):
                raise OptionError(f"option {name} must be a number, or None for no limit", received=repr(value))
        elif not isinstance(value, bool):
            raise OptionError(f"option {name} must be True or False", received=repr(value))
    changed = dataclasses.replace(options, **changes)
    if changed.pre_images and not changed.change_log:
        raise OptionError("a table without a change log has no pre-images", received="pre_images=True")
    return changed


def save_schema(connection: apsw.Connection, table: PhysicalTable, stored: pa.Schema | None = None) -> None:
    """Save a version of a table's schema; ``stored`` has the numbers of its columns, if they are not their places."""
    connection.execute(
        "INSERT INTO object_schema (object, version, schema, keys) VALUES (?, ?, ?, ?)",
        (
            table.object_id,
            table.schema_version,
            (stored or table.schema.arrow).serialize().to_pybytes(),
            json.dumps(list(table.schema.primary_key)),
        ),
    )
