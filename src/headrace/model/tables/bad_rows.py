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

from headrace.model.json_values import plain
from headrace.model.tables.schema import TableSchema

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


def key_text(key: str) -> str:
    """Return a key, a JSON object, as column `KEY` has it."""
    encoded = key.encode()
    return key if len(encoded) <= _LONGEST_KEY else f"{_DIGEST}{hashlib.sha256(encoded).hexdigest()}"


def stored_keys(rows: Iterable[Mapping[str, Any]], schema: TableSchema) -> list[str]:
    """Return the keys of bad rows as JSON objects, from their columns ``key`` and ``row``."""
    return [row_key(each["row"], schema) if each[KEY].startswith(_DIGEST) else each[KEY] for each in rows]


def row_key(row: str, schema: TableSchema) -> str:
    """Return the key of a row, a JSON object, as one. A text of the user that is none stays."""
    try:
        values = json.loads(row)
    except ValueError:
        return row
    return json_object({name: values.get(name) for name in schema.primary_key}) if isinstance(values, dict) else row
