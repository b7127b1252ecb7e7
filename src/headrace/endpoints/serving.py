"""An endpoint as a server of its own: uvicorn over HTTP on one port, until it is asked to stop."""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from headrace.errors import MissingDependencyError, OptionError

if TYPE_CHECKING:
    import uvicorn

LOOPBACK = "127.0.0.1"
_BACKLOG = 2048
GRACE_SECONDS = 7
"""Requests have so long to end when the server stops; then they are told that it does."""
STOP_SECONDS = 10.0
"""What is still being worked on so long after the server was asked to stop is cut off."""
_KEEP_ALIVE_SECONDS = 75
_MAX_CONNECTIONS = 4096
_STOPPING = (signal.SIGINT, signal.SIGTERM)
_log = logging.getLogger("headrace")


def run(
    make_app: Callable[[], Any],
    port: int,
    *,
    host: str = LOOPBACK,
    ready: Callable[[str, int], None],
    connection: str = "headrace.endpoints.connections:ClientConnection",
) -> None:
    """Serve until the process gets SIGINT or SIGTERM, then end what is being worked on.

    That takes some seconds at most: threads that are not done by then are ended by ending the process, as if it were
    killed. What they write to a store is a transaction, which is not half there afterwards.

    Args:
        make_app: makes the ASGI application, which closes what it has at the end of its lifespan.
        port: 0 takes one that is free.
        host: the address to listen at.
        ready: called with host and port once clients can connect.
        connection: the class of connections, as ``module:name``; a `headrace.endpoints.connections.ClientConnection`.

    Raises:
        OptionError: the address cannot be listened at.
        MissingDependencyError: uvicorn is not installed.
    """
    try:
        import httptools  # noqa: F401 (which the connections need)
        import uvicorn
    except ImportError:
        raise MissingDependencyError(
            "the endpoint needs a package that is not installed",
            received="uvicorn or httptools",
            remedy="pip install 'headrace[serve]'",
        ) from None
    listener = _listen(host, port)
    try:
        settings = uvicorn.Config(
            make_app(),
            log_config=None,
            access_log=False,
            http=connection,
            lifespan="on",
            ws="none",
            server_header=False,
            date_header=False,
            limit_concurrency=min(_MAX_CONNECTIONS, _allow_files() // 2),
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
        server = uvicorn.Server(settings)
        # uvicorn ends gracefully, and then sends itself the signal that ended it.
        with _ignored(_STOPPING), _cut_off(server):
            ready(host, listener.getsockname()[1])
            server.run(sockets=[listener])
    finally:
        listener.close()


def _allow_files() -> int:
    """Let the process open as many files as it may, and return how many; connections and databases need them."""
    most = 4 * _MAX_CONNECTIONS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most if hard == resource.RLIM_INFINITY else min(most, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return most if soft == resource.RLIM_INFINITY else soft


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio sets TCP_NODELAY; without, every answer waits 40 ms for an acknowledgement.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except (OSError, OverflowError) as error:
        listener.close()
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise OptionError(f"cannot listen at this address: {reason}", received=f"{host}:{port}") from None
    return listener


@contextmanager
def _ignored(signals: tuple[signal.Signals, ...]) -> Iterator[None]:
    before = {each: signal.signal(each, lambda *_: None) for each in signals}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@contextmanager
def _cut_off(server: uvicorn.Server) -> Iterator[None]:
    """End the process if the server does not end by itself within some time after it was asked to."""
    timer = threading.Timer(STOP_SECONDS, _end)
    timer.daemon = True
    shutdown = server.shutdown

    async def timed(sockets: list[socket.socket] | None = None) -> None:
        timer.start()
        await shutdown(sockets)

    server.shutdown = timed  # type: ignore[method-assign]
    try:
        yield
    finally:
        timer.cancel()


def _end() -> None:
    _log.warning("what was being worked on took too long, and is cut off")
    logging.shutdown()
    # A thread that works cannot be ended in any other way.
    os._exit(0)


class JsonFormatter(logging.Formatter):
    """Log records as one line of JSON each: time, level, logger, message, the facts given as ``extra={"facts": …}``."""

    def format(self, record: logging.LogRecord) -> str:
        content: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            content["traceback"] = self.formatException(record.exc_info)
        return json.dumps(content, ensure_ascii=False, default=str)


def log_as_json(*, requests: bool = False) -> None:
    """Let the process write its logs to standard error, as JSON; each request too, if wanted."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    for name, level in (("headrace", logging.DEBUG if requests else logging.INFO), ("uvicorn", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(level)
