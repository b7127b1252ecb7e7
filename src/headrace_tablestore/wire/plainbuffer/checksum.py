"""CRC-8 of PlainBuffer: polynomial x^8 + x^2 + x + 1, initial value 0, bits not reflected.

A CRC with initial value 0 is linear: the CRC of a text is the XOR of one term for each byte. The term depends only on
the byte and the number of bytes after it. Appending ``n`` bytes multiplies by x^(8n), and the powers of x repeat after
127 (the order of x modulo this polynomial), so one table of 127 x 256 bytes has all terms. With this table numpy
computes the CRCs of many texts at once.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Bytes: TypeAlias = npt.NDArray[np.uint8]

_PERIOD = 127
# For texts of at most _SHORT bytes a Python loop is faster than numpy. For texts of more than _LONG bytes on average a
# loop over the texts is faster than a lookup of every byte.
_SHORT, _LONG = 128, 2048


def _one_byte() -> list[int]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc << 1) ^ (0x107 if crc & 0x80 else 0)
        table.append(crc)
    return table


_TABLE = _one_byte()


def _powers() -> Bytes:
    """Return the table whose row ``n`` is each byte times x^(8n): its CRC with ``n - 1`` zero bytes after it."""
    step = np.array(_TABLE, dtype=np.uint8)
    powers = np.empty((_PERIOD, 256), dtype=np.uint8)
    powers[0] = np.arange(256)
    for row in range(1, _PERIOD):
        powers[row] = step[powers[row - 1]]
    return powers


_POWERS = _powers()
_FLAT = _POWERS.reshape(-1)
# The same for two bytes at once as a little-endian number, by the number of bytes that follow: for numbers.
_PAIRS = [
    np.ascontiguousarray((_POWERS[rest + 1][:, None] ^ _POWERS[rest + 2][None, :]).reshape(-1))
    for rest in range(0, 7, 2)
]
# The offset in _FLAT to add to a byte, by the byte's position, for a text that ends before the first byte: so that the
# table is the same for texts of every length.
_BY_PLACE = np.tile((-np.arange(_PERIOD) % _PERIOD) * 256, 256)


def crc8(data: bytes, crc: int = 0) -> int:
    """Return the CRC of ``data``; ``crc`` is that of the bytes before it."""
    if len(data) > _SHORT:
        return int(_POWERS[len(data) % _PERIOD, crc]) ^ _crc8_folded(np.frombuffer(data, dtype=np.uint8))
    table = _TABLE
    for byte in data:
        crc = table[crc ^ byte]
    return crc


def _crc8_folded(text: Bytes) -> int:
    """Return the CRC of one long text. Bytes at a distance of 127 have the same factor, so they are combined first."""
    before = len(text) % _PERIOD
    folded = np.bitwise_xor.reduce(text[before:].reshape(-1, _PERIOD), axis=0)
    folded[_PERIOD - before :] ^= text[:before]
    return int(np.bitwise_xor.reduce(_FLAT.take(folded + _BY_PLACE[:_PERIOD])))


def crc8_texts(data: Bytes, offsets: npt.NDArray[np.int64]) -> Bytes:
    """Return the CRC of each text ``data[offsets[i]:offsets[i + 1]]``."""
    result = np.zeros(len(offsets) - 1, dtype=np.uint8)
    first, last = int(offsets[0]), int(offsets[-1])
    if first == last:
        return result
    if last - first > _LONG * len(result):
        return np.array([_crc8_folded(data[begin:end]) for begin, end in pairwise(offsets.tolist())], dtype=np.uint8)
    # In blocks that fit into the cache: the indices take eight times the size of the bytes.
    added = np.empty(last - first, dtype=np.uint8)
    for begin in range(0, len(added), len(_BY_PLACE)):
        block = data[first + begin : min(last, first + begin + len(_BY_PLACE))]
        added[begin : begin + len(block)] = _FLAT.take(block + _BY_PLACE[: len(block)])
    filled = np.flatnonzero(np.diff(offsets))
    summed = np.bitwise_xor.reduceat(added, offsets[filled] - first)
    result[filled] = crc8_shifted(summed, offsets[filled + 1] - first)
    return result


def crc8_numbers(numbers: npt.NDArray[np.generic]) -> Bytes:
    """Return the CRC of the bytes of each number; the numbers must be little-endian."""
    width = numbers.dtype.itemsize
    crcs: Bytes
    if width == 1:
        crcs = _POWERS[1].take(numbers)
        return crcs
    pairs = np.ascontiguousarray(numbers).view("<u2").reshape(-1, width // 2)
    crcs = _PAIRS[width // 2 - 1].take(pairs[:, 0])
    for place in range(1, width // 2):
        crcs ^= _PAIRS[width // 2 - 1 - place].take(pairs[:, place])
    return crcs


def crc8_shifted(crcs: Bytes, lengths: int | npt.NDArray[np.int64]) -> Bytes:
    """Return CRCs continued with zero bytes. XOR with the CRC of other bytes gives the CRC of both together."""
    if isinstance(lengths, int):
        lengths = np.full(1, lengths)
    shifted: Bytes = _FLAT.take((lengths % _PERIOD) * 256 + crcs)
    return shifted
