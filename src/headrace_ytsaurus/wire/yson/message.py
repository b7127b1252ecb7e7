"""Vectorized reading of binary YSON at many positions with numpy.

Functions take arrays of positions inside the message. The padding after the message allows reads of a few bytes from
any position.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.wire.texts import slices
from headrace_ytsaurus.wire.yson.documents import YsonError

Places: TypeAlias = npt.NDArray[np.int64]
Words: TypeAlias = npt.NDArray[np.uint64]
Bytes: TypeAlias = npt.NDArray[np.uint8]
Mask: TypeAlias = npt.NDArray[np.bool_]

MAX_SIZE: Final = 2**31 - 1 - 64
"""The maximum bytes of rows read at once: Arrow's strings have 32-bit offsets."""

_PADDING: Final = bytes(64)
_FREE_STEPS: Final = 64
_BYTES_PER_STEP: Final = 512
_STOPS: Final = np.uint64(0x8080808080808080)
_ONE: Final = np.uint64(1)


class Marker:
    """The first bytes of values in binary YSON, and the separators between values."""

    STRING, INT, DOUBLE, FALSE, TRUE, UINT = 1, 2, 3, 4, 5, 6
    ENTITY, ITEM, KEY = ord("#"), ord(";"), ord("=")
    MAP, MAP_END, LIST, LIST_END = ord("{"), ord("}"), ord("["), ord("]")
    ATTRIBUTES, ATTRIBUTES_END = ord("<"), ord(">")


class UnusualError(Exception):
    """The message is malformed, or the fast reader does not support its form. The general parser must read it."""


class Effort:
    """The maximum number of vectorized steps for a number of bytes.

    A step takes the same time for one value as for hundreds. If values have so many forms that most steps apply to few
    of them, the general parser is faster. The limit also protects against messages that are designed to be slow.
    """

    def __init__(self, size: int) -> None:
        self._left = _FREE_STEPS + size // _BYTES_PER_STEP

    def spend(self) -> None:
        """Count a step.

        Raises:
            UnusualError: the maximum is exceeded.
        """
        self._left -= 1
        if self._left < 0:
            raise UnusualError("the values have too many different forms")


class Message:
    """The bytes of rows, with padding at the end."""

    def __init__(self, data: bytes) -> None:
        self.size = len(data)
        if self.size > MAX_SIZE:
            raise YsonError("rows that are read at once must have less than 2 GiB", received=f"{self.size} bytes")
        self.data = b"".join((data, _PADDING))
        self.bytes: Bytes = np.frombuffer(self.data, dtype=np.uint8)
        self._buffer = pa.py_buffer(self.data)
        # Eight bytes from any position. The elements overlap. They are not integers, which must be aligned.
        self._words = np.ndarray((len(self.data) - 7,), dtype="V8", buffer=self.data, strides=(1,))

    def tags(self, at: Places) -> Bytes:
        """Return the byte at each position."""
        return self.bytes.take(at)

    def words(self, at: Places) -> Words:
        """Return eight bytes from each position as a little-endian number."""
        return self._words[at].view("<u8")

    def matches(self, text: bytes, at: Places) -> Mask:
        """Return for each position whether a text begins there. The text must end inside the message at all of them."""
        found = np.ones(len(at), dtype=np.bool_)
        for begin in range(0, len(text), 8):
            piece = text[begin : begin + 8]
            word = np.uint64(int.from_bytes(piece, "little"))
            words = self.words(at + begin if begin else at)
            found &= (words == word) if len(piece) == 8 else (words & np.uint64((1 << 8 * len(piece)) - 1)) == word
        return found

    def varints(self, at: Places) -> tuple[Words, Places]:
        """Return the varints at the positions, and their lengths in bytes.

        Raises:
            UnusualError: a number has more than 64 bits.
        """
        words = self.words(at)
        stops = ~words & _STOPS
        last = stops & (~stops + _ONE)
        long = last == 0
        numbers = _compressed(words & (last | (last - _ONE)))
        lengths = (np.frexp(last.astype(np.float64))[1] >> 3).astype(np.int64)
        if long.any():
            which = np.flatnonzero(long)
            more = self.words(at[which] + 8)
            ninth, tenth = more & np.uint64(0xFF), more >> np.uint64(8) & np.uint64(0xFF)
            two = ninth > 0x7F
            if (two & (tenth > 1)).any():
                raise UnusualError("a number of more than 64 bits")
            numbers[which] |= (ninth & np.uint64(0x7F)) << np.uint64(56)
            numbers[which] |= np.where(two, tenth, np.uint64(0)) << np.uint64(63)
            lengths[which] = 9 + two
        return numbers, lengths

    def text_spans(self, at: Places) -> tuple[Places, Places]:
        """Return the starts and lengths of the length-prefixed texts at the positions.

        Raises:
            UnusualError: a length is negative, or of more than 32 bits.
        """
        first = self.tags(at)
        if (first & 0x81 == 0).all():
            return at + 1, (first >> 1).astype(np.int64)
        numbers, lengths = self.varints(at)
        if ((numbers & _ONE).any()) or (numbers >> np.uint64(32)).any():
            raise UnusualError("an invalid length of a text")
        return at + lengths, (numbers >> _ONE).view(np.int64)

    def texts(self, at: Places, lengths: Places) -> pa.BinaryArray:
        """Copy texts at increasing positions."""
        return slices(self._buffer, at, lengths)


def signed(numbers: Words) -> npt.NDArray[np.int64]:
    """Decode zigzag-encoded signed numbers."""
    return ((numbers >> _ONE) ^ (~(numbers & _ONE) + _ONE)).view(np.int64)


def zigzag(numbers: npt.NDArray[np.int64]) -> Words:
    """Encode signed numbers as zigzag; the inverse of `signed`."""
    return ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)


def _compressed(words: Words) -> Words:
    """Join the lower seven bits of eight bytes."""
    words = words & np.uint64(0x7F7F7F7F7F7F7F7F)
    words = (words & np.uint64(0x007F007F007F007F)) | (words >> _ONE & np.uint64(0x3F803F803F803F80))
    words = (words & np.uint64(0x00003FFF00003FFF)) | (words >> np.uint64(2) & np.uint64(0x0FFFC0000FFFC000))
    return (words & np.uint64(0x0FFFFFFF)) | (words >> np.uint64(4) & np.uint64(0x00FFFFFFF0000000))
