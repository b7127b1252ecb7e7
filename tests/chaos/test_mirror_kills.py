"""Workers that mirror a table are killed at random moments while it changes, splits and merges."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.model.tables.changes import DELETES
from headrace.ports import Tunnel
from headrace.testing.reading import drain
from tests.chaos import worker_actors
from tests.chaos.mirror_actors import mirror_of
from tests.chaos.storm import KILLS, SEED, Actor, wait_for
from tests.postgres_server import USER, PostgresServer


@pytest.fixture(params=["embedded", "postgres"])
def copies(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[None]:
    """The store of the copy: an embedded store, or a server of PostgreSQL."""
    if request.param == "embedded":
        yield
        return
    server = PostgresServer.start()
    try:
        (tmp_path / "address").write_text(f"postgresql://{USER}@127.0.0.1:{server.port}/postgres")
        yield
    finally:
        server.remove()


def values_by_row(tunnel: Tunnel) -> dict[int, list[Any]]:
    """Return the values of each row in commit order; None is a delete."""
    found: dict[int, list[Any]] = defaultdict(list)
    for change in drain(tunnel):
        found[change.key[0]].append(None if change.op in DELETES else change.row["value"])
    return found


@pytest.mark.storm
@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("copies")
def test_killed_workers_copy_each_change_once_and_in_order(tmp_path: Path, actors_of: list[Actor]) -> None:
    chance = random.Random(SEED)
    store = worker_actors.create(tmp_path)
    first = mirror_of(tmp_path)
    # It prepares both stores, and copies nothing.
    first.stop()
    first.run()
    address = tmp_path / "address"
    target = headrace.open(address.read_text() if address.exists() else tmp_path / "copies")
    log = target.create_tunnel("copy", "log", "Stream")
    writer = Actor("worker_actors", tmp_path, "writer", str(SEED))
    workers = [Actor("mirror_actors", tmp_path, "worker", str(number)) for number in range(2)]
    actors_of += [writer, *workers]
    for _ in range(KILLS):
        time.sleep(chance.uniform(0.2, 1.4 * worker_actors.TIMEOUT))
        victim = chance.choice(workers)
        victim.kill()
        victim.start()
    wait_for(lambda: any((tmp_path / f"running-{each.process.pid}").exists() for each in workers), 120)
    (tmp_path / "stop").touch()
    writer.process.wait(60)
    source = store.tunnel("mirror-copy")
    wait_for(lambda: source.describe().backlog_rows == 0, 240)
    for worker in workers:
        worker.process.terminate()
        assert worker.process.wait(60) == 0, f"seed {SEED}"
    assert headrace.diff_tables(store.table("orders"), target.table("copy")).equal, f"seed {SEED}"
    expected = values_by_row(store.tunnel("oracle"))
    for row, values in values_by_row(log).items():
        # A batch writes the last value of a row: so the copy has a part of the values, in their order.
        rest = iter(expected[row])
        assert all(value in rest for value in values), f"seed {SEED}, row {row}: {values} of {expected[row]}"
    target.close()
    store.close()
