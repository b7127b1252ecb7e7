"""Single rows and values in PlainBuffer: keys, filters, tokens. For pages of rows see `decoding` and `encoding`.

All numbers are little-endian. The parts of a row are: the tag of the key and the key cells; the tag of the attributes
and their cells, if there are any; the mark of a deleted row; the extension with the sequence info; the row's checksum.
There is one header, before the first row.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from headrace_tablestore.wire.plainbuffer.checksum import crc8
from headrace_tablestore.wire.plainbuffer.values import (
    FIXED_LENGTHS,
    HEADER,
    Cell,
    CellOp,
    Marker,
    PlainBufferError,
    Row,
    SequenceInfo,
    Tag,
    Value,
    ValueType,
)

_MARKERS: Final = {
    ValueType.INF_MIN: Marker.INF_MIN,
    ValueType.INF_MAX: Marker.INF_MAX,
    ValueType.AUTO_INCREMENT: Marker.AUTO_INCREMENT,
}
_MARKER_BYTES: Final = {marker: bytes([code]) for code, marker in _MARKERS.items()}
_OPS: Final = {int(op): op for op in CellOp}

_LENGTH = struct.Struct("<I")
_INTEGER = struct.Struct("<Bq")
_DOUBLE = struct.Struct("<Bd")
_TEXT = struct.Struct("<BI")
_TIMESTAMP = struct.Struct("<q")
# The tags and lengths of the extension and of the sequence info, then its three numbers with their tags.
_EXTENSION = struct.Struct("<BIBIBiBqBi")
_EXTENSION_TAGS = (Tag.EXTENSION, 24, Tag.SEQUENCE, 19, Tag.SEQUENCE_EPOCH, Tag.SEQUENCE_TIMESTAMP, Tag.SEQUENCE_INDEX)


def encode_value(value: Value) -> bytes:
    """Return a value without a cell, as in filters and in bounds of partitions: the type byte and the data."""
    try:
        # Not isinstance: bool and enums are subclasses of int.
        if value is None:
            return bytes([ValueType.NULL])
        if type(value) is bool:
            return bytes([ValueType.BOOLEAN, value])
        if type(value) is int:
            return _INTEGER.pack(ValueType.INTEGER, value)
        if type(value) is float:
            return _DOUBLE.pack(ValueType.DOUBLE, value)
        if type(value) is str:
            text = value.encode()
            return _TEXT.pack(ValueType.STRING, len(text)) + text
        if type(value) is bytes:
            return _TEXT.pack(ValueType.BINARY, len(value)) + value
        if type(value) is Marker:
            return _MARKER_BYTES[value]
    except (struct.error, UnicodeEncodeError) as error:
        raise PlainBufferError(
            f"PlainBuffer cannot hold a value: {error}", valid="64-bit integers and valid Unicode"
        ) from None
    raise PlainBufferError(
        "PlainBuffer cannot hold a value of this type",
        received=type(value).__name__,
        valid="int, float, bool, str, bytes, None, Marker",
    )


def encode_row(row: Row, *, header: bool = True) -> bytes:
    """Return an encoded row, by default with the header."""
    parts: list[bytes] = [HEADER] if header else []
    checksum = 0
    parts.append(bytes([Tag.KEY]))
    for name, value in row.key:
        checksum = _encode_cell(parts, Cell(name, value), checksum)
    if row.cells:
        parts.append(bytes([Tag.ATTRIBUTES]))
    for cell in row.cells:
        checksum = _encode_cell(parts, cell, checksum)
    if row.delete:
        parts.append(bytes([Tag.DELETE_ROW]))
    if row.sequence is not None:
        parts.append(_encode_sequence(row.sequence))
    checksum = crc8(bytes([row.delete]), checksum)
    parts.append(bytes([Tag.ROW_CHECKSUM, checksum]))
    return b"".join(parts)


def encode_rows(rows: Iterable[Row]) -> bytes:
    """Return consecutive encoded rows behind one header; empty for no rows."""
    body = b"".join(encode_row(row, header=False) for row in rows)
    return HEADER + body if body else b""


def _encode_cell(parts: list[bytes], cell: Cell, row_checksum: int) -> int:
    """Append a cell; return the row's checksum, continued with the cell's."""
    try:
        name = cell.name.encode()
        timestamp = b"" if cell.timestamp is None else _TIMESTAMP.pack(cell.timestamp)
    except (struct.error, UnicodeEncodeError) as error:
        raise PlainBufferError(f"PlainBuffer cannot hold the cell {cell.name!a}: {error}") from None
    value = b"" if cell.value is None else encode_value(cell.value)
    op = b"" if cell.op is None else bytes([cell.op])
    parts += (bytes([Tag.CELL, Tag.CELL_NAME]), _LENGTH.pack(len(name)), name)
    if value:
        parts += (bytes([Tag.CELL_VALUE]), _LENGTH.pack(len(value)), value)
    if op:
        parts += (bytes([Tag.CELL_OP]), op)
    if timestamp:
        parts += (bytes([Tag.CELL_TIMESTAMP]), timestamp)
    # In the checksum the timestamp precedes the op; on the wire it follows.
    checksum = crc8(b"".join((name, value, timestamp, op)))
    parts.append(bytes([Tag.CELL_CHECKSUM, checksum]))
    return crc8(bytes([checksum]), row_checksum)


def _encode_sequence(sequence: SequenceInfo) -> bytes:
    extension, length, info, info_length, epoch, timestamp, index = _EXTENSION_TAGS
    try:
        return _EXTENSION.pack(
            extension,
            length,
            info,
            info_length,
            epoch,
            sequence.epoch,
            timestamp,
            sequence.timestamp,
            index,
            sequence.index,
        )
    except struct.error as error:
        raise PlainBufferError(f"PlainBuffer cannot hold the sequence info: {error}", received=sequence) from None


def decode_value(data: bytes) -> Value:
    """Return a value that was encoded without a cell.

    Raises:
        PlainBufferError: the value is malformed, or has bytes behind it.
    """
    return _RowReader(data).value(len(data))


def decode_row(data: bytes) -> Row:
    """Return the one row of a message with a header. Zero bytes may follow it, as in messages of the JavaScript client.

    Raises:
        PlainBufferError: a malformed row, a wrong checksum, no row, or several rows.
    """
    rows = [row for _, row in _rows_with_offsets(data, padded=True)]
    if len(rows) != 1:
        raise PlainBufferError("a PlainBuffer message does not hold one row", received=f"{len(rows)} rows")
    return rows[0]


def decode_rows(data: bytes) -> list[Row]:
    """Return the rows of a message with one header; an empty message has no rows.

    Raises:
        PlainBufferError: a malformed row, or a wrong checksum.
    """
    return [row for _, row in _rows_with_offsets(data)]


def row_offsets(data: bytes) -> list[int]:
    """Return the offset of each row of a message.

    Raises:
        PlainBufferError: a malformed row, or a wrong checksum.
    """
    return [offset for offset, _ in _rows_with_offsets(data)]


def _rows_with_offsets(data: bytes, *, padded: bool = False) -> list[tuple[int, Row]]:
    found: list[tuple[int, Row]] = []
    if not data:
        return found
    reader = _RowReader(data)
    reader.header()
    # No row begins with a zero byte.
    while reader.at < len(data) and not (padded and found and not any(data[reader.at :])):
        offset = reader.at
        found.append((offset, reader.row()))
    return found


class _RowReader:
    """Reads a message from front to back; checks its length before each access."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def header(self) -> None:
        if self._take(len(HEADER)) != HEADER:
            raise self._error("no PlainBuffer header", at=0)

    def row(self) -> Row:
        self._expect(Tag.KEY)
        key: list[tuple[str, Value]] = []
        cells: list[Cell] = []
        checksum = 0
        while self._tag() == Tag.CELL:
            begin = self.at
            cell, checksum = self._cell(checksum)
            if cell.op is not None or cell.timestamp is not None:
                raise self._error("a key cell with more than a value", at=begin)
            key.append((cell.name, cell.value))
        if self._skip(Tag.ATTRIBUTES):
            while self._tag() == Tag.CELL:
                cell, checksum = self._cell(checksum)
                cells.append(cell)
        delete = self._skip(Tag.DELETE_ROW)
        sequence = self._sequence() if self._tag() == Tag.EXTENSION else None
        self._expect(Tag.ROW_CHECKSUM)
        if self._take(1)[0] != crc8(bytes([delete]), checksum):
            raise self._error("wrong checksum of a row", at=self.at - 1)
        return Row(tuple(key), tuple(cells), delete, sequence)

    def value(self, length: int) -> Value:
        """Read a value of ``length`` bytes, including the type byte."""
        begin = self.at
        data = self._take(length)
        kind = data[0] if data else -1
        if kind in (ValueType.STRING, ValueType.BINARY):
            if length < _TEXT.size or _TEXT.unpack_from(data)[1] != length - _TEXT.size:
                raise self._error("a text of another length than its value", at=begin)
            return data[_TEXT.size :] if kind == ValueType.BINARY else self._text(data[_TEXT.size :], begin)
        if FIXED_LENGTHS.get(kind) != length:
            raise self._error(f"unknown type {kind} of a value, or a wrong length: {length}", at=begin)
        if kind in _MARKERS:
            return _MARKERS[kind]
        if kind == ValueType.NULL:
            return None
        if kind == ValueType.BOOLEAN:
            if data[1] > 1:
                raise self._error("a boolean that is neither 0 nor 1", at=begin + 1)
            return data[1] == 1
        number: int | float = (_INTEGER if kind == ValueType.INTEGER else _DOUBLE).unpack(data)[1]
        return number

    def _cell(self, row_checksum: int) -> tuple[Cell, int]:
        self._expect(Tag.CELL)
        self._expect(Tag.CELL_NAME)
        length = self._length()
        begin = self.at
        name = self._take(length)
        value, value_bytes, op, op_bytes, timestamp, timestamp_bytes = None, b"", None, b"", None, b""
        if self._skip(Tag.CELL_VALUE):
            length = self._length()
            value_begin = self.at
            value = self.value(length)
            value_bytes = self._data[value_begin : self.at]
        if self._skip(Tag.CELL_OP):
            op_bytes = self._take(1)
            if op_bytes[0] not in _OPS:
                raise self._error(f"unknown operation of a cell: {op_bytes[0]}", at=self.at - 1)
            op = _OPS[op_bytes[0]]
        if self._skip(Tag.CELL_TIMESTAMP):
            timestamp_bytes = self._take(8)
            timestamp = _TIMESTAMP.unpack(timestamp_bytes)[0]
        self._expect(Tag.CELL_CHECKSUM)
        checksum = self._take(1)
        if checksum[0] != crc8(b"".join((name, value_bytes, timestamp_bytes, op_bytes))):
            raise self._error("wrong checksum of a cell", at=self.at - 1)
        return Cell(self._text(name, begin), value, op, timestamp), crc8(checksum, row_checksum)

    def _sequence(self) -> SequenceInfo:
        begin = self.at
        extension, length, info, info_length, *numbers = _EXTENSION.unpack(self._take(_EXTENSION.size))
        epoch_tag, epoch, timestamp_tag, timestamp, index_tag, index = numbers
        if (extension, length, info, info_length, epoch_tag, timestamp_tag, index_tag) != _EXTENSION_TAGS:
            raise self._error("an extension that is not sequence info", at=begin)
        return SequenceInfo(epoch, timestamp, index)

    def _text(self, data: bytes, begin: int) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise self._error("a text that is not UTF-8", at=begin) from None

    def _length(self) -> int:
        return int(_LENGTH.unpack(self._take(_LENGTH.size))[0])

    def _take(self, length: int) -> bytes:
        if length > len(self._data) - self.at:
            raise self._error(f"the message ends before {length} more bytes")
        self.at += length
        return self._data[self.at - length : self.at]

    def _tag(self) -> int:
        if self.at >= len(self._data):
            raise self._error("the message ends within a row")
        return self._data[self.at]

    def _skip(self, tag: int) -> bool:
        found = self._tag() == tag
        self.at += found
        return found

    def _expect(self, tag: int) -> None:
        if not self._skip(tag):
            raise self._error(f"tag {self._data[self.at]:#04x} instead of {tag:#04x}")

    def _error(self, problem: str, at: int | None = None) -> PlainBufferError:
        return PlainBufferError(f"broken PlainBuffer at byte {self.at if at is None else at}: {problem}")
