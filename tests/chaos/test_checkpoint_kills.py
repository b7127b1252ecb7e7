"""Kills and second drivers of queries with checkpoints in the store: every row arrives once."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

import headrace
from tests.chaos import checkpoint_actors, queue_actors
from tests.chaos.storm import KILLS, SEED, Actor, storm, wait_for
from tests.chaos.test_queue_kills import WRITERS, check_sinks


@pytest.fixture
def writers(actors_of: list[Actor], tmp_path: Path) -> list[Actor]:
    """A store with writers and without readers."""
    queue_actors.create(tmp_path)
    actors_of += [Actor("queue_actors", tmp_path, "writer", name) for name in WRITERS]
    return actors_of[:]


@pytest.mark.storm
@pytest.mark.timeout(3600)
def test_a_killed_driver_loses_no_batch_of_its_checkpoint(
    tmp_path: Path, writers: list[Actor], actors_of: list[Actor]
) -> None:
    actors_of.append(Actor("queue_actors", tmp_path, "driver", "checkpoints"))
    chance = random.Random(SEED)
    victims = chance.choices(["driver", "driver", "worker"], k=max(1, KILLS // 2))
    killed = storm(tmp_path, actors_of[-1], writers, chance, victims)
    with headrace.open(tmp_path / "store") as store:
        check_sinks(store, f"seed {SEED}, kills {dict(killed)}")
        assert store.files().status("/checkpoints/copied/commits") is not None
        # A file that was being written at a kill does not exist.
        names = [status.name for status in store.files().list("/checkpoints/copied/offsets")]
        assert len([name for name in names if name.isdigit()]) > 1


@pytest.mark.storm
@pytest.mark.timeout(3600)
def test_of_two_drivers_on_one_checkpoint_one_fails_and_no_row_is_duplicated(
    tmp_path: Path, actors_of: list[Actor]
) -> None:
    with checkpoint_actors.create(tmp_path) as store:
        drivers = {"older": Actor("checkpoint_actors", tmp_path, "driver", "older")}
        actors_of += drivers.values()
        wait_for(lambda: (tmp_path / "older").exists(), 240)
        drivers["newcomer"] = Actor("checkpoint_actors", tmp_path, "driver", "newcomer")
        actors_of.append(drivers["newcomer"])

        def ended() -> list[str]:
            return [name for name, each in drivers.items() if each.process.poll() is not None]

        wait_for(lambda: bool(ended()), 240)
        (loser,) = ended()
        (winner,) = drivers.keys() - {loser}
        assert drivers[loser].process.returncode != 0
        assert "CONCURRENT_STREAM_LOG_UPDATE" in (tmp_path / f"driver-{loser}.log").read_text()
        wait_for(lambda: (tmp_path / f"{winner}.later").exists(), 240)
        (tmp_path / "stop").touch()
        assert drivers[winner].process.wait(120) == 0
        numbers = [row["n"] for row in store.queue("numbers").read(0, 0, 1_000_000).rows.to_pylist()]
        assert numbers == list(range(len(numbers)))
        commits = [status.name for status in store.files().list("/checkpoint/commits")]
        assert len(numbers) >= checkpoint_actors.ROWS * len(commits)


@pytest.mark.storm
@pytest.mark.timeout(3600)
def test_a_killed_driver_counts_exactly_with_a_bare_checkpoint_location_and_rocksdb(
    tmp_path: Path, actors_of: list[Actor]
) -> None:
    chance = random.Random(SEED)
    with checkpoint_actors.create(tmp_path) as store:
        driver = Actor("checkpoint_actors", tmp_path, "counter", "counter")
        actors_of.append(driver)
        for kill in range(KILLS + 1):
            wait_for(lambda: (tmp_path / "counter").exists() or driver.process.poll() is not None, 240)
            assert driver.process.poll() is None, (tmp_path / "counter-counter.log").read_text()[-4000:]
            if kill < KILLS:
                time.sleep(chance.uniform(0, 1))
                driver.kill()
                (tmp_path / "counter").unlink()
                driver.start()
        (tmp_path / "stop").touch()
        assert driver.process.wait(120) == 0
        counts = {row["rest"]: row["count"] for row in store.table("counts").scan().read_all().to_pylist()}
        rows = sum(counts.values())
        assert rows % checkpoint_actors.ROWS == 0
        rests = checkpoint_actors.RESTS
        assert counts == {rest: len(range(rest, rows, rests)) for rest in range(rests)}, f"seed {SEED}"
        changelogs = [status.name for status in store.files().list("/tmp/sample/cp/state/0/0")]
        assert any(name.endswith(".changelog") for name in changelogs)
