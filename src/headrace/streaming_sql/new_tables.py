"""Tables that ``CREATE TABLE … (…, PRIMARY KEY (…)) USING …`` creates in their stores."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from headrace.errors import AlreadyExistsError, SchemaError
from headrace.formats.location import find_table
from headrace.model.tables.options import PARTITION_BY
from headrace.model.tables.schema import TableSchema
from headrace.model.types import type_name
from headrace.options.kinds import boolean, duration, natural
from headrace.streaming_sql.catalog import TableDefinition
from headrace.streaming_sql.format_options import OwnOption, options_of, split_options
from headrace.streaming_sql.language import statements as st
from headrace.streaming_sql.locations import location_of

# The fields of `headrace.model.tables.options.TableOptions`, by the names of options.
_FIELDS: Mapping[str, OwnOption] = {
    "preImages": ("pre_images", boolean),
    "retentionSeconds": ("retention_seconds", duration),
    "retentionBytes": ("retention_bytes", natural),
    "retentionIgnoresTunnels": ("retention_ignores_tunnels", boolean),
    "changeLog": ("change_log", boolean),
}
_NAMES = ("table", "queue")


def option_names() -> dict[str, str]:
    """Return the names of options by the fields of `TableOptions`."""
    return {field: name for name, (field, _) in _FIELDS.items()}


def options_of_table(statement: st.CreateTable) -> tuple[st.CreateTable, dict[str, Any]]:
    """Return the statement with the options of its format, and the options of the new table.

    Without option ``table``, the table has the name of the statement.

    Raises:
        OptionError: an option is unknown, or has an invalid value.
    """
    provider = statement.provider
    of_format, settings = split_options(f"table {statement.name}", provider, statement.options, _FIELDS)
    if statement.partition_by:
        settings[PARTITION_BY] = statement.partition_by
    names_table = any(option.name == "table" for option in options_of(provider))
    if names_table and not any(name.lower() in _NAMES for name in of_format):
        of_format["table"] = str(statement.name)
    return replace(statement, options=of_format), settings


def create_in_store(
    statement: st.CreateTable, definition: TableDefinition, settings: dict[str, Any], *, may_exist: bool
) -> bool:
    """Create the table of a definition, and its store if that does not exist; return whether the table is new.

    Args:
        may_exist: an existing table with the same columns and key is kept.

    Raises:
        AlreadyExistsError: the table exists, and may not, or has other columns.
    """
    assert statement.new_columns is not None
    location = location_of(definition)
    with location.open_store(create=True) as store:
        name = str(location.table)
        known = find_table(store, name)
        if known is not None and may_exist and _has_more_columns(known.schema, statement):
            return False
        if known is not None and not may_exist:
            raise AlreadyExistsError(
                "a table of this name exists in the store",
                received=name,
                remedy="use CREATE TABLE IF NOT EXISTS, or leave out the columns to define a name for it",
            )
        try:
            exist_ok = known is not None
            store.create_table(name, statement.new_columns, statement.primary_key, exist_ok=exist_ok, **settings)
        except (AlreadyExistsError, SchemaError) as error:
            if known is None:
                raise
            raise AlreadyExistsError(
                f"table {name} exists in the store with other columns, another key or other options",
                received=", ".join(f"{column} {kind}" for column, kind in statement.new_columns.items()),
                valid=", ".join(f"{column.name} {type_name(column.type)}" for column in known.schema.columns)
                + f", PRIMARY KEY ({', '.join(known.schema.primary_key)})",
                remedy=f"ALTER TABLE {statement.name} ADD COLUMNS adds columns; `headrace table drop "
                f"{shlex.quote(name)}` removes the table with its rows; option table = '…' names another one",
            ) from error
    return known is None


def _has_more_columns(known: TableSchema, statement: st.CreateTable) -> bool:
    """Return whether a table has the key and the columns of a statement, and others that ALTER TABLE has added."""
    assert statement.new_columns is not None
    wanted = TableSchema.of(statement.new_columns, statement.primary_key)
    same = {column.name: column for column in known.columns}
    all_same = all(column == same.get(column.name) for column in wanted.columns)
    return all_same and known.primary_key == wanted.primary_key and len(known.columns) > len(wanted.columns)


def drop_if_unused(definition: TableDefinition) -> bool:
    """Remove the table of a definition from its store if it has no rows and no tunnels; return whether it was."""
    location = location_of(definition)
    with location.open_store() as store:
        table = store.table(str(location.table))
        if store.capabilities.tunnels and store.tunnels(table.name):
            return False
        if any(batch.num_rows for batch in table.scan([], limit=1)):
            return False
        store.drop_table(table.name)
    return True
