"""Buffers for responses that clients have not read: in memory up to a limit, then on disk.

So slow clients cannot fill the memory.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterable, Iterator
from typing import IO, cast

from headrace_ytsaurus.endpoint.errors import refused
from headrace_ytsaurus.endpoint.http.encodings import packed
from headrace_ytsaurus.endpoint.http.request_bodies import MAX_FILE_BYTES
from headrace_ytsaurus.endpoint.http.responses import Response
from headrace_ytsaurus.wire.errors import Code, YtError

PIECE_BYTES = 256 << 10
"""Bytes of a response that are passed to a connection at once."""


class ResponseBuffers:
    """The space of unread responses. All methods are called in one thread.

    Args:
        memory_bytes: the maximum in memory.
        disk_bytes: the maximum on disk.
    """

    def __init__(self, memory_bytes: int, disk_bytes: int) -> None:
        self._left = {"memory": memory_bytes, "disk": disk_bytes}

    def place(self, size: int, *, on_disk: bool = False) -> str:
        """Reserve space, and return where: ``memory`` or ``disk``. Release it with `free`.

        Args:
            on_disk: the bytes are already on disk.

        Raises:
            YtError: 108, there is not enough space.
        """
        for place, left in self._left.items():
            # One piece is always accepted, because it is passed to the connection immediately.
            if (size <= left or size <= PIECE_BYTES) and (place == "disk" or not on_disk):
                self._left[place] -= size
                return place
        raise YtError(Code.REQUEST_QUEUE_FULL, "Too many bytes of answers are waiting for their clients")

    def free(self, place: str, size: int) -> None:
        """Release reserved space."""
        self._left[place] += size


def on_disk(response: Response) -> Response:
    """Move the body of a response to disk."""
    stream, length = kept_on_disk([response.body])
    return dataclasses.replace(response, body=b"", stream=stream, length=length, on_disk=True)


def in_encoding(response: Response, encoding: str) -> Response:
    """Return a response compressed with a content encoding."""
    headers = {**response.headers, "content-encoding": encoding, "vary": "Accept-Encoding"}
    if response.stream is None:
        content = memoryview(response.body)
        pieces = (content[begin : begin + PIECE_BYTES] for begin in range(0, len(content), PIECE_BYTES))
        return dataclasses.replace(response, headers=headers, body=b"".join(packed(pieces, encoding)))
    stream, length = kept_on_disk(packed(response.stream, encoding))
    return dataclasses.replace(response, headers=headers, stream=stream, length=length, on_disk=True)


def kept_on_disk(pieces: Iterable[bytes]) -> tuple[Iterator[bytes], int]:
    """Store bytes, on disk if there are many, until they are read; return their pieces and their number.

    Raises:
        YtError: there are too many.
    """
    length = 0
    file = tempfile.SpooledTemporaryFile(PIECE_BYTES)  # noqa: SIM115 (the pieces close it)
    try:
        for piece in pieces:
            length += len(piece)
            if length > MAX_FILE_BYTES:
                raise refused("The answer is too long", valid=f"at most {MAX_FILE_BYTES} bytes", remedy="ask for less")
            file.write(piece)
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return _pieces(cast(IO[bytes], file)), length


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    with file:
        while piece := file.read(PIECE_BYTES):
            yield piece
