"""Assembly of many encoded rows at once, from pieces that each have an entry for every row.

Parts with the same length in every row are collected in a template, which has gaps for values that differ, and which is
expanded into a matrix with one line for each row. Texts are pieces of their own, without a copy from Arrow. A piece can
be absent in some rows. At the end Arrow joins the pieces of each row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace_tablestore.wire.plainbuffer.cells import text_buffers
from headrace_tablestore.wire.plainbuffer.checksum import Bytes, crc8, crc8_numbers, crc8_shifted, crc8_texts
from headrace_tablestore.wire.plainbuffer.values import CellOp, Tag, ValueType

Mask: TypeAlias = npt.NDArray[np.bool_]
Numbers: TypeAlias = npt.NDArray[Any]

_BINARY: Final = pa.large_binary()
_LAYOUT: Final[dict[pa.DataType, tuple[int, str]]] = {
    pa.int64(): (ValueType.INTEGER, "<i8"),
    pa.int32(): (ValueType.INTEGER, "<i8"),
    pa.int16(): (ValueType.INTEGER, "<i8"),
    pa.int8(): (ValueType.INTEGER, "<i8"),
    pa.float64(): (ValueType.DOUBLE, "<f8"),
    pa.float32(): (ValueType.DOUBLE, "<f8"),
    pa.bool_(): (ValueType.BOOLEAN, "u1"),
}
_TEXT_TYPES: Final = {pa.string(): ValueType.STRING, pa.binary(): ValueType.BINARY}
COLUMN_TYPES: Final = (*_LAYOUT, *_TEXT_TYPES)
"""The types of columns that PlainBuffer can encode."""


@dataclass(frozen=True)
class Stamps:
    """Timestamps of cells in milliseconds, one for all rows or one for each row, with their checksums."""

    values: bytes | Numbers
    checksums: int | Bytes

    @classmethod
    def of(cls, timestamps: int | Numbers) -> Stamps:
        if isinstance(timestamps, int):
            data = timestamps.to_bytes(8, "little", signed=True)
            return cls(data, crc8(data))
        numbers = np.asarray(timestamps).astype("<i8")
        return cls(numbers, crc8_numbers(numbers))


class Pieces:
    """Rows under construction."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._pieces: list[pa.LargeBinaryArray] = []
        self._template = bytearray()
        self._holes: list[tuple[int, Numbers]] = []
        self._checksums: Bytes = np.zeros(rows, dtype=np.uint8)

    def constant(self, data: bytes, present: Mask | None = None) -> None:
        """Add bytes to every row, or to the rows in a mask."""
        self._begin(present)
        self._template += data
        self._end(present)

    def cell(self, name: str, values: pa.Array, stamps: Stamps | None = None, present: Mask | None = None) -> None:
        """Add cells with values to every row, or to the rows in a mask. Values of other rows are ignored."""
        self._begin(present)
        encoded = name.encode()
        self._template += _cell_start(encoded) + bytes([Tag.CELL_VALUE])
        if values.type in _TEXT_TYPES:
            checksums = self._text(encoded, values, present)
        else:
            checksums = self._number(encoded, values)
        if stamps is not None:
            self._template.append(Tag.CELL_TIMESTAMP)
            if isinstance(stamps.values, bytes):
                self._template += stamps.values
            else:
                self._hole(stamps.values)
            checksums = crc8_shifted(checksums, 8) ^ np.asarray(stamps.checksums, dtype=np.uint8)
        self._template.append(Tag.CELL_CHECKSUM)
        self._hole(checksums)
        self._end(present)
        self._count(checksums, present)

    def deleted_cell(self, name: str, present: Mask | None = None) -> None:
        """Add cells that remove all versions of a column."""
        encoded = name.encode()
        checksum = crc8(encoded + bytes([CellOp.DELETE_ALL]))
        self.constant(
            _cell_start(encoded) + bytes([Tag.CELL_OP, CellOp.DELETE_ALL, Tag.CELL_CHECKSUM, checksum]), present
        )
        self._count(np.full(self._rows, checksum, dtype=np.uint8), present)

    def sequence(self, timestamps: Numbers, indexes: Numbers, present: Mask | None = None) -> None:
        """Add the extension: int64 microseconds, int32 row indexes; the epoch is always 0."""
        self._begin(present)
        self._template += bytes([Tag.EXTENSION, 24, 0, 0, 0, Tag.SEQUENCE, 19, 0, 0, 0])
        self._template += bytes([Tag.SEQUENCE_EPOCH, 0, 0, 0, 0, Tag.SEQUENCE_TIMESTAMP])
        self._hole(timestamps.astype("<i8"))
        self._template.append(Tag.SEQUENCE_INDEX)
        self._hole(indexes.astype("<i4"))
        self._end(present)

    def checksum(self, deleted: Mask | bool) -> None:
        """Add the row's checksum."""
        self._template.append(Tag.ROW_CHECKSUM)
        self._hole(crc8_numbers(self._checksums ^ np.asarray(deleted, dtype=np.uint8)))

    def joined(self) -> pa.LargeBinaryArray:
        """Return the rows."""
        self._flush(None)
        if len(self._pieces) == 1:
            return self._pieces[0]
        return pc.binary_join_element_wise(*self._pieces, pa.scalar(b"", _BINARY), null_handling="skip")

    def _number(self, name: bytes, values: pa.Array) -> Bytes:
        value_type, layout = _LAYOUT[values.type]
        if values.null_count:
            values = values.fill_null(False if pa.types.is_boolean(values.type) else 0)
        numbers = values.to_numpy(zero_copy_only=False).astype(layout, copy=False)
        width = numbers.dtype.itemsize
        self._template += (1 + width).to_bytes(4, "little") + bytes([value_type])
        self._hole(numbers)
        return crc8_numbers(numbers) ^ np.uint8(crc8(name + bytes([value_type]) + bytes(width)))

    def _text(self, name: bytes, values: pa.Array, present: Mask | None) -> Bytes:
        value_type = _TEXT_TYPES[values.type]
        data, offsets = text_buffers(values)
        sizes = np.diff(offsets)
        self._hole((sizes + 5).astype("<u4"))
        self._template.append(value_type)
        self._hole(sizes.astype("<u4"))
        self._flush(present)
        self._piece(offsets, data, present)
        heads = crc8_numbers(sizes.astype("<u4")) ^ np.uint8(crc8(name + bytes([value_type, 0, 0, 0, 0])))
        return crc8_shifted(heads, sizes) ^ crc8_texts(data, offsets)

    def _count(self, checksums: Bytes, present: Mask | None) -> None:
        counted = crc8_numbers(self._checksums ^ checksums)
        self._checksums = counted if present is None else np.where(present, counted, self._checksums)

    def _hole(self, values: Numbers) -> None:
        self._holes.append((len(self._template), values))
        self._template += bytes(values.dtype.itemsize)

    def _begin(self, present: Mask | None) -> None:
        if present is not None:
            self._flush(None)

    def _end(self, present: Mask | None) -> None:
        if present is not None:
            self._flush(present)

    def _flush(self, present: Mask | None) -> None:
        """Turn the template into a piece, for every row or for the rows in a mask."""
        width = len(self._template)
        if not width:
            return
        matrix = self._template * self._rows
        for at, values in self._holes:
            np.ndarray((self._rows,), dtype=values.dtype, buffer=matrix, offset=at, strides=(width,))[:] = values
        self._template, self._holes = bytearray(), []
        self._piece(np.arange(self._rows + 1, dtype=np.int64) * width, matrix, present)

    def _piece(self, offsets: Numbers, data: Bytes | bytearray, present: Mask | None) -> None:
        valid = None if present is None else pa.array(present).buffers()[1]
        buffers = [valid, pa.py_buffer(np.ascontiguousarray(offsets)), pa.py_buffer(data)]
        self._pieces.append(pa.LargeBinaryArray.from_buffers(_BINARY, self._rows, buffers))


def _cell_start(name: bytes) -> bytes:
    return bytes([Tag.CELL, Tag.CELL_NAME]) + len(name).to_bytes(4, "little") + name
