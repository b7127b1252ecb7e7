"""The ASGI application that serves directories of stores to Spark: WebHDFS, for whoever has the secret."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

from headrace.checkpoint_server import protocol, tokens
from headrace.checkpoint_server.operations import NotServedError, Operations
from headrace.checkpoint_server.places import Places
from headrace.checkpoint_server.protocol import Answer, Request
from headrace.checkpoint_server.tokens import Tokens
from headrace.errors import HeadraceError
from headrace.http.application import Application, DisconnectedError, Receive, Scope, Send, mark_authenticated
from headrace.http.limits import Limits
from headrace.http.threads import Threads, ThreadsClosedError
from headrace.http.workload import HeldBytes, IncomingBody, OverloadedError, Workload
from headrace.ports import Upload

# Requests that are worked on at once. Uploads and downloads hold no thread while they wait for their client.
_WORKERS = 8
# A part of an upload is given to the store when it has so many bytes, or all parts together have more than these.
_PART_BYTES = 1 << 20
_HELD_BYTES = 64 << 20
LIMITS = Limits(
    connections=2048,
    anonymous=256,
    anonymous_per_address=128,
    head_bytes=32 << 10,
    stopping_seconds=0.5,
    grace_seconds=1,
    stop_seconds=5.0,
)
"""Limits that leave the driver its descriptors and memory, and suffice for some hundred executors."""
_log = logging.getLogger("headrace")


class CheckpointApp(Application):
    """WebHDFS over the directories of `Places`, for callers with a token of `Tokens`."""

    limits = LIMITS

    def __init__(self, places: Places, access: Tokens) -> None:
        self._operations = Operations(places)
        self._access = access
        self._threads = Threads(_WORKERS, "headrace-checkpoints")
        self._workload = Workload(requests=LIMITS.connections, body_bytes=_HELD_BYTES)

    def close(self, seconds: float | None = None) -> None:
        self._threads.close(seconds)

    async def respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            answer = await self._answer(scope, receive, send)
        except NotServedError as error:
            answer = protocol.access_denied(403, str(error))
        except HeadraceError as error:
            answer = protocol.told(error)
        except (ThreadsClosedError, asyncio.CancelledError):
            answer = Answer(503, b"the process that serves this file ends")
        except DisconnectedError:
            raise
        except Exception as error:
            _log.exception("a request for a checkpoint's file failed")
            answer = protocol.told(error)
        if answer is not None:
            await _send(send, answer)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> Answer | None:
        """Return the answer to a request; None once it is sent."""
        method, raw_path = scope["method"], scope["raw_path"].decode("latin-1")
        query = scope["query_string"].decode("latin-1")
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        if method == "POST" and raw_path == tokens.PATH:
            answer = self._access.exchange(await _small_body(scope, receive))
            if answer.status == 200:
                mark_authenticated(scope)
            return answer
        if not self._access.accept(headers.get(b"authorization", "")):
            return protocol.access_denied(401, "This server answers to the driver and the executors of its query only.")
        mark_authenticated(scope)
        request = protocol.parse_request(method, raw_path, query)
        if request is None:
            return Answer(404)
        host = headers.get(b"host", "")
        match request.operation:
            case "PUT CREATE" if not request.has_data:
                await self._threads.run(self._operations.check_creation, request)
                return protocol.redirect(scope["scheme"], host, raw_path, query)
            case "PUT CREATE":
                return await self._create(request, scope, receive)
            case "GET OPEN" if not request.has_data:
                self._operations.place(request.path)
                return protocol.redirect(scope["scheme"], host, raw_path, query)
            case "GET OPEN":
                await self._open(request, send)
                return None
        return await self._threads.run(self._operations.answer, request)

    async def _create(self, request: Request, scope: Scope, receive: Receive) -> Answer:
        """Write a file; it is there when the whole body is. The client takes as long as its task does."""
        place = self._operations.place(request.path)
        upload = await self._threads.run(lambda: place.files.create(place.path, overwrite=request.flag("overwrite")))
        body = IncomingBody(scope, receive)
        try:
            with self._workload.request() as held:
                rest = await self._write(upload, body, held)
                await self._threads.run(_finish, upload, rest)
        finally:
            await self._threads.run(upload.abort)
        return Answer(201)

    async def _write(self, upload: Upload, body: IncomingBody, held: HeldBytes) -> bytes:
        """Give a body to an upload, but for the last part, which is returned."""
        waiting = bytearray()
        while not body.complete:
            part = await body.next_part()
            waiting += part
            try:
                held.add(len(part))
                full = len(waiting) >= _PART_BYTES
            except OverloadedError:
                full = True
            if full:
                await self._threads.run(upload.write, bytes(waiting))
                waiting.clear()
                held.release(held.size)
        return bytes(waiting)

    async def _open(self, request: Request, send: Send) -> None:
        place = self._operations.place(request.path)
        offset, length = request.number("offset") or 0, request.number("length")
        content = await self._threads.run(lambda: place.files.open_read(place.path, offset, length))
        headers = [(b"content-length", str(content.size).encode())]
        part = await self._threads.run(_next, content.parts)
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            while part is not None:
                await send({"type": "http.response.body", "body": part, "more_body": True})
                part = await self._threads.run(_next, content.parts)
        except (HeadraceError, asyncio.CancelledError):
            # Too late to say so: the client finds that bytes are missing, and tries again.
            _log.warning("a checkpoint's file could not be read to its end", exc_info=True)
            raise DisconnectedError from None
        await send({"type": "http.response.body", "body": b""})


def _finish(upload: Upload, rest: bytes) -> None:
    upload.write(rest)
    upload.commit()


def _next(parts: Iterator[bytes]) -> bytes | None:
    return next(parts, None)


async def _small_body(scope: Scope, receive: Receive) -> bytes:
    """Return the body of a request for a token, cut off where it is too long to be one."""
    body, found = IncomingBody(scope, receive), bytearray()
    while not body.complete:
        part = await body.next_part()
        if len(found) <= tokens.MAX_REQUEST_BYTES:
            found += part
    return bytes(found)


async def _send(send: Send, answer: Answer) -> None:
    headers = [(name.encode(), value.encode("latin-1")) for name, value in answer.headers.items()]
    headers.append((b"content-length", str(len(answer.body)).encode()))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})
