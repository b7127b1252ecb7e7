"""Splitting and building columns of arrays, maps and structs in Arrow's form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import SchemaError

Numbers: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]

_MAX_ELEMENTS = 2**31 - 1


def is_valid(array: pa.Array) -> Mask:
    """Return a mask of the values that are not null."""
    mask: Mask = array.is_valid().to_numpy(zero_copy_only=False)
    return mask


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """Return a column in one piece. A column of one chunk is not copied."""
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def elements(array: pa.Array) -> tuple[Numbers, list[pa.Array]]:
    """Split a column of arrays (of any Arrow form) or of maps.

    Returns:
        The number of elements of each value, 0 for null; and the concatenated elements of all values: one column for
        arrays, keys and values for maps. Elements in the range of a null are omitted.
    """
    types = pa.types
    valid = is_valid(array)
    if types.is_fixed_size_list(array.type):
        return valid * np.int64(array.type.list_size), [array.flatten()]
    if types.is_list_view(array.type) or types.is_large_list_view(array.type):
        starts, sizes = _numbers(array.offsets), _numbers(array.sizes) * valid
    else:
        offsets = _numbers(array.offsets) if len(array) else np.zeros(1, np.int64)
        starts, sizes = offsets[:-1], np.diff(offsets) * valid
    columns = [array.keys, array.items] if types.is_map(array.type) else [array.values]
    return sizes, [_ranges(column, starts, sizes) for column in columns]


def build_lists(data_type: pa.DataType, sizes: Numbers, valid: Mask | None, columns: Sequence[pa.Array]) -> pa.Array:
    """Build a column of arrays or maps; the inverse of `elements`.

    Args:
        data_type: ``list`` or ``map``.
        sizes: the number of elements of each value, 0 for null.
        valid: a mask of the values that are not null; None if no value is null.
        columns: the elements, in the types of the inner fields.
    """
    if int(sizes.sum()) > _MAX_ELEMENTS:
        raise SchemaError(
            "too many elements for one batch of rows", received=int(sizes.sum()), valid=f"at most {_MAX_ELEMENTS}"
        )
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    child = columns[0]
    if pa.types.is_map(data_type):
        entries = pa.struct([data_type.key_field, data_type.item_field])
        child = build_structs(entries, len(columns[0]), None, columns)
    return pa.Array.from_buffers(data_type, len(sizes), [_bits(valid), pa.py_buffer(offsets)], children=[child])


def build_structs(data_type: pa.DataType, count: int, valid: Mask | None, columns: Sequence[pa.Array]) -> pa.Array:
    """Build a column of ``count`` structs from the columns of their fields."""
    return pa.Array.from_buffers(data_type, count, [_bits(valid)], children=list(columns))


def _ranges(values: pa.Array, starts: Numbers, sizes: Numbers) -> pa.Array:
    """Return the concatenated elements of ranges."""
    used = np.flatnonzero(sizes)
    if not len(used):
        return values.slice(0, 0)
    starts, sizes = starts[used], sizes[used]
    ends = starts + sizes
    if np.array_equal(starts[1:], ends[:-1]):
        return values.slice(int(starts[0]), int(ends[-1] - starts[0]))
    first = np.cumsum(sizes) - sizes
    return values.take(pa.array(np.repeat(starts - first, sizes) + np.arange(int(sizes.sum()))))


def _numbers(array: pa.Array) -> Numbers:
    # A null in a view may have any offset.
    return np.asarray(array.to_numpy(zero_copy_only=False), dtype=np.int64)


def _bits(valid: Mask | None) -> pa.Buffer | None:
    if valid is None or valid.all():
        return None
    return pa.py_buffer(np.packbits(valid, bitorder="little"))
