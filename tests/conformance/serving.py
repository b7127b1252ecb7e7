"""Servers for the stores that need one: processes on free ports, shared by the tests of one process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections import deque
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.postgres_server import USER as POSTGRES_USER
from tests.postgres_server import PostgresServer, create_database, drop_database
from tests.startup import python_server

KEY_ID, KEY_SECRET = "LTAItest", "hush-hush"
TOKEN = "token-of-the-tests"
# Not HEADRACE_: headrace copies those variables into Spark's processes, and different values need other processes.
_PREFIX = "TEST_SERVER_"
_SECRETS = {"HEADRACE_ACCESS_KEY_ID": KEY_ID, "HEADRACE_ACCESS_KEY_SECRET": KEY_SECRET, "HEADRACE_YT_TOKEN": TOKEN}


@dataclass
class _Server:
    """A server of one kind. Child processes find their parent's server through the environment."""

    kind: str
    running: tuple[subprocess.Popen[str], Path] | None = None

    @property
    def _variables(self) -> tuple[str, str]:
        name = f"{_PREFIX}{self.kind.upper()}"
        return name, f"{name}_ROOT"

    def endpoint(self) -> str:
        endpoint, directory = self._variables
        if endpoint not in os.environ:
            root = Path(tempfile.mkdtemp(prefix=f"headrace-{self.kind}-"))
            process = start(self.kind, root)
            self.running = process, root
            assert process.stdout is not None
            os.environ[endpoint] = str(json.loads(process.stdout.readline())["endpoint"])
            os.environ[directory] = str(root)
        return os.environ[endpoint]

    def root(self) -> Path:
        return Path(os.environ[self._variables[1]])

    def stop(self) -> None:
        if self.running is None:
            return
        process, root = self.running
        self.running = None
        for variable in self._variables:
            os.environ.pop(variable, None)
        process.terminate()
        process.wait(30)
        if process.stdout is not None:
            process.stdout.close()
        shutil.rmtree(root, ignore_errors=True)


def start(kind: str, root: Path, port: int = 0, environment: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """Start a server; its first line on standard output is JSON with its ``endpoint``."""
    return subprocess.Popen(
        [sys.executable, "-m", "headrace.cli.main", "serve", "--json", f"--{kind}", str(port), "--root", str(root)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **_SECRETS, **(environment or {})},
    )


_tablestore, _ytsaurus = _Server("tablestore"), _Server("ytsaurus")
_POSTGRES_PORT = f"{_PREFIX}POSTGRES"
_KEPT_DATABASES = 8
_postgres: list[PostgresServer] = []
_databases: deque[str] = deque()
_pythons: list[Path] = []
_ends = ExitStack()


def postgres_port() -> int:
    """Return the port of a PostgreSQL server, started on the first call."""
    if _POSTGRES_PORT not in os.environ:
        _postgres.append(PostgresServer.start())
        os.environ[_POSTGRES_PORT] = str(_postgres[0].port)
    return int(os.environ[_POSTGRES_PORT])


def postgres_database(name: str | None = None) -> str:
    """Return the address of a database, created on the first call. Of many databases, the longest unused is dropped.

    Args:
        name: the name of the database; None for a new database.
    """
    port = postgres_port()
    name = name or f"t{uuid.uuid4().hex}"
    if name in _databases:
        _databases.remove(name)
        _databases.append(name)
    elif create_database(port, name):
        _databases.append(name)
        if len(_databases) > _KEPT_DATABASES:
            drop_database(port, _databases.popleft())
    return f"postgresql://{POSTGRES_USER}@127.0.0.1:{port}/{name}"


def tablestore_endpoint() -> str:
    """Return the address of a Tablestore endpoint, started on the first call."""
    return _tablestore.endpoint()


def tablestore_root() -> Path:
    """Return the directory of the endpoint. Its sub-directories are embedded stores."""
    return _tablestore.root()


def ytsaurus_endpoint() -> str:
    """Return the address of a YTsaurus endpoint, started on the first call."""
    return _ytsaurus.endpoint()


def ytsaurus_root() -> Path:
    """Return the directory of the endpoint, which is an embedded store."""
    return _ytsaurus.root()


def python() -> Path:
    """Return a program that runs modules as ``python -m`` does, in processes of a server, started on the first call."""
    if not _pythons:
        directory = Path(_ends.enter_context(tempfile.TemporaryDirectory(prefix="headrace-python-")))
        _pythons.append(_ends.enter_context(python_server.serving(directory)))
        program = directory / "programs" / "headrace"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec {_pythons[0]} -m headrace.cli.main "$@"\n')
        program.chmod(0o755)
    return _pythons[0]


def programs() -> Path:
    """Return a directory with the program ``headrace``, which runs in a process of the server of `python`."""
    return python().with_name("programs")


def variables() -> dict[str, str]:
    """Return the variables of the environment that name the running servers."""
    return {name: value for name, value in os.environ.items() if name.startswith(_PREFIX)}


def stop() -> None:
    """Stop the servers that this process started.

    Checkpoint servers stop first: a thread of Spark deletes old files of a checkpoint, and the files may be in one
    of these servers.
    """
    if (checkpoints := sys.modules.get("headrace.checkpoint_server.server")) is not None:
        checkpoints.stop_all()
    for server in (_tablestore, _ytsaurus):
        server.stop()
    while _postgres:
        _postgres.pop().remove()
        os.environ.pop(_POSTGRES_PORT, None)
    _pythons.clear()
    _ends.close()
