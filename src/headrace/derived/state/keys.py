"""Values as binaries: keys of groups, and values in their order."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import UnsupportedError
from headrace.model.types import parse_type, type_name
from headrace.rows.by_position import sort_indices
from headrace.rows.byte_order import Bytes, bytes_of, data_of_ordered, ordered_bytes
from headrace.rows.nested import build_lists, build_structs, elements, is_valid
from headrace.rows.packing import fixed_width, is_text_or_bytes, pack

MAX_KEY_BYTES = 512
"""Longer keys are replaced by a hash. Tablestore's limit for a key column is 1024 bytes."""
_WHOLE, _HASHED = b"\x01", b"\x02"
_NOTHING = pa.scalar(b"", pa.binary())


def plain(array: pa.Array) -> pa.Array:
    """Return an array in the type of headrace for its values: without dictionaries and large or view forms."""
    wanted = parse_type(type_name(array.type)) if not pa.types.is_null(array.type) else array.type
    return array if array.type == wanted else array.cast(wanted)


def normalized(array: pa.Array) -> pa.Array:
    """Return an array with one form for each value, as Spark groups values.

    Floating-point numbers have one NaN and one zero. The entries of a map are in the order of their keys.
    """
    types = pa.types
    if types.is_floating(array.type):
        zero = pa.scalar(0.0, array.type)
        added = pc.add(array, zero)
        return pc.if_else(pc.is_nan(added), pa.scalar(float("nan"), array.type), added)
    if types.is_struct(array.type):
        return build_structs(array.type, len(array), is_valid(array), [normalized(each) for each in array.flatten()])
    if types.is_list(array.type):
        sizes, (inner,) = elements(array)
        return build_lists(array.type, sizes, is_valid(array), [normalized(inner)])
    if types.is_map(array.type):
        sizes, entries = elements(array)
        keys, items = map(normalized, entries)
        places = pa.array(np.repeat(np.arange(len(sizes)), sizes))
        order = sort_indices(pa.table({"map": places, "key": group_keys([keys], len(keys))}), ["map", "key"])
        return build_lists(array.type, sizes, is_valid(array), [keys.take(order), items.take(order)])
    return array


def group_keys(columns: Sequence[pa.Array], count: int) -> pa.BinaryArray:
    """Return a binary for each row: equal exactly if Spark groups the rows together.

    Null equals null, NaN equals NaN, and -0.0 equals 0.0. A key longer than `MAX_KEY_BYTES` is its SHA-256.
    A key has one byte for its form, a header with the presence of each value and the value or its length, and after it
    the texts and binaries. The keys of single values of fixed width sort as the values do.

    Args:
        columns: the values, `plain` and `normalized`.
        count: the number of rows.
    """
    header: list[Bytes] = [np.full((count, 1), _WHOLE[0], np.uint8)]
    texts: list[pa.Array] = []
    for column in columns:
        header.append(bytes_of(is_valid(column).astype(np.uint8)))
        if pa.types.is_null(column.type):
            continue
        if is_text_or_bytes(column.type) or pa.types.is_nested(column.type):
            values = pack(column).cast(pa.binary()) if pa.types.is_nested(column.type) else column.cast(pa.binary())
            values = values.fill_null(b"")
            header.append(bytes_of(pc.binary_length(values).to_numpy().astype(">u4")))
            texts.append(values)
        else:
            header.append(ordered_bytes(column) * is_valid(column)[:, None])
    keys = _binaries(np.concatenate(header, axis=1))
    if texts:
        keys = pc.binary_join_element_wise(keys, *texts, _NOTHING)
    return _shortened(keys)


def _shortened(keys: pa.BinaryArray) -> pa.BinaryArray:
    long = pc.greater(pc.binary_length(keys), MAX_KEY_BYTES)
    if not pc.any(long).as_py():
        return keys
    hashes = [_HASHED + hashlib.sha256(key.as_buffer()).digest() for key in keys.filter(long)]
    return pc.replace_with_mask(keys, long, pa.array(hashes, pa.binary()))


def ordered_values(array: pa.Array, *, descending: bool = False) -> pa.BinaryArray:
    """Return values without nulls as binaries that sort as Spark's values do, or in reverse.

    NaN is greater than all numbers; texts and binaries sort by their bytes. -0.0 sorts before 0.0.

    Raises:
        UnsupportedError: the type has no such form.
    """
    check_ordered(array.type)
    if is_text_or_bytes(array.type):
        values = array.cast(pa.binary())
        return _descending_texts(values) if descending else values
    if pa.types.is_floating(array.type):
        array = pc.if_else(pc.is_nan(array), pa.scalar(float("nan"), array.type), array)
    values = ordered_bytes(array)
    return _binaries(255 - values if descending else values)


def restored_values(binaries: pa.BinaryArray, data_type: pa.DataType, *, descending: bool = False) -> pa.Array:
    """Return the values of `ordered_values`; null stays null."""
    valid = is_valid(binaries)
    if is_text_or_bytes(data_type):
        return (_ascending_texts(binaries) if descending else binaries).cast(data_type)
    values = np.zeros((len(binaries), fixed_width(data_type)), np.uint8)
    values[valid] = _data(binaries.drop_null()).reshape(-1, values.shape[1])
    if descending:
        values = 255 - values
    mask = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(data_type, len(values), [mask, pa.py_buffer(data_of_ordered(values, data_type))])


def check_ordered(data_type: pa.DataType) -> None:
    """Raise `UnsupportedError` unless min and max can be kept for values of a type."""
    if pa.types.is_nested(data_type) or pa.types.is_null(data_type):
        raise UnsupportedError(
            "min and max of arrays, maps and structs cannot be followed",
            received=str(data_type),
            valid="numbers, texts, binaries, booleans, dates, times and intervals",
            remedy="take min and max of a field or an element",
        )


# Complemented bytes sort in reverse only if no value is the beginning of another. So texts end with 00 00, and a byte
# 00 inside becomes 00 01.


def _descending_texts(values: pa.BinaryArray) -> pa.BinaryArray:
    escaped = _replaced(values, b"\x00", b"\x00\x01")
    ended = pc.binary_join_element_wise(escaped, pa.scalar(b"\x00\x00", pa.binary()), _NOTHING)
    return _complemented(ended)


def _ascending_texts(binaries: pa.BinaryArray) -> pa.BinaryArray:
    ended = _complemented(binaries)
    escaped = pc.binary_slice(ended, 0, -2)
    return _replaced(escaped, b"\x00\x01", b"\x00")


def _replaced(values: pa.BinaryArray, old: bytes, new: bytes) -> pa.BinaryArray:
    if not pc.any(pc.match_substring(values, old)).as_py():
        return values
    return pc.replace_substring(values, old, new)


def _complemented(values: pa.BinaryArray) -> pa.BinaryArray:
    if values.offset:
        values = pa.concat_arrays([values, values.slice(0, 0)])
    validity, offsets, data = values.buffers()
    flipped = b"" if data is None else 255 - np.frombuffer(data, np.uint8)
    return pa.Array.from_buffers(
        pa.binary(), len(values), [validity, offsets, pa.py_buffer(flipped)], offset=values.offset
    )


def _binaries(matrix: Bytes) -> pa.BinaryArray:
    """Return the rows of a matrix of bytes."""
    count, width = matrix.shape
    offsets = np.arange(0, (count + 1) * width, width, dtype=np.int32)[: count + 1]
    data = np.ascontiguousarray(matrix)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _data(values: pa.BinaryArray) -> Bytes:
    """Return the concatenated bytes of binaries without nulls."""
    if not len(values):
        return np.zeros(0, np.uint8)
    offsets = np.frombuffer(values.buffers()[1], np.int32)
    start, end = offsets[values.offset], offsets[values.offset + len(values)]
    return np.frombuffer(values.buffers()[2], np.uint8)[start:end]
