"""Bodies of requests: unpacked as they come, kept in memory if they are rows or values, on disk if they are files."""

from __future__ import annotations

import importlib
import tempfile
import zlib
from typing import BinaryIO, Protocol, cast

from headrace.endpoints.ytsaurus.errors import refused

MAX_MEMORY_BYTES = 256 << 20
"""Rows and values are no longer than this, unpacked."""
MAX_PACKED_BYTES = MAX_MEMORY_BYTES + (1 << 20)
"""Packing makes what cannot be packed a little longer."""
MAX_FILE_BYTES = 16 << 30
"""A file is no longer than this, unpacked; longer ones are written in several requests."""
SPOOL_BYTES = 4 << 20
"""A file's bytes go to disk when they are more than these."""
_STEP = 1 << 20
# Finds out by itself whether a stream is one of gzip or of zlib: clients send the one and call it the other.
_GZIP_OR_ZLIB = zlib.MAX_WBITS | 32
CODECS = ("identity", "gzip", "deflate", "br")


class _Unpacker(Protocol):
    def feed(self, data: bytes, most: int) -> bytes:
        """Return what is unpacked of more bytes; at most ``most``, of which one too many shows that there is more."""

    def finished(self) -> bool: ...


class _Identity:
    def feed(self, data: bytes, most: int) -> bytes:
        return data

    def finished(self) -> bool:
        return True


class _Zlib:
    def __init__(self) -> None:
        self._stream = zlib.decompressobj(_GZIP_OR_ZLIB)
        self._empty = True

    def feed(self, data: bytes, most: int) -> bytes:
        self._empty = self._empty and not data
        found = bytearray()
        while data and len(found) <= most:
            if self._stream.eof:
                # Several streams after each other are one.
                self._stream = zlib.decompressobj(_GZIP_OR_ZLIB)
            found += self._stream.decompress(data, most + 1 - len(found))
            data = self._stream.unused_data or self._stream.unconsumed_tail
        return bytes(found)

    def finished(self) -> bool:
        return self._empty or self._stream.eof


class _Brotli:
    def __init__(self) -> None:
        try:
            brotli = importlib.import_module("brotli")
        except ImportError:
            raise refused(
                "this endpoint cannot unpack bodies of this content encoding",
                received="br",
                valid="gzip, identity",
                remedy="install brotli beside the endpoint, or set proxy/content_encoding of the client to gzip",
            ) from None
        self._stream = brotli.Decompressor()
        self._empty = True

    def feed(self, data: bytes, most: int) -> bytes:
        self._empty = self._empty and not data
        return cast(bytes, self._stream.process(data))

    def finished(self) -> bool:
        return self._empty or bool(self._stream.is_finished())


class Body:
    """The body of one request, unpacked.

    Args:
        encoding: the header ``Content-Encoding``.
        most: how many bytes there may be, unpacked.
        spooled: whether what is long goes to disk.
    """

    def __init__(self, encoding: str, most: int, *, spooled: bool) -> None:
        self._unpacker = _unpacker(encoding)
        self._most = most
        self._left = most
        self._file: BinaryIO | None = None
        if spooled:
            self._file = cast(BinaryIO, tempfile.SpooledTemporaryFile(SPOOL_BYTES))  # noqa: SIM115 (`close` ends it)
        self._parts: list[bytes] = []

    def feed(self, data: bytes) -> None:
        """Take more bytes as they came.

        Raises:
            YtError: there are too many, or they are not packed as the header says.
        """
        for begin in range(0, len(data), _STEP):
            try:
                found = self._unpacker.feed(data[begin : begin + _STEP], self._left)
            except Exception as error:
                if isinstance(error, zlib.error) or type(error).__module__.endswith("brotli"):
                    raise refused("the body of the request is not packed as its content encoding says") from None
                raise
            self._left -= len(found)
            if self._left < 0:
                raise refused("the body of the request is too long", valid=f"at most {self._most} bytes, unpacked")
            if self._file is None:
                self._parts.append(found)
            else:
                self._file.write(found)

    def bytes(self) -> bytes:
        """Return all bytes of a body that is not spooled, after the last of them came."""
        self._check_finished()
        parts, self._parts = self._parts, []
        return b"".join(parts)

    def file(self) -> BinaryIO:
        """Return a body that is spooled, to be read from its beginning, after the last of its bytes came."""
        self._check_finished()
        assert self._file is not None
        self._file.seek(0)
        return self._file

    def close(self) -> None:
        """Give the disk space back."""
        if self._file is not None:
            self._file.close()

    def _check_finished(self) -> None:
        if not self._unpacker.finished():
            raise refused("the packed body of the request is not complete")


def _unpacker(encoding: str) -> _Unpacker:
    match encoding.strip().lower():
        case "" | "identity":
            return _Identity()
        case "gzip" | "deflate":
            return _Zlib()
        case "br":
            return _Brotli()
    raise refused("unknown content encoding", received=encoding[:50], valid=CODECS)
