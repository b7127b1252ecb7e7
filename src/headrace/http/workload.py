"""Limits of the requests that a server has at once, and of the bytes of their bodies."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from headrace.http.application import DisconnectedError, Receive, Scope

_LARGEST = 10**18


class OverloadedError(Exception):
    """The server has too many requests or bytes; the text says which."""


class Workload:
    """Counts the requests of a server and the bytes of their bodies. Used by the event loop's thread.

    Args:
        requests: the limit of running and waiting requests.
        body_bytes: the limit of bytes of bodies in memory.

    Attributes:
        requests: the current number of requests.
        body_bytes: the current number of bytes.
    """

    def __init__(self, *, requests: int, body_bytes: int) -> None:
        self._most_requests = requests
        self._most_body_bytes = body_bytes
        self.requests = 0
        self.body_bytes = 0

    @contextlib.contextmanager
    def request(self) -> Iterator[HeldBytes]:
        """Count a request during the block; yield the counter of its bytes.

        Raises:
            OverloadedError: the limit of requests is reached.
        """
        if self.requests >= self._most_requests:
            raise OverloadedError("Too many requests are waiting")
        self.requests += 1
        held = HeldBytes(self)
        try:
            yield held
        finally:
            self.requests -= 1
            held.release(held.size)

    def add_bytes(self, size: int) -> None:
        """Add a number of bytes, which may be negative.

        Raises:
            OverloadedError: the bytes exceed the limit. They are not counted.
        """
        if self.body_bytes + size > self._most_body_bytes and size > 0:
            raise OverloadedError("Too many bytes are waiting")
        self.body_bytes += size


class HeldBytes:
    """The bytes of one request's body that are in memory."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self.size = 0

    def add(self, size: int) -> None:
        """Add a number of bytes.

        Raises:
            OverloadedError: the bytes exceed the server's limit.
        """
        self._workload.add_bytes(size)
        self.size += size

    def release(self, size: int) -> None:
        """Subtract bytes that are no longer in memory."""
        self._workload.add_bytes(-size)
        self.size -= size


class IncomingBody:
    """The body of a request while it arrives.

    Args:
        scope: the request.
        receive: its ASGI channel.
        silent_seconds: the time limit for the next bytes; None for no limit.

    Attributes:
        length: the value of ``Content-Length``; None without one.
        complete: the body has been read to its end.
    """

    def __init__(self, scope: Scope, receive: Receive, *, silent_seconds: float | None = None) -> None:
        self._receive = receive
        self._silent_seconds = silent_seconds
        self.length = _declared_length(scope)
        self.complete = False

    async def next_part(self) -> bytes:
        """Return the next bytes.

        Raises:
            TimeoutError: the bytes took too long.
            DisconnectedError: the client disconnected.
        """
        async with asyncio.timeout(self._silent_seconds):
            message = await self._receive()
        if message["type"] == "http.disconnect":
            raise DisconnectedError
        self.complete = not message.get("more_body", False)
        return bytes(message.get("body", b""))

    async def drain(self, most: int, seconds: float) -> None:
        """Read the rest, within limits, and drop it: a client that still sends would not read the response."""
        if (self.length or 0) > most:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self.complete and most > 0:
                    most -= len(await self.next_part())


def _declared_length(scope: Scope) -> int | None:
    """Return the value of ``Content-Length``, at most `_LARGEST`; None if it is not a number."""
    declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
    if not declared.isdigit():
        return None
    # Python fails on a number of thousands of digits.
    return int(declared) if len(declared) < len(str(_LARGEST)) else _LARGEST
