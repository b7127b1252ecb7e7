"""A listening socket, and how its connections are accepted: one by one, and never more than there is room for."""

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
# The loop does other work after so many.
_AT_ONCE = 16
# The process has no descriptors left; others may give some back by then.
_RETRY_SECONDS = 0.2
# A peer whose machine is gone is noticed after some two minutes, also where no timer of ours runs.
_KEEP_ALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPALIVE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}


def listen(
    host: str, port: int, problem: str = "cannot listen at this address", valid: str | None = None
) -> socket.socket:
    """Return a socket that listens; its accepted connections inherit its settings.

    Args:
        host: an address, in brackets or not, or a name of this machine.
        port: 0 takes a free one.
        problem: what an error says, with what is ``valid``.

    Raises:
        OptionError: the address cannot be listened at.
    """
    try:
        # The port is left out: the resolver takes one that is too large for another one.
        numeric = host.removeprefix("[").removesuffix("]")
        family, _, _, _, address = socket.getaddrinfo(numeric, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        # With the protocol named, asyncio sets TCP_NODELAY; without, every answer waits 40 ms for an acknowledgement.
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
    """Return a host as URLs have it: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


class Acceptor:
    """Accepts the connections of a listening socket while there is room; the others wait in its backlog.

    asyncio's own server accepts as many as wait before any of them can be refused, which may take all descriptors of
    the process.

    Args:
        listener: the listening socket, closed by `close`.
        admission: the connections, and who has to leave.
        make: makes the protocol of an accepted connection.
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
        """Accept no more connections; those that wait are refused."""
        self._pause()
        self._closed = True
        self._listener.close()

    async def wait_closed(self) -> None:
        """Return at once: the connections are closed elsewhere."""

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
            # The place is free, and this resumed, when the other connection has closed.
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
