"""Digests of 64 bits for canonical values and for rows, and checksums of sets of rows.

The digests are the same on every machine, in every process and for every store. They find differences that happen by
accident; they do not protect against someone who constructs rows with equal digests.

- ``mix`` is the finalizer of SplitMix64, a bijection of 64-bit numbers.
- A digest of an int64 is ``mix(value + 1)``. Longer values consist of 64-bit words, little-endian, the last one filled
  with zero bytes: a digest is ``mix(sum of mix(word ^ mix(index + 1)) + mix(length + 1))``, where the length is in
  bytes. A decimal has four words. A list has the digests of its elements as words, and its length in elements.
- A struct has the words ``mix(digest of the field ^ digest of its name)``; its digest is ``mix(their sum + 1)``.
- The digest of a null is 0. A null field or column adds nothing, so a new column that is null everywhere changes no
  digest.
- The digest of a row is that of a struct of its columns. The order of the columns has no meaning.
- A **checksum** is the sum of the digests of rows. So it does not depend on their order, and the checksum of a table is
  the sum of the checksums of its key ranges.

All sums are modulo 2^64.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

_GOLDEN, _FIRST, _SECOND = (
    np.uint64(number) for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
_ONE, _30, _27, _31 = (np.uint64(number) for number in (1, 30, 27, 31))
# The bytes of a value in its last word, by their number modulo 8; 0 means 8.
_LAST_WORD = np.array([2**64 - 1, *(2 ** (8 * count) - 1 for count in range(1, 8))], np.uint64)
_DECIMAL_WORDS = 4


def mix(numbers: np.ndarray) -> np.ndarray:
    """Return SplitMix64's function of numbers, as a new array of uint64."""
    mixed: np.ndarray = numbers.astype(np.uint64) + _GOLDEN
    mixed ^= mixed >> _30
    mixed *= _FIRST
    mixed ^= mixed >> _27
    mixed *= _SECOND
    mixed ^= mixed >> _31
    return mixed


def digests(values: pa.Array) -> np.ndarray:
    """Return the digest of each canonical value as uint64."""
    kind = values.type
    if not len(values):
        # Arrow may leave out the buffers of an empty array.
        return np.zeros(0, np.uint64)
    if pa.types.is_int64(kind):
        numbers = values.fill_null(0) if values.null_count else values
        found = mix(numbers.to_numpy(zero_copy_only=False).view(np.uint64) + _ONE)
    elif pa.types.is_binary(kind):
        found = _of_bytes(values)
    elif pa.types.is_decimal(kind):
        found = _of_decimals(values)
    elif pa.types.is_list(kind):
        offsets = np.asarray(values.offsets).astype(np.int64)
        inner = digests(values.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0])))
        counts = np.diff(offsets)
        found = _of_words(inner, counts, counts)
    else:
        found = row_digests(values.flatten(), [field.name for field in kind])
    if values.null_count:
        found[values.is_null().to_numpy(zero_copy_only=False)] = 0
    return found


def row_digests(columns: Sequence[pa.Array], names: Sequence[str]) -> np.ndarray:
    """Return the digests of rows with some canonical columns, at least one."""
    sums = np.zeros(len(columns[0]), np.uint64)
    for values, name in zip(columns, names, strict=True):
        (salt,) = _of_bytes(pa.array([name.encode()], pa.binary()))
        part = mix(digests(values) ^ salt)
        if values.null_count:
            part[values.is_null().to_numpy(zero_copy_only=False)] = 0
        sums += part
    return mix(sums + _ONE)


def checksum(found: np.ndarray) -> int:
    """Return the sum of digests modulo 2^64."""
    return int(found.sum(dtype=np.uint64))


def _of_bytes(values: pa.Array) -> np.ndarray:
    offsets = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]
    offsets = offsets.astype(np.int64)
    lengths = np.diff(offsets)
    counts = (lengths + 7) // 8
    data = np.zeros(int(offsets[-1] - offsets[0]) + 8, np.uint8)
    if len(data) > 8:
        data[:-8] = np.frombuffer(values.buffers()[2], np.uint8)[offsets[0] : offsets[-1]]
    # A word may begin at any byte.
    word_at: np.ndarray = np.ndarray((len(data) - 7,), "<u8", data, 0, (1,))
    words = word_at[np.repeat(offsets[:-1] - offsets[0], counts) + 8 * _indexes(counts)]
    filled = counts > 0
    words[np.cumsum(counts)[filled] - 1] &= _LAST_WORD[lengths[filled] % 8]
    return _of_words(words, counts, lengths)


def _of_decimals(values: pa.Array) -> np.ndarray:
    first, count = values.offset * _DECIMAL_WORDS, len(values) * _DECIMAL_WORDS
    words = np.frombuffer(values.buffers()[1], "<u8")[first : first + count]
    counts = np.full(len(values), _DECIMAL_WORDS)
    return _of_words(words, counts, 8 * counts)


def _of_words(words: np.ndarray, counts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return digests of values; each consists of a number of consecutive words."""
    ends = np.cumsum(counts)
    sums = np.zeros(len(words) + 1, np.uint64)
    np.cumsum(mix(words ^ mix(_indexes(counts) + 1)), out=sums[1:])
    return mix(sums[ends] - sums[ends - counts] + mix(lengths + 1))


def _indexes(counts: np.ndarray) -> np.ndarray:
    """Return the indexes of words in their values: 0, 1, … for each value."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    indexes: np.ndarray = np.arange(total) - np.repeat(ends - counts, counts)
    return indexes
