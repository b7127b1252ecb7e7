"""The ASGI application: takes requests, sees to it that they are few enough, has them done, and answers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from google.protobuf.message import DecodeError

from headrace.endpoints.application import HEALTH_PATH, Application, DisconnectedError, Receive, Scope, Send
from headrace.endpoints.tablestore.configuration import Configuration
from headrace.endpoints.tablestore.errors import INTERNAL, invalid, service_error
from headrace.endpoints.tablestore.gate import Caller, admit, answer_headers, new_request_id, too_large, unpacked
from headrace.endpoints.tablestore.instances import Instances
from headrace.endpoints.tablestore.messages import read_message
from headrace.endpoints.tablestore.operations import OPERATIONS, Operation
from headrace.endpoints.unpacking import Budget
from headrace.wire.tablestore.errors import ServiceError
from headrace.wire.tablestore.errors import body as error_body
from headrace.wire.tablestore.limits import MAX_BODY_BYTES

# A client that is sending a body that is too large is let go on for so long, or it would not read the answer.
_DRAINED_BYTES = 8 * MAX_BODY_BYTES
# Python reads no number of thousands of digits.
_MOST_DIGITS = 18
_log = logging.getLogger("headrace")


@dataclass(frozen=True)
class Bounds:
    """How much an endpoint takes on.

    Attributes:
        workers: requests that are worked on at once; each is a thread with its own connections.
        waiting: requests that may wait for that.
        body_bytes: bytes of all bodies that are held at once; and as many again of those that were compressed.
        body_seconds: for how long the body of a request may take to come.
    """

    workers: int = 8
    waiting: int = 1000
    body_bytes: int = 256 << 20
    body_seconds: float = 60.0


@dataclass
class _Exchange:
    """One request on its way to its answer.

    Attributes:
        path: as it was sent, which is what the signature is about.
        headers: names in lower case.
        complete: the body has been read to its end.
    """

    path: str
    headers: Mapping[str, str]
    id: str = field(default_factory=new_request_id)
    started: float = field(default_factory=time.monotonic)
    caller: Caller | None = None
    complete: bool = False


class TablestoreApp(Application):
    """Tablestore's API over the embedded stores under one directory.

    Args:
        configuration: the directory and the access keys.
        operations: path → operation.
        bounds: how much to take on; beyond it clients are told that the server is busy.
    """

    def __init__(
        self,
        configuration: Configuration,
        *,
        operations: Mapping[str, Operation] = OPERATIONS,
        bounds: Bounds | None = None,
    ) -> None:
        self._configuration = configuration
        self._operations = operations
        self._bounds = bounds or Bounds()
        self._instances = Instances(configuration.root)
        self._pool = ThreadPoolExecutor(self._bounds.workers, thread_name_prefix="headrace-tablestore")
        self._requests = 0
        self._body_bytes = 0
        self._unpacked = Budget(self._bounds.body_bytes)

    def close(self) -> None:
        """Wait for what is being worked on, and close all instances."""
        self._pool.shutdown()
        self._instances.close()

    async def respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["method"] == "GET" and path == HEALTH_PATH:
            await _send(send, 200, {"content-type": "application/json"}, b'{"status": "ok"}')
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        exchange = _Exchange((scope.get("raw_path") or quote(path).encode()).decode("latin-1"), headers)
        status, code = 200, "OK"
        try:
            body, answer = await self._answer(scope["method"], exchange, receive)
        except DisconnectedError:
            raise
        except (Exception, asyncio.CancelledError) as error:
            told = _told(error, exchange)
            status, code = told.status, told.code
            body = error_body(told.code, told.message)
            answer = answer_headers(exchange.path, exchange.id, body, exchange.caller, headers)
            if not isinstance(error, asyncio.CancelledError):
                await self._drain(exchange, receive)
        if not exchange.complete:
            answer["connection"] = "close"
        await _send(send, status, answer, body)
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug("request", extra={"facts": _facts(exchange, status=status, code=code, bytes=len(body))})

    async def _answer(self, method: str, exchange: _Exchange, receive: Receive) -> tuple[bytes, dict[str, str]]:
        """Return the body and the headers of the answer to a request that succeeds."""
        if method != "POST":
            raise ServiceError("OTSMethodNotAllowed", "Only POST requests are allowed.")
        caller = exchange.caller = admit(exchange.path, exchange.headers, self._configuration)
        operation = self._operations.get(exchange.path)
        if operation is None:
            raise invalid("this endpoint has no such operation", received=exchange.path, valid=sorted(self._operations))
        if self._requests >= self._bounds.workers + self._bounds.waiting:
            raise ServiceError("OTSServerBusy", "Too many requests are waiting.")
        self._requests += 1
        held = 0
        try:
            body = bytearray()
            async with asyncio.timeout(self._bounds.body_seconds):
                async for part in _body(exchange, receive, MAX_BODY_BYTES):
                    if self._body_bytes + len(part) > self._bounds.body_bytes:
                        raise ServiceError("OTSServerBusy", "Too many bytes are waiting.")
                    held += len(part)
                    self._body_bytes += len(part)
                    body += part
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._pool, self._work, exchange, operation, caller, bytes(body))
        finally:
            self._requests -= 1
            self._body_bytes -= held

    def _work(
        self, exchange: _Exchange, operation: Operation, caller: Caller, body: bytes
    ) -> tuple[bytes, dict[str, str]]:
        """Do one operation, in a thread of the pool."""
        with unpacked(body, exchange.headers, self._unpacked) as content:
            try:
                request = read_message(operation.request, content)
            except DecodeError:
                raise invalid("the body of the request is no message of this operation") from None
        with self._instances.use(caller.instance) as instance:
            answer = operation.handle(instance, request).SerializeToString()
        # Hashing a large answer here leaves the loop to others.
        return answer, answer_headers(exchange.path, exchange.id, answer, caller, exchange.headers)

    async def _drain(self, exchange: _Exchange, receive: Receive) -> None:
        """Read what is left of a body, as far as it is worth it: a client that is still sending reads no answer."""
        with contextlib.suppress(ServiceError, TimeoutError):
            async with asyncio.timeout(self._bounds.body_seconds):
                async for _ in _body(exchange, receive, _DRAINED_BYTES):
                    pass


async def _body(exchange: _Exchange, receive: Receive, most: int) -> AsyncIterator[bytes]:
    """Yield what is left of a body, part by part; raise OTSRequestBodyTooLarge if it has more bytes than allowed."""
    length = exchange.headers.get("content-length", "")
    if length.isdecimal() and (len(length) > _MOST_DIGITS or int(length) > most):
        raise too_large()
    size = 0
    while not exchange.complete:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise DisconnectedError
        part = message.get("body", b"")
        exchange.complete = not message.get("more_body", False)
        size += len(part)
        if size > most:
            raise too_large()
        yield part


def _told(error: Exception | asyncio.CancelledError, exchange: _Exchange) -> ServiceError:
    """Return what the client is told of an error; what is nobody's mistake but ours is logged."""
    if isinstance(error, asyncio.CancelledError):
        return ServiceError("OTSServerUnavailable", "The server stops, and this took too long to wait for it.")
    if isinstance(error, TimeoutError):
        return ServiceError("OTSRequestTimeout", "The body of the request did not come in time.")
    known = service_error(error)
    if known is not None:
        return known
    _log.error("request failed", exc_info=error, extra={"facts": _facts(exchange)})
    return ServiceError(INTERNAL, "Internal server error.")


def _facts(exchange: _Exchange, **more: Any) -> dict[str, Any]:
    """Return what logs tell of a request."""
    caller = exchange.caller
    return {
        "request_id": exchange.id,
        "path": exchange.path,
        "instance": None if caller is None else caller.instance,
        "access_key_id": None if caller is None else caller.credentials.access_key_id,
        "milliseconds": round((time.monotonic() - exchange.started) * 1000, 3),
        **more,
    }


async def _send(send: Send, status: int, headers: Mapping[str, str], body: bytes) -> None:
    complete = {"content-type": "application/x-protobuf", **headers, "content-length": str(len(body))}
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in complete.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
