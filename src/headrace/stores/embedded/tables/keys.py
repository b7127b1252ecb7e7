"""Keys: their form in SQLite, which sorts as the keys do, and their form as JSON.

In SQLite, whole numbers are integers, booleans are 0 and 1, dates and timestamps are their days and microseconds since
1970, and decimals are big-endian binaries of 16 bytes with a flipped sign bit. Texts and binaries stay as they are.

As JSON, a key is a list of values, of which `headrace.stores.shared.key_json` has the forms; bytes are
``{"b": base64}``. None, an open bound, stays None.
"""

from __future__ import annotations

import base64
import functools
import json
from collections.abc import Sequence
from typing import Any, overload

import pyarrow as pa

from headrace.model.tables.schema import Key, KeyValue
from headrace.rows.byte_order import data_of_ordered, ordered_bytes
from headrace.rows.key_years import check_years
from headrace.stores.shared.key_json import from_json, to_json

_NATIVE = (pa.string(), pa.int64(), pa.binary())
_DECIMAL_BYTES = 16


def sql_type(data_type: pa.DataType) -> str:
    """Return the type of a key column in SQLite."""
    if data_type == pa.string():
        return "TEXT"
    return "BLOB" if data_type == pa.binary() or pa.types.is_decimal(data_type) else "INTEGER"


def stored_values(values: pa.Array) -> list[Any]:
    """Return values of a key column as SQLite has them.

    Raises:
        SchemaError: a date or timestamp is outside the years 1 to 9999, which Python does not have.
    """
    kind = values.type
    if pa.types.is_decimal(kind):
        found: list[Any] = ordered_bytes(values).view(f"V{_DECIMAL_BYTES}").ravel().tolist()
        return found
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        check_years(values)
        values = values.cast(pa.int32()).cast(pa.int64()) if pa.types.is_date(kind) else values.cast(pa.int64())
    elif pa.types.is_boolean(kind):
        values = values.cast(pa.int8())
    # numpy is several times faster than Array.to_pylist.
    found = values.to_numpy(zero_copy_only=False).tolist()
    return found


def stored_key(types: Sequence[pa.DataType], key: Key) -> tuple[Any, ...]:
    """Return a key, or the beginning of one, as SQLite has it."""
    return tuple(
        value if data_type in _NATIVE else stored_values(pa.array([value], data_type))[0]
        for data_type, value in zip(types, key, strict=False)
    )


def array_of_stored(values: Sequence[Any], data_type: pa.DataType) -> pa.Array:
    """Return values of a key column; the inverse of `stored_values`."""
    if not pa.types.is_decimal(data_type):
        if data_type in _NATIVE:
            return pa.array(values, data_type)
        return pa.array(values, pa.int32() if pa.types.is_date(data_type) else pa.int64()).cast(data_type)
    import numpy as np

    rows = np.frombuffer(b"".join(values), np.uint8).reshape(-1, _DECIMAL_BYTES)
    return pa.Array.from_buffers(data_type, len(values), [None, pa.py_buffer(data_of_ordered(rows, data_type))])


def key_of_stored(types: Sequence[pa.DataType], values: Sequence[Any]) -> Key:
    """Return a key from its values in SQLite; the inverse of `stored_key`."""
    return tuple(
        value if data_type in _NATIVE else array_of_stored([value], data_type)[0].as_py()
        for data_type, value in zip(types, values, strict=False)
    )


@overload
def key_to_json(key: None) -> None: ...
@overload
def key_to_json(key: Key) -> str: ...
@overload
def key_to_json(key: Key | None) -> str | None: ...
def key_to_json(key: Key | None) -> str | None:
    """Return a key, or the beginning of one, as JSON text."""
    if key is None:
        return None
    return json.dumps([_to_json(value) for value in key], separators=(",", ":"), ensure_ascii=False)


@overload
def key_from_json(text: None) -> None: ...
@overload
def key_from_json(text: str) -> Key: ...
@overload
def key_from_json(text: str | None) -> Key | None: ...
def key_from_json(text: str | None) -> Key | None:
    """Read a key back; the inverse of `key_to_json`."""
    return None if text is None else _parsed_key(text)


# Each write to a table reads the bounds of all its partitions.
@functools.lru_cache(maxsize=1 << 15)
def _parsed_key(text: str) -> Key:
    return tuple(_from_json(value) for value in json.loads(text))


def _to_json(value: KeyValue) -> Any:
    return {"b": base64.b64encode(value).decode()} if isinstance(value, bytes) else to_json(value)


def _from_json(value: Any) -> KeyValue:
    match value:
        case {"b": text}:
            return base64.b64decode(text)
    return from_json(value)
