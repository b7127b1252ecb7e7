"""The server in the driver's process: a thread, from the first checkpoint in a store to the exit of the process."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable

from headrace.checkpoint_server.locations import parse_served, served_url
from headrace.checkpoint_server.served_directories import ServedDirectories
from headrace.checkpoint_server.tokens import Tokens
from headrace.http.listening import LOOPBACK as LOOPBACK_ADDRESS
from headrace.http.listening import in_url, listen
from headrace.http.serving import ServingThread
from headrace.ports import Files, Store

LOOPBACK = "localhost"


class CheckpointServer:
    """Serves directories of stores on a free port to clients that have its secret.

    Args:
        host: the name of this machine for Spark's processes. The server listens at its address.

    Raises:
        OptionError: the host is not an address of this machine.
    """

    def __init__(self, host: str = LOOPBACK) -> None:
        from headrace.checkpoint_server.app import CheckpointApp

        self.host = host
        self.access = Tokens()
        self.directories = ServedDirectories()
        listener = listen(
            LOOPBACK_ADDRESS if host == LOOPBACK else host,
            0,
            "checkpoints cannot be served from this address",
            "a name or address of the machine that the driver runs on",
        )
        self.port: int = listener.getsockname()[1]
        self._thread = ServingThread(CheckpointApp(self.directories, self.access), listener, "headrace-checkpoints")

    def __repr__(self) -> str:
        return f"CheckpointServer({self.host!r}, port={self.port})"

    @property
    def address(self) -> str:
        """Host and port as in URLs."""
        return f"{in_url(self.host)}:{self.port}"

    def stop(self) -> None:
        """Stop serving. Running requests have `Limits.stop_seconds` to end."""
        self._thread.stop()

    def forget(self) -> None:
        """Close the sockets in a forked child process, which does not serve."""
        self._thread.forget()


# -- the servers of this process --------------------------------------------------------------------------

_servers: dict[str, CheckpointServer] = {}
_lock = threading.Lock()


def serve(store: Store, path: str, host: str = LOOPBACK) -> tuple[CheckpointServer, str]:
    """Serve a directory of a store from this process. Return the server, and the directory's address for Spark.

    Raises:
        UnsupportedError: the store has no files.
        OptionError, MissingDependencyError: see `CheckpointServer`.
    """
    store.files()
    url = served_url(store.id, path)
    with _lock:
        server = _server(host)
        server.directories.add(store, path)
    return server, url


def serve_default(url: str, open_store: Callable[[], Store], host: str = LOOPBACK) -> CheckpointServer:
    """Serve all files of a store from this process, at the address of the default store.

    Args:
        url: identifies the store.
        open_store: opens the store at the first request.

    Raises:
        OptionError, MissingDependencyError: see `CheckpointServer`.
    """
    with _lock:
        server = _server(host)
        server.directories.set_default(url, open_store)
    return server


def _server(host: str) -> CheckpointServer:
    """Return the server of this process for a host, inside the lock."""
    if host not in _servers:
        if not _servers:
            atexit.register(stop_all)
        _servers[host] = CheckpointServer(host)
    return _servers[host]


def served_files(checkpoint: str) -> tuple[Files, str] | None:
    """Return the files of the store and the path of a checkpoint that this process serves; None if it does not."""
    with _lock:
        directories = [server.directories for server in _servers.values()]
    if parse_served(checkpoint) is None:
        return None
    path = checkpoint.partition("://")[2].partition("/")[2]
    for each in directories:
        found = each.find(f"/{path}")
        if found is not None:
            return found.files, found.path
    return None


def stop_all() -> None:
    """Stop the servers of this process. A later call of `serve` starts new ones."""
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
