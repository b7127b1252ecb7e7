"""The server in the driver's process: a thread, from the first checkpoint in a store to the end of the process."""

from __future__ import annotations

import atexit
import os
import socket
import threading
from typing import Any

from headrace.checkpoints.locations import parse_served, served_url
from headrace.checkpoints.places import Places
from headrace.checkpoints.tokens import Tokens
from headrace.errors import MissingDependencyError, OptionError
from headrace.ports import Files, Store

LOOPBACK = "localhost"
_BACKLOG = 2048
# Above the interval of most triggers, and above the five seconds after which Java gives a connection up.
_KEEP_ALIVE_SECONDS = 75
_STOP_SECONDS = 5.0


class CheckpointServer:
    """Serves the directories of stores that it is told of, on a free port, to whoever has its secret.

    Args:
        host: the name under which Spark's processes reach this one; the address that it stands for is listened at.

    Raises:
        OptionError: the host is not an address of this machine.
        MissingDependencyError: uvicorn is not installed.
    """

    def __init__(self, host: str = LOOPBACK) -> None:
        try:
            import uvicorn
            import uvicorn.protocols.http.httptools_impl
        except ImportError as error:
            raise MissingDependencyError(
                "checkpoints in a store need a package that is not installed",
                received=error.name,
                remedy="pip install 'headrace[serve]'",
            ) from None
        from headrace.checkpoints.app import CheckpointApp

        self.host = host
        self.access = Tokens()
        self.places = Places()
        self._listener = _listen(host)
        self.port: int = self._listener.getsockname()[1]
        self._app = CheckpointApp(self.places, self.access)
        settings = uvicorn.Config(
            self._app,
            loop="asyncio",
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=1,
        )
        self._server: Any = uvicorn.Server(settings)
        self._thread = threading.Thread(target=self._run, name="headrace-checkpoints", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"CheckpointServer({self.host!r}, port={self.port})"

    def _run(self) -> None:
        self._server.run(sockets=[self._listener])

    def stop(self) -> None:
        """Stop serving; requests that are being worked on are ended first."""
        self._server.should_exit = True
        self._thread.join(_STOP_SECONDS)
        self._listener.close()
        self._app.close()

    def forget(self) -> None:
        """Let go of the port in a child process, where nobody listens at it."""
        self._listener.close()


def _listen(host: str) -> socket.socket:
    address = "127.0.0.1" if host == LOOPBACK else host
    try:
        family, _, _, _, bound = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
        # With the protocol named, asyncio sets TCP_NODELAY; without, every answer waits 40 ms for an acknowledgement.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listener.bind(bound)
            listener.listen(_BACKLOG)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise OptionError(
            f"checkpoints cannot be served from this address: {error.strerror}",
            received=host,
            valid="a name or address of the machine that the driver runs on",
        ) from None
    return listener


# -- the servers of this process --------------------------------------------------------------------------

_servers: dict[str, CheckpointServer] = {}
_lock = threading.Lock()


def serve(store: Store, path: str, host: str = LOOPBACK) -> tuple[CheckpointServer, str]:
    """Serve a directory of a store from this process; return the server, and the address under which Spark finds it.

    Raises:
        UnsupportedError: the store has no files.
        OptionError, MissingDependencyError: see `CheckpointServer`.
    """
    store.files()
    url = served_url(store.id, path)
    with _lock:
        server = _servers.get(host)
        if server is None:
            if not _servers:
                atexit.register(stop_all)
            server = _servers[host] = CheckpointServer(host)
        server.places.add(store, path)
    return server, url


def served_files(checkpoint: str) -> tuple[Files, str] | None:
    """Return the files, and the path in them, of a checkpoint that this process serves; None if it does not."""
    with _lock:
        places = [server.places for server in _servers.values()]
    if parse_served(checkpoint) is None:
        return None
    path = checkpoint.partition("://")[2].partition("/")[2]
    for each in places:
        found = each.find(f"/{path}")
        if found is not None:
            return found.files, found.path
    return None


def stop_all() -> None:
    """Stop the servers of this process; what is asked for after that starts new ones."""
    with _lock:
        servers = list(_servers.values())
        _servers.clear()
    for server in servers:
        server.stop()


def _forget_all() -> None:
    global _lock
    _lock = threading.Lock()
    for server in _servers.values():
        server.forget()
    _servers.clear()


os.register_at_fork(after_in_child=_forget_all)
