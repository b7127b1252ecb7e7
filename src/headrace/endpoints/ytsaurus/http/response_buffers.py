"""Answers on their way out: held in memory while they are few bytes together, and on disk beyond that.

So clients that take their answers slowly, however many, do not fill the memory.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterable, Iterator
from typing import IO, cast

from headrace.endpoints.ytsaurus.errors import refused
from headrace.endpoints.ytsaurus.http.encodings import packed
from headrace.endpoints.ytsaurus.http.request_bodies import MAX_FILE_BYTES
from headrace.endpoints.ytsaurus.http.responses import Response
from headrace.wire.ytsaurus.errors import Code, YtError

PIECE_BYTES = 256 << 10
"""So much of an answer is given to a connection at once."""


class ResponseBuffers:
    """The answers that clients have not taken yet; used by one thread, but for `on_disk`.

    Args:
        memory_bytes: how many of their bytes are held in memory.
        disk_bytes: how many are held on disk.
    """

    def __init__(self, memory_bytes: int, disk_bytes: int) -> None:
        self._left = {"memory": memory_bytes, "disk": disk_bytes}

    def place(self, size: int, *, on_disk: bool = False) -> str:
        """Take a place for so many bytes, and return which: it is given back by `free`.

        Args:
            on_disk: they are there already.

        Raises:
            YtError: 108, there is none.
        """
        for place, left in self._left.items():
            # What fits in one piece is with the connection at once.
            if (size <= left or size <= PIECE_BYTES) and (place == "disk" or not on_disk):
                self._left[place] -= size
                return place
        raise YtError(Code.REQUEST_QUEUE_FULL, "Too many bytes of answers are waiting for their clients")

    def free(self, place: str, size: int) -> None:
        """Give back a place."""
        self._left[place] += size


def on_disk(response: Response) -> Response:
    """Return an answer whose body is on disk."""
    stream, length = kept_on_disk([response.body])
    return dataclasses.replace(response, body=b"", stream=stream, length=length, on_disk=True)


def in_encoding(response: Response, encoding: str) -> Response:
    """Return an answer packed in a content encoding."""
    headers = {**response.headers, "content-encoding": encoding, "vary": "Accept-Encoding"}
    if response.stream is None:
        content = memoryview(response.body)
        pieces = (content[begin : begin + PIECE_BYTES] for begin in range(0, len(content), PIECE_BYTES))
        return dataclasses.replace(response, headers=headers, body=b"".join(packed(pieces, encoding)))
    stream, length = kept_on_disk(packed(response.stream, encoding))
    return dataclasses.replace(response, headers=headers, stream=stream, length=length, on_disk=True)


def kept_on_disk(pieces: Iterable[bytes]) -> tuple[Iterator[bytes], int]:
    """Put bytes on disk, if they are many, until they are taken; return them, and how many they are.

    Raises:
        YtError: they are too many.
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
