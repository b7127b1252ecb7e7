"""The base class of the applications of all servers: life span, disconnected clients, authenticated clients."""

from __future__ import annotations

import asyncio
import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

from headrace.http.limits import Limits
from headrace.support import counters

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})
HEALTH_PATH = "/health"
AUTHENTICATED = "headrace.authenticated"
"""The ASGI extension with which an application marks a connection as authenticated."""


class DisconnectedError(Exception):
    """The client disconnected before its request or the response was complete."""


@dataclass(frozen=True)
class Refusal:
    """The response, with status 400, to bytes that are not a readable request."""

    body: bytes
    headers: Mapping[str, str] = field(default_factory=lambda: {"content-type": "text/plain; charset=utf-8"})


class Application(ABC):
    """An ASGI application that is closed when its server stops.

    `respond` may call any ASGI application, such as a Starlette application with routes and static files.

    Attributes:
        limits: the limits of its connections.
        server: its name in metrics.
    """

    limits: Limits = Limits()
    server: ClassVar[str]

    @abstractmethod
    def close(self, seconds: float | None = None) -> None:
        """Wait for the requests that run in threads, and release all resources. Called in a thread of its own.

        Args:
            seconds: the longest wait; after it, the resources of unfinished requests are not released. None waits
                without a limit.
        """

    def stopping(self) -> None:  # noqa: B027, most applications have no such responses
        """End responses that would never end by themselves. Called in the event loop when the server begins to stop."""

    @abstractmethod
    async def respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response to one request.

        Raises:
            DisconnectedError: the client disconnected.
        """

    def refusal(self, problem: str, valid: str | None) -> Refusal:
        """Return the response to bytes that are not a readable request."""
        return Refusal(f"{problem}; valid: {valid}".encode() if valid else problem.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            with contextlib.suppress(DisconnectedError):
                if counters.enabled:
                    await self._respond_counted(scope, receive, send)
                else:
                    await self.respond(scope, receive, send)

    async def _respond_counted(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond, and count the request by server, method and status. Without a response the status is 0."""
        begin, status = time.perf_counter(), 0

        async def send_counted(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.respond(scope, receive, send_counted)
        finally:
            method = scope["method"] if scope["method"] in _METHODS else "other"
            counters.add("http", self.server, method, str(status), seconds=time.perf_counter() - begin)

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            kind = (await receive())["type"]
            if kind == "lifespan.shutdown":
                await asyncio.to_thread(self.close)
            await send({"type": f"{kind}.complete"})
            if kind == "lifespan.shutdown":
                return


def mark_authenticated(scope: Scope) -> None:
    """Mark the connection of a request as authenticated: the request has a valid credential."""
    mark = scope.get("extensions", {}).get(AUTHENTICATED)
    if mark is not None:
        mark()
