"""Connections with limits that uvicorn does not have: for slow, silent and endless clients."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, cast

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from headrace.http.admission import Admission
from headrace.http.application import AUTHENTICATED, Application
from headrace.http.limits import Limits

# Received bytes are parsed in steps of this size.
_SLICE_BYTES = 16 << 10


class _TooManyError(Exception):
    """A request exceeds a limit while it is read."""

    def __init__(self, problem: str, most: int) -> None:
        super().__init__(problem)
        self.problem = problem
        self.most = most


class ClientConnection(HttpToolsProtocol):
    """uvicorn's connection with the limits of its server.

    uvicorn itself waits without a limit for headers and for clients that do not read. It accepts any number of headers,
    trailers and pipelined requests. It drops the response if the client has closed its side after the request.
    The application limits the bodies of requests with a credential.

    Args:
        application: responds to the requests.
        limits: the limits of the server.
        admission: the connections of the server, including this one.
        accepted: the socket.
        named: the arguments of uvicorn's class.
    """

    def __init__(
        self, application: Application, limits: Limits, admission: Admission, accepted: socket.socket, **named: Any
    ) -> None:
        super().__init__(**named)
        self._accepted = accepted
        self._application = application
        self._limits = limits
        self._admission = admission
        self._anonymous = True
        self._discarded = False
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._head_bytes = 0
        self.timeout_keep_alive = limits.anonymous_seconds  # type: ignore[assignment]

    # -- from the server ----------------------------------------------------------------------------------

    def discard(self) -> None:
        """End at once for another connection. An authenticated client gets the response that is being sent."""
        self._discarded = True
        transport = cast(asyncio.Transport | None, self.transport)
        # The transport is set shortly after the connection is accepted.
        if transport is not None and self._anonymous:
            transport.abort()
        elif transport is not None:
            transport.close()

    def close_socket(self) -> None:
        """Close the descriptor only: the parent process, from which this one was forked, still uses the connection."""
        self._accepted.close()

    def shutdown(self) -> None:
        super().shutdown()
        if self._anonymous:
            self.transport.abort()
        elif self._is_busy() and self.cycle.more_body:
            self._start("body", self._limits.stopping_seconds, self._end_body)

    # -- from the transport -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self._discarded:
            transport.abort()
        else:
            self._start("head", self._limits.head_seconds, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._unset_keepalive_if_required()
        self.pipeline.clear()
        super().connection_lost(exc)
        self._admission.remove(self)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep the connection open for the response if the client has sent its whole request."""
        if not self._is_busy() or self.cycle.more_body:
            return False
        self.cycle.keep_alive = False
        return True

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        self._admission.set_busy(self)
        try:
            # A refused request takes no more time and memory than the limit allows.
            for start in range(0, len(data), _SLICE_BYTES):
                self._head_bytes += min(_SLICE_BYTES, len(data) - start)
                self.parser.feed_data(memoryview(data)[start : start + _SLICE_BYTES])
                if self._head_bytes > self._limits.head_bytes:
                    self._refuse("The headers of the request are too long", f"at most {self._limits.head_bytes} bytes")
                    return
        except httptools.HttpParserError as error:
            # uvicorn would log a line for each, and any client can send many.
            cause = error.__context__
            if isinstance(cause, _TooManyError):
                self._refuse(cause.problem, f"at most {cause.most}")
            else:
                self._refuse("This is not a valid request of HTTP/1.1")
            return
        except httptools.HttpParserUpgrade:
            # The upgrade is ignored: the server supports no other protocol.
            if self._is_busy():
                self.cycle.keep_alive = False
            else:
                self.transport.close()
        if not self.transport.is_closing() and not self._is_busy() and self.timeout_keep_alive_task is None:
            self._start("head", self._limits.head_seconds, self.transport.abort, again=False)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reading(None)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._is_busy():
            self._stop("reading")

    # -- from the parser ----------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= self._limits.pipelined:
            problem = "Too many pipelined requests"
            raise _TooManyError(problem, self._limits.pipelined)
        super().on_message_begin()
        self.scope["extensions"] = {AUTHENTICATED: self._authenticate}  # type: ignore[dict-item]

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self.headers) >= self._limits.headers:
            raise _TooManyError("The request has too many headers", self._limits.headers)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._stop("head")
        super().on_headers_complete()
        if self._anonymous:
            self._start("anonymous", self._limits.anonymous_seconds, self.transport.abort, again=False)

    def on_body(self, body: bytes) -> None:
        # Each chunk has a frame, which may be as long as the chunk.
        self._head_bytes -= 2 * len(body)
        super().on_body(body)

    # -- from the application -----------------------------------------------------------------------------

    def _authenticate(self) -> None:
        if self._anonymous:
            self._anonymous = False
            self._stop("anonymous")
            self._admission.authenticate(self)
            self.timeout_keep_alive = self._limits.idle_seconds  # type: ignore[assignment]

    def on_response_complete(self) -> None:
        self._head_bytes = 0
        super().on_response_complete()
        self._watch_reading(None)
        if not self._is_busy():
            self._stop("anonymous")
            if not self._anonymous and not self.pipeline and not self.transport.is_closing():
                self._admission.set_idle(self)

    def send_400_response(self, msg: str) -> None:
        self._refuse(msg)

    def _refuse(self, problem: str, valid: str | None = None) -> None:
        refusal = self._application.refusal(problem, valid)
        headers = {**refusal.headers, "content-length": str(len(refusal.body)), "connection": "close"}
        lines = ["HTTP/1.1 400 Bad Request", *(f"{name}: {value}" for name, value in headers.items())]
        self.transport.write("\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + refusal.body)
        self.transport.close()
        self._watch_reading(None)

    # -- its own ------------------------------------------------------------------------------------------

    def _is_busy(self) -> bool:
        """Return whether the headers of a request have arrived and the response is not complete."""
        return self.cycle is not None and not self.cycle.response_complete

    def _watch_reading(self, before: int | None) -> None:
        """Abort if the client reads nothing for `Limits.reading_seconds`; ``before`` is the last size of the buffer."""
        left = self.transport.get_write_buffer_size()
        self._stop("reading")
        if left and left == before:
            self.transport.abort()
        elif left:
            self._start("reading", self._limits.reading_seconds, self._watch_reading, left)

    def _end_body(self) -> None:
        if self._is_busy() and self.cycle.more_body:
            self.transport.abort()

    def _start(
        self, name: str, seconds: float, action: Callable[..., None], *arguments: Any, again: bool = True
    ) -> None:
        """Start a timer. If it runs, restart it, unless ``again`` is false."""
        if name in self._timers:
            if not again:
                return
            self._timers[name].cancel()
        self._timers[name] = self.loop.call_later(seconds, action, *arguments)

    def _stop(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()
