"""What the applications of all servers share: start and stop, clients that disconnect, clients with a credential."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from headrace.http.limits import Limits

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]

HEALTH_PATH = "/health"
AUTHENTICATED = "headrace.authenticated"
"""The ASGI extension by which a request tells its connection that it came with a credential."""


class DisconnectedError(Exception):
    """The client disconnected before its request or the answer was complete."""


@dataclass(frozen=True)
class Refusal:
    """The answer, with status 400, to bytes that are not a readable request."""

    body: bytes
    headers: Mapping[str, str] = field(default_factory=lambda: {"content-type": "text/plain; charset=utf-8"})


class Application(ABC):
    """An ASGI application that answers requests, and is closed when its server stops.

    Attributes:
        limits: the limits of its connections.
    """

    limits: Limits = Limits()

    @abstractmethod
    def close(self, seconds: float | None = None) -> None:
        """Wait for the requests that run in threads, and release all resources. Called in a thread of its own.

        Args:
            seconds: the longest wait; after it, the resources of unfinished requests are not released. None waits
                without a limit.
        """

    @abstractmethod
    async def respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request.

        Raises:
            DisconnectedError: the client disconnected.
        """

    def refusal(self, problem: str, valid: str | None) -> Refusal:
        """Return the answer to bytes that are not a readable request, for a reason, with what is valid."""
        return Refusal(f"{problem}; valid: {valid}".encode() if valid else problem.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            with contextlib.suppress(DisconnectedError):
                await self.respond(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            kind = (await receive())["type"]
            if kind == "lifespan.shutdown":
                await asyncio.to_thread(self.close)
            await send({"type": f"{kind}.complete"})
            if kind == "lifespan.shutdown":
                return


def mark_authenticated(scope: Scope) -> None:
    """Tell the connection of a request that the request came with a valid credential."""
    mark = scope.get("extensions", {}).get(AUTHENTICATED)
    if mark is not None:
        mark()
