"""Tables of bad rows: the rows that a table has refused, beside it. They are for people, and to be written again.

A table of bad rows has at most one row for each key of its table: the last change of the key, if the table has refused
it. So a table and its bad rows have together the last change of each key, and the table has the one before for each of
the bad rows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from headrace.errors import SchemaError
from headrace.model.json_values import plain
from headrace.model.tables.schema import TableSchema
from headrace.model.types import type_name

KEY: Final = "key"
COLUMNS: Final = {
    KEY: "string",
    "change": "string",
    "row": "string",
    "error": "string",
    "former": "string",
    "stream": "string",
    "query": "string",
    "batch": "long",
    "refused": "timestamp",
}
"""The columns of a table of bad rows.

- ``key``: the key as a JSON object; of a long one a digest.
- ``change``: ``put`` or ``delete``.
- ``row``: the row of a put as a JSON object; of a delete its key.
- ``error``: why the table has refused it.
- ``former``: the row of the key that the table had then, as a JSON object; null if it had none.
- ``stream``, ``query``, ``batch``: the name of the stream, the id of its query, and the batch with the change.
- ``refused``: the time of the batch.
"""
SCHEMA: Final = TableSchema.of(COLUMNS, KEY)
_SUFFIX = "_bad_rows"
# The longest key of an index of PostgreSQL has about 2,700 bytes.
_LONGEST_KEY = 2000
_DIGEST = "sha256:"


def table_name(table: str) -> str:
    """Return the name of the table with the bad rows of a table, also of one whose last part is in quotes."""
    return f'{table[:-1]}{_SUFFIX}"' if table.endswith('"') else f"{table}{_SUFFIX}"


def json_object(row: Mapping[str, Any]) -> str:
    """Return values by the names of their columns as a JSON object."""
    return json.dumps(plain(row), ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def object_of(text: str | None) -> dict[str, Any]:
    """Return the values of a JSON object that a person can have written; raise `ValueError` if it is none."""
    try:
        values = json.loads(text or "")
        if isinstance(values, dict):
            # An escape such as \ud800 is half of a character.
            json_object(values).encode()
            return values
    except RecursionError:
        raise ValueError("too many brackets") from None
    raise ValueError("no object")


def check_columns(table: str, there: TableSchema) -> None:
    """Raise `SchemaError` if a table of bad rows lacks a column, or has another key. It may have others."""
    if not has_columns(there):
        raise SchemaError(
            f"table {table!r} does not have the columns of a table of bad rows",
            received=_shown(there),
            valid=_shown(SCHEMA),
            remedy="give it these columns again; or, if it has no rows to keep, drop it: the stream creates it when it "
            "starts",
        )


def has_columns(there: TableSchema) -> bool:
    """Return whether a table has the key and all columns of a table of bad rows."""
    return there.primary_key == SCHEMA.primary_key and all(
        name in there and there.column(name).type == SCHEMA.column(name).type for name in COLUMNS
    )


def _shown(schema: TableSchema) -> str:
    columns = ", ".join(f"{column.name} {type_name(column.type)}" for column in schema.columns)
    return f"{columns}; key {', '.join(schema.primary_key)}"


def key_text(key: str) -> str:
    """Return a key, a JSON object, as column `KEY` has it."""
    encoded = key.encode()
    return key if len(encoded) <= _LONGEST_KEY else f"{_DIGEST}{hashlib.sha256(encoded).hexdigest()}"


def stored_keys(rows: Iterable[Mapping[str, Any]], schema: TableSchema) -> list[str]:
    """Return the keys of bad rows as JSON objects, from their columns ``key`` and ``row``.

    A digest stays if the row beside it has no key.
    """
    return [(row_key(each["row"], schema) if each[KEY].startswith(_DIGEST) else None) or each[KEY] for each in rows]


def row_key(row: str | None, schema: TableSchema) -> str | None:
    """Return the key of a row, a JSON object, as one; None if the text is none."""
    try:
        values = object_of(row)
    except ValueError:
        return None
    return json_object({name: values.get(name) for name in schema.primary_key})
