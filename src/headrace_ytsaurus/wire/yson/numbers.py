"""Conversion of columns whose values are whole numbers or bytes of fixed length on the wire."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace_ytsaurus.wire.types import RANGES, YtColumn
from headrace_ytsaurus.wire.yson.conversion_errors import conversion_error
from headrace_ytsaurus.wire.yson.message import Mask

_SECONDS: Final = ("datetime", "datetime64")


def whole_numbers(values: pa.Array, column: YtColumn, name: str, valid: Mask, first_row: int) -> npt.NDArray[Any]:
    """Return the wire's numbers of a column with a type in YTsaurus, as int64 or uint64; 0 for null.

    Raises:
        SchemaError: a number is out of range, or a time has a fraction that its type cannot represent.
    """
    low, high = RANGES[name]
    if pa.types.is_decimal(values.type):
        pairs = halves(values)
        numbers = np.where(valid, pairs[:, 0], 0).view(np.uint64)
        wrong = valid & (pairs[:, 1] != 0)
        shown = values
    else:
        plain = values.view(pa.int32()) if pa.types.is_date32(values.type) else values
        plain = plain.view(pa.int64()) if plain.type.bit_width == 64 else plain
        numbers = (plain.fill_null(0) if plain.null_count else plain).to_numpy(zero_copy_only=False).astype(np.int64)
        if name in _SECONDS:
            numbers, rest = np.divmod(numbers, 1_000_000)
            _check(column, first_row, valid & (rest != 0), plain, "a time with a fraction of a second")
        wrong = valid & ((numbers < low) | (numbers > high))
        shown = plain
    _check(column, first_row, wrong, shown, "the number")
    return numbers


def decimal_bytes(values: pa.Array, width: int) -> npt.NDArray[Any]:
    """Return decimals in YTsaurus' form: big-endian, sign inverted, 4, 8 or 16 bytes; undefined for null."""
    pairs = halves(values)
    low, high = pairs[:, 0].view(np.uint64), pairs[:, 1].view(np.uint64)
    if width == 4:
        return (low.astype(np.uint32) ^ np.uint32(1 << 31)).astype(">u4").view("V4")
    if width == 8:
        return (low ^ np.uint64(1 << 63)).astype(">u8").view("V8")
    both = np.empty((len(values), 2), dtype=">u8")
    both[:, 0], both[:, 1] = high ^ np.uint64(1 << 63), low
    return both.view("V16").ravel()


def check_uuids(values: pa.Array, column: YtColumn, first_row: int) -> None:
    """Check that every value has 16 bytes.

    Raises:
        SchemaError: a value has another length.
    """
    lengths = pc.binary_length(values)
    wrong = pc.index(pc.not_equal(lengths, 16), True).as_py()
    if wrong >= 0:
        raise conversion_error(column, first_row + wrong, f"a string of {lengths[wrong].as_py()} bytes")


def halves(values: pa.Array) -> npt.NDArray[np.int64]:
    """Return the low and the high 64 bits of decimals."""
    data = values.buffers()[1]
    pairs: npt.NDArray[np.int64] = np.frombuffer(data, dtype="<i8").reshape(-1, 2)
    return pairs[values.offset : values.offset + len(values)]


def _check(column: YtColumn, first_row: int, wrong: Mask, shown: pa.Array, what: str) -> None:
    if wrong.any():
        row = int(wrong.argmax())
        raise conversion_error(column, first_row + row, f"{what} {shown[row].as_py()}")
