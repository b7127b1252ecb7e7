"""A pgbouncer in front of a PostgreSQL server, for tests; they are skipped where the program is not installed."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from tests.postgres_server import USER, account, free_port, give

PROGRAM = shutil.which("pgbouncer", path="/usr/sbin:/usr/bin:/usr/local/bin:/opt/homebrew/bin")
needs_pgbouncer = pytest.mark.skipif(PROGRAM is None, reason="needs pgbouncer")
_START_SECONDS = 10.0


@contextmanager
def pgbouncer(server: int, mode: str, **settings: str) -> Iterator[int]:
    """Run a pgbouncer, and return its port.

    Args:
        server: the port of the server.
        mode: ``session`` or ``transaction``.
        settings: further settings, such as ``default_pool_size``.
    """
    assert PROGRAM is not None
    root = Path(tempfile.mkdtemp(prefix="headrace-pgbouncer-"))
    port = free_port()
    (root / "users").write_text(f'"{USER}" ""\n')
    chosen = {
        "listen_addr": "127.0.0.1",
        "listen_port": str(port),
        "unix_socket_dir": "",
        "auth_type": "trust",
        "auth_file": str(root / "users"),
        "pool_mode": mode,
        **settings,
    }
    lines = [f"{name} = {value}" for name, value in chosen.items()]
    # A port without a user: each client has its own pool.
    target = f"* = host=127.0.0.1 port={server}"
    (root / "pgbouncer.ini").write_text("\n".join(["[databases]", target, "[pgbouncer]", *lines, ""]))
    for path in (root, *root.iterdir()):
        give(path)
    with (root / "log").open("wb") as log:
        process = subprocess.Popen([PROGRAM, root / "pgbouncer.ini"], stdout=log, stderr=log, **account())
    try:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                psycopg.connect(host="127.0.0.1", port=port, user=USER, dbname="postgres").close()
                break
            except psycopg.OperationalError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError((root / "log").read_text()) from None
                time.sleep(0.02)
        yield port
    finally:
        process.terminate()
        process.wait(10)
        shutil.rmtree(root, ignore_errors=True)
