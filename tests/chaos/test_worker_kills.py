"""Workers of one tunnel are killed at random moments while the table is split and merged."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from pathlib import Path

import pytest

from headrace.ports import Store
from tests.chaos import worker_actors
from tests.chaos.storm import KILLS, SEED, Actor, wait_for


def changes_by_row(store: Store) -> dict[int, list[int]]:
    """Return the versions of each row's changes in commit order, read by a single reader."""
    found: dict[int, list[int]] = defaultdict(list)
    for batch in store.tunnel("oracle").consume(idle="stop"):
        rows, versions = batch.changes.rows.column("id").to_pylist(), batch.changes.versions.to_pylist()
        for row, version in zip(rows, versions, strict=True):
            # A row can change more than once in a commit, but the workers write down only the commit.
            if version not in found[row]:
                found[row].append(version)
    return found


@pytest.mark.storm
@pytest.mark.timeout(3600)
def test_killed_workers_lose_no_change_and_keep_the_order_of_each_row(tmp_path: Path, actors_of: list[Actor]) -> None:
    def is_up(worker: Actor) -> bool:
        return (tmp_path / f"running-{worker.process.pid}").exists()

    chance = random.Random(SEED)
    store = worker_actors.create(tmp_path)
    writer = Actor("worker_actors", tmp_path, "writer", str(SEED))
    workers = [Actor("worker_actors", tmp_path, "worker", str(number)) for number in range(2)]
    actors_of += [writer, *workers]
    first = {worker.process.pid for worker in workers}
    for _ in range(KILLS):
        time.sleep(chance.uniform(0.2, 1.4 * worker_actors.TIMEOUT))
        victim = chance.choice(workers)
        victim.kill()
        victim.start()
    # New workers have replaced killed ones.
    wait_for(lambda: bool(worker_actors.handled_by_row(tmp_path)[1] - first), 120)
    wait_for(lambda: len(store.table("orders").describe().partitions) > 4, 120)
    (tmp_path / "stop").touch()
    writer.process.wait(60)
    expected = changes_by_row(store)
    deadline = time.monotonic() + 120
    while store.tunnel("work").describe().backlog_rows != 0 or not all(map(is_up, workers)):
        assert time.monotonic() < deadline, f"the workers did not catch up (seed {SEED})"
        assert all(worker.process.poll() is None for worker in workers), f"a worker has ended (seed {SEED})"
        time.sleep(0.1)
    for worker in workers:
        worker.process.terminate()
        assert worker.process.wait(60) == 0, f"seed {SEED}"
    assert worker_actors.handled_by_row(tmp_path)[0] == expected, f"seed {SEED}"
    assert {found.client for found in store.tunnel("work").describe().channels} == {None}, f"seed {SEED}"
