"""Cells: the values of one column as byte ranges of a buffer, and vectorized reads of numbers and texts from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.wire.pgoutput.errors import PgOutputError

Bytes: TypeAlias = npt.NDArray[np.uint8]
Integers: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]

SHORTEST: Final = 16
"""The minimum length of a buffer, so that a null cell, which begins at 0, can be read as any number."""


@dataclass(frozen=True)
class Cells:
    """The values of one column.

    Attributes:
        data: a buffer of at least `SHORTEST` bytes.
        starts: the first byte of each value; 0 for nulls.
        lengths: the bytes of each value; 0 for nulls.
        valid: false for nulls.
        column: the name of the column, for errors.
    """

    data: Bytes
    starts: Integers
    lengths: Integers
    valid: Mask
    column: str

    def __len__(self) -> int:
        return len(self.starts)

    def filter(self, mask: Mask) -> Cells:
        """Return the cells where the mask is true."""
        return Cells(self.data, self.starts[mask], self.lengths[mask], self.valid[mask], self.column)

    def without(self, mask: Mask) -> Cells:
        """Return the cells with nulls where the mask is true."""
        if not mask.any():
            return self
        remaining = self.valid & ~mask
        return Cells(
            self.data, np.where(remaining, self.starts, 0), np.where(remaining, self.lengths, 0), remaining, self.column
        )

    def numbers(self, dtype: str, offset: int = 0) -> npt.NDArray[Any]:
        """Return the big-endian number at an offset in each cell; 0 for nulls.

        The caller has checked the lengths.

        Args:
            dtype: a type of numpy without byte order, such as ``i8``.
        """
        starts = self.starts + offset if offset else self.starts
        if offset:
            starts = np.where(self.valid, starts, 0)
        numbers = big_endian(self.data, starts, dtype)
        if not self.valid.all():
            numbers[~self.valid] = 0
        return numbers

    def fixed(self, dtype: str) -> npt.NDArray[Any]:
        """Return the cells as big-endian numbers; 0 for nulls.

        Raises:
            PgOutputError: a cell has another length.
        """
        self.check_lengths(np.dtype(dtype).itemsize)
        return self.numbers(dtype)

    def check_lengths(self, size: int) -> None:
        """Raise `PgOutputError` unless each value has ``size`` bytes."""
        wrong = self.valid & (self.lengths != size)
        if wrong.any():
            received = int(self.lengths[np.flatnonzero(wrong)[0]])
            raise PgOutputError(
                f"a value of column {self.column!r} has an invalid length",
                received=f"{received} bytes",
                valid=f"{size} bytes",
            )

    def binaries(self) -> pa.BinaryArray:
        """Return the bytes of each cell. Values in the order of the buffer are not copied twice."""
        if len(self.data) >= 1 << 31:
            raise PgOutputError("a batch of messages is too large", received=f"{len(self.data)} bytes", valid="2 GiB")
        present = self if self.valid.all() else self.filter(self.valid)
        values = _in_order(self.data, present.starts, present.lengths)
        if present is self:
            return values
        index = np.cumsum(self.valid, dtype=np.int64) - 1
        return values.take(pa.array(index, mask=~self.valid))

    def texts(self) -> pa.StringArray:
        """Return the cells as texts in UTF-8.

        Raises:
            PgOutputError: a value is not UTF-8.
        """
        try:
            return self.binaries().cast(pa.string())
        except pa.ArrowInvalid:
            raise PgOutputError(
                f"a value of column {self.column!r} is not text in UTF-8",
                remedy="the database must have a server encoding that can be converted to UTF-8",
            ) from None


def big_endian(data: Bytes, starts: Integers, dtype: str) -> npt.NDArray[Any]:
    """Return the big-endian numbers that begin at each index of a buffer, in the byte order of this machine."""
    stored = np.dtype(dtype).newbyteorder(">")
    every = np.ndarray((len(data) - stored.itemsize + 1,), stored, data, strides=(1,))
    return every[starts].astype(dtype)


def readable(data: Bytes) -> Bytes:
    """Return a buffer with at least `SHORTEST` bytes."""
    if len(data) >= SHORTEST:
        return data
    padded = np.zeros(SHORTEST, np.uint8)
    padded[: len(data)] = data
    return padded


def validity(valid: Mask) -> pa.Buffer | None:
    """Return the validity bitmap of an Arrow array; None without nulls."""
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))


def _in_order(data: Bytes, starts: Integers, lengths: Integers) -> pa.BinaryArray:
    """Return byte ranges of a buffer as an array.

    The values, and the gaps between them, are an Arrow array over the buffer itself; `take` copies the values.
    """
    if len(starts) == 0:
        return pa.array([], pa.binary())
    ends = starts + lengths
    if not (starts[1:] >= ends[:-1]).all():
        # Unchanged values refer to the bytes of an earlier row. Equal starts are the same value: each has a header.
        first, place, index = np.unique(starts, return_index=True, return_inverse=True)
        return _in_order(data, first, lengths[place]).take(pa.array(index))
    offsets = np.empty(2 * len(starts), np.int32)
    offsets[0::2], offsets[1::2] = starts, ends
    every = pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    return every.take(pa.array(np.arange(0, len(offsets), 2, dtype=np.int64)))
