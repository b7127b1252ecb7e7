"""A client of servers that get random requests: it calls their ASGI applications in this process, without sockets.

A request crashes a server if the server logs an unexpected error, answers with status 500, or does not answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

from headrace.http.application import Application

ADDRESS = ("127.0.0.1", 8686)
_INTERNAL_ERROR = 500


class Request(NamedTuple):
    """A request without the headers that authenticate it.

    Attributes:
        path: the path in ASCII, percent-encoded.
        is_complete: whether the body arrives to its end; otherwise the client disconnects.
        leaves: whether the client disconnects at the first part of a response that has several.
    """

    path: str
    body: bytes
    headers: tuple[tuple[str, bytes], ...] = ()
    method: str = "POST"
    query: bytes = b""
    is_complete: bool = True
    leaves: bool = False


class UnexpectedError(Exception):
    """A server has logged an error that it did not expect, or answered with an internal error."""


class _Errors(logging.Handler):
    """The unexpected errors that were logged."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(record)


class Client:
    """Calls an application as a server does."""

    def __init__(self, app: Application) -> None:
        self.app, self.errors, self.loop = app, _Errors(), asyncio.new_event_loop()
        logging.getLogger("headrace").addHandler(self.errors)
        logging.getLogger("headrace").propagate = False

    def send(self, request: Request, headers: Mapping[str, bytes]) -> tuple[int, dict[str, str], bytes]:
        """Send a request, and return the status, the headers and the body of the response; status 0 for none."""
        # Another application of this process may have logged an error.
        self.errors.found.clear()
        status, told, body = self.loop.run_until_complete(self._send(request, headers))
        if self.errors.found:
            record = self.errors.found[-1]
            error = record.exc_info and record.exc_info[1]
            raise UnexpectedError(f"{request.path}: {type(error).__name__}: {error}") from error
        if status == _INTERNAL_ERROR:
            raise UnexpectedError(f"{request.path}: status 500: {body[:300]!r}")
        return status, told, body

    async def _send(self, request: Request, headers: Mapping[str, bytes]) -> tuple[int, dict[str, str], bytes]:
        waiting = [{"type": "http.request", "body": request.body, "more_body": not request.is_complete}]
        answers: list[Any] = []
        left = asyncio.Event()
        if not request.is_complete:
            left.set()

        async def receive() -> Any:
            if waiting:
                return waiting.pop()
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            answers.append(message)
            if request.leaves and message.get("more_body"):
                left.set()

        raw = [(name.lower().encode(), value) for name, value in headers.items()]
        raw.append((b"content-length", str(len(request.body) + (not request.is_complete)).encode()))
        scope = {
            "type": "http",
            "scheme": "http",
            "server": ADDRESS,
            "method": request.method,
            "path": unquote(request.path),
            "raw_path": request.path.encode(),
            "query_string": request.query,
            "headers": raw,
        }
        await self.app(scope, receive, send)
        if not answers and not request.is_complete:
            return 0, {}, b""
        told = {name.decode().lower(): value.decode("latin-1") for name, value in answers[0]["headers"]}
        return answers[0]["status"], told, b"".join(bytes(each.get("body", b"")) for each in answers[1:])

    def close(self) -> None:
        """Close the application."""
        logging.getLogger("headrace").removeHandler(self.errors)
        self.app.close()
        self.loop.close()
