"""Bodies of requests: received compressed, then decompressed, in memory for rows and values, on disk for files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, cast

from headrace.http.unpacking import (
    Budget,
    CutOffError,
    ExhaustedError,
    PackedError,
    Parts,
    Share,
    TooLongError,
    copy_all,
    read_all,
)
from headrace_ytsaurus.endpoint.errors import refused
from headrace_ytsaurus.endpoint.http.encodings import IDENTITY, is_known, known, unpacking
from headrace_ytsaurus.wire.errors import Code, YtError

MAX_MEMORY_BYTES = 256 << 20
"""The maximum decompressed size of rows and values."""
PACKING_BYTES = 1 << 20
"""The maximum overhead of compression for incompressible content."""
MAX_PACKED_BYTES = MAX_MEMORY_BYTES + PACKING_BYTES
MAX_FILE_BYTES = 16 << 30
"""The maximum decompressed size of a file in one request; larger files need several requests."""
SPOOL_BYTES = 4 << 20
"""A file of more bytes is stored on disk."""


class RequestBody:
    """The body of one request.

    Args:
        encoding: the header ``Content-Encoding``.
        most: the maximum number of decompressed bytes.
        spooled: store a long body on disk.
        budget: bytes of all requests: on disk if the body is spooled, else decompressed bytes in memory.

    Raises:
        YtError: the encoding is not supported.
    """

    def __init__(self, encoding: str, most: int, *, spooled: bool, budget: Budget) -> None:
        self._encoding = encoding.strip().lower() or IDENTITY
        if not is_known(self._encoding):
            raise refused("unknown content encoding", received=encoding[:50], valid=known())
        self._most = most
        self._packed = Share(budget, most if self._encoding == IDENTITY else most + PACKING_BYTES)
        self._unpacked = Share(budget, most)
        self._files: list[BinaryIO] = []
        self._spool = self._open() if spooled else None
        self._parts: list[bytes] = []

    def feed(self, data: bytes) -> None:
        """Add received bytes.

        Raises:
            YtError: there are too many.
        """
        if self._spool is None:
            self._parts.append(data)
            return
        with self._errors_as_yt_errors():
            self._packed.take(len(data))
        self._spool.write(data)

    def bytes(self) -> bytes:
        """Return the decompressed bytes of a complete body that is not spooled.

        Raises:
            YtError: there are too many, or they do not match the encoding.
        """
        parts, self._parts = self._parts, []
        with self._errors_as_yt_errors():
            return read_all(unpacking(self._encoding)(Parts(parts)), self._unpacked.take)

    def file(self) -> BinaryIO:
        """Return the decompressed bytes of a complete spooled body as a file, at its start.

        Raises:
            YtError: there are too many bytes, or they do not match the encoding.
        """
        packed = self._spool
        assert packed is not None
        packed.seek(0)
        if self._encoding == IDENTITY:
            return packed
        file = self._open()
        with self._errors_as_yt_errors():
            copy_all(unpacking(self._encoding)(packed), file, self._unpacked.take)
        packed.close()
        self._packed.free()
        file.seek(0)
        return file

    def close(self) -> None:
        """Release memory and disk space."""
        self._packed.free()
        self._unpacked.free()
        for file in self._files:
            file.close()

    def _open(self) -> BinaryIO:
        file = cast(BinaryIO, tempfile.SpooledTemporaryFile(SPOOL_BYTES))  # noqa: SIM115 (`close` ends it)
        self._files.append(file)
        return file

    def _too_long(self) -> YtError:
        return refused("the body of the request is too long", valid=f"at most {self._most} bytes, unpacked")

    @contextmanager
    def _errors_as_yt_errors(self) -> Iterator[None]:
        """Raise `YtError` instead of the errors of decompression and of the budget."""
        try:
            yield
        except TooLongError:
            raise self._too_long() from None
        except ExhaustedError:
            raise YtError(Code.REQUEST_QUEUE_FULL, "Too many bytes are waiting") from None
        except CutOffError:
            raise refused("the packed body of the request is not complete") from None
        except PackedError:
            raise refused("the body of the request is not packed as its content encoding says") from None
