"""Kills around a PostgreSQL database, including the server: every change is in the tables once."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

import headrace
from headrace.model.tables.changes import ChangeOp
from headrace.testing.reading import drain
from tests.chaos import actors
from tests.chaos.oracle import check_tables
from tests.chaos.storm import KILLS, SEED, Actor, storm
from tests.postgres_server import USER, PostgresServer

# The kills in one round of the storm. By default there is one round.
ROUND = ["server", "worker", "driver", "server", "writer"]
LOG = "log"


class CrashingServer:
    """A server that is stopped at once, as by a crash, and started again on the same port."""

    def __init__(self) -> None:
        self.server = PostgresServer.start()
        self.url = f"postgresql://{USER}@127.0.0.1:{self.server.port}/postgres"

    def kill(self) -> None:
        self.server.stop(immediately=True)

    def start(self) -> None:
        self.server.run()


@pytest.fixture
def server() -> Iterator[CrashingServer]:
    started = CrashingServer()
    try:
        yield started
    finally:
        started.server.remove()


@pytest.mark.storm
@pytest.mark.timeout(3600)
def test_kills_at_any_moment_neither_lose_nor_duplicate_changes(
    tmp_path: Path, actors_of: list[Actor], server: CrashingServer
) -> None:
    (tmp_path / "address").write_text(server.url)
    store = actors.create(tmp_path)
    for table in ("first_seen", "copy"):
        store.create_tunnel(table, LOG, kind="Stream")
    driver = Actor("actors", tmp_path, "driver")
    writer = Actor("actors", tmp_path, "writer", str(SEED), "0")
    actors_of += [driver, writer]
    chance = random.Random(SEED)
    victims = [victim for _ in range(max(1, KILLS // len(ROUND) // 2)) for victim in chance.sample(ROUND, len(ROUND))]
    killed = storm(tmp_path, driver, [writer], chance, victims, server=server)
    context = f"seed {SEED}, kills {dict(killed)}"
    assert writer.process.returncode == 0, context
    check_tables(store, context)
    # In an append-only sink, a row that was published twice would be an update in the change log.
    for table in ("first_seen", "copy"):
        operations = {change.op for change in drain(store.tunnel(LOG, table))}
        assert operations == {ChangeOp.INSERT}, (table, context)
    with psycopg.connect(server.url) as session:
        assert session.execute("SELECT count(*) FROM headrace.stage").fetchone() == (0,), context
    store.close()


def test_the_server_stops_and_starts_again(server: CrashingServer) -> None:
    with headrace.open(server.url) as store:
        table = store.create_table("t", {"id": "long"}, "id")
        table.put({"id": 1})
        server.kill()
        server.start()
        assert table.get({"id": 1}) == {"id": 1}
