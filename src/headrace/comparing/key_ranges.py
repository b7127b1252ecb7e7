"""Key ranges for the comparison of two tables."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from headrace.ports import Table
from headrace.tables.conditions import KeyRange
from headrace.tables.schema import Key, KeyValue, TableSchema
from headrace.types import is_text

_LAST_INTEGER = 2**63 - 1


def common_ranges(a: Table, b: Table, count: int) -> list[KeyRange]:
    """Return at most ``count`` key ranges that cover all keys, with bounds that both tables can have.

    The ranges are those of the table that has more of them: a store may know no middle of a table.
    """
    found = max((_bounds(table, count, (a.schema, b.schema)) for table in (a, b)), key=len)
    return [KeyRange(low, high) for low, high in itertools.pairwise([None, *found, None])]


def for_table(keys: KeyRange, schema: TableSchema) -> KeyRange:
    """Return a range with its bounds in the key types of a table."""
    bounds = [bound and _converted(bound, schema) for bound in (keys.low, keys.high)]
    return KeyRange(*bounds)


def closed_range(first: Key, last: Key) -> KeyRange:
    """Return the range from the key ``first`` to the key ``last``, both included."""
    return KeyRange(first, _after(last))


def _bounds(table: Table, count: int, schemas: Sequence[TableSchema]) -> list[Key]:
    """Return the bounds between the ranges of a table, without those that are no keys of the other one."""
    bounds = [keys.low for keys in table.splits(count) if keys.low is not None]
    return [bound for bound in bounds if all(_converted(bound, schema) is not None for schema in schemas)]


def _converted(key: Key, schema: TableSchema) -> Key | None:
    """Return a key with texts as bytes or bytes as texts, as the table has them; None if bytes are no text."""
    values: list[KeyValue] = []
    for name, value in zip(schema.primary_key, key, strict=False):
        text = is_text(schema.column(name).type)
        if isinstance(value, bytes) and text:
            try:
                value = value.decode()
            except UnicodeDecodeError:
                return None
        elif isinstance(value, str) and not text:
            value = value.encode()
        values.append(value)
    return tuple(values)


def _after(key: Key) -> Key | None:
    """Return the smallest bound above all keys that begin with ``key``; None if there is no such bound."""
    *before, last = key
    if isinstance(last, str):
        return (*before, last + "\0")
    if isinstance(last, bytes):
        return (*before, last + b"\0")
    if last < _LAST_INTEGER:
        return (*before, last + 1)
    return _after(tuple(before)) if before else None
