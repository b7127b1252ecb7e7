"""Keys of requests, and key ranges with infinite bounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headrace.model.tables.conditions import KeyRange
from headrace.model.tables.schema import Key, KeyValue, TableSchema
from headrace_tablestore.endpoint.errors import refused
from headrace_tablestore.endpoint.rows.layout import CellType, cell_type, type_of_column
from headrace_tablestore.wire import table_pb2 as pb
from headrace_tablestore.wire.errors import ServiceError
from headrace_tablestore.wire.limits import MAX_KEY_COLUMNS, MAX_KEY_VALUE_BYTES
from headrace_tablestore.wire.plainbuffer.rows import decode_row
from headrace_tablestore.wire.plainbuffer.values import Marker, Row, Value

_LARGEST = (1 << 63) - 1
_BOUNDS = frozenset({Marker.INF_MIN, Marker.INF_MAX})
_NUMBERED = frozenset({Marker.AUTO_INCREMENT})
_KEY_TYPES = frozenset({CellType.INTEGER, CellType.STRING, CellType.BINARY})
_TYPE_NAMES = {
    CellType.INTEGER: "VT_INTEGER",
    CellType.DOUBLE: "VT_DOUBLE",
    CellType.BOOLEAN: "VT_BOOLEAN",
    CellType.STRING: "VT_STRING",
    CellType.BINARY: "VT_BLOB",
}
_MARKER_NAMES = {
    Marker.INF_MIN: "VT_INF_MIN",
    Marker.INF_MAX: "VT_INF_MAX",
    Marker.AUTO_INCREMENT: "VT_AUTO_INCREMENT",
}


def check_key(key: Sequence[tuple[str, Value]], allowed: frozenset[Marker] = frozenset()) -> None:
    """Check a key without a table. In a batch, an invalid key fails the whole request, not one row.

    Raises:
        ServiceError: OTSParameterInvalid.
    """
    if not key:
        raise refused("Cell data broken, empty PK.")
    if len(key) > MAX_KEY_COLUMNS:
        raise wrong_key_count()
    for name, value in key:
        if value not in allowed if isinstance(value, Marker) else cell_type(value) not in _KEY_TYPES:
            raise refused(f"{_type_name(value)} is an invalid type for the primary key.")
        if isinstance(value, str | bytes):
            size = len(value.encode() if isinstance(value, str) else value)
            if size > MAX_KEY_VALUE_BYTES:
                raise refused(
                    f"The length of primary key column: '{name}' exceeds the MaxLength:{MAX_KEY_VALUE_BYTES} "
                    f"with CurrentLength:{size}."
                )


def wrong_key_count() -> ServiceError:
    return refused(f"The number of primary key columns must be in range: [1, {MAX_KEY_COLUMNS}].")


def check_written_key(kind: int, key: Sequence[tuple[str, Value]]) -> None:
    """Check the key of a write by `check_key`. A put or an update may ask the server for a number."""
    check_key(key, frozenset() if kind == pb.DELETE else _NUMBERED)


def whole_key(row: Row, schema: TableSchema, numbered: str | None = None) -> tuple[KeyValue | None, ...]:
    """Return the values of a row's key, after `check_written_key`.

    Args:
        numbered: the key column that the server numbers. Its value is None if the row asks for a number.

    Raises:
        ServiceError: OTSInvalidPK: the key does not match the table.
    """
    return tuple(None if isinstance(value, Marker) else value for value in _values(row.key, schema, numbered))


def key_of(data: bytes, schema: TableSchema) -> Key:
    """Parse a message with a key.

    Raises:
        ServiceError: OTSParameterInvalid or OTSInvalidPK.
    """
    row = decode_row(data)
    check_key(row.key)
    return key_in(row, schema)


def key_in(row: Row, schema: TableSchema) -> Key:
    """Return the key of a row, after `check_key`.

    Raises:
        ServiceError: OTSInvalidPK.
    """
    return tuple(value for value in whole_key(row, schema) if value is not None)


def key_table(keys: Sequence[Key], schema: TableSchema) -> pa.Table:
    """Return keys as an Arrow table."""
    columns = {
        name: pa.array([key[index] for key in keys], schema.column(name).type)
        for index, name in enumerate(schema.primary_key)
    }
    return pa.table(columns)


def _values(
    key: Sequence[tuple[str, Value]], schema: TableSchema, numbered: str | None = None
) -> list[KeyValue | Marker]:
    """Return the values of a key or a bound, after comparing their names and types with the table.

    Args:
        numbered: see `whole_key`.
    """
    if len(key) != len(schema.primary_key):
        raise _mismatch("size", str(len(key)), str(len(schema.primary_key)))
    values: list[KeyValue | Marker] = []
    for (name, value), own in zip(key, schema.primary_key, strict=True):
        if name != own:
            raise _mismatch("name", name, own)
        wanted = type_of_column(schema.column(own).type)
        fits = value in _BOUNDS or own == numbered if isinstance(value, Marker) else cell_type(value) is wanted
        if not fits or not isinstance(value, Marker | str | int | bytes):
            raise _mismatch("type", _type_name(value), _TYPE_NAMES[wanted] if wanted else "VT_NULL")
        values.append(value)
    return values


def _mismatch(what: str, given: str, wanted: str) -> ServiceError:
    return ServiceError("OTSInvalidPK", f"Validate PK {what} fail. Input: {given}, Meta: {wanted}.")


def _type_name(value: Value) -> str:
    """Return the service's name of a value's type."""
    if isinstance(value, Marker):
        return _MARKER_NAMES[value]
    kind = cell_type(value)
    return "VT_NULL" if kind is None else _TYPE_NAMES[kind]


def range_of(start: bytes, end: bytes, schema: TableSchema, *, backward: bool) -> KeyRange | None:
    """Return the keys from ``start`` (inclusive) to ``end`` (exclusive); None if there can be none.

    Args:
        start, end: messages with a key each, whose values may be infinite.
        backward: the range is in descending order.

    Raises:
        ServiceError: a bound is not a key of the table, or the bounds have the wrong order.
    """
    begins, ends = _bound(start, schema), _bound(end, schema)
    if (_rank(begins) <= _rank(ends)) if backward else (_rank(begins) >= _rank(ends)):
        direction = "more than end key in BACKWARD" if backward else "less than end key in FORWARD"
        raise refused(f"Begin key must {direction}")
    first, last = _boundary(begins, after=backward), _boundary(ends, after=backward)
    low, high = (last, first) if backward else (first, last)
    if low == high or low is None:
        return None
    return KeyRange(low or None, high)


def _bound(data: bytes, schema: TableSchema) -> list[KeyValue | Marker]:
    """Parse a message with a bound of a range."""
    key = decode_row(data).key
    check_key(key, _BOUNDS)
    return _values(key, schema)


def _rank(bound: Sequence[KeyValue | Marker]) -> list[tuple[int, Any]]:
    """Return the sort key of a bound. Infinite values are below or above all values of their column."""
    ranks = {Marker.INF_MIN: 0, Marker.INF_MAX: 2}
    return [
        (ranks[value], 0) if isinstance(value, Marker) else (1, value.encode() if isinstance(value, str) else value)
        for value in bound
    ]


def _boundary(bound: Sequence[KeyValue | Marker], *, after: bool) -> Key | None:
    """Return the key prefix of the first keys at or after a bound; None if the bound is above all keys.

    Args:
        after: a bound without infinite values means the position after the key, not before it.
    """
    prefix: list[KeyValue] = []
    for value in bound:
        if value is Marker.INF_MIN:
            return tuple(prefix)
        if value is Marker.INF_MAX:
            return _following(prefix)
        assert not isinstance(value, Marker)
        prefix.append(value)
    return _following(prefix) if after else tuple(prefix)


def _following(prefix: Sequence[KeyValue]) -> Key | None:
    """Return the prefix of the first keys above all keys with a prefix; None if there are none."""
    if not prefix:
        return None
    *before, last = prefix
    match last:
        case str():
            return (*before, last + "\0")
        case bytes():
            return (*before, last + b"\0")
        case int() if last < _LARGEST:
            return (*before, last + 1)
    return _following(before)


def range_from(key: Key, keys: KeyRange, *, backward: bool) -> KeyRange:
    """Return the rest of a range from a key on."""
    return KeyRange(keys.low, _following(key)) if backward else KeyRange(key, keys.high)
