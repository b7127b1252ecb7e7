"""The ASGI application: routing, limits, execution of commands in threads, and responses."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import re
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.http.application import (
    Application,
    DisconnectedError,
    Receive,
    Refusal,
    Scope,
    Send,
    mark_authenticated,
)
from headrace.http.limits import Limits
from headrace.http.threads import Threads, ThreadsClosedError
from headrace.http.unpacking import Budget
from headrace.http.workload import HeldBytes, IncomingBody, OverloadedError, Workload
from headrace_ytsaurus.endpoint.cluster import Cluster
from headrace_ytsaurus.endpoint.commands import COMMANDS
from headrace_ytsaurus.endpoint.configuration import Configuration
from headrace_ytsaurus.endpoint.context import Command, Context
from headrace_ytsaurus.endpoint.dispatcher import execute
from headrace_ytsaurus.endpoint.errors import refused, yt_error
from headrace_ytsaurus.endpoint.http.encodings import IDENTITY, accepted, known
from headrace_ytsaurus.endpoint.http.request_bodies import (
    MAX_FILE_BYTES,
    MAX_MEMORY_BYTES,
    MAX_PACKED_BYTES,
    RequestBody,
)
from headrace_ytsaurus.endpoint.http.requests import header_format, read_call, takes_parameters_in_body, user_of
from headrace_ytsaurus.endpoint.http.response_buffers import PIECE_BYTES, ResponseBuffers, in_encoding, on_disk
from headrace_ytsaurus.endpoint.http.responses import (
    Response,
    answer_response,
    descriptors,
    error_response,
    is_unchanged,
    json_response,
    method_of,
)
from headrace_ytsaurus.endpoint.system_commands import VERSION
from headrace_ytsaurus.wire.errors import Code, YtError

API = "/api/v4"
_COMMAND = re.compile(r"/api/v([34])/(.+)")
HEAD_BYTES = 256 << 10
"""The maximum bytes of headers of a request, enough for about 10,000 keys in a query."""
# Bytes of a body that are collected before a thread decompresses them.
_PACKED_BYTES = 1 << 20
# Bytes of a refused body that are still read. Otherwise the client would not read the response.
_DRAINED_BYTES = 64 << 20
_DONE: Any = object()
_log = logging.getLogger("headrace")


@dataclass(frozen=True)
class Bounds:
    """The limits of an endpoint.

    Attributes:
        workers: threads for light requests, and the same number for heavy ones, so that heavy requests do not delay
            light ones. Each thread has a connection to the store.
        waiting: requests that can wait for a thread.
        body_bytes: bytes of bodies in memory, and the same number of decompressed bytes.
        body_disk_bytes: bytes of uploaded files on disk, before they are copied to the store.
        answer_bytes: bytes of responses in memory that clients have not read; ``answer_disk_bytes`` on disk.
        silent_seconds: the maximum time between two parts of a body.
    """

    workers: int = 4
    waiting: int = 1000
    body_bytes: int = 512 << 20
    body_disk_bytes: int = 32 << 30
    answer_bytes: int = 256 << 20
    answer_disk_bytes: int = 16 << 30
    silent_seconds: float = 60.0


@dataclass
class _Exchange:
    """One request and the state of its response.

    Attributes:
        headers: names in lower case; each value has one character, U+0000 to U+00FF, for each byte.
        receive: the ASGI channel of the request.
    """

    method: str
    path: str
    query: bytes
    headers: Mapping[str, str]
    host: str
    receive: Receive
    body: IncomingBody
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    started: float = field(default_factory=time.monotonic)
    user: str | None = None


class YtsaurusApp(Application):
    """YTsaurus' API over the embedded store in one directory.

    Args:
        configuration: the directory and the tokens.
        bounds: limits of work and memory. Beyond them requests get an error after which clients retry.
        limits: limits of connections.
    """

    server = "endpoints.ytsaurus"

    def __init__(
        self, configuration: Configuration, *, bounds: Bounds | None = None, limits: Limits | None = None
    ) -> None:
        self.limits = limits or Limits(head_bytes=HEAD_BYTES)
        self._configuration = configuration
        self._bounds = bounds or Bounds()
        self.cluster = Cluster(configuration.root, name=configuration.cluster_name)
        self._light = Threads(self._bounds.workers, "headrace-ytsaurus-light")
        self._heavy = Threads(self._bounds.workers, "headrace-ytsaurus-heavy")
        self._buffers = ResponseBuffers(self._bounds.answer_bytes, self._bounds.answer_disk_bytes)
        self._workload = Workload(
            requests=2 * self._bounds.workers + self._bounds.waiting, body_bytes=self._bounds.body_bytes
        )
        self._unpacked = Budget(self._bounds.body_bytes)
        self._spooled = Budget(self._bounds.body_disk_bytes)

    def close(self, seconds: float | None = None) -> None:
        if self._light.close(seconds) and self._heavy.close(seconds):
            self.cluster.close()

    def refusal(self, problem: str, valid: str | None) -> Refusal:
        """Return an error in YTsaurus' form. Without it, clients would assume a broken proxy and retry for minutes."""
        response = error_response(refused(problem, valid=valid))
        return Refusal(response.body, response.headers)

    async def respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = _exchange(scope, receive, self._bounds.silent_seconds)
        try:
            response = await self._answer(scope, exchange)
        except DisconnectedError:
            raise
        except (Exception, asyncio.CancelledError) as error:
            response = _failure(error, exchange)
            if not isinstance(error, asyncio.CancelledError | TimeoutError):
                await exchange.body.drain(_DRAINED_BYTES, self.limits.drain_seconds)
        size = response.length or len(response.body)
        # No other reference to the response may exist, so that its memory is freed when it is moved to disk.
        response, free = await self._buffered(exchange, response)
        try:
            await self._send(send, exchange, response)
        finally:
            free()
        if _log.isEnabledFor(logging.DEBUG):
            facts = _facts(exchange, status=response.status, code=response.code, bytes=size)
            _log.debug("request", extra={"facts": facts})

    async def _answer(self, scope: Scope, exchange: _Exchange) -> Response:
        path = exchange.path.rstrip("/")
        if found := _COMMAND.fullmatch(path):
            exchange.user = user_of(exchange.headers, self._configuration)
            mark_authenticated(scope)
            return await self._command(found[2], int(found[1]), exchange)
        match path:
            case "/health" | "/ping":
                return json_response({"status": "ok"})
            case "/api":
                return json_response(["v3", "v4"])
            case "/api/v3" | "/api/v4":
                return json_response(descriptors(COMMANDS.values()))
            case "/hosts":
                return json_response([exchange.headers.get("host") or exchange.host])
            case "/version":
                return Response(200, {"content-type": "text/plain"}, VERSION.encode())
            case "/auth/whoami":
                user = user_of(exchange.headers, self._configuration)
                return json_response({"login": user, "realm": "headrace"})
        return error_response(
            YtError(Code.GENERIC, "no such page", received=exchange.path, valid=f"{API}/<command>"), 404
        )

    async def _command(self, name: str, version: int, exchange: _Exchange) -> Response:
        command = COMMANDS.get(name)
        if command is None:
            return error_response(
                YtError(Code.GENERIC, f"Command {name} is not registered", valid=sorted(COMMANDS)), 404
            )
        if exchange.method != method_of(command) and (exchange.method == "GET" or command.input is not None):
            problem = f"Command {name} has to be called with another HTTP method"
            return error_response(
                YtError(Code.GENERIC, problem, received=exchange.method, valid=method_of(command)), 405
            )
        spooled = command.input == "binary"
        with self._workload.request() as held:
            body = RequestBody(
                exchange.headers.get("content-encoding", ""),
                MAX_FILE_BYTES if spooled else MAX_MEMORY_BYTES,
                spooled=spooled,
                budget=self._spooled if spooled else self._unpacked,
            )
            try:
                encoding = accepted(exchange.headers.get("accept-encoding"))
                if encoding is None:
                    raise refused(
                        "Could not determine feasible Content-Encoding given Accept-Encoding constraints",
                        received=exchange.headers.get("accept-encoding", "")[:100],
                        valid=known(),
                    )
                parts = await self._read(exchange, body, held, spooled=spooled)
                pool = self._heavy if command.heavy else self._light
                response: Response = await pool.run(self._execute, exchange, command, version, body, parts, encoding)
                return response
            finally:
                body.close()

    async def _read(self, exchange: _Exchange, body: RequestBody, held: HeldBytes, *, spooled: bool) -> list[bytes]:
        """Read a body; return the parts that are not decompressed yet: the last parts of a file, or all other parts.

        A body in memory is decompressed when a thread executes the command, because it may become much larger.
        """
        parts: list[bytes] = []
        size = 0
        while not exchange.body.complete:
            part = await exchange.body.next_part()
            held.add(len(part))
            parts.append(part)
            size += len(part)
            if spooled and size >= _PACKED_BYTES:
                await self._heavy.run(_feed, body, parts)
                held.release(size)
                size = 0
            elif not spooled and size > MAX_PACKED_BYTES:
                raise refused(
                    "the body of the request is too long", valid=f"at most {MAX_MEMORY_BYTES} bytes, unpacked"
                )
        return parts

    def _execute(
        self,
        exchange: _Exchange,
        command: Command,
        version: int,
        body: RequestBody,
        parts: list[bytes],
        encoding: str,
    ) -> Response:
        """Execute one command, in a thread of a pool."""
        _feed(body, parts)
        upload = body.file() if command.input == "binary" else None
        data = b"" if upload is not None else body.bytes()
        in_body = takes_parameters_in_body(command, exchange.method)
        call = read_call(command, exchange.headers, exchange.query, data if in_body else b"")
        context = Context(
            cluster=self.cluster,
            user=exchange.user or "",
            now=time.time_ns() // 1000,
            input_format=call.input_format,
            output_format=call.output_format,
            upload=upload,
            version=version,
        )
        answer = execute(context, command, call.parameters, b"" if in_body else data)
        response = answer_response(command, answer, call.output_format, header_format(exchange.headers))
        if is_unchanged(answer, exchange.headers.get("if-none-match")):
            response = dataclasses.replace(response, status=304, body=b"", stream=None, length=None)
        return response if encoding == IDENTITY else in_encoding(response, encoding)

    async def _buffered(self, exchange: _Exchange, response: Response) -> tuple[Response, Callable[[], None]]:
        """Move a response to disk if necessary; return it, and a function to call after it is sent."""
        size = (response.length or 0) if response.on_disk else len(response.body)
        try:
            place = self._buffers.place(size, on_disk=response.on_disk)
        except YtError as error:
            return error_response(error), lambda: None
        if place == "disk" and not response.on_disk:
            try:
                response = await self._heavy.run(on_disk, response)
            except OSError as error:
                response = _failure(error, exchange)
        return response, lambda: self._buffers.free(place, size)

    async def _send(self, send: Send, exchange: _Exchange, response: Response) -> None:
        length = len(response.body) if response.stream is None else response.length or 0
        headers = {
            **response.headers,
            "content-length": str(length),
            "cache-control": "no-store",
            "x-yt-request-id": exchange.id,
            "x-yt-proxy": exchange.host,
        }
        if not exchange.body.complete and exchange.method != "GET":
            headers["connection"] = "close"
        raw = [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": response.status, "headers": raw})
        if response.stream is None and length <= PIECE_BYTES:
            await send({"type": "http.response.body", "body": response.body})
            return
        # The next piece is taken when the client has read most of the previous one.
        disconnected = asyncio.ensure_future(exchange.receive())
        try:
            async for piece in self._pieces(response):
                if disconnected.done():
                    raise DisconnectedError
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        finally:
            disconnected.cancel()
        await send({"type": "http.response.body"})

    async def _pieces(self, response: Response) -> AsyncIterator[bytes | memoryview]:
        """Yield the pieces of a body; each piece of a stream is read in a thread."""
        body = memoryview(response.body)
        for begin in range(0, len(body), PIECE_BYTES):
            yield body[begin : begin + PIECE_BYTES]
        if response.stream is not None:
            while (piece := await self._heavy.run(next, response.stream, _DONE)) is not _DONE:
                yield piece


def _feed(body: RequestBody, parts: list[bytes]) -> None:
    """Pass parts to a body, and release each of them."""
    parts.reverse()
    while parts:
        body.feed(parts.pop())


def _exchange(scope: Scope, receive: Receive, silent_seconds: float) -> _Exchange:
    headers: dict[str, str] = {}
    for name, value in scope["headers"]:
        headers[name.decode("latin-1").lower()] = value.decode("latin-1")
    server = scope.get("server") or ("localhost", 0)
    host = f"{server[0]}:{server[1]}"
    body = IncomingBody(scope, receive, silent_seconds=silent_seconds)
    return _Exchange(
        scope["method"], scope.get("path", ""), scope.get("query_string", b""), headers, host, receive, body
    )


def _failure(error: BaseException, exchange: _Exchange) -> Response:
    """Return the response for an error. Internal errors are logged."""
    if isinstance(error, asyncio.CancelledError | ThreadsClosedError):
        return error_response(YtError(Code.UNAVAILABLE, "The server is stopping, and the request took too long"))
    if isinstance(error, TimeoutError):
        return error_response(refused("the body of the request did not come in time"), 408)
    if isinstance(error, OverloadedError):
        return error_response(YtError(Code.REQUEST_QUEUE_FULL, str(error)))
    answer = yt_error(error)
    if answer is not None:
        return error_response(answer)
    _log.error("request failed", exc_info=error, extra={"facts": _facts(exchange)})
    # Not 500, for which clients would assume a broken proxy and retry for minutes.
    return error_response(YtError(Code.GENERIC, "Internal server error", remedy="see the log of the endpoint"))


def _facts(exchange: _Exchange, **more: Any) -> dict[str, Any]:
    """Return the details of a request for the log."""
    return {
        "request_id": exchange.id,
        "path": exchange.path,
        "user": exchange.user,
        "milliseconds": round((time.monotonic() - exchange.started) * 1000, 3),
        **more,
    }
