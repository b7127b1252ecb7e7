"""The ASGI application that serves directories of stores to Spark by WebHDFS. Clients need the server's secret."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator

from headrace.checkpoint_server import protocol, tokens
from headrace.checkpoint_server.operations import NotServedError, Operations
from headrace.checkpoint_server.protocol import Request, Response
from headrace.checkpoint_server.served_directories import ServedDirectories
from headrace.checkpoint_server.tokens import Tokens
from headrace.errors import HeadraceError
from headrace.http.application import Application, DisconnectedError, Receive, Scope, Send, mark_authenticated
from headrace.http.limits import Limits
from headrace.http.threads import Threads, ThreadsClosedError
from headrace.http.workload import HeldBytes, IncomingBody, OverloadedError, Workload
from headrace.ports import Upload

# Requests that run at once. Uploads and downloads use no thread while they wait for their client.
_WORKERS = 8
# The server writes the buffer of an upload to the store when it has this size, or all buffers exceed their limit.
_BUFFER_BYTES = 1 << 20
_ALL_BUFFERS_BYTES = 64 << 20
LIMITS = Limits(
    connections=2048,
    anonymous=256,
    anonymous_per_address=128,
    head_bytes=32 << 10,
    stopping_seconds=0.5,
    grace_seconds=1,
    stop_seconds=5.0,
)
"""Limits that suffice for some hundred executors, and leave descriptors and memory to the driver."""
_log = logging.getLogger("headrace")


class CheckpointApp(Application):
    """Serves `ServedDirectories` by WebHDFS to callers with an access token of `Tokens`."""

    server = "checkpoint_server"
    limits = LIMITS

    def __init__(self, directories: ServedDirectories, access: Tokens) -> None:
        self._operations = Operations(directories)
        self._access = access
        self._threads = Threads(_WORKERS, "headrace-checkpoints")
        self._workload = Workload(requests=LIMITS.connections, body_bytes=_ALL_BUFFERS_BYTES)

    def close(self, seconds: float | None = None) -> None:
        self._threads.close(seconds)

    async def respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            response = await self._response(scope, receive, send)
        except NotServedError as error:
            response = protocol.access_denied(403, str(error))
        except HeadraceError as error:
            response = protocol.error_response(error)
        except (ThreadsClosedError, asyncio.CancelledError):
            response = Response(503, b"the process that serves this file is exiting")
        except DisconnectedError:
            raise
        except Exception as error:
            _log.exception("a request for a checkpoint's file failed")
            response = protocol.error_response(error)
        if response is not None:
            await _send(send, response)

    async def _response(self, scope: Scope, receive: Receive, send: Send) -> Response | None:
        """Return the response to a request; None if it has been sent."""
        method, raw_path = scope["method"], scope["raw_path"].decode("latin-1")
        query = scope["query_string"].decode("latin-1")
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        if method == "POST" and raw_path == tokens.PATH:
            response = self._access.exchange(await _small_body(scope, receive))
            if response.status == 200:
                mark_authenticated(scope)
            return response
        if not self._access.accept(headers.get(b"authorization", "")):
            return protocol.access_denied(401, "This server serves only the driver and the executors of its query.")
        mark_authenticated(scope)
        request = protocol.parse_request(method, raw_path, query)
        if request is None:
            return Response(404)
        host = headers.get(b"host", "")
        match request.operation:
            case "PUT CREATE" if not request.has_data:
                await self._threads.run(self._operations.check_creation, request)
                return protocol.redirect(scope["scheme"], host, raw_path, query)
            case "PUT CREATE":
                return await self._create(request, scope, receive)
            case "GET OPEN" if not request.has_data:
                self._operations.find(request.path)
                return protocol.redirect(scope["scheme"], host, raw_path, query)
            case "GET OPEN":
                await self._open(request, send)
                return None
        return await self._threads.run(self._operations.respond, request)

    async def _create(self, request: Request, scope: Scope, receive: Receive) -> Response:
        """Write a file, which becomes visible when it is complete. No time limit: tasks write while they compute."""
        found = self._operations.find(request.path)
        upload: Upload | None = None

        def write(data: bytes) -> Upload:
            # The file begins with its first bytes, so that a small one takes one call.
            nonlocal upload
            if upload is None:
                upload = found.files.create(found.path, overwrite=request.flag("overwrite"))
            upload.write(data)
            return upload

        try:
            with self._workload.request() as held:
                rest = await self._write(write, IncomingBody(scope, receive), held)
                await self._threads.run(lambda: write(rest).commit())
        except BaseException:
            if upload is not None:
                await self._threads.run(upload.abort)
            raise
        return Response(201)

    async def _write(self, write: Callable[[bytes], Upload], body: IncomingBody, held: HeldBytes) -> bytes:
        """Write a body, except its last bytes, which are returned."""
        buffer = bytearray()
        while not body.complete:
            part = await body.next_part()
            buffer += part
            try:
                held.add(len(part))
                full = len(buffer) >= _BUFFER_BYTES
            except OverloadedError:
                full = True
            if full:
                await self._threads.run(write, bytes(buffer))
                buffer.clear()
                held.release(held.size)
        return bytes(buffer)

    async def _open(self, request: Request, send: Send) -> None:
        found = self._operations.find(request.path)
        offset, length = request.number("offset") or 0, request.number("length")
        content = await self._threads.run(lambda: found.files.open_read(found.path, offset, length))
        headers = [(b"content-length", str(content.size).encode())]
        part = await self._threads.run(_next, content.parts)
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            while part is not None:
                await send({"type": "http.response.body", "body": part, "more_body": True})
                part = await self._threads.run(_next, content.parts)
        except (HeadraceError, asyncio.CancelledError):
            # The headers have been sent. The client detects the missing bytes and tries again.
            _log.warning("a checkpoint's file could not be read to its end", exc_info=True)
            raise DisconnectedError from None
        await send({"type": "http.response.body", "body": b""})


def _next(parts: Iterator[bytes]) -> bytes | None:
    return next(parts, None)


async def _small_body(scope: Scope, receive: Receive) -> bytes:
    """Return the body of a token request, cut after the longest valid length."""
    body, found = IncomingBody(scope, receive), bytearray()
    while not body.complete:
        part = await body.next_part()
        if len(found) <= tokens.MAX_REQUEST_BYTES:
            found += part
    return bytes(found)


async def _send(send: Send, response: Response) -> None:
    headers = [(name.encode(), value.encode("latin-1")) for name, value in response.headers.items()]
    headers.append((b"content-length", str(len(response.body)).encode()))
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body})
