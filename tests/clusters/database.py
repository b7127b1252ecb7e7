"""A PostgreSQL server on a host of its own, which asks every other host for a password."""

from __future__ import annotations

import pwd
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import quote

import psycopg
from psycopg import sql

from tests.clusters.hosts import PREFIX, Host
from tests.postgres_server import USER, PostgresServer

NAME = "shop"
"""The database, and its user."""


@dataclass(frozen=True)
class Database:
    """A database.

    Attributes:
        url: its address for the hosts.
        own_url: its address for the tests, which need no password: the socket file of the server.
    """

    url: str
    own_url: str


@contextmanager
def database(host: Host, password: str) -> Iterator[Database]:
    """Run a server on a host. Its user has a password."""
    server = PostgresServer.create()
    rules = server.root / "data" / "pg_hba.conf"
    rules.write_text(rules.read_text() + f"host all {NAME} {PREFIX}.0/24 scram-sha-256\n")
    nobody = pwd.getpwnam("nobody")
    account = ["unshare", "--wd=/", f"--setuid={nobody.pw_uid}", f"--setgid={nobody.pw_gid}"]
    server.process = host.start([*account, *server.command(host.address)], {"LC_ALL": "C"})
    try:
        server.wait(host.own / "log")
        with psycopg.connect(host=str(server.root), port=server.port, user=USER, autocommit=True) as root:
            root.execute(sql.SQL("CREATE ROLE {} LOGIN REPLICATION PASSWORD {}").format(sql.Identifier(NAME), password))
            root.execute(f"CREATE DATABASE {NAME} OWNER {NAME}")
        socket = quote(str(server.root), safe="")
        yield Database(*(f"postgresql://{NAME}@{at}:{server.port}/{NAME}" for at in (host.name, socket)))
    finally:
        # A signal to the process that the tests have started would not reach the server.
        host.run(["sh", "-c", f"kill -INT $(head -n 1 {server.root}/data/postmaster.pid)"])
        server.process.wait(30)
        shutil.rmtree(server.root, ignore_errors=True)
