"""A listening socket, and an acceptor that never accepts more connections than the limit."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.errors import OptionError
from headrace.http.admission import Admission

if TYPE_CHECKING:
    from headrace.http.connections import ClientConnection

LOOPBACK = "127.0.0.1"
_BACKLOG = 2048
# After this number of connections, the loop does other work.
_AT_ONCE = 16
# The wait when the process has no descriptors left.
_RETRY_SECONDS = 0.2
# A peer whose machine has failed is detected after about two minutes, even if no timer runs.
_KEEP_ALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPALIVE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}


def listen(
    host: str, port: int, problem: str = "cannot listen at this address", valid: str | None = None
) -> socket.socket:
    """Return a listening socket. Its accepted connections inherit its settings.

    Args:
        host: an address, with or without brackets, or a name of this machine.
        port: 0 takes a free port.
        problem: the first words of an error.
        valid: the valid values that an error names.

    Raises:
        OptionError: cannot listen at the address.
    """
    try:
        # Without the port: the resolver would reduce a port that is too large to another one.
        numeric = host.removeprefix("[").removesuffix("]")
        family, _, _, _, address = socket.getaddrinfo(numeric, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        # With the protocol named, asyncio sets TCP_NODELAY. Without, every response waits 40 ms for an acknowledgement.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEP_ALIVE.items():
                if hasattr(socket, name):
                    listener.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
            listener.bind((address[0], port, *address[2:]))
            listener.listen(_BACKLOG)
            listener.setblocking(False)
        except BaseException:
            listener.close()
            raise
    except (OSError, OverflowError, UnicodeError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise OptionError(f"{problem}: {reason}", received=f"{in_url(host)}:{port}", valid=valid) from None
    return listener


def in_url(host: str) -> str:
    """Return a host as in a URL: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


class Acceptor:
    """Accepts connections below the limit of `Admission`. Other connections wait in the listener's backlog.

    asyncio's own server accepts all waiting connections before it can refuse one, which may use all descriptors of the
    process.

    Args:
        listener: the listening socket, closed by `close`.
        admission: the open connections.
        make: returns the protocol of an accepted connection.
    """

    def __init__(
        self, listener: socket.socket, admission: Admission, make: Callable[[socket.socket], ClientConnection]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._admission = admission
        self._make = make
        self._starting: set[asyncio.Task[None]] = set()
        self._paused = True
        self._closed = False
        admission.on_room = self._resume
        self._resume()

    def close(self) -> None:
        """Accept no more connections. Waiting connections are refused."""
        self._pause()
        self._closed = True
        self._listener.close()

    async def wait_closed(self) -> None:
        """Return at once: uvicorn closes the connections."""

    def _pause(self) -> None:
        if not self._paused:
            self._loop.remove_reader(self._listener)
            self._paused = True

    def _resume(self) -> None:
        if self._paused and not self._closed:
            self._loop.add_reader(self._listener, self._accept)
            self._paused = False

    def _accept(self) -> None:
        if self._admission.is_full:
            # `Admission.on_room` resumes this when the other connection has closed.
            self._pause()
            self._admission.make_room()
            return
        for _ in range(_AT_ONCE):
            if self._admission.is_full:
                return
            try:
                accepted, peer = self._listener.accept()
            except BlockingIOError:
                return
            except ConnectionAbortedError:
                continue
            except OSError:
                self._pause()
                self._loop.call_later(_RETRY_SECONDS, self._resume)
                return
            connection = self._make(accepted)
            self._admission.add(connection, peer[0])
            task = self._loop.create_task(self._start(connection, accepted))
            self._starting.add(task)
            task.add_done_callback(self._starting.discard)

    async def _start(self, connection: ClientConnection, accepted: socket.socket) -> None:
        try:
            accepted.setblocking(False)
            await self._loop.connect_accepted_socket(lambda: connection, accepted)
        except OSError:
            accepted.close()
            self._admission.remove(connection)
