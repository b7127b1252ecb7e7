"""Compressed bodies of requests: unpacked step by step, so that a small body never becomes more than it may.

One request has a limit, and all requests together have a `Budget`. Both are checked before the next step is unpacked.
"""

from __future__ import annotations

import io
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO, Protocol, TypeAlias, cast

import pyarrow as pa

STEP_BYTES = 1 << 20
"""At most this much is unpacked before the limits are checked again."""
_INFLATE_BYTES = 16 << 10
"""What is inflated at once: zlib copies all that is left of it at the end of each stream, and streams may be tiny."""
# zlib finds out by itself whether a stream is one of gzip or of zlib: clients send the one and call it the other.
_GZIP_OR_ZLIB = zlib.MAX_WBITS | 32

Take: TypeAlias = Callable[[int], None]
"""Called with a number of bytes before they are kept; raises if they are too many."""
Unpack: TypeAlias = Callable[["Source"], Iterator[bytes]]
"""Yields the content of a packed source, in pieces of at most `STEP_BYTES`."""


class Source(Protocol):
    """Where packed bytes come from."""

    def read(self, size: int, /) -> bytes: ...


class PackedError(Exception):
    """Packed bytes are damaged, or are not what their header says."""


class CutOffError(PackedError):
    """Packed bytes end too early."""


class TooLongError(Exception):
    """There are more bytes than one request may have."""


class ExhaustedError(Exception):
    """All requests together have as many bytes as they may."""


class Budget:
    """How many bytes all requests may hold together; safe to use from several threads.

    Args:
        total: the most there may be.
    """

    def __init__(self, total: int) -> None:
        self._left = total
        self._lock = threading.Lock()

    def take(self, size: int) -> None:
        """Reserve bytes.

        Raises:
            ExhaustedError: there are not enough left.
        """
        with self._lock:
            if size > self._left:
                raise ExhaustedError
            self._left -= size

    def give(self, size: int) -> None:
        """Give reserved bytes back."""
        with self._lock:
            self._left += size


class Share:
    """What one request holds of a budget.

    Args:
        budget: that of all requests.
        most: how many bytes this request may hold.
    """

    def __init__(self, budget: Budget, most: int) -> None:
        self._budget = budget
        self._most = most
        self._held = 0

    def take(self, size: int) -> None:
        """Reserve bytes for this request.

        Raises:
            TooLongError: the request may not have that many.
            ExhaustedError: all requests together have too many.
        """
        if self._held + size > self._most:
            raise TooLongError
        self._budget.take(size)
        self._held += size

    def free(self) -> None:
        """Give everything back."""
        held, self._held = self._held, 0
        self._budget.give(held)


class Parts:
    """Bytes in memory as a source, each part of which is released as soon as it is read."""

    def __init__(self, parts: Iterable[bytes]) -> None:
        self._parts = list(parts)[::-1]
        self._at = 0

    def read(self, size: int, /) -> bytes:
        """Return the next bytes, at most ``size`` of them; none at the end."""
        while self._parts:
            part = self._parts[-1]
            found = part[self._at : self._at + size]
            self._at += len(found)
            if self._at >= len(part):
                self._parts.pop()
                self._at = 0
            if found:
                return found
        return b""


def read_all(pieces: Iterable[bytes], take: Take) -> bytes:
    """Return pieces as one, with each reserved before the next is made."""
    # A buffer that grows would leave holes in the memory of its thread, several times as large as it is.
    parts = []
    for piece in pieces:
        take(len(piece))
        parts.append(piece)
    return b"".join(parts)


def copy_all(pieces: Iterable[bytes], target: BinaryIO, take: Take) -> None:
    """Write pieces to a file, with each reserved before the next is made."""
    for piece in pieces:
        take(len(piece))
        target.write(piece)


def plain(source: Source) -> Iterator[bytes]:
    """Yield bytes that are not packed."""
    while piece := source.read(STEP_BYTES):
        yield piece


def inflate(source: Source) -> Iterator[bytes]:
    """Yield the content of streams of gzip or zlib, several of which after each other are one."""
    stream = zlib.decompressobj(_GZIP_OR_ZLIB)
    begun = False
    try:
        while data := source.read(_INFLATE_BYTES):
            while data:
                if stream.eof:
                    stream = zlib.decompressobj(_GZIP_OR_ZLIB)
                begun = True
                piece = stream.decompress(data, STEP_BYTES)
                data = stream.unused_data or stream.unconsumed_tail
                yield piece
        while begun and not stream.eof and (piece := stream.decompress(b"", STEP_BYTES)):
            yield piece
    except zlib.error as error:
        raise PackedError(str(error)) from None
    if begun and not stream.eof:
        raise CutOffError


def unpack_brotli(source: Source) -> Iterator[bytes]:
    """Yield the content of a stream of brotli."""
    first = source.read(STEP_BYTES)
    if not first:
        return
    stream = pa.CompressedInputStream(pa.PythonFile(cast(BinaryIO, _Reader(first, source)), mode="r"), "brotli")
    try:
        while piece := stream.read(STEP_BYTES):
            yield piece
    except pa.ArrowInvalid as error:
        raise PackedError(str(error)) from None
    except OSError as error:
        if "Truncated" in str(error):
            raise CutOffError from None
        raise PackedError(str(error)) from None


class _Reader(io.RawIOBase):
    """A source as the file that Arrow wants, some bytes of which were read before."""

    def __init__(self, first: bytes, source: Source) -> None:
        self._first = first
        self._source = source

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        size = STEP_BYTES if size < 0 else size
        if self._first:
            found, self._first = self._first[:size], self._first[size:]
            return found
        return self._source.read(size)
