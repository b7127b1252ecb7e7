"""Kills of driver, workers, writers and endpoint of a YTsaurus cluster: every row arrives once and in order."""

from __future__ import annotations

import random
import socket
from pathlib import Path

import pytest

from tests.chaos import queue_actors as actors
from tests.chaos.storm import KILLS, SEED, Actor, storm
from tests.chaos.test_queue_kills import WRITERS, check_sinks

# The kills in one round of the storm. By default there is one round.
ROUND = ["server", "worker", "driver", "server", "writer"]


@pytest.fixture
def cluster(tmp_path: Path, actors_of: list[Actor], monkeypatch: pytest.MonkeyPatch) -> Actor:
    """A cluster. The actors use its address."""
    for variable in ("HEADRACE_YT_TOKEN", "YT_TOKEN"):
        monkeypatch.setenv(variable, "only-for-tests")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    (tmp_path / "address").write_text(f"yt+http://127.0.0.1:{port}//chaos")
    actors_of.append(Actor("queue_actors", tmp_path, "server", str(port)))
    return actors_of[-1]


@pytest.mark.storm
@pytest.mark.timeout(3600)
def test_kills_at_any_moment_deliver_every_row_once_and_in_order(
    tmp_path: Path, actors_of: list[Actor], cluster: Actor
) -> None:
    # The first request waits for the server.
    store = actors.create(tmp_path)
    driver = Actor("queue_actors", tmp_path, "driver", "checkpoints")
    writers = [Actor("queue_actors", tmp_path, "writer", name) for name in WRITERS]
    actors_of += [driver, *writers]
    chance = random.Random(SEED)
    victims = [victim for _ in range(max(1, KILLS // len(ROUND) // 2)) for victim in chance.sample(ROUND, len(ROUND))]
    killed = storm(tmp_path, driver, writers, chance, victims, server=cluster)
    check_sinks(store, f"seed {SEED}, kills {dict(killed)}")
