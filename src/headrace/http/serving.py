"""Servers as processes, which serve until a signal arrives, and as threads of another process."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headrace.http.listening import LOOPBACK, listen

if TYPE_CHECKING:
    from headrace.http.application import Application
    from headrace.http.server import Server

_STOPPING = (signal.SIGINT, signal.SIGTERM)
_log = logging.getLogger("headrace")


def run(
    make_application: Callable[[], Application], port: int, *, host: str = LOOPBACK, ready: Callable[[str, int], None]
) -> None:
    """Serve until the process gets SIGINT or SIGTERM. Running requests have `Limits.stop_seconds` to end.

    If threads still run after that, the process ends as if it were killed. `headrace.http.threads.Threads` explains why
    this is safe.

    Args:
        make_application: returns the application, which is closed when the server stops.
        port: 0 takes a free port.
        host: the address to listen at.
        ready: called with host and port when clients can connect.

    Raises:
        OptionError: cannot listen at the address.
    """
    from headrace.http.server import Server

    listener = listen(host, port)
    try:
        server = Server(make_application(), listener, lifespan=True)
        # uvicorn ends gracefully, and then sends itself the same signal again.
        with _ignored(_STOPPING), _cut_off(server):
            ready(host, listener.getsockname()[1])
            server.run()
    finally:
        listener.close()


class ServingThread:
    """A server in a thread of a process with other work, from the constructor to `stop`.

    Args:
        application: closed when the server stops.
        listener: the socket to serve at.
        name: the name of the thread.
    """

    def __init__(self, application: Application, listener: socket.socket, name: str) -> None:
        from headrace.http.server import Server

        self._application = application
        self._listener = listener
        try:
            self._server = Server(application, listener, lifespan=False)
        except BaseException:
            listener.close()
            raise
        self._thread = threading.Thread(target=self._server.run, name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop serving. Running requests have `Limits.stop_seconds` to end."""
        end = time.monotonic() + self._server.limits.stop_seconds
        self._server.should_exit = True
        self._thread.join(self._server.limits.stop_seconds)
        self._listener.close()
        # The event loop cannot start a thread for this while Python exits.
        self._application.close(max(0.0, end - time.monotonic()))

    def forget(self) -> None:
        """Close the sockets in a forked child process. The parent process still uses them."""
        self._listener.close()
        self._server.admission.close_sockets()


@contextmanager
def _ignored(signals: tuple[signal.Signals, ...]) -> Iterator[None]:
    before = {each: signal.signal(each, lambda *_: None) for each in signals}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@contextmanager
def _cut_off(server: Server) -> Iterator[None]:
    """End the process if the server has not ended `Limits.stop_seconds` after the signal."""
    timer = threading.Timer(server.limits.stop_seconds, _end)
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
    _log.warning("the requests that still run took too long, and are cut off")
    logging.shutdown()
    # Python cannot end a running thread in any other way.
    os._exit(0)
