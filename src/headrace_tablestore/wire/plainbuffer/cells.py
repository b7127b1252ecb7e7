"""Reading of one cell of each of many rows at once, with numpy.

Rows are addressed by arrays of offsets: one gather reads eight bytes of every row. Every offset is checked against the
end of its row before it is used. A gather can read a few bytes more than were checked, so the message has padding
behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.wire.texts import slices
from headrace_tablestore.wire.plainbuffer.checksum import Bytes, crc8, crc8_numbers, crc8_shifted, crc8_texts
from headrace_tablestore.wire.plainbuffer.values import FIXED_LENGTHS, CellOp, PlainBufferError, Tag, ValueType

Offsets: TypeAlias = npt.NDArray[np.int64]
Words: TypeAlias = npt.NDArray[np.uint64]
Mask: TypeAlias = npt.NDArray[np.bool_]

NO_VALUE: Final = 0xFF
"""The entry in `Cells.types` of a cell without a value; no type on the wire has this code."""

_PADDING: Final = bytes(64)
_MAX_SIZE: Final = 2**31 - 1 - len(_PADDING)
_LOW_HALF: Final = 0xFFFFFFFF
_CELL_START: Final = Tag.CELL | Tag.CELL_NAME << 8
_TEXT_TYPES: Final = (ValueType.STRING, ValueType.BINARY)
# The length of a value by its type. For texts, the length of what precedes the text. For unknown types, -1.
_LENGTHS = np.full(256, -1, dtype=np.int64)
for _type, _length in FIXED_LENGTHS.items():
    _LENGTHS[_type] = _length
_LENGTHS[list(_TEXT_TYPES)] = 5


class Message:
    """Encoded rows, with the offsets at which each begins and ends.

    ``starts`` are the offsets behind the header, if there is one, and ``limits`` those behind the row.
    """

    def __init__(self, parts: Sequence[bytes]) -> None:
        data = b"".join((*parts, _PADDING))
        self.size = len(data) - len(_PADDING)
        if self.size > _MAX_SIZE:
            raise PlainBufferError("rows of 2 GiB or more in one message", received=f"{self.size} bytes")
        lengths = np.fromiter(map(len, parts), dtype=np.int64, count=len(parts))
        self.limits: Offsets = np.cumsum(lengths)
        self.starts: Offsets = self.limits - lengths
        self._parts = self.starts
        self.data = data
        self.bytes: Bytes = np.frombuffer(data, dtype=np.uint8)
        self._buffer = pa.py_buffer(data)
        # Eight bytes from any offset. The elements overlap, so they are not aligned, and cannot be numbers for numpy.
        self._words = np.ndarray((len(data) - 7,), dtype="V8", buffer=data, strides=(1,))

    @property
    def rows(self) -> int:
        return len(self.starts)

    def words(self, at: Offsets) -> Words:
        """Return the eight bytes at each offset as a little-endian number."""
        return self._words[at].view("<u8")

    def tags(self, at: Offsets) -> Bytes:
        return self.bytes.take(at)

    def texts(self, at: Offsets, lengths: Offsets) -> pa.BinaryArray:
        """Return copies of texts; the offsets must be ascending."""
        return slices(self._buffer, at, lengths)

    def all_equal(self, at: Offsets, lengths: Offsets, text: bytes) -> bool:
        """Return whether every text, given by offset and length, equals ``text``."""
        return bool((lengths == len(text)).all()) and all(
            bool(((self.words(at + place) & mask) == word).all()) for place, mask, word in _as_words(text)
        )

    def equal(self, at: Offsets, text: bytes) -> Mask:
        """Return for each offset whether ``text`` is there; the offsets must leave room for it."""
        found = np.ones(len(at), dtype=np.bool_)
        for place, mask, word in _as_words(text):
            found &= (self.words(at + place) & mask) == word
        return found

    def require(self, holds: Mask, at: Offsets, problem: str) -> None:
        """Raise an error that names the first offset for which a condition is false."""
        if not holds.all():
            raise self.error(problem, int(at[int(holds.argmin())]))

    def error(self, problem: str, at: int) -> PlainBufferError:
        part = int(np.searchsorted(self._parts, at, side="right")) - 1
        where = f"byte {at - int(self._parts[part])}"
        if len(self._parts) > 1:
            where += f" of record {part}"
        return PlainBufferError(f"broken PlainBuffer at {where}: {problem}")


def _as_words(text: bytes) -> list[tuple[int, int, int]]:
    """Return a text as words of eight bytes: the offset, the mask and the value of each."""
    pieces = [(place, text[place : place + 8]) for place in range(0, len(text), 8)]
    return [(place, (1 << 8 * len(piece)) - 1, int.from_bytes(piece, "little")) for place, piece in pieces]


@dataclass(frozen=True)
class Cells:
    """Many cells; arrays have one entry for each cell.

    Attributes:
        rows: the indices of the rows, ascending, usually with one cell of each row; None for one cell of every row.
        begin: the offsets at which the cells begin.
        ends: the offsets at which they end.
        name: the name, if all cells have the same; else None.
        names: the names, if they differ; else None.
        types: `ValueType` codes, or `NO_VALUE`.
        payloads: the bits of numbers; the lengths of texts.
        values_at: the offsets of the values; the characters of a text are 5 bytes behind.
        texts: the texts, if all values are texts of one type; else None.
        ops: `CellOp` codes, 0 for cells without one; None if no cell has one.
        timestamped: whether any cell has a timestamp.
        checksums: the checksums, which were verified.
    """

    rows: Offsets | None
    begin: Offsets
    ends: Offsets
    name: bytes | None
    names: pa.BinaryArray | None
    types: Bytes
    payloads: Words
    values_at: Offsets
    texts: pa.BinaryArray | None
    ops: Bytes | None
    timestamped: bool
    checksums: Bytes


def every_cell(message: Message, rows: Offsets, begin: Offsets) -> tuple[Offsets, Offsets]:
    """Return the row and the begin of every cell that follows an offset. `read_cells` checks the cells.

    This loop over cells is faster than one call of `read_cells` for each column if there are few rows.
    """
    data, found, begins = message.data, [], []
    for row, start, limit in zip(rows.tolist(), begin.tolist(), message.limits[rows].tolist(), strict=True):
        at = start
        while at < limit and data[at] == Tag.CELL:
            found.append(row)
            begins.append(at)
            at += 6 + int.from_bytes(data[at + 2 : at + 6], "little")
            if at < limit and data[at] == Tag.CELL_VALUE:
                at += 5 + int.from_bytes(data[at + 1 : at + 5], "little")
            if at < limit and data[at] == Tag.CELL_OP:
                at += 2
            if at < limit and data[at] == Tag.CELL_TIMESTAMP:
                at += 9
            at += 2
    return np.array(found, dtype=np.int64), np.array(begins, dtype=np.int64)


def read_cells(message: Message, rows: Offsets | None, begin: Offsets) -> Cells:
    """Read and check the cells that begin at some offsets.

    Raises:
        PlainBufferError: a cell is malformed, or has a wrong checksum.
    """
    limits = message.limits if rows is None else message.limits[rows]
    head = message.words(begin)
    message.require((head & 0xFFFF) == _CELL_START, begin, "no cell, or a cell without a name")
    name_lengths = (head >> 16 & _LOW_HALF).view(np.int64)
    names_at = begin + 6
    ends = names_at + name_lengths
    message.require(ends < limits, begin, "a cell's name reaches beyond its row")
    name, names, checksums = _names(message, names_at, name_lengths)

    lead = message.words(ends)
    values_at = ends + 5
    lengths = (lead >> 8 & _LOW_HALF).view(np.int64)
    types = (lead >> 40 & 0xFF).astype(np.uint8)
    payloads = message.words(values_at + 1)
    valued = (lead & 0xFF) == Tag.CELL_VALUE
    message.require(~valued | (types != NO_VALUE), values_at, f"unknown type {NO_VALUE} of a value")
    if valued.all():
        ends = values_at + lengths
    else:
        lengths = np.where(valued, lengths, 0)
        types = np.where(valued, types, np.uint8(NO_VALUE))
        ends = np.where(valued, values_at + lengths, ends)
    message.require(ends < limits, begin, "a cell's value reaches beyond its row")
    one_type = int(types[0]) if (types == types[0]).all() else None
    texts = None
    if one_type is None:
        value_checksums = np.zeros(len(types), dtype=np.uint8)
        for value_type in np.flatnonzero(np.bincount(types)).tolist():
            members = np.flatnonzero(types == value_type)
            value_checksums[members], _ = _values(
                message, value_type, payloads[members], values_at[members], lengths[members]
            )
        checksums = crc8_shifted(checksums, lengths) ^ value_checksums
    elif one_type != NO_VALUE:
        value_checksums, texts = _values(message, one_type, payloads, values_at, lengths)
        checksums = crc8_shifted(checksums, FIXED_LENGTHS.get(one_type, lengths)) ^ value_checksums

    tail = message.words(ends)
    tags = tail & 0xFF
    ops = None
    if (operated := tags == Tag.CELL_OP).any():
        ops = np.where(operated, tail >> 8 & 0xFF, 0).astype(np.uint8)
        message.require(np.isin(ops, (0, *CellOp)) & (operated == (ops > 0)), begin, "unknown operation of a cell")
        ends = ends + 2 * operated
        tail = message.words(ends)
        tags = tail & 0xFF
    if timestamped := bool((stamped := tags == Tag.CELL_TIMESTAMP).any()):
        with_timestamp = crc8_shifted(checksums, 8) ^ crc8_numbers(message.words(ends + 1))
        if stamped.all():
            checksums, ends = with_timestamp, ends + 9
        else:
            checksums, ends = np.where(stamped, with_timestamp, checksums), ends + 9 * stamped
        tail = message.words(ends)
        tags = tail & 0xFF
    if ops is not None:
        # In the checksum the timestamp precedes the op; on the wire it follows.
        checksums = np.where(operated, crc8_numbers(checksums ^ ops), checksums)
    message.require(tags == Tag.CELL_CHECKSUM, ends, "no checksum at the end of a cell")
    ends = ends + 2
    message.require(ends <= limits, begin, "a cell reaches beyond its row")
    message.require((tail >> 8 & 0xFF) == checksums, ends - 1, "wrong checksum of a cell")
    checksums = (tail >> 8 & 0xFF).astype(np.uint8)
    return Cells(rows, begin, ends, name, names, types, payloads, values_at, texts, ops, timestamped, checksums)


def _names(message: Message, at: Offsets, lengths: Offsets) -> tuple[bytes | None, pa.BinaryArray | None, Bytes]:
    """Return the common name of cells, or else their names, and the checksums of the names (one for a common name)."""
    first = message.bytes[int(at[0]) : int(at[0] + lengths[0])].tobytes()
    if message.all_equal(at, lengths, first):
        return first, None, np.array([crc8(first)], dtype=np.uint8)
    names = message.texts(at, lengths)
    return None, names, crc8_texts(*text_buffers(names))


def _values(
    message: Message, value_type: int, payloads: Words, at: Offsets, lengths: Offsets
) -> tuple[Bytes, pa.BinaryArray | None]:
    """Check values of one type; return the checksums of values with their type bytes, and texts for types of texts."""
    known = int(_LENGTHS[value_type])
    if value_type in _TEXT_TYPES:
        sizes = (payloads & _LOW_HALF).view(np.int64)
        message.require(lengths == known + sizes, at, "a text of another length than its value")
        texts = message.texts(at + known, sizes)
        heads = crc8_numbers(sizes.astype("<u4")) ^ np.uint8(crc8(bytes([value_type, 0, 0, 0, 0])))
        return crc8_shifted(heads, sizes) ^ crc8_texts(*text_buffers(texts)), texts
    if value_type == NO_VALUE:
        return np.zeros(len(at), dtype=np.uint8), None
    message.require(lengths == known, at, f"unknown type {value_type} of a value, or a wrong length")
    if known == 1:
        return np.full(len(at), crc8(bytes([value_type])), dtype=np.uint8), None
    if value_type == ValueType.BOOLEAN:
        message.require((payloads & 0xFF) <= 1, at + 1, "a boolean that is neither 0 nor 1")
        payloads = (payloads & 0xFF).astype(np.uint8)
    return crc8_numbers(payloads) ^ np.uint8(crc8(bytes([value_type]) + bytes(known - 1))), None


def text_buffers(texts: pa.Array) -> tuple[Bytes, Offsets]:
    """Return the bytes and offsets of an Arrow array of (large) strings or binaries."""
    wide = pa.types.is_large_binary(texts.type) or pa.types.is_large_string(texts.type)
    _, offsets, data = texts.buffers()
    numbers = np.frombuffer(offsets, dtype=np.int64 if wide else np.int32)[texts.offset : texts.offset + len(texts) + 1]
    content = np.frombuffer(data, dtype=np.uint8) if data is not None else np.empty(0, dtype=np.uint8)
    return content, numbers.astype(np.int64, copy=False)
