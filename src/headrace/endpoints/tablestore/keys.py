"""Keys of requests: whether they fit a table, and the key ranges that bounds with infinities stand for."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from headrace.endpoints.tablestore.errors import invalid
from headrace.endpoints.tablestore.schema import cell_type, type_of_column
from headrace.model import Key, KeyRange, KeyValue, TableSchema
from headrace.wire.plainbuffer.rows import decode_row
from headrace.wire.plainbuffer.values import Marker, Row, Value
from headrace.wire.tablestore.errors import ServiceError
from headrace.wire.tablestore.limits import MAX_KEY_VALUE_BYTES

_LARGEST = (1 << 63) - 1


def whole_key(row: Row, schema: TableSchema, numbered: str | None = None) -> tuple[KeyValue | None, ...]:
    """Return the values of a row's key.

    Args:
        numbered: the key column that the server numbers; its value is None where the row asks for a number.

    Raises:
        ServiceError: OTSInvalidPK, if it is not a key of the table; OTSParameterInvalid.
    """
    values = _values(row.key, schema)
    for name, value in row.key:
        if isinstance(value, Marker) and not (value is Marker.AUTO_INCREMENT and name == numbered):
            raise invalid(f"the value of key column {name!r} must be one", received=value.value)
    return tuple(None if isinstance(value, Marker) else value for value in values)


def key_of(data: bytes, schema: TableSchema) -> Key:
    """Read a message that holds one whole key."""
    values = whole_key(decode_row(data), schema)
    return tuple(value for value in values if value is not None)


def key_table(keys: Sequence[Key], schema: TableSchema) -> pa.Table:
    """Return keys as the rows of a table."""
    columns = {
        name: pa.array([key[index] for key in keys], schema.column(name).type)
        for index, name in enumerate(schema.primary_key)
    }
    return pa.table(columns)


def _values(key: Sequence[tuple[str, Value]], schema: TableSchema) -> list[KeyValue | Marker]:
    if tuple(name for name, _ in key) != schema.primary_key:
        raise _mismatch(key, schema)
    values: list[KeyValue | Marker] = []
    for name, value in key:
        if isinstance(value, Marker):
            values.append(value)
        elif isinstance(value, str | int | bytes) and cell_type(value) is type_of_column(schema.column(name).type):
            size = 0 if isinstance(value, int) else len(value.encode() if isinstance(value, str) else value)
            if size > MAX_KEY_VALUE_BYTES:
                raise invalid(
                    f"the value of key column {name!r} is too long",
                    received=f"{size} bytes",
                    valid=f"at most {MAX_KEY_VALUE_BYTES} bytes",
                )
            values.append(value)
        else:
            raise _mismatch(key, schema)
    return values


def _mismatch(key: Sequence[tuple[str, Value]], schema: TableSchema) -> ServiceError:
    given = ", ".join(f"{name} {_type_name(value)}" for name, value in key)
    wanted = ", ".join(f"{name} {type_of_column(schema.column(name).type)}" for name in schema.primary_key)
    return ServiceError("OTSInvalidPK", f"Primary key schema mismatch. received: {given}; valid: {wanted}")


def _type_name(value: Value) -> str:
    return value.value if isinstance(value, Marker) else str(cell_type(value))


def range_of(start: bytes, end: bytes, schema: TableSchema, *, backward: bool) -> KeyRange | None:
    """Return the keys from a bound (included) to another (excluded); None if there can be none.

    Args:
        start, end: messages with a key each, whose values may be infinite.
        backward: the range goes from its highest key to its lowest.

    Raises:
        ServiceError: a bound is no key of the table, or the range goes the other way.
    """
    first = _place(start, schema, behind=backward)
    last = _place(end, schema, behind=backward)
    low, high = (last, first) if backward else (first, last)
    if _order(low) > _order(high):
        raise invalid(
            "Begin key must be greater than end key in BACKWARD"
            if backward
            else "Begin key must less than end key in FORWARD"
        )
    if low == high or low is None:
        return None
    return KeyRange(low or None, high)


def _place(data: bytes, schema: TableSchema, *, behind: bool) -> Key | None:
    """Return the beginning of the keys that come at or after a bound; None if it is behind all keys.

    Args:
        behind: a whole key stands for the place behind it, not the one before.
    """
    prefix: list[KeyValue] = []
    for value in _values(decode_row(data).key, schema):
        if value is Marker.INF_MIN:
            return tuple(prefix)
        if value is Marker.INF_MAX:
            return _following(prefix)
        if isinstance(value, Marker):
            raise invalid("a bound of a range holds no number that is still to be given")
        prefix.append(value)
    return _following(prefix) if behind else tuple(prefix)


def _following(prefix: Sequence[KeyValue]) -> Key | None:
    """Return the beginning of the first keys behind all that begin with a prefix; None if there are none."""
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


def _order(place: Key | None) -> tuple[bool, Key]:
    return (place is None, place or ())


def range_from(key: Key, keys: KeyRange, *, backward: bool) -> KeyRange:
    """Return the part of a range that begins with a key."""
    return KeyRange(keys.low, _following(key)) if backward else KeyRange(key, keys.high)
