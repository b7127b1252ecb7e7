"""The ASGI application: limits requests, authenticates them, runs their operations in threads, and responds."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from google.protobuf.message import DecodeError

from headrace.errors import StoreError
from headrace.http.application import (
    HEALTH_PATH,
    Application,
    DisconnectedError,
    Receive,
    Scope,
    Send,
    mark_authenticated,
)
from headrace.http.limits import Limits
from headrace.http.threads import Threads, ThreadsClosedError
from headrace.http.unpacking import Budget
from headrace.http.workload import HeldBytes, IncomingBody, OverloadedError, Workload
from headrace_tablestore.endpoint.authentication import (
    Caller,
    authenticate,
    signed_headers,
    too_large,
    unpacked,
)
from headrace_tablestore.endpoint.configuration import Configuration
from headrace_tablestore.endpoint.errors import INTERNAL, invalid, service_error
from headrace_tablestore.endpoint.instances import Instances
from headrace_tablestore.endpoint.messages import read_message
from headrace_tablestore.endpoint.operations import OPERATIONS, REFUSED, Operation
from headrace_tablestore.wire.errors import ServiceError
from headrace_tablestore.wire.errors import body as error_body
from headrace_tablestore.wire.limits import MAX_BODY_BYTES

# The server reads this much of a body that is too large: a client that still sends would not read the response.
_DRAINED_BYTES = 8 * MAX_BODY_BYTES
_log = logging.getLogger("headrace")


@dataclass(frozen=True)
class Bounds:
    """Limits of an endpoint's requests.

    Attributes:
        workers: requests that run at once. Each has a thread with its own connections.
        waiting: requests that wait for a thread.
        body_bytes: bytes of all bodies in memory; also the limit of the inflated bytes of compressed bodies.
        body_seconds: time for the body of a request.
    """

    workers: int = 8
    waiting: int = 1000
    body_bytes: int = 256 << 20
    body_seconds: float = 60.0


@dataclass
class _Exchange:
    """A request and the values of its response.

    Attributes:
        path: the path as the client sent it, which is signed.
        headers: values by name in lower case.
    """

    path: str
    headers: Mapping[str, str]
    body: IncomingBody
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    started: float = field(default_factory=time.monotonic)
    caller: Caller | None = None


class TablestoreApp(Application):
    """Tablestore's API over the embedded stores under one directory.

    Args:
        configuration: the directory and the access keys.
        operations: operations by path.
        bounds: the limits of requests. Above them clients get OTSServerBusy.
        limits: the limits of connections.

    Raises:
        StoreError: the directory cannot be created.
    """

    server = "endpoints.tablestore"

    def __init__(
        self,
        configuration: Configuration,
        *,
        operations: Mapping[str, Operation] = OPERATIONS,
        bounds: Bounds | None = None,
        limits: Limits | None = None,
    ) -> None:
        try:
            configuration.root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"cannot create the directory of the instances: {error.strerror}", received=str(configuration.root)
            ) from error
        self.limits = limits or Limits()
        self._configuration = configuration
        self._operations = operations
        self._bounds = bounds or Bounds()
        self._instances = Instances(configuration.root)
        self._threads = Threads(self._bounds.workers, "headrace-tablestore")
        self._workload = Workload(
            requests=self._bounds.workers + self._bounds.waiting, body_bytes=self._bounds.body_bytes
        )
        self._unpacked = Budget(self._bounds.body_bytes)

    def close(self, seconds: float | None = None) -> None:
        if self._threads.close(seconds):
            self._instances.close()

    async def respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["method"] == "GET" and path == HEALTH_PATH:
            await _send(send, 200, {"content-type": "application/json"}, b'{"status": "ok"}')
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        sent_path = (scope.get("raw_path") or quote(path).encode()).decode("latin-1")
        exchange = _Exchange(sent_path, headers, IncomingBody(scope, receive))
        status, code = 200, "OK"
        try:
            body, response_headers = await self._respond(scope, exchange)
        except DisconnectedError:
            raise
        except (Exception, asyncio.CancelledError) as error:
            failure = _service_error(error, exchange)
            status, code = failure.status, failure.code
            body = error_body(failure.code, failure.message)
            response_headers = signed_headers(exchange.path, exchange.id, body, exchange.caller, headers)
            if not isinstance(error, asyncio.CancelledError | TimeoutError):
                await exchange.body.drain(_DRAINED_BYTES, self.limits.drain_seconds)
        if not exchange.body.complete:
            response_headers["connection"] = "close"
        await _send(send, status, response_headers, body)
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug("request", extra={"facts": _facts(exchange, status=status, code=code, bytes=len(body))})

    async def _respond(self, scope: Scope, exchange: _Exchange) -> tuple[bytes, dict[str, str]]:
        """Return the body and the headers of the response to a request that succeeds."""
        if scope["method"] != "POST":
            raise ServiceError("OTSMethodNotAllowed", "Only POST requests are allowed.")
        caller = exchange.caller = authenticate(exchange.path, exchange.headers, self._configuration)
        mark_authenticated(scope)
        operation = self._operations.get(exchange.path)
        if operation is None:
            valid = REFUSED.get(exchange.path) or sorted(self._operations)
            raise invalid("the endpoint does not have this operation", received=exchange.path, valid=valid)
        with self._workload.request() as held:
            async with asyncio.timeout(self._bounds.body_seconds):
                body = await _read(exchange, held)
            return await self._threads.run(self._run_operation, exchange, operation, caller, body)

    def _run_operation(
        self, exchange: _Exchange, operation: Operation, caller: Caller, body: bytes
    ) -> tuple[bytes, dict[str, str]]:
        """Run an operation, in one of the threads. Return the body and the headers of the response."""
        with unpacked(body, exchange.headers, self._unpacked) as content:
            try:
                request = read_message(operation.request, content)
            except DecodeError:
                raise invalid("the body of the request is not a message of this operation") from None
        with self._instances.use(caller.instance) as instance:
            response = operation.handle(instance, request).SerializeToString()
        # The thread hashes the body, so that a large one does not block the event loop.
        return response, signed_headers(exchange.path, exchange.id, response, caller, exchange.headers)


async def _read(exchange: _Exchange, held: HeldBytes) -> bytes:
    """Return the body of a request.

    Raises:
        ServiceError: OTSRequestBodyTooLarge.
    """
    if (exchange.body.length or 0) > MAX_BODY_BYTES:
        raise too_large()
    body = bytearray()
    while not exchange.body.complete:
        part = await exchange.body.next_part()
        held.add(len(part))
        body += part
        if len(body) > MAX_BODY_BYTES:
            raise too_large()
    return bytes(body)


def _service_error(error: Exception | asyncio.CancelledError, exchange: _Exchange) -> ServiceError:
    """Return the error that the client gets. An internal error is logged."""
    if isinstance(error, asyncio.CancelledError | ThreadsClosedError):
        return ServiceError("OTSServerUnavailable", "The server stops, and the request took too long.")
    if isinstance(error, TimeoutError):
        return ServiceError("OTSRequestTimeout", "The body of the request did not come in time.")
    if isinstance(error, OverloadedError):
        return ServiceError("OTSServerBusy", f"{error}.")
    known = service_error(error)
    if known is not None:
        return known
    _log.error("request failed", exc_info=error, extra={"facts": _facts(exchange)})
    return ServiceError(INTERNAL, "Internal server error.")


def _facts(exchange: _Exchange, **more: Any) -> dict[str, Any]:
    """Return the values of a request for logs."""
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
