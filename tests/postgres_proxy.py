"""A TCP proxy between a client and a PostgreSQL server that breaks or delays a connection at a chosen message.

It reads the heads of the messages of PostgreSQL's protocol, without TLS.
"""

from __future__ import annotations

import enum
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from io import BufferedReader
from typing import NamedTuple

_DELAY_SECONDS = 0.2
_LENGTH = struct.Struct("!i")
# Requests before the startup message that the server answers by one byte without a length: for TLS and for GSSAPI.
_ONE_BYTE_ANSWERS = (80877103, 80877104)
STARTUP = "startup"
"""The kind of messages that have no type: the requests of a client before its authentication."""


class Message(NamedTuple):
    """A kind of messages: whether the client sends it, and its type, a character of the protocol or `STARTUP`."""

    from_client: bool
    kind: str

    def __str__(self) -> str:
        return f"{'client' if self.from_client else 'server'} {self.kind}"


class Fault(enum.Enum):
    """What happens to a connection at a message."""

    CUT_BEFORE = "both sides see the end of the connection, and the receiver nothing of the message"
    CUT_INSIDE = "the same, after half of the message"
    CUT_AFTER = "the same, after the message"
    HALF_CLOSE = "the receiver sees the end instead of the message; what it sends is still delivered"
    DELAY = "the message and all later ones of the direction arrive late"


@dataclass
class _Plan:
    """A fault at a message, which happens once."""

    message: Message
    number: int
    fault: Fault


@dataclass
class PostgresProxy:
    """A proxy on a port of the loopback interface.

    Attributes:
        upstream: the port of the server.
        port: the port of the proxy.
        seen: the messages since the last call of `watch`, in the order in which they arrived.
    """

    upstream: int
    port: int = 0
    seen: list[Message] = field(default_factory=list)
    _plan: _Plan | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def watch(self) -> None:
        """Forward all messages, and forget those seen."""
        with self._lock:
            self.seen, self._plan = [], None

    def fail_at(self, message: Message, number: int, fault: Fault) -> None:
        """Forget the seen messages. Apply a fault to the message of a kind that follows ``number`` others of it."""
        with self._lock:
            self.seen, self._plan = [], _Plan(message, number, fault)

    @property
    def failed(self) -> bool:
        """Whether the fault has happened."""
        return self._plan is None

    def _meets(self, message: Message) -> Fault | None:
        with self._lock:
            self.seen.append(message)
            plan = self._plan
            if plan is None or plan.message != message:
                return None
            plan.number -= 1
            if plan.number >= 0:
                return None
            self._plan = None
            return plan.fault


@contextmanager
def postgres_proxy(upstream: int) -> Iterator[PostgresProxy]:
    """Run a proxy in front of a server on a port."""
    proxy = PostgresProxy(upstream)
    threads: list[threading.Thread] = []
    open_sockets: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy.port = listener.getsockname()[1]

        def accept() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                try:
                    server = socket.create_connection(("127.0.0.1", proxy.upstream))
                except OSError:
                    # The server is not there: the client is disconnected.
                    client.close()
                    continue
                open_sockets.extend((client, server))
                for each in (client, server):
                    each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                pair = _Pair(proxy, client, server)
                for work in (pair.from_client, pair.from_server):
                    threads.append(threading.Thread(target=work, daemon=True))
                    threads[-1].start()

        acceptor = threading.Thread(target=accept, daemon=True)
        acceptor.start()
        try:
            yield proxy
        finally:
            # A thread inside accept() does not notice that another one closes the socket.
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            acceptor.join()
            for each in open_sockets:
                _close(each)
            for thread in threads:
                thread.join()


class _Pair:
    """A connection of a client, and the proxy's connection to the server."""

    def __init__(self, proxy: PostgresProxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._started = False
        # The next byte of the server is an answer without a length.
        self._one_byte = False

    def from_client(self) -> None:
        with self._client.makefile("rb") as reader:
            self._forward(reader, self._server, from_client=True)

    def from_server(self) -> None:
        with self._server.makefile("rb") as reader:
            self._forward(reader, self._client, from_client=False)

    def _forward(self, reader: BufferedReader, to: socket.socket, *, from_client: bool) -> None:
        try:
            while found := self._next(reader, from_client=from_client):
                kind, content = found
                fault = self._proxy._meets(Message(from_client, kind))
                if fault is Fault.DELAY:
                    time.sleep(_DELAY_SECONDS)
                elif fault is Fault.HALF_CLOSE:
                    break
                elif fault is not None:
                    sent = {Fault.CUT_BEFORE: 0, Fault.CUT_INSIDE: len(content) // 2}.get(fault, len(content))
                    if from_client:
                        # First, or an answer of the server could still arrive.
                        _close(self._client)
                    to.sendall(content[:sent])
                    _close(self._client)
                    _close(self._server)
                    return
                to.sendall(content)
            with suppress(OSError):
                to.shutdown(socket.SHUT_WR)
            # Otherwise the sender could wait until its messages are read.
            while reader.read(1 << 16):
                pass
        except OSError:
            _close(self._client)
            _close(self._server)

    def _next(self, reader: BufferedReader, *, from_client: bool) -> tuple[str, bytes] | None:
        """Return the type and the bytes of the next message; None at the end of the connection."""
        if from_client and not self._started:
            head = reader.read(8)
            if len(head) < 8:
                return None
            length, code = struct.unpack("!ii", head)
            self._one_byte = code in _ONE_BYTE_ANSWERS
            self._started = not self._one_byte
            return STARTUP, head + reader.read(length - 8)
        first = reader.read(1)
        if first and not from_client and self._one_byte:
            self._one_byte = False
            return STARTUP, first
        head = reader.read(4)
        if len(head) < 4:
            return None
        body = reader.read(_LENGTH.unpack(head)[0] - 4)
        return first.decode("latin-1"), first + head + body


def _close(found: socket.socket) -> None:
    # Closing alone does not wake a thread that reads the socket.
    with suppress(OSError):
        found.shutdown(socket.SHUT_RDWR)
    found.close()
