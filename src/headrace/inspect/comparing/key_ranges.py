"""Key ranges for the comparison of two tables."""

from __future__ import annotations

import datetime
import decimal
import itertools
from collections.abc import Sequence

from headrace.model.tables.conditions import KeyRange
from headrace.model.tables.schema import Key, KeyValue, TableSchema
from headrace.model.types import is_text
from headrace.ports import Table

# Of columns of type byte, short, int and long.
_LAST_INTEGERS = frozenset(2**bits - 1 for bits in (7, 15, 31, 63))


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
    following = _following(last)
    if following is not None:
        return (*before, following)
    return _after(tuple(before)) if before else None


def _following(value: int | datetime.date | decimal.Decimal) -> KeyValue | None:
    """Return the next value of a number, date or timestamp; None if a column may not have one."""
    if isinstance(value, bool):
        return None if value else True
    if isinstance(value, int):
        # The range is then larger than necessary if the column is a wider one.
        return None if value in _LAST_INTEGERS else value + 1
    if isinstance(value, decimal.Decimal):
        exponent = value.as_tuple().exponent
        return decimal.Context(prec=40).add(value, decimal.Decimal((0, (1,), int(exponent))))
    step = datetime.timedelta(microseconds=1) if isinstance(value, datetime.datetime) else datetime.timedelta(days=1)
    try:
        return value + step
    except OverflowError:
        return None
