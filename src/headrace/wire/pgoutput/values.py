"""The values of one column as an Arrow array, from PostgreSQL's binary formats.

`headrace.wire.pgoutput.text_values` has the text formats.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import UnsupportedError
from headrace.wire.pgoutput import types
from headrace.wire.pgoutput.cells import Cells, validity
from headrace.wire.pgoutput.errors import PgOutputError, value_error
from headrace.wire.pgoutput.numerics import decode_numerics, numeric_texts
from headrace.wire.pgoutput.text_values import (
    FINITE_DATES,
    FINITE_TIMES,
    LAST_TIME,
    as_cast,
    from_texts,
    of_arrays,
    without_zeros,
)

_EPOCH_DAYS: Final = 10_957
_EPOCH: Final = 946_684_800_000_000
_NUMBERS: Final[Mapping[int, str]] = {
    types.INT2: "i2",
    types.INT4: "i4",
    types.INT8: "i8",
    types.OID: "u4",
    types.FLOAT4: "f4",
    types.FLOAT8: "f8",
}
_HEX: Final = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), np.uint8).reshape(256, 2)
# The places of the hexadecimal digits of a uuid in its text.
_UUID_DIGITS: Final = np.array([place for place in range(36) if place not in (8, 13, 18, 23)])
# The bytes before the first element: dimensions, nulls, type of the elements, number of elements, lower bound.
_ARRAY_HEADER: Final = 20


def decode(cells: Cells, oid: int, data_type: pa.DataType, *, text: bool) -> pa.Array:
    """Return the values of a column.

    Args:
        oid: the type in PostgreSQL.
        data_type: the type of the result.
        text: whether the cells are in text format, not in binary format.

    Raises:
        PgOutputError: the bytes are not values of this type.
        SchemaError: a value does not fit ``data_type``.
        UnsupportedError: the decoder has no conversion between the two types.
    """
    if not cells.valid.any():
        return pa.nulls(len(cells), data_type)
    if text:
        return from_texts(cells.texts(), oid, data_type, cells.column)
    if oid in types.ARRAYS:
        return _arrays(cells, types.ARRAYS[oid], data_type)
    decoder = _DECODERS.get(oid)
    if decoder is None:
        raise _unsupported(cells.column, oid, data_type)
    return decoder(cells, oid, data_type)


def _numbers(cells: Cells, oid: int, data_type: pa.DataType) -> pa.Array:
    found = _array(cells.fixed(_NUMBERS[oid]), cells)
    return converted(found, oid, data_type, cells.column)


def _booleans(cells: Cells, oid: int, data_type: pa.DataType) -> pa.Array:
    found = cells.fixed("u1")
    if (found > 1).any():
        raise PgOutputError(f"a value of column {cells.column!r} is not a boolean", received=int(found.max()))
    return converted(_array(found.astype(np.bool_), cells), oid, data_type, cells.column)


def _texts(cells: Cells, oid: int, data_type: pa.DataType) -> pa.Array:
    return converted(as_cast(cells.texts(), oid), oid, data_type, cells.column)


def _binaries(cells: Cells, oid: int, data_type: pa.DataType) -> pa.Array:
    return converted(cells.binaries(), oid, data_type, cells.column)


def _jsonb(cells: Cells, oid: int, data_type: pa.DataType) -> pa.Array:
    if (cells.valid & (cells.lengths < 1)).any() or (cells.valid & (cells.data[cells.starts] != 1)).any():
        raise PgOutputError(f"a value of column {cells.column!r} has an unknown version of jsonb", valid="version 1")
    shift = cells.valid.astype(np.int64)
    content = Cells(cells.data, cells.starts + shift, cells.lengths - shift, cells.valid, cells.column)
    return converted(content.texts(), oid, data_type, cells.column)


def _uuids(cells: Cells, oid: int, data_type: pa.DataType) -> pa.Array:
    cells.check_lengths(16)
    digits = cells.data[cells.starts[:, None] + np.arange(16)]
    if data_type == pa.binary(16):
        found = np.ascontiguousarray(digits)
        return pa.Array.from_buffers(data_type, len(cells), [validity(cells.valid), pa.py_buffer(found)])
    texts = np.full((len(cells), 36), ord("-"), np.uint8)
    texts[:, _UUID_DIGITS] = _HEX[digits].reshape(-1, 32)
    offsets = np.arange(0, 36 * len(cells) + 1, 36, dtype=np.int32)
    buffers = [validity(cells.valid), pa.py_buffer(offsets), pa.py_buffer(texts)]
    return converted(pa.Array.from_buffers(pa.string(), len(cells), buffers), oid, data_type, cells.column)


def _dates(cells: Cells, oid: int, data_type: pa.DataType) -> pa.Array:
    days = cells.fixed("i4")
    _check_finite(days, cells, np.iinfo(np.int32).max - _EPOCH_DAYS, FINITE_DATES)
    return converted(_array(days + np.int32(_EPOCH_DAYS), cells).view(pa.date32()), oid, data_type, cells.column)


def _times(cells: Cells, oid: int, data_type: pa.DataType) -> pa.Array:
    found = _array(cells.fixed("i8"), cells)
    if pa.types.is_duration(data_type):
        return converted(found.view(pa.duration("us")), oid, data_type, cells.column)
    if pa.types.is_string(data_type):
        # 24:00:00 is a valid time in PostgreSQL, and not in Arrow.
        last = pc.equal(found, 86_400_000_000)
        texts = without_zeros(pc.if_else(last, 0, found).view(pa.time64("us")).cast(pa.string()))
        return pc.if_else(last, "24:00:00", texts)
    return converted(found.view(pa.time64("us")), oid, data_type, cells.column)


def _timestamps(cells: Cells, oid: int, data_type: pa.DataType) -> pa.Array:
    found = cells.fixed("i8")
    _check_finite(found, cells, LAST_TIME - _EPOCH - 1, FINITE_TIMES)
    zone = "UTC" if oid == types.TIMESTAMPTZ else None
    instants = _array(found + _EPOCH, cells).view(pa.timestamp("us", tz=zone))
    return converted(instants, oid, data_type, cells.column)


def _numerics(cells: Cells, oid: int, data_type: pa.DataType) -> pa.Array:
    if pa.types.is_decimal128(data_type):
        return decode_numerics(cells, data_type)
    if pa.types.is_string(data_type):
        return numeric_texts(cells)
    raise _unsupported(cells.column, oid, data_type)


_DECODERS: Final[Mapping[int, Callable[[Cells, int, pa.DataType], pa.Array]]] = {
    **dict.fromkeys(_NUMBERS, _numbers),
    **dict.fromkeys(types.TEXTS, _texts),
    types.BOOL: _booleans,
    types.BYTEA: _binaries,
    types.JSONB: _jsonb,
    types.UUID: _uuids,
    types.DATE: _dates,
    types.TIME: _times,
    types.TIMESTAMP: _timestamps,
    types.TIMESTAMPTZ: _timestamps,
    types.NUMERIC: _numerics,
}


def _arrays(cells: Cells, element: int, data_type: pa.DataType) -> pa.Array:
    if not pa.types.is_list(data_type):
        raise _unsupported(cells.column, element, data_type)
    if (cells.valid & (cells.lengths < 12)).any():
        raise PgOutputError(f"an array of column {cells.column!r} ends early")
    dimensions = cells.numbers("i4")
    unfit = ~np.isin(dimensions, (0, 1))
    if unfit.any():
        raise value_error(
            cells.column,
            f"an array with {int(dimensions.max())} dimensions",
            "arrays with one dimension",
            unfit,
        )
    filled = cells.valid & (dimensions == 1)
    if (filled & (cells.lengths < _ARRAY_HEADER)).any():
        raise PgOutputError(f"an array of column {cells.column!r} ends early")
    present = cells.filter(filled)
    counts = present.numbers("i4", 12).astype(np.int64)
    # Each element has at least its length.
    if ((counts < 0) | (4 * counts > present.lengths - _ARRAY_HEADER)).any():
        raise PgOutputError(f"an array of column {cells.column!r} has an invalid number of elements")
    lengths = np.zeros(len(cells), np.int64)
    lengths[filled] = counts
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    if offsets[-1] > np.iinfo(np.int32).max:
        raise PgOutputError("a batch of messages is too large", received=f"{offsets[-1]} elements of arrays")
    elements = _elements(present, counts)
    values = of_arrays(lambda: decode(elements, element, data_type.value_type, text=False), offsets)
    buffers = [validity(cells.valid), pa.py_buffer(offsets.astype(np.int32))]
    return pa.Array.from_buffers(data_type, len(cells), buffers, children=[values])


def _elements(arrays: Cells, counts: npt.NDArray[np.int64]) -> Cells:
    """Return the elements of all arrays as cells.

    The n-th element of every array is found at once, so the number of steps is that of the longest array.
    """
    first = np.concatenate([[0], np.cumsum(counts)])[:-1]
    total = int(counts.sum())
    starts, lengths, valid = np.zeros(total, np.int64), np.zeros(total, np.int64), np.zeros(total, np.bool_)
    at, ends = arrays.starts + _ARRAY_HEADER, arrays.starts + arrays.lengths
    for number in range(int(counts.max(initial=0))):
        left = counts > number
        if not left.all():
            at, ends, first, counts = at[left], ends[left], first[left], counts[left]
        if not (at + 4 <= ends).all():
            raise PgOutputError(f"an array of column {arrays.column!r} ends early")
        sizes = np.ndarray((len(arrays.data) - 3,), ">i4", arrays.data, strides=(1,))[at].astype(np.int64)
        if (sizes < -1).any():
            raise PgOutputError(f"an array of column {arrays.column!r} has an element of invalid length")
        present = sizes >= 0
        starts[first + number] = np.where(present, at + 4, 0)
        lengths[first + number] = np.where(present, sizes, 0)
        valid[first + number] = present
        at = at + 4 + np.maximum(sizes, 0)
        if not (at <= ends).all():
            raise PgOutputError(f"an array of column {arrays.column!r} ends early")
    if not (at <= ends).all():
        raise PgOutputError(f"an array of column {arrays.column!r} has an element of invalid length")
    return Cells(arrays.data, starts, lengths, valid, arrays.column)


def converted(values: pa.Array, oid: int, data_type: pa.DataType, column: str) -> pa.Array:
    """Return values as another type, if none of them changes.

    Raises:
        SchemaError: a value does not fit the type.
        UnsupportedError: there is no conversion between the types.
    """
    if values.type == data_type:
        return values
    try:
        return values.cast(data_type)
    except pa.ArrowNotImplementedError:
        raise _unsupported(column, oid, data_type) from None
    except pa.ArrowInvalid as error:
        raise value_error(column, str(error)[:200], str(data_type)) from None


def _array(values: npt.NDArray[Any], cells: Cells) -> pa.Array:
    return pa.array(values, mask=None if cells.valid.all() else ~cells.valid)


def _check_finite(values: npt.NDArray[Any], cells: Cells, most: int, valid: str) -> None:
    """Check that dates or timestamps are finite, and can be moved to the epoch of 1970."""
    limits = np.iinfo(values.dtype)
    outside = cells.valid & ((values > most) | (values == limits.min))
    if outside.any():
        value = int(values[np.flatnonzero(outside)[0]])
        received = {limits.max: "infinity", limits.min: "-infinity"}.get(value, str(value))
        raise value_error(cells.column, received, valid, outside)


def _unsupported(column: str, oid: int, data_type: pa.DataType) -> UnsupportedError:
    return UnsupportedError(
        f"column {column!r} has a type that the decoder does not convert",
        received=f"type {oid} of PostgreSQL in binary format, as {data_type}",
        remedy="read the slot in text format",
    )
