"""Decompression of request bodies in steps, with limits.

Each request has a limit, and all requests together have a `Budget`. Both are checked before each step.
"""

from __future__ import annotations

import io
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO, Protocol, TypeAlias, cast

import pyarrow as pa

STEP_BYTES = 1 << 20
"""The maximum of bytes that are decompressed between two checks of the limits."""
_INFLATE_BYTES = 16 << 10
"""Bytes of input for one step. zlib copies the rest of the input after each stream, and streams may be tiny."""
# zlib detects whether a stream is gzip or zlib. Clients confuse their names.
_GZIP_OR_ZLIB = zlib.MAX_WBITS | 32

Take: TypeAlias = Callable[[int], None]
"""Called with a number of bytes before they are stored; raises an error if there are too many."""
Unpack: TypeAlias = Callable[["Source"], Iterator[bytes]]
"""Yields the content of a compressed source, in pieces of at most `STEP_BYTES`."""


class Source(Protocol):
    """A source of compressed bytes."""

    def read(self, size: int, /) -> bytes: ...


class PackedError(Exception):
    """Compressed bytes are damaged, or do not match their header."""


class CutOffError(PackedError):
    """Compressed bytes are incomplete."""


class TooLongError(Exception):
    """The bytes of a request exceed its limit."""


class ExhaustedError(Exception):
    """The bytes of all requests exceed the limit."""


class Budget:
    """A limit for the bytes of all requests. It can be used by several threads.

    Args:
        total: the maximum.
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
        """Release reserved bytes."""
        with self._lock:
            self._left += size


class Share:
    """The bytes of one request in a budget.

    Args:
        budget: the budget of all requests.
        most: the maximum for this request.
    """

    def __init__(self, budget: Budget, most: int) -> None:
        self._budget = budget
        self._most = most
        self._held = 0

    def take(self, size: int) -> None:
        """Reserve bytes for this request.

        Raises:
            TooLongError: the limit of the request is exceeded.
            ExhaustedError: the budget of all requests is exhausted.
        """
        if self._held + size > self._most:
            raise TooLongError
        self._budget.take(size)
        self._held += size

    def free(self) -> None:
        """Release all bytes."""
        held, self._held = self._held, 0
        self._budget.give(held)


class Parts:
    """Bytes in memory as a source. Each part is released when it has been read."""

    def __init__(self, parts: Iterable[bytes]) -> None:
        self._parts = list(parts)[::-1]
        self._at = 0

    def read(self, size: int, /) -> bytes:
        """Return the next bytes, at most ``size``; empty at the end."""
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
    """Join pieces; each is reserved before the next one is computed."""
    # A growing buffer would fragment the memory of its thread, by several times its size.
    parts = []
    for piece in pieces:
        take(len(piece))
        parts.append(piece)
    return b"".join(parts)


def copy_all(pieces: Iterable[bytes], target: BinaryIO, take: Take) -> None:
    """Write pieces to a file; each is reserved before the next one is computed."""
    for piece in pieces:
        take(len(piece))
        target.write(piece)


def plain(source: Source) -> Iterator[bytes]:
    """Yield bytes that are not compressed."""
    while piece := source.read(STEP_BYTES):
        yield piece


def inflate(source: Source) -> Iterator[bytes]:
    """Yield the content of one or several concatenated streams of gzip or zlib."""
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
    """Yield the content of a brotli stream."""
    first = source.read(STEP_BYTES)
    if not first:
        return
    stream = pa.CompressedInputStream(pa.PythonFile(cast(BinaryIO, _Reader(first, source)), mode="r"), "brotli")
    try:
        # Not `read`: when it fails, Arrow never frees the bytes that it has allocated for the result.
        while piece := stream.read_buffer(STEP_BYTES).to_pybytes():
            yield piece
    except pa.ArrowInvalid as error:
        raise PackedError(str(error)) from None
    except OSError as error:
        if "Truncated" in str(error):
            raise CutOffError from None
        raise PackedError(str(error)) from None


class _Reader(io.RawIOBase):
    """A source as a file for Arrow, after some bytes that have already been read."""

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
