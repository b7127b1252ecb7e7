"""What the applications of all endpoints share: how a server starts and stops them, and clients that go away."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]

HEALTH_PATH = "/health"


class DisconnectedError(Exception):
    """The client went away before its request was complete, or its answer."""


class Application(ABC):
    """An ASGI application that answers requests, and is closed when its server stops."""

    @abstractmethod
    def close(self) -> None:
        """Wait for what is being worked on, and let go of everything. Called in a thread of its own."""

    @abstractmethod
    async def respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request.

        Raises:
            DisconnectedError: there is nobody left to be answered.
        """

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
