"""Canonical values: equal values of comparable column types become equal Arrow values.

Stores keep the same value in different types: a `short` of one is a `long` of another. A canonical array has one of
these types:

======================================================  ==========================
column type                                             canonical type
======================================================  ==========================
boolean, integers, date, timestamps, interval           int64
float, double                                           int64, the bits of a double
decimal                                                 decimal256(76, 38)
string, binary                                          binary
array                                                   list of canonical values
map                                                     list of structs, the entries in an order of their keys
struct                                                  struct, the fields in the order of their names
======================================================  ==========================

As in Spark SQL, NaN equals NaN, and -0.0 equals 0.0. Null equals null only; it differs from an empty text. The order of
the entries of a map has no meaning.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headrace.inspect.comparing.digests import digests
from headrace.model.types import is_array, is_bytes, is_text

DECIMAL = pa.decimal256(76, 38)
"""Has all values of all decimals of up to 38 digits: at most 38 digits before and 38 after the point."""
_NAN_BITS = np.array([np.nan]).view(np.int64)[0]


def comparable(a: pa.DataType, b: pa.DataType) -> bool:
    """Return whether values of two column types can be equal: both have the same row in the table of this module.

    Booleans, integers, dates, each of the two timestamps and intervals are different kinds, though all of them are
    int64 in canonical form. Structs are comparable if they have the same names, and comparable fields.
    """
    types = pa.types
    if is_array(a) and is_array(b):
        return comparable(a.value_type, b.value_type)
    if types.is_map(a) and types.is_map(b):
        return comparable(a.key_type, b.key_type) and comparable(a.item_type, b.item_type)
    if types.is_struct(a) and types.is_struct(b):
        fields_a, fields_b = _by_name(a), _by_name(b)
        return [field.name for field in fields_a] == [field.name for field in fields_b] and all(
            comparable(one.type, other.type) for one, other in zip(fields_a, fields_b, strict=True)
        )
    return _kind(a) is not None and _kind(a) == _kind(b)


def canonical(values: pa.Array) -> pa.Array:
    """Return the canonical form of the values of a column, see the head of this module."""
    types, data_type = pa.types, values.type
    if is_text(data_type) or is_bytes(data_type):
        return values if data_type == pa.binary() else values.cast(pa.binary())
    if types.is_boolean(data_type) or types.is_integer(data_type):
        return values if data_type == pa.int64() else values.cast(pa.int64())
    if types.is_floating(data_type):
        return _float_bits(values)
    if types.is_decimal(data_type):
        return values.cast(DECIMAL)
    if types.is_date(data_type):
        return values.view(pa.int32()).cast(pa.int64())
    if types.is_map(data_type):
        return _map_entries(values)
    if is_array(data_type):
        offsets = _offsets(values)
        inner = canonical(values.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0])))
        return _list(offsets - offsets[0], inner, values)
    if types.is_struct(data_type):
        fields = _by_name(data_type)
        # `flatten` respects the slice, and makes the fields of null structs null.
        flat = dict(zip([field.name for field in data_type], values.flatten(), strict=True))
        return pa.StructArray.from_arrays(
            [canonical(flat[field.name]) for field in fields],
            names=[field.name for field in fields],
            mask=values.is_null() if values.null_count else None,
        )
    return values.view(pa.int64())


def _kind(data_type: pa.DataType) -> str | None:
    """Return the kind of a type that is not nested; None for nested types."""
    types = pa.types
    if is_text(data_type) or is_bytes(data_type):
        return "bytes"
    if types.is_timestamp(data_type):
        return "timestamp" if data_type.tz else "timestamp_ntz"
    kinds = {
        "boolean": types.is_boolean,
        "integer": types.is_integer,
        "float": types.is_floating,
        "decimal": types.is_decimal,
        "date": types.is_date,
        "interval": types.is_duration,
    }
    return next((kind for kind, matches in kinds.items() if matches(data_type)), None)


def _by_name(data_type: pa.StructType) -> list[pa.Field]:
    return sorted(data_type, key=lambda field: str(field.name))


def _float_bits(values: pa.Array) -> pa.Array:
    wide = values.cast(pa.float64())
    # Nulls become NaN here, and null again below. The addition turns -0.0 into 0.0.
    numbers = wide.to_numpy(zero_copy_only=False) + 0.0
    bits = np.where(np.isnan(numbers), _NAN_BITS, numbers.view(np.int64))
    return pa.array(bits, mask=_nulls(values))


def _map_entries(values: pa.MapArray) -> pa.Array:
    """Return the entries in the order of the digests of their keys: keys of all types have a digest."""
    offsets = _offsets(values)
    start, count = int(offsets[0]), int(offsets[-1] - offsets[0])
    keys, items = canonical(values.keys.slice(start, count)), canonical(values.items.slice(start, count))
    offsets = offsets - offsets[0]
    rows = np.repeat(np.arange(len(values)), np.diff(offsets))
    order = np.lexsort((digests(keys), rows))
    entries = pa.StructArray.from_arrays([keys.take(order), items.take(order)], names=["key", "value"])
    return _list(offsets, entries, values)


def _offsets(values: pa.Array) -> np.ndarray:
    """Return the offsets of an array of lists or maps.

    Null lists may have elements in Arrow. They keep them: nothing compares the elements of a null list.
    """
    return np.asarray(values.offsets).astype(np.int64)


def _list(offsets: np.ndarray, inner: pa.Array, values: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(
        pa.array(offsets, pa.int32()), inner, mask=values.is_null() if values.null_count else None
    )


def _nulls(values: pa.Array) -> np.ndarray | None:
    if not values.null_count:
        return None
    found: np.ndarray = values.is_null().to_numpy(zero_copy_only=False)
    return found
