"""The check that a test leaves its process as it found it.

Processes, threads and listening sockets are read from ``/proc``, which costs a few tens of microseconds for each test;
on systems without it only the rest is checked.
"""

from __future__ import annotations

import os
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator, Set
from concurrent.futures import thread as futures_thread
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from types import ModuleType
from typing import Any

Address = tuple[Any, ...] | str
_PROC = Path("/proc/self")
# Threads and processes that have been asked to end get this long to do so.
_PATIENCE = 5.0
# pytest names the running test here; `tests.conformance.serving` names the servers that the whole run shares.
_SHARED_VARIABLES = ("PYTEST_", "TEST_SERVER_")
# Programs that the whole run shares: Spark and its server of Python processes, and the servers of
# `tests.conformance.serving`.
_SHARED_PROGRAMS = (
    "org.apache.spark.deploy.SparkSubmit",
    "tests.startup.python_server",
    "headrace.cli.main serve",
    "/bin/postgres -D ",
)


@contextmanager
def process_as_found() -> Iterator[None]:
    """Fail if the code inside leaves its process changed; undo the changes that other tests would notice.

    Checked are environment variables, the working directory, loaded modules of headrace, threads that keep a process
    alive, child processes, listening sockets, and the active Spark session.
    """
    environment, directory = _environment(), Path.cwd()
    modules = _modules()
    threads, children, sockets = set(threading.enumerate()), _children(), _sockets().keys()
    session = _active_session()
    yield
    left: list[str] = []
    if _environment() != environment:
        changed = sorted(name for name, _ in _environment().items() ^ environment.items())
        left.append(f"environment variables: {', '.join(dict.fromkeys(changed))}")
        _restore_environment(environment)
    if Path.cwd() != directory:
        left.append(f"working directory: {Path.cwd()}")
        os.chdir(directory)
    replaced = sorted(name for name, module in modules.items() if sys.modules.get(name) is not module)
    if replaced:
        left.append(f"modules: {', '.join(replaced)}")
        sys.modules.update(modules)
    left += _left_after_a_while("threads", lambda: {each for each in threading.enumerate() if _is_left(each)} - threads)
    left += _left_after_a_while("processes", lambda: _not_shared(_children() - children, _shared_children))
    left += _left_after_a_while("listening sockets", lambda: _not_shared(_listening(sockets), _shared_sockets))
    if session is not None and _active_session() is not session:
        left.append("Spark session: another one, or none, is active")
    assert not left, "the test leaves behind: " + "; ".join(left)


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(_SHARED_VARIABLES)}


def _restore_environment(environment: dict[str, str]) -> None:
    for name in _environment().keys() - environment.keys():
        del os.environ[name]
    os.environ.update(environment)


def _modules() -> dict[str, ModuleType]:
    return {name: module for name, module in sys.modules.items() if name.startswith("headrace")}


def _is_left(thread: threading.Thread) -> bool:
    """Tell whether a thread would keep the process alive; threads of pools end with their pool."""
    return thread.is_alive() and not thread.daemon and thread not in futures_thread._threads_queues


def _left_after_a_while(what: str, find: Callable[[], set[Any]]) -> list[str]:
    """Return a description of what is found, unless it is no longer found before patience ends."""
    deadline = time.monotonic() + _PATIENCE
    while (found := find()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return [f"{what}: {', '.join(map(_describe, found))}"] if found else []


def _not_shared(found: set[Any], shared: Callable[[], set[Any]]) -> set[Any]:
    """Return what is found without what the whole run shares, which takes longer to find."""
    return found and found - shared()


def _describe(each: Any) -> str:
    return f"{each} ({_command(each)})" if isinstance(each, int) and _command(each) else str(each)


def _children() -> set[int]:
    """Return the processes that any thread of this one has started and that have not been waited for."""
    found: set[int] = set()
    # Not `Path.glob`, which reads the whole directory of each thread.
    for task in os.listdir(_PROC / "task") if _PROC.exists() else ():  # noqa: PTH208
        # The thread may have ended.
        with suppress(OSError):
            found.update(map(int, (_PROC / "task" / task / "children").read_text().split()))
    return found


def _shared_children() -> set[int]:
    """Return the child processes that the whole run shares: those of multiprocessing, Spark, and servers."""
    kept = (
        getattr(forkserver._forkserver, "_forkserver_pid", None),
        getattr(resource_tracker._resource_tracker, "_pid", None),
    )
    return {
        child for child in _children() if child in kept or any(name in _command(child) for name in _SHARED_PROGRAMS)
    }


def _command(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def _sockets() -> dict[int, int]:
    """Return the descriptors of this process's sockets by their inodes, which differ while they are open."""
    found: dict[int, int] = {}
    for name in os.listdir(_PROC / "fd") if _PROC.exists() else ():  # noqa: PTH208
        # A descriptor may be closed meanwhile, the listing's own is.
        with suppress(OSError):
            status = os.fstat(int(name))
            if stat.S_ISSOCK(status.st_mode):
                found[status.st_ino] = int(name)
    return found


def _listening(others: Set[int] = frozenset()) -> set[Address]:
    """Return the addresses at which this process listens, without the sockets of some inodes."""
    found: set[Address] = set()
    for inode, number in _sockets().items():
        if inode not in others:
            with suppress(OSError), socket.socket(fileno=os.dup(number)) as copy:
                if copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    found.add(copy.getsockname())
    return found


def _shared_sockets() -> set[Address]:
    """Return the addresses that stay with the process: its server of checkpoints, and that of Spark's callbacks."""
    ports: set[int] = set()
    checkpoints, spark = sys.modules.get("headrace.checkpoint_server.server"), sys.modules.get("pyspark.core.context")
    if checkpoints is not None:
        ports.update(server.port for server in checkpoints._servers.values())
    if spark is not None and spark.SparkContext._gateway is not None:
        callbacks = spark.SparkContext._gateway.get_callback_server()
        ports.update(() if callbacks is None else [callbacks.get_listening_port()])
    return {each for each in _listening() if isinstance(each, tuple) and each[1] in ports}


def _active_session() -> object:
    """Return the Spark session of this process, without loading pyspark for that."""
    module = sys.modules.get("pyspark.sql.session")
    if module is None:
        return None
    session: object = module.SparkSession._instantiatedSession
    return session
