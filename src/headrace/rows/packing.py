"""Arrays, maps and structs as one binary value per row, packed and unpacked a column at a time.

A value is a sequence of blocks, one for each column inside it:

* ``block(type, m)``, m values of a type: m presence bytes (1, or 0 for null), then ``content(type, m)``;
* content of a type of fixed width: m values, little-endian, booleans as bytes; null is zeros;
* content of strings and binaries: m lengths in bytes (u32), then the bytes; null has length 0;
* content of a struct: the block of each field, with m values; of a null struct all fields are null;
* content of arrays and maps: m numbers of elements (u32), then one block of all elements, or one of all keys and one
  of all values; null has no elements.

The binary of a row is the content of one value; a null row is null. Values have equal bytes exactly if they have equal
bits (NaN has many bit patterns, zero has two).

All rows have the same blocks in the same order. So a page is read block by block, each for all rows.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.rows.nested import Mask, Numbers, build_lists, build_structs, elements, is_valid


def pack(array: pa.Array) -> pa.LargeBinaryArray:
    """Return the values of a composite type as binaries."""
    values = array.drop_null()
    parts: list[pa.LargeBinaryArray] = []
    _add_content(parts, values, np.ones(len(values), np.int64))
    # Not a constant of the module: with its first value, pyarrow imports pandas.
    packed = pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.large_binary()))
    return packed if len(values) == len(array) else _spread(packed, is_valid(array))


def unpack(binary: pa.BinaryArray, data_type: pa.DataType) -> pa.Array:
    """Return the values of a composite type from binaries; the inverse of `pack`."""
    packed = binary.drop_null().cast(pa.large_binary())
    ones = np.ones(len(packed), np.int64)
    values = _Reader(packed).content(data_type, ones, ones.astype(np.bool_))
    return values if len(values) == len(binary) else _spread(values, is_valid(binary))


def _spread(values: pa.Array, valid: Mask) -> pa.Array:
    """Return values with nulls inserted."""
    return values.take(pa.array(np.cumsum(valid) - 1, mask=~valid))


def is_text_or_bytes(data_type: pa.DataType) -> bool:
    """Return whether a type is text or binary, with values of variable width."""
    return bool(pa.types.is_string(data_type) or pa.types.is_binary(data_type))


def fixed_width(data_type: pa.DataType) -> int:
    """Return the width in bytes of the values of a type of fixed width."""
    return 1 if pa.types.is_boolean(data_type) else int(data_type.bit_width) // 8


def _sums(values: Numbers, counts: Numbers) -> Numbers:
    """Return the sums of consecutive runs of values; ``counts`` are the lengths of the runs."""
    ends = np.cumsum(counts)
    totals = np.concatenate([np.zeros(1, np.int64), np.cumsum(values)])
    sums: Numbers = totals[ends] - totals[ends - counts]
    return sums


# -- packing --------------------------------------------------------------------------------------------


def _add_block(parts: list[pa.LargeBinaryArray], values: pa.Array, counts: Numbers) -> None:
    parts.append(_cut(is_valid(values).view(np.uint8), counts))
    _add_content(parts, values, counts)


def _add_content(parts: list[pa.LargeBinaryArray], values: pa.Array, counts: Numbers) -> None:
    """Append the content of each row: row i has the next ``counts[i]`` values."""
    data_type = values.type
    if pa.types.is_struct(data_type):
        for field in values.flatten():
            _add_block(parts, field, counts)
    elif pa.types.is_nested(data_type):
        sizes, columns = elements(values)
        parts.append(_cut(sizes.astype("<u4"), counts))
        for column in columns:
            _add_block(parts, column, _sums(sizes, counts))
    elif is_text_or_bytes(data_type):
        filled = values.cast(pa.binary()).fill_null(b"")
        sizes = pc.binary_length(filled).to_numpy().astype(np.int64)
        parts.append(_cut(sizes.astype("<u4"), counts))
        offsets = np.frombuffer(filled.buffers()[1], np.int32)[filled.offset :]
        data = np.frombuffer(filled.buffers()[2] or b"", np.uint8)
        parts.append(_cut(data[offsets[0] : offsets[len(filled)]] if len(filled) else data[:0], _sums(sizes, counts)))
    else:
        parts.append(_cut(_fixed(values), counts))


def _fixed(values: pa.Array) -> npt.NDArray[np.generic]:
    """Return the memory of values of fixed width, with zeros for null."""
    width = fixed_width(values.type)
    if pa.types.is_boolean(values.type):
        flags: npt.NDArray[np.generic] = values.fill_null(False).to_numpy(zero_copy_only=False)
        return flags
    data = np.frombuffer(values.buffers()[1] or b"", f"V{width}")[values.offset : values.offset + len(values)]
    if values.null_count:
        data = data.copy()
        data[~is_valid(values)] = np.void(bytes(width))
    return data


def _cut(items: npt.NDArray[np.generic], counts: Numbers) -> pa.LargeBinaryArray:
    """Return binaries of the items' bytes; ``counts`` are the numbers of items of the binaries."""
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts * items.itemsize, out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(items))]
    return pa.Array.from_buffers(pa.large_binary(), len(counts), buffers)


# -- unpacking ------------------------------------------------------------------------------------------


class _Reader:
    """Reads the blocks of all rows of a page in order."""

    def __init__(self, packed: pa.LargeBinaryArray) -> None:
        self._data = np.frombuffer(packed.buffers()[2] or b"", np.uint8)
        offsets = np.frombuffer(packed.buffers()[1] or bytes(8), np.int64)
        self._at: Numbers = offsets[packed.offset : packed.offset + len(packed)].copy()

    def _block(self, data_type: pa.DataType, counts: Numbers) -> pa.Array:
        return self.content(data_type, counts, self._take(counts).view(np.bool_))

    def content(self, data_type: pa.DataType, counts: Numbers, valid: Mask) -> pa.Array:
        """Read a content: row i has ``counts[i]`` values; ``valid`` is the mask of the values that are not null."""
        if pa.types.is_struct(data_type):
            fields = [self._block(field.type, counts) for field in data_type]
            return build_structs(data_type, len(valid), valid, fields)
        if pa.types.is_nested(data_type):
            sizes = self._sizes(counts)
            totals = _sums(sizes, counts)
            is_map = pa.types.is_map(data_type)
            inner = [data_type.key_type, data_type.item_type] if is_map else [data_type.value_type]
            return build_lists(data_type, sizes, valid, [self._block(each, totals) for each in inner])
        bits = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
        if is_text_or_bytes(data_type):
            sizes = self._sizes(counts)
            offsets = np.zeros(len(sizes) + 1, np.int32)
            np.cumsum(sizes, out=offsets[1:])
            buffers = [bits, pa.py_buffer(offsets), pa.py_buffer(self._take(_sums(sizes, counts)))]
        elif pa.types.is_boolean(data_type):
            buffers = [bits, pa.py_buffer(np.packbits(self._take(counts), bitorder="little"))]
        else:
            buffers = [bits, pa.py_buffer(self._take(counts * fixed_width(data_type)))]
        return pa.Array.from_buffers(data_type, len(valid), buffers)

    def _sizes(self, counts: Numbers) -> Numbers:
        sizes: Numbers = self._take(4 * counts).view("<u4").astype(np.int64)
        return sizes

    def _take(self, lengths: Numbers) -> npt.NDArray[np.uint8]:
        """Return the next bytes of all rows, joined, and move behind them."""
        starts, self._at = self._at, self._at + lengths
        longest = int(lengths.max(initial=0))
        if longest == 0:
            return np.zeros(0, np.uint8)
        if int(lengths.min()) == longest:
            return np.lib.stride_tricks.sliding_window_view(self._data, longest)[starts].ravel()
        # A mask of alternating runs is much faster than an index for each byte.
        edges = np.empty(2 * len(starts) + 1, np.int64)
        edges[0:-1:2], edges[1::2], edges[-1] = starts, starts + lengths, len(self._data)
        taken = np.zeros(len(edges), np.bool_)
        taken[1::2] = True
        return self._data[np.repeat(taken, np.diff(edges, prepend=0))]
