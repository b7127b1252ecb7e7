"""Tables that ``CREATE TABLE … (…, PRIMARY KEY (…)) USING …`` creates in their stores."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headrace.errors import AlreadyExistsError, NotFoundError, OptionError
from headrace.formats.option_kinds import boolean, duration, natural
from headrace.option_names import check_names
from headrace.streaming_sql.catalog import TableDefinition
from headrace.streaming_sql.format_options import options_of
from headrace.streaming_sql.language import statements as st
from headrace.streaming_sql.locations import location_of
from headrace.streaming_sql.secrets import resolved

# The fields of `headrace.tables.options.TableOptions`, by the names of options.
_FIELDS = {
    "preimages": ("pre_images", boolean),
    "retentionseconds": ("retention_seconds", duration),
    "retentionbytes": ("retention_bytes", natural),
    "retentionignorestunnels": ("retention_ignores_tunnels", boolean),
    "changelog": ("change_log", boolean),
}
_SHOWN = ("preImages", "retentionSeconds", "retentionBytes", "retentionIgnoresTunnels", "changeLog")
_NAMES = ("table", "queue")


def split_options(statement: st.CreateTable) -> tuple[st.CreateTable, dict[str, Any]]:
    """Return the statement with the options of its format, and the options of the new table.

    Without option ``table``, the table has the name of the statement.

    Raises:
        OptionError: an option is unknown, or has an invalid value.
    """
    where = f"table {statement.name}"
    known = [option.name for option in options_of(statement.provider)]
    check_names(where, statement.options, [*_SHOWN, *known], any_case=True)
    of_table = {name: value for name, value in statement.options.items() if name.lower() in _FIELDS}
    of_format = {name: value for name, value in statement.options.items() if name not in of_table}
    if "table" in known and not any(name.lower() in _NAMES for name in of_format):
        of_format["table"] = str(statement.name)
    settings: dict[str, Any] = {}
    for name, text in resolved(of_table, where).items():
        field, read = _FIELDS[name.lower()]
        try:
            settings[field] = read(text)
        except ValueError as error:
            raise OptionError(f"invalid value of option {name}", received=repr(text)[:200], valid=str(error)) from None
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
        try:
            store.table(name)
        except NotFoundError:
            exists = False
        else:
            exists = True
        if exists and not may_exist:
            raise AlreadyExistsError(
                "a table of this name exists in the store",
                received=name,
                remedy="use CREATE TABLE IF NOT EXISTS, or leave out the columns to define a name for it",
            )
        store.create_table(name, statement.new_columns, statement.primary_key, exist_ok=exists, **settings)
    return not exists
