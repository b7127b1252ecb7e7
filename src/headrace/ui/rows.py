"""Pages of rows in key order. A page begins at a key, so its cost does not depend on the rows before it."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.errors import OptionError
from headrace.model.tables.conditions import OPERATORS, KeyRange, Predicate
from headrace.model.tables.schema import Key, KeyValue, TableSchema
from headrace.model.types import type_name
from headrace.ports import Table
from headrace.rows.shown_values import shown_values

PAGE_ROWS = 50
LOOK_ROWS = 20_000
"""The number of rows that one request with a filter looks at."""
_WITHOUT_VALUE = ("is null", "is not null")


@dataclass(frozen=True)
class RowPage:
    """Rows of a table.

    Attributes:
        columns: the names of the columns, those of the key first.
        rows: the values of the rows.
        cursor: where the next page begins; None at the end of the table.
        looked_at: the number of rows that were read, if a filter found few in them; None otherwise.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    cursor: str | None
    looked_at: int | None


def read_page(table: Table, cursor: str, where: Sequence[Predicate] = (), *, count: int = PAGE_ROWS) -> RowPage:
    """Return the rows of a table from a cursor on; an empty cursor is the beginning.

    With conditions, at most `LOOK_ROWS` rows are looked at. The cursor is then the key after them.
    """
    schema = table.schema
    key = schema.primary_key
    names = [*key, *(name for name in schema.names if name not in key)]
    low = decode_cursor(cursor, schema) if cursor else None
    end, looked_at = None, None
    if key and where and not _selects_key(where, schema):
        # The key at the end of the rows to look at. A store would read the whole table for a condition that no row
        # satisfies.
        bound = table.scan(list(key), keys=KeyRange(low), limit=LOOK_ROWS + 1).read_all()
        if bound.num_rows > LOOK_ROWS:
            end = tuple(bound.column(name)[LOOK_ROWS].as_py() for name in key)
            looked_at = LOOK_ROWS
    found = table.scan(names, list(where) or None, keys=KeyRange(low, end), limit=count + 1).read_all()
    rows = list(zip(*map(shown_values, found.columns), strict=True))
    following: Key | None = end
    if len(rows) > count and key:
        following, looked_at = rows[count][: len(key)], None
    return RowPage(names, rows[:count], encode_cursor(following), looked_at)


def condition(schema: TableSchema, column: str, operator: str, text: str) -> list[Predicate]:
    """Return the condition of a filter; an empty column is no condition.

    Raises:
        OptionError: the operator is unknown, or the value does not fit the column.
    """
    if not column:
        return []
    if operator not in OPERATORS:
        raise OptionError("unknown operator in a filter", received=repr(operator), valid=OPERATORS)
    if operator in _WITHOUT_VALUE:
        return [Predicate(schema.column(column).name, operator)]
    kind = schema.column(column).type
    parts = [part.strip() for part in text.split(",")] if operator == "in" else [text]
    try:
        values = [value_of(part, kind) for part in parts]
    except (ValueError, OverflowError, pa.ArrowException):
        raise OptionError(
            f"the value does not fit column {column!r}", received=repr(text)[:200], valid=type_name(kind)
        ) from None
    return [Predicate(column, operator, tuple(values) if operator == "in" else values[0])]


def value_of(text: str, kind: pa.DataType) -> Any:
    """Return the value of a text: times as ISO 8601 writes them (by default in UTC), bytes as 0x and hex digits.

    Raises:
        ValueError, OverflowError, pyarrow.ArrowException: the text is not a value of the type.
    """
    value: Any = text
    if pa.types.is_timestamp(kind):
        value = datetime.datetime.fromisoformat(text.strip())
        if kind.tz is not None:
            value = value.replace(tzinfo=value.tzinfo or datetime.UTC)
    elif pa.types.is_date(kind):
        value = datetime.date.fromisoformat(text.strip())
    elif pa.types.is_binary(kind):
        value = bytes.fromhex(text[2:]) if text.startswith("0x") else text.encode()
    else:
        return pa.scalar(text, pa.string()).cast(kind).as_py()
    return pa.scalar(value, kind).as_py()


def encode_cursor(key: Key | None) -> str | None:
    """Return a key as a text for URLs."""
    return None if key is None else json.dumps([_text(value) for value in key])


def decode_cursor(text: str, schema: TableSchema) -> Key:
    """Return the key of a text.

    Raises:
        OptionError: the text is not a key of the table.
    """
    try:
        kinds = [schema.column(name).type for name in schema.primary_key]
        return tuple(value_of(str(value), kind) for value, kind in zip(json.loads(text), kinds, strict=True))
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError, pa.ArrowException):
        raise OptionError("this page of rows does not exist", received=repr(text)[:200]) from None


def _text(value: KeyValue) -> str:
    if isinstance(value, bytes):
        return "0x" + value.hex()
    return value.isoformat() if isinstance(value, datetime.date) else str(value)


def _selects_key(where: Sequence[Predicate], schema: TableSchema) -> bool:
    """Return whether a condition is an equality of the first key column: the store then reads only its rows."""
    return any(each.column == schema.primary_key[0] and each.operator in ("=", "in") for each in where)
