"""Kills around an instance of Tablestore, including the server: no change is lost, and the tables are right."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.chaos import actors
from tests.chaos.oracle import check_tables
from tests.chaos.storm import KILLS, SEED, Actor, storm

# The kills in one round of the storm. By default there is one round.
ROUND = ["server", "worker", "driver", "server", "writer"]


@pytest.mark.storm
@pytest.mark.timeout(3600)
def test_after_kills_at_any_moment_the_tables_are_right(tmp_path: Path, actors_of: list[Actor], server: Actor) -> None:
    # The first request waits for the server.
    store = actors.create(tmp_path)
    driver = Actor("actors", tmp_path, "driver")
    writer = Actor("actors", tmp_path, "writer", str(SEED))
    actors_of += [driver, writer]
    chance = random.Random(SEED)
    victims = [victim for _ in range(max(1, KILLS // len(ROUND) // 2)) for victim in chance.sample(ROUND, len(ROUND))]
    killed = storm(tmp_path, driver, [writer], chance, victims, server=server)
    context = f"seed {SEED}, kills {dict(killed)}"
    # The driver has survived the restarts of the server.
    assert writer.process.returncode == 0, context
    check_tables(store, context)
    store.close()
