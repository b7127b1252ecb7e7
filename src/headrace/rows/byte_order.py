"""Values of fixed width as bytes that sort as the values do."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.rows.packing import fixed_width

Bytes: TypeAlias = npt.NDArray[np.uint8]


def ordered_bytes(array: pa.Array) -> Bytes:
    """Return fixed-width values as a matrix of big-endian bytes that sort as the values do; nulls are arbitrary.

    Signed numbers have their sign bit flipped; floats follow IEEE 754's total order, bit for bit: from negative NaNs
    and -inf over -0.0 and 0.0 to inf and positive NaNs.
    """
    data_type = array.type
    width = fixed_width(data_type)
    if pa.types.is_boolean(data_type):
        return bytes_of(array.fill_null(False).cast(pa.uint8()).to_numpy())
    raw = np.frombuffer(array.buffers()[1], dtype=np.uint8)[array.offset * width : (array.offset + len(array)) * width]
    if pa.types.is_decimal(data_type):
        big_endian = raw.reshape(-1, width)[:, ::-1].copy()
        big_endian[:, 0] ^= 0x80
        return big_endian
    bits: npt.NDArray[Any] = raw.view(f"<u{width}")
    sign = _sign_bit(width)
    # Negative floats: all bits are flipped. Other numbers: only the sign bit.
    flipped = bits ^ (-(bits >> (8 * width - 1)) | sign) if pa.types.is_floating(data_type) else bits ^ sign
    return bytes_of(flipped.astype(f">u{width}"))


def data_of_ordered(values: Bytes, data_type: pa.DataType) -> npt.NDArray[Any]:
    """Return the data buffer of an Arrow array of a type, from the matrix of its values; see `ordered_bytes`."""
    if pa.types.is_decimal(data_type):
        high = values[:, :8].view(">u8")[:, 0].astype("<u8") ^ _sign_bit(8)
        low = values[:, 8:].view(">u8")[:, 0].astype("<u8")
        return np.stack([low, high], axis=1)
    width = values.shape[1]
    numbers: npt.NDArray[Any] = values.view(f">u{width}")[:, 0].astype(f"<u{width}")
    if pa.types.is_boolean(data_type):
        return np.packbits(numbers, bitorder="little")
    sign = _sign_bit(width)
    flips = ((numbers >> (8 * width - 1)) - 1) | sign if pa.types.is_floating(data_type) else sign
    restored: npt.NDArray[Any] = numbers ^ flips
    return restored


def bytes_of(numbers: npt.NDArray[Any]) -> Bytes:
    """Return the bytes of numbers as a matrix, one row for each number."""
    return np.ascontiguousarray(numbers).view(np.uint8).reshape(len(numbers), numbers.dtype.itemsize)


def _sign_bit(width: int) -> Any:
    return np.dtype(f"u{width}").type(1 << (8 * width - 1))
