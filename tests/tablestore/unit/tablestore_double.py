"""A test double of Tablestore's service for the client's tests: an HTTP server on loopback that follows a script.

It has no tables. A step of the script is a function of the exchange. After the end of the script, the last step is
repeated.
"""

from __future__ import annotations

import datetime
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from google.protobuf.message import Message

from headrace_tablestore.wire import errors, signatures
from headrace_tablestore.wire.signatures import Credentials

CREDENTIALS = Credentials("LTAItest", "hush")


@dataclass(frozen=True)
class Exchange:
    """A request, and its response."""

    path: str
    headers: dict[str, str]
    body: bytes
    client_port: int
    handler: BaseHTTPRequestHandler = field(repr=False)

    def answer(self, status: int, body: bytes, **changed: str | None) -> None:
        """Send a signed response. ``changed`` replaces or removes headers after the signature is computed."""
        now = datetime.datetime.now(datetime.UTC)
        headers = {
            signatures.CONTENT_MD5: signatures.content_md5(body),
            signatures.CONTENT_TYPE: "protocol buffer",
            signatures.DATE: signatures.format_date(now),
            signatures.REQUEST_ID: "request-1",
        }
        headers["Authorization"] = signatures.response_authorization(
            self.path, headers, CREDENTIALS.access_key_id, CREDENTIALS.access_key_secret, self.headers
        )
        headers["Content-Length"] = str(len(body))
        self.handler.send_response(status)
        for name, value in {**headers, **{key.replace("_", "-"): value for key, value in changed.items()}}.items():
            if value is not None:
                self.handler.send_header(name, value)
        self.handler.end_headers()
        self.handler.wfile.write(body)

    def hang_up(self) -> None:
        """Close the connection without a response, or after a response that did not announce it."""
        self.handler.close_connection = True


Step = Callable[[Exchange], Any]


def answers(message: Message, **changed: str | None) -> Step:
    """A step that responds with a message."""
    return lambda exchange: exchange.answer(200, message.SerializeToString(), **changed)


def refuses(code: str, message: str = "for a reason") -> Step:
    """A step that responds with an error of the service."""
    return lambda exchange: exchange.answer(errors.STATUS[code], errors.body(code, message))


def hangs_up(exchange: Exchange) -> None:
    """A step that closes the connection without a response."""
    exchange.hang_up()


class Double:
    """The server. ``endpoint`` is its address, ``seen`` are its requests."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.script: list[Step] = []
        self.seen: list[Exchange] = []
        self.closed = threading.Semaphore(0)
        """Released whenever the server has closed a connection."""
        lock = threading.Lock()
        double = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                exchange = Exchange(self.path, headers, body, self.client_address[1], self)
                with lock:
                    double.seen.append(exchange)
                    step = double.script[min(len(double.seen), len(double.script)) - 1]
                step(exchange)

            def log_message(self, *_: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            # Do not wait for connections that clients keep open.
            block_on_close = False

            def shutdown_request(self, request: Any) -> None:
                super().shutdown_request(request)
                double.closed.release()

            def handle_error(self, *_: Any) -> None:
                """Ignore errors of clients that have disconnected, which tests cause on purpose."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self.endpoint = f"http{'s' if context else ''}://127.0.0.1:{self._server.server_port}"
        if context is not None:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    @property
    def paths(self) -> list[str]:
        return [exchange.path for exchange in self.seen]

    @contextmanager
    def running(self) -> Iterator[Double]:
        self._thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()
