"""Decoding of pages of PlainBuffer rows into Arrow: the hot path of reading a tunnel or a table.

All rows are read in parallel with numpy: the first key cell of every row, then the second, and so on. There is no loop
over rows; the number of steps is the number of cells of the longest row. If few rows are left, in a short page or
because only some rows are wide, a loop finds their cells, which are then read in one step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.model.tables.schema import Column, TableSchema
from headrace.wire.texts import first_not_utf8
from headrace_tablestore.wire.plainbuffer.cells import Cells, Mask, Message, Offsets, every_cell, read_cells
from headrace_tablestore.wire.plainbuffer.checksum import Bytes, crc8_numbers, crc8_shifted, crc8_texts
from headrace_tablestore.wire.plainbuffer.encoding import check_schema
from headrace_tablestore.wire.plainbuffer.rows import row_offsets
from headrace_tablestore.wire.plainbuffer.values import HEADER, CellKind, CellOp, PlainBufferError, Tag, ValueType

_KEY_TYPES: Final = {pa.int64(): ValueType.INTEGER, pa.string(): ValueType.STRING, pa.binary(): ValueType.BINARY}
_TEXT_TYPES: Final = {pa.string(): ValueType.STRING, pa.binary(): ValueType.BINARY}
# The begin of the extension, up to the sequence epoch.
_EXTENSION: Final = int.from_bytes(bytes([Tag.EXTENSION, 24, 0, 0, 0, Tag.SEQUENCE, 19, 0]), "little")
_EXTENSION_LENGTH: Final = 29
# With fewer rows than this, a loop finds the cells, which are then read in one step.
_FEW: Final = 64
# Numbers, because numpy compares them faster than enums.
_PUT: Final = np.int8(CellKind.PUT)
_MISFIT: Final = np.int8(CellKind.MISFIT)


@dataclass(frozen=True)
class Decoded:
    """Rows in their order in the message.

    Attributes:
        rows: the columns of the schema, attributes all nullable (`TableSchema.changes`). An attribute is null where
            its cell is absent or deleted, or where its value does not fit the column.
        kinds: for each attribute, int8 `CellKind` codes; not null.
        deleted: the row has the delete marker; not null.
        sequence_timestamps: int64 microseconds, 0 in rows without sequence info; not null.
        row_indexes: int32 position among the changes of that timestamp, 0 in rows without sequence info; not null.
        others: the row has cells of columns that are not in the schema; not null.
    """

    rows: pa.RecordBatch
    kinds: Mapping[str, pa.Int8Array]
    deleted: pa.BooleanArray
    sequence_timestamps: pa.Int64Array
    row_indexes: pa.Int32Array
    others: pa.BooleanArray


def decode_records(
    records: Sequence[bytes], schema: TableSchema, places: tuple[Offsets, Offsets] | None = None
) -> Decoded:
    """Decode rows that have a header each, as the records of a tunnel have.

    Cells of columns that are not in the schema are ignored. Of several cells of one column in a row the last one
    counts. An INTEGER fits columns of whole numbers within their range, and floating-point columns. A DOUBLE fits
    floating-point columns that can hold it. Other types fit only columns of the same type.

    Args:
        places: the offset and the length of the row within each record, if the record has more than the row.

    Raises:
        PlainBufferError: a malformed row, a wrong checksum, other key columns than the table's, an increment, or a
            string that is returned and is not UTF-8.
        UnsupportedError: Tablestore has no type for a column of the schema.
    """
    check_schema(schema)
    message = Message(records)
    if places is not None:
        offsets, lengths = places
        message.require(offsets + lengths <= message.limits - message.starts, message.starts, "the row is cut off")
        message.starts = message.starts + offsets
        message.limits = message.starts + lengths
    if message.rows:
        message.require(message.starts + len(HEADER) < message.limits, message.starts, "the message ends in the header")
        header = int.from_bytes(HEADER, "little")
        message.require((message.words(message.starts) & 0xFFFFFFFF) == header, message.starts, "no PlainBuffer header")
        message.starts = message.starts + len(HEADER)
    return _decode(message, schema)


def decode_block(block: bytes, schema: TableSchema) -> Decoded:
    """Decode consecutive rows behind one header, as in responses of GetRange; an empty block has no rows.

    For the types of values that fit a column, and for errors, see `decode_records`.
    """
    check_schema(schema)
    message = Message([block] if block else [])
    if not block:
        return _decode(message, schema)
    if not block.startswith(HEADER):
        raise message.error("no PlainBuffer header", 0)
    likely = _likely_starts(message, schema.primary_key[0].encode())
    try:
        return _decode(_divided(message, likely), schema)
    except PlainBufferError:
        # The block is malformed, or a value contains bytes that look like the start of a row.
        exact = np.array(row_offsets(block), dtype=np.int64)
        if np.array_equal(exact, likely):
            raise
        return _decode(_divided(message, exact), schema)


def _likely_starts(message: Message, key_name: bytes) -> Offsets:
    """Return probable offsets of rows: behind the header, and where the first key cell follows a row's checksum."""
    start = bytes([Tag.KEY, Tag.CELL, Tag.CELL_NAME]) + len(key_name).to_bytes(4, "little") + key_name
    data = message.bytes[: max(0, message.size - len(start) + 1)]
    looks = (data[2:] == Tag.KEY) & (data[:-2] == Tag.ROW_CHECKSUM)
    likely = np.flatnonzero(looks) + 2
    likely = likely[message.equal(likely, start)]
    return np.concatenate(([len(HEADER)], likely[likely > len(HEADER)]))


def _divided(message: Message, starts: Offsets) -> Message:
    """Set the offsets of the rows of a message of one part."""
    message.starts = starts
    message.limits = np.append(starts, message.size)[1:]
    return message


def _decode(message: Message, schema: TableSchema) -> Decoded:
    attributes = {column.name: _Attribute(column, message) for column in schema.attributes}
    if message.rows == 0:
        keys = {name: pa.array([], type=schema.column(name).type) for name in schema.primary_key}
        nothing = np.zeros(0, dtype=np.int64)
        return _decoded(schema, keys, attributes, nothing != 0, nothing != 0, nothing, nothing.astype(np.int32))
    message.require(message.starts < message.limits, message.starts, "no row")
    message.require(message.tags(message.starts) == Tag.KEY, message.starts, "no key at the start of a row")
    at = message.starts + 1
    checksums = np.zeros(message.rows, dtype=np.uint8)
    keys = {}
    for name in schema.primary_key:
        cells = _read_key(message, at, name, _KEY_TYPES[schema.column(name).type])
        keys[name] = _key_column(message, cells, schema.column(name))
        checksums = crc8_numbers(checksums ^ cells.checksums)
        at = cells.ends
    tags = message.tags(at)
    message.require(tags != Tag.CELL, at, "more key cells than the table has key columns")
    others = _read_attributes(message, at, tags == Tag.ATTRIBUTES, checksums, attributes)
    return _decoded(schema, keys, attributes, others, *_read_ends(message, at, checksums))


def _decoded(
    schema: TableSchema,
    keys: Mapping[str, pa.Array],
    attributes: Mapping[str, _Attribute],
    others: Mask,
    deleted: Mask,
    timestamps: Offsets,
    indexes: npt.NDArray[np.int32],
) -> Decoded:
    columns = [keys[name] if name in keys else attributes[name].column() for name in schema.names]
    return Decoded(
        pa.RecordBatch.from_arrays(columns, schema=schema.changes),
        {name: pa.array(attribute.kinds) for name, attribute in attributes.items()},
        pa.array(deleted),
        pa.array(timestamps),
        pa.array(indexes),
        pa.array(others),
    )


def _read_key(message: Message, at: Offsets, name: str, value_type: int) -> Cells:
    """Read the key cells of one column."""
    message.require(message.tags(at) == Tag.CELL, at, f"no cell of key column {name!r}")
    cells = read_cells(message, None, at)
    if cells.name != name.encode():
        names = [cells.name] if cells.names is None else cells.names.to_pylist()
        other = next(place for place, found in enumerate(names) if found != name.encode())
        raise message.error(f"another key column instead of {name!r}", int(at[other]))
    message.require(cells.types == value_type, at, f"a value of another type in key column {name!r}")
    if cells.ops is not None or cells.timestamped:
        raise message.error("a key cell with more than a value", int(at[0]))
    return cells


def _key_column(message: Message, cells: Cells, column: Column) -> pa.Array:
    if cells.texts is None:
        return pa.array(cells.payloads.view(np.int64))
    return _as_text(message, cells.texts, column, cells.values_at)


def _read_attributes(
    message: Message, at: Offsets, present: Mask, checksums: Bytes, attributes: Mapping[str, _Attribute]
) -> Mask:
    """Read all attribute cells; return which rows have cells of columns that are not in the schema.

    Sets ``at`` to the offsets behind the cells, and continues the ``checksums``.
    """
    by_name = {name.encode(): attribute for name, attribute in attributes.items()}
    others = np.zeros(message.rows, np.bool_)
    at += present
    rows: Offsets | None = None if present.all() else np.flatnonzero(present)
    while True:
        begin = at if rows is None else at[rows]
        more = message.tags(begin) == Tag.CELL
        if not more.all():
            rows = np.flatnonzero(more) if rows is None else rows[more]
            begin = at[rows]
        if len(begin) == 0:
            return others
        if len(begin) < _FEW:
            rows, begin = every_cell(message, np.arange(message.rows) if rows is None else rows, begin)
            cells = read_cells(message, rows, begin)
            _continue_in_runs(checksums, rows, cells.checksums)
        else:
            cells = read_cells(message, rows, begin)
            read = slice(None) if rows is None else rows
            checksums[read] = crc8_numbers(checksums[read] ^ cells.checksums)
        _take(message, cells, by_name, others)
        at[slice(None) if rows is None else rows] = cells.ends


def _take(message: Message, cells: Cells, by_name: Mapping[bytes, _Attribute], others: Mask) -> None:
    """Add cells to the attributes of their names; mark in ``others`` the rows of cells without an attribute."""
    if cells.ops is not None:
        message.require(cells.ops != CellOp.INCREMENT, cells.begin, "an unexpected increment")
    if cells.name is not None:
        if cells.name in by_name:
            by_name[cells.name].add(cells, None)
        else:
            others[slice(None) if cells.rows is None else cells.rows] = True
        return
    assert cells.names is not None
    # A loop over the names of these cells, not over all columns: a table can have thousands of columns.
    found = cells.names.dictionary_encode()
    places = found.indices.to_numpy(zero_copy_only=False)
    for place, name in enumerate(found.dictionary.to_pylist()):
        members = np.flatnonzero(places == place)
        if name in by_name:
            by_name[name].add(cells, members)
        else:
            others[members if cells.rows is None else cells.rows[members]] = True


def _continue_in_runs(checksums: Bytes, rows: Offsets, of_cells: Bytes) -> None:
    """Continue the checksums of rows with the checksums of their cells; a row can have several."""
    each, begins, counts = np.unique(rows, return_index=True, return_counts=True)
    checksums[each] = crc8_shifted(checksums[each], counts) ^ crc8_texts(of_cells, np.append(begins, len(rows)))


def _read_ends(message: Message, at: Offsets, checksums: Bytes) -> tuple[Mask, Offsets, npt.NDArray[np.int32]]:
    """Read the parts of rows behind the cells; return delete marks, sequence timestamps and row indexes."""
    timestamps = np.zeros(message.rows, dtype=np.int64)
    indexes = np.zeros(message.rows, dtype=np.int32)
    message.require(at < message.limits, at, "an incomplete row")
    deleted = message.tags(at) == Tag.DELETE_ROW
    at = at + deleted
    extended = message.tags(at) == Tag.EXTENSION
    if extended.any():
        rows = slice(None) if extended.all() else np.flatnonzero(extended)
        begin = at[rows]
        message.require(begin + _EXTENSION_LENGTH < message.limits[rows], begin, "an extension reaches beyond its row")
        around = message.words(begin + 8)
        shaped = (message.words(begin) == _EXTENSION) & ((around & 0xFFFFFF) == Tag.SEQUENCE_EPOCH << 16)
        last = message.words(begin + 24)
        shaped &= ((around >> 56) == Tag.SEQUENCE_TIMESTAMP) & ((last & 0xFF) == Tag.SEQUENCE_INDEX)
        message.require(shaped, begin, "an extension that is not sequence info")
        timestamps[rows] = message.words(begin + 16).view(np.int64)
        indexes[rows] = (last >> 8 & 0xFFFFFFFF).astype(np.uint32).view(np.int32)
        at = at + _EXTENSION_LENGTH * extended
    end = message.words(at)
    message.require((end & 0xFF) == Tag.ROW_CHECKSUM, at, "no checksum at the end of a row")
    message.require(at + 2 == message.limits, at, "a row of another length than expected")
    expected = crc8_numbers(checksums ^ deleted)
    message.require((end >> 8 & 0xFF) == expected, at + 1, "wrong checksum of a row")
    return deleted, timestamps, indexes


class _Attribute:
    """Collects the cells of an attribute; a later cell of a row replaces an earlier one."""

    def __init__(self, column: Column, message: Message) -> None:
        self._column = column
        self._message = message
        self.kinds: npt.NDArray[np.int8] = np.zeros(message.rows, dtype=np.int8)
        self._text_type = _TEXT_TYPES.get(column.type)
        # All texts, if they were read in one step.
        self._texts: pa.BinaryArray | None = None
        if self._text_type is None:
            self._values: npt.NDArray[Any] = np.zeros(message.rows, dtype=column.type.to_pandas_dtype())
        else:
            self._at = message.starts.copy()
            self._lengths = np.zeros(message.rows, dtype=np.int64)

    def add(self, cells: Cells, members: Offsets | None) -> None:
        """Add the cells of one step, or those at some indices."""
        rows, types, payloads, ops = cells.rows, cells.types, cells.payloads, cells.ops
        if members is not None:
            rows = members if rows is None else rows[members]
            types, payloads, ops = types[members], payloads[members], None if ops is None else ops[members]
        target: slice | Offsets = slice(None) if rows is None else rows
        if self._text_type is None:
            self._values[target], fits = _numbers(self._column.type, types, payloads)
        else:
            fits = types == self._text_type
            begin = cells.values_at if members is None else cells.values_at[members]
            # A null has no text: the place of one would be in the next row.
            self._at[target] = np.where(fits, begin + 5, self._at[target])
            self._lengths[target] = np.where(fits, (payloads & 0xFFFFFFFF).view(np.int64), 0)
            self._texts = cells.texts if rows is None and fits.all() else None
        kinds = np.where(fits, _PUT, _MISFIT)
        if ops is not None:
            kinds[ops == CellOp.DELETE_ONE] = CellKind.DELETE_ONE
            kinds[ops == CellOp.DELETE_ALL] = CellKind.DELETE_ALL
        self.kinds[target] = kinds

    def column(self) -> pa.Array:
        """Return the values as an Arrow array."""
        valid = self.kinds == _PUT
        if self._text_type is None:
            return pa.array(self._values, type=self._column.type, mask=None if valid.all() else ~valid)
        texts = self._texts
        if texts is None:
            lengths = np.where(valid, self._lengths, 0)
            texts = self._message.texts(self._at, lengths)
        array = _as_text(self._message, texts, self._column, self._at)
        if valid.all():
            return array
        return pa.Array.from_buffers(array.type, len(array), [pa.array(valid).buffers()[1], *array.buffers()[1:]])


def _numbers(data_type: pa.DataType, types: Bytes, payloads: npt.NDArray[np.uint64]) -> tuple[npt.NDArray[Any], Mask]:
    """Return numbers or booleans in a column's type, and which of them have the decoded value."""
    integers = payloads.view(np.int64)
    whole = types == ValueType.INTEGER
    if pa.types.is_boolean(data_type):
        return (payloads & 0xFF) != 0, types == ValueType.BOOLEAN
    numpy_type = data_type.to_pandas_dtype()
    if pa.types.is_integer(data_type):
        values = integers.astype(numpy_type, copy=False)
        return values, whole & (values == integers)
    doubles = payloads.view(np.float64)
    real = types == ValueType.DOUBLE
    # Overflows, and the bits of other types read as doubles, are excluded by the second result.
    with np.errstate(all="ignore"):
        values = doubles.astype(numpy_type, copy=False)
        fits = real & (np.isfinite(values) | ~np.isfinite(doubles))
    if whole.any():
        values = np.where(whole, integers.astype(numpy_type), values)
    return values, whole | fits


def _as_text(message: Message, texts: pa.BinaryArray, column: Column, at: Offsets) -> pa.Array:
    """Return binaries in a column's type; strings are checked for UTF-8."""
    try:
        return texts.cast(column.type)
    except pa.ArrowInvalid:
        wrong = first_not_utf8(texts)
        raise message.error(f"a string of column {column.name!r} that is not UTF-8", int(at[wrong])) from None
