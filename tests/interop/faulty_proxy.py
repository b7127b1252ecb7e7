"""An HTTP proxy with simulated faults, between YTsaurus' client and the endpoint."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

FORWARD, LOSE_ANSWER, LOSE_REQUEST, CUT_ANSWER = "forward", "lose answer", "lose request", "cut answer"
Fault = Callable[[str], "str | tuple[int, dict[str, Any]]"]
"""Decides about a command: one of the words, or a status and an error as the response."""


@dataclass
class FaultyProxy:
    """A proxy. `fault` decides about each command, `commands` are the received ones, `hosts` are for heavy requests."""

    upstream: str
    fault: Fault = lambda command: FORWARD
    commands: list[str] = field(default_factory=list)
    address: str = ""
    hosts: list[str] = field(default_factory=list)

    def times(self, command: str, what: str | tuple[int, dict[str, Any]], count: int = 1) -> None:
        """Apply a fault to the next ``count`` calls of a command."""
        left = [count]

        def fault(given: str) -> str | tuple[int, dict[str, Any]]:
            if given != command or not left[0]:
                return FORWARD
            left[0] -= 1
            return what

        self.fault = fault


def error(code: int, message: str, **attributes: Any) -> tuple[int, dict[str, Any]]:
    """Return a response with an error of YTsaurus."""
    return 400, {"code": code, "message": message, "attributes": attributes, "inner_errors": []}


@contextmanager
def faulty_proxy(upstream: str) -> Iterator[FaultyProxy]:
    """Run a proxy in front of an endpoint."""
    proxy = FaultyProxy(upstream)

    class Handler(_Handler):
        faulty = proxy

    server = _Server(("127.0.0.1", 0), Handler)
    proxy.address = f"127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingHTTPServer):
    """A server that closes the connections of its clients at its end, as the end of a process does."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._open: set[socket.socket] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def server_close(self) -> None:
        super().server_close()
        for each in self._open.copy():
            # The thread that reads from it may have closed it meanwhile.
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    faulty: FaultyProxy
    protocol_version = "HTTP/1.1"
    # Headers and body are written separately: without this, the body would wait for the headers' acknowledgement.
    disable_nagle_algorithm = True

    def log_message(self, *_: Any) -> None:
        """Log nothing."""

    def _handle(self) -> None:
        body = self._body()
        command = urlsplit(self.path).path.rpartition("/")[2]
        if command == "hosts":
            self._answer(200, {}, json.dumps(self.faulty.hosts or [self.faulty.address]).encode())
            return
        self.faulty.commands.append(command)
        fate = self.faulty.fault(command)
        if fate == LOSE_REQUEST:
            self.close_connection = True
            return
        if isinstance(fate, tuple):
            status, found = fate
            text = json.dumps(found)
            headers = {"X-YT-Error": text, "X-YT-Response-Code": str(found["code"]), "Content-Type": "application/json"}
            self._answer(status, headers, text.encode())
            return
        status, headers, answer = self._forward(body)
        if fate == LOSE_ANSWER:
            self.close_connection = True
            return
        if fate == CUT_ANSWER:
            self._answer(status, {**headers, "Transfer-Encoding": "chunked"}, b"%x\r\n%b" % (len(answer), answer[:-1]))
            self.close_connection = True
            return
        self._answer(status, headers, answer)

    do_GET = do_POST = do_PUT = _handle

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline().strip() or b"0", 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _forward(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(urlsplit(self.faulty.upstream).netloc, timeout=30)
        dropped = ("transfer-encoding", "content-length", "connection", "host")
        headers = {name: value for name, value in self.headers.items() if name.lower() not in dropped}
        try:
            connection.request(self.command, self.path, body, headers)
            response = connection.getresponse()
            found = {name: value for name, value in response.getheaders() if name.lower() not in dropped}
            return response.status, found, response.read()
        finally:
            connection.close()

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if "Transfer-Encoding" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
