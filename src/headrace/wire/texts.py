"""Texts that lie anywhere in a message, as an array."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def slices(buffer: pa.Buffer, at: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> pa.BinaryArray:
    """Copy texts out of a message of less than 2 GiB, whose places must rise and not overlap."""
    # An array of the texts and of the gaps between them needs no copy; then every second element is taken.
    offsets = np.zeros(2 * len(at) + 1, dtype=np.int32)
    offsets[:-1:2] = at
    offsets[1::2] = at + lengths
    offsets[-1] = offsets[-2:].max()
    both = pa.BinaryArray.from_buffers(
        pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), buffer], null_count=0
    )
    return both.take(pa.array(np.arange(0, 2 * len(at), 2, dtype=np.int32)))


def first_not_utf8(texts: pa.BinaryArray) -> int:
    """Return the place of the first text that is not UTF-8, of which there must be one."""
    return next(place for place, text in enumerate(texts.to_pylist()) if not _is_utf8(text))


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
