"""Connections of clients that are slow, go away in the middle, or never end: what uvicorn does not bound by itself."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_SECONDS = 20.0
"""The headers of a request must come within this time of its first byte, or of the connection."""
HEAD_BYTES = 64 << 10
"""A request may have so many bytes besides its body; for framing, as many again as its body has."""
READING_SECONDS = 60.0
"""A client that has taken nothing of its answer for so long is gone."""
STOPPING_SECONDS = 5.0
"""When the server stops, bodies that are still coming have so long to end."""


class ClientConnection(HttpToolsProtocol):
    """A connection as uvicorn handles it, with bounds for what comes before a request reaches the application.

    uvicorn waits for ever for headers that do not come, keeps headers and trailers of any length, waits for ever for
    clients that do not read, and drops the answer of a client that has closed its side after its request. Bodies are
    the application's business. Connections beyond ``limit_concurrency`` are closed at once.

    Attributes:
        head_bytes: what a request may have besides its body.
    """

    head_bytes: ClassVar[int] = HEAD_BYTES

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._head_timer: asyncio.TimerHandle | None = None
        self._reading_timer: asyncio.TimerHandle | None = None
        self._body_timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency:
            transport.abort()
        else:
            self._head_timer = self.loop.call_later(HEAD_SECONDS, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._head_timer, self._reading_timer, self._body_timer):
            if timer is not None:
                timer.cancel()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep the way to a client open that has sent its whole request, and waits for the answer."""
        if not self._is_busy() or self.cycle.more_body:
            return False
        self.cycle.keep_alive = False
        return True

    def data_received(self, data: bytes) -> None:
        self._head_bytes += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._head_bytes > self.head_bytes:
            self.send_400_response("Too many bytes besides the body.")
        elif self._head_timer is None and self.timeout_keep_alive_task is None and not self._is_busy():
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def on_headers_complete(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        # Chunks have a frame each, and need not be longer than that.
        self._head_bytes -= 2 * len(body)
        super().on_body(body)

    def on_response_complete(self) -> None:
        self._head_bytes = 0
        super().on_response_complete()
        self._watch_reading(None)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reading(None)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._reading_timer is not None and self._is_busy():
            self._reading_timer.cancel()
            self._reading_timer = None

    def shutdown(self) -> None:
        super().shutdown()
        if self._is_busy() and self.cycle.more_body:
            self._body_timer = self.loop.call_later(STOPPING_SECONDS, self._end_body)

    def _is_busy(self) -> bool:
        """Tell whether a request has come, at least its headers, and was not answered yet."""
        return self.cycle is not None and not self.cycle.response_complete

    def _watch_reading(self, before: int | None) -> None:
        """Look from time to time whether the client takes its answer; ``before`` is what was left the last time."""
        left = self.transport.get_write_buffer_size()
        if self._reading_timer is not None:
            self._reading_timer.cancel()
            self._reading_timer = None
        if left and left == before:
            self.transport.abort()
        elif left:
            self._reading_timer = self.loop.call_later(READING_SECONDS, self._watch_reading, left)

    def _end_body(self) -> None:
        if self._is_busy() and self.cycle.more_body:
            self.transport.abort()
