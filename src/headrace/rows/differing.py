"""Values that differ from their partners."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc


def unequal(one: pa.Array, other: pa.Array) -> npt.NDArray[np.bool_]:
    """Return whether each value differs from its partner. A null is equal to a null; NaN is equal to nothing."""
    if not pa.types.is_nested(one.type):
        differs = pc.fill_null(pc.not_equal(one, other), False)
        if one.null_count or other.null_count:
            differs = pc.or_(differs, pc.xor(one.is_null(), other.is_null()))
        flags: npt.NDArray[np.bool_] = differs.to_numpy(zero_copy_only=False)
        return flags
    # Arrow has no comparison of each nested value, but one of whole arrays: halve them until they are equal.
    flags = np.zeros(len(one), np.bool_)
    parts = [(0, len(one))]
    while parts:
        start, count = parts.pop()
        if one.slice(start, count).equals(other.slice(start, count)):
            continue
        if count == 1:
            flags[start] = True
        else:
            half = count // 2
            parts += [(start, half), (start + half, count - half)]
    return flags


def unequal_rows(some: pa.Table, others: pa.Table) -> npt.NDArray[np.bool_]:
    """Return whether each row differs from its partner, in any bit of a floating-point number.

    Args:
        others: rows with the same columns.
    """
    flags = np.zeros(some.num_rows, np.bool_)
    for one, other in zip(some.columns, others.columns, strict=True):
        flags |= unequal(_bits(one.combine_chunks()), _bits(other.combine_chunks()))
    return flags


def _bits(values: pa.Array) -> pa.Array:
    if pa.types.is_float64(values.type):
        return values.view(pa.int64())
    return values.view(pa.int32()) if pa.types.is_float32(values.type) else values
