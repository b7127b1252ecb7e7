"""Keys of rows as numbers, so that rows can be sorted by key whatever its types are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Indexes: TypeAlias = npt.NDArray[np.int64]


def key_numbers(rows: pa.Table, key: Sequence[str]) -> Indexes:
    """Return a number below ``rows.num_rows`` for each row. Two rows have the same number if their keys are equal.

    Args:
        key: the names of the key columns, at least one; they have no nulls.
    """
    numbers, _ = _encoded(rows.column(key[0]))
    for name in key[1:]:
        further, size = _encoded(rows.column(name))
        # Below the square of the number of rows, so it fits into 64 bits.
        numbers, _ = _encoded(pa.chunked_array([pa.array(numbers * max(size, 1) + further)]))
    return numbers


def _encoded(column: pa.ChunkedArray) -> tuple[Indexes, int]:
    """Return the number of each value, and the number of different values."""
    chunks = pc.dictionary_encode(column).unify_dictionaries().chunks
    if not chunks:
        return np.zeros(0, np.int64), 0
    numbers = [chunk.indices.to_numpy(zero_copy_only=False) for chunk in chunks]
    return np.concatenate(numbers).astype(np.int64), len(chunks[-1].dictionary)
