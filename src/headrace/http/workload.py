"""The requests that a server holds, and the bytes of their bodies, within limits."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from headrace.http.application import DisconnectedError, Receive, Scope

_LARGEST = 10**18


class OverloadedError(Exception):
    """The server holds as many requests or bytes as it may; the text says which."""


class Workload:
    """The requests that a server holds at once, with the bytes of their bodies. Used by the event loop's thread.

    Args:
        requests: how many requests there may be, those at work and those that wait.
        body_bytes: how many bytes of bodies there may be in memory.

    Attributes:
        requests: how many there are.
        body_bytes: how many there are.
    """

    def __init__(self, *, requests: int, body_bytes: int) -> None:
        self._most_requests = requests
        self._most_body_bytes = body_bytes
        self.requests = 0
        self.body_bytes = 0

    @contextlib.contextmanager
    def request(self) -> Iterator[HeldBytes]:
        """Hold a request; yield the account of its bytes, which ends with the request.

        Raises:
            OverloadedError: there are too many requests.
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
        """Count more bytes, or fewer if the size is negative.

        Raises:
            OverloadedError: there are too many; they are not counted.
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
        """Count more bytes.

        Raises:
            OverloadedError: the server holds too many.
        """
        self._workload.add_bytes(size)
        self.size += size

    def release(self, size: int) -> None:
        """Count bytes that are no longer in memory."""
        self._workload.add_bytes(-size)
        self.size -= size


class IncomingBody:
    """The body of a request as it comes in.

    Args:
        scope: the request.
        receive: its ASGI channel.
        silent_seconds: how long the next bytes may take; None for as long as the connection lasts.

    Attributes:
        length: how long it is, as the request says; None if it does not.
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
            TimeoutError: they took too long.
            DisconnectedError: the client disconnected.
        """
        async with asyncio.timeout(self._silent_seconds):
            message = await self._receive()
        if message["type"] == "http.disconnect":
            raise DisconnectedError
        self.complete = not message.get("more_body", False)
        return bytes(message.get("body", b""))

    async def drain(self, most: int, seconds: float) -> None:
        """Read the rest and drop it, within limits: a client that is still sending does not read the answer."""
        if (self.length or 0) > most:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self.complete and most > 0:
                    most -= len(await self.next_part())


def _declared_length(scope: Scope) -> int | None:
    """Return what the header ``Content-Length`` says, at most `_LARGEST`; None without a number there."""
    declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
    if not declared.isdigit():
        return None
    # Python reads no number of thousands of digits.
    return int(declared) if len(declared) < len(str(_LARGEST)) else _LARGEST
