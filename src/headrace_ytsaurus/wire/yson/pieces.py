"""Vectorized concatenation of rows from pieces; each piece is for all rows.

Pieces with the same length in every row become a matrix: a template with gaps for the values. Pieces of variable length
are Arrow arrays between the matrices. A piece can be omitted in some rows. At the end Arrow joins the pieces of each
row.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace_ytsaurus.wire.yson.message import Bytes, Mask, Places, Words

Numbers: TypeAlias = npt.NDArray[Any]

_BINARY: Final = pa.large_binary()


# The continuation bits of all bytes except the last, by the length of a number.
_MARKED: Final = np.array(
    [int.from_bytes(b"\x80" * min(max(0, length - 1), 8), "little") for length in range(11)], dtype=np.uint64
)


class Pieces:
    """A given number of rows that are being concatenated."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._pieces: list[pa.LargeBinaryArray] = []
        self._template = bytearray()
        self._holes: list[tuple[int, Numbers]] = []
        self._present: pa.BooleanArray | None = None

    def begin(self, present: Mask | None) -> None:
        """Add the following pieces only to some rows; with None, to all rows."""
        self._flush()
        self._present = None if present is None else pa.array(present)

    def constant(self, data: bytes) -> None:
        """Add the same bytes to every row."""
        self._template += data

    def fixed(self, values: Numbers) -> None:
        """Add the bytes of one entry of the array to each row."""
        self._holes.append((len(self._template), values))
        self._template += bytes(values.dtype.itemsize)

    def varints(self, numbers: Words) -> None:
        """Add numbers as varints."""
        data, lengths = varints(numbers)
        width = int(lengths[0])
        if (lengths == width).all():
            self.fixed(np.ascontiguousarray(data[:, :width]).view(f"V{width}").ravel())
            return
        # An array of the numbers and the gaps after them; every second element is selected.
        begins = np.arange(self._rows, dtype=np.int64) * data.shape[1]
        offsets = np.full(2 * self._rows + 1, data.size, dtype=np.int64)
        offsets[:-1:2], offsets[1::2] = begins, begins + lengths
        both = _texts(2 * self._rows, offsets, data)
        self.array(both.take(pa.array(np.arange(0, 2 * self._rows, 2, dtype=np.int64))))

    def array(self, texts: pa.Array) -> None:
        """Add the texts of an Arrow array."""
        self._flush()
        self._add(texts.cast(_BINARY))

    def joined(self) -> pa.LargeBinaryArray:
        """Return the rows."""
        self._flush()
        if len(self._pieces) == 1:
            return self._pieces[0]
        return pc.binary_join_element_wise(*self._pieces, pa.scalar(b"", _BINARY), null_handling="skip")

    def _flush(self) -> None:
        """Convert the template to a piece."""
        width = len(self._template)
        if not width:
            return
        matrix = self._template * self._rows
        for at, values in self._holes:
            np.ndarray((self._rows,), dtype=values.dtype, buffer=matrix, offset=at, strides=(width,))[:] = values
        self._template, self._holes = bytearray(), []
        self._add(_texts(self._rows, np.arange(self._rows + 1, dtype=np.int64) * width, matrix))

    def _add(self, texts: pa.LargeBinaryArray) -> None:
        if self._present is not None:
            texts = pc.if_else(self._present, texts, pa.scalar(None, _BINARY))
        self._pieces.append(texts)


def _texts(count: int, offsets: Places, data: Bytes | bytearray) -> pa.LargeBinaryArray:
    buffers = [None, pa.py_buffer(np.ascontiguousarray(offsets)), pa.py_buffer(data)]
    return pa.LargeBinaryArray.from_buffers(_BINARY, count, buffers)


def varints(numbers: Words) -> tuple[Bytes, Places]:
    """Return numbers as varints, each at the start of a row of 8 or 16 bytes, and their lengths."""
    most = int(numbers.max(initial=0))
    lengths = np.ones(len(numbers), dtype=np.int64)
    for size in range(1, 10):
        if most >> 7 * size == 0:
            break
        lengths += numbers >= np.uint64(1 << 7 * size)
    # Distribute the groups of seven bits over the bytes, and set the continuation bits.
    words = numbers & np.uint64(0x00FFFFFFFFFFFFFF)
    words = (words & np.uint64(0x000000000FFFFFFF)) | (words << np.uint64(4) & np.uint64(0x0FFFFFFF00000000))
    words = (words & np.uint64(0x00003FFF00003FFF)) | (words << np.uint64(2) & np.uint64(0x3FFF00003FFF0000))
    words = (words & np.uint64(0x007F007F007F007F)) | (words << np.uint64(1) & np.uint64(0x7F007F007F007F00))
    words |= _MARKED[lengths]
    if most < 1 << 56:
        return words.view(np.uint8).reshape(-1, 8), lengths
    both = np.zeros((len(numbers), 2), dtype=np.uint64)
    both[:, 0] = words
    both[:, 1] = (numbers >> np.uint64(56) & np.uint64(0xFF)) | (numbers >> np.uint64(63) << np.uint64(8))
    return both.view(np.uint8).reshape(-1, 16), lengths
