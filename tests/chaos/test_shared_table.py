"""Two workers and a Spark job read a table of an instance while it is written, split and merged."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest

import headrace
from headrace.demo.proof import compare, read_all, recompute, sink_content
from headrace.model.tables.changes import ChangeOp, Changes
from headrace.ports import Table
from tests.chaos import actors, worker_actors
from tests.chaos.storm import SEED, Actor, wait_for

RESHAPES = ["split", "split", "merge"] * 5


def changes_by_row(changes: Iterable[Changes]) -> dict[int, list[int]]:
    """Return the timestamps of each order's changes, in order. They are the service's, in µs; 0 for base data."""
    found: dict[int, dict[int, None]] = defaultdict(dict)
    for run in changes:
        orders, times = run.rows.column("OrderId").to_pylist(), run.timestamps.cast(pa.int64()).to_pylist()
        for order, op, moment in zip(orders, run.ops.to_pylist(), times, strict=True):
            found[order][0 if op == ChangeOp.BASE else moment] = None
    return {order: list(moments) for order, moments in found.items()}


def reshape(table: Table, what: str, chance: random.Random) -> None:
    """Split the largest partition, or merge any two neighbours."""
    if what == "split":
        table.split()
        return
    partitions = sorted((each for each in table.describe().partitions if each.open), key=lambda p: p.keys.low or ())
    left = chance.randrange(len(partitions) - 1)
    table.merge(partitions[left].id, partitions[left + 1].id)


@pytest.mark.storm
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("server")
def test_workers_and_spark_read_all_changes_of_a_table_that_splits_and_merges(
    tmp_path: Path, actors_of: list[Actor]
) -> None:
    chance = random.Random(SEED)
    instance = actors.create(tmp_path)
    instance.create_tunnel("orders", "work")
    server_store = headrace.open(tmp_path / "store")
    driver = Actor("actors", tmp_path, "driver", "windows")
    workers = [Actor("worker_actors", tmp_path, "worker", str(number)) for number in range(2)]
    actors_of += [driver, *workers]
    began = {worker.process.pid for worker in workers}
    wait_for(lambda: all((tmp_path / name).exists() for name in ["running", *(f"running-{pid}" for pid in began)]), 120)

    writer = Actor("actors", tmp_path, "writer", str(SEED), "0")
    actors_of.append(writer)
    for number, what in enumerate(RESHAPES):
        time.sleep(chance.uniform(0.2, 0.9))
        reshape(server_store.table("orders"), what, chance)
        if number == len(RESHAPES) // 2:
            stopped = chance.choice(workers)
            stopped.process.terminate()
            assert stopped.process.wait(60) == 0, f"seed {SEED}"
            began.add(stopped.start().pid)
    (tmp_path / "stop").touch()
    assert writer.process.wait(60) == 0, f"seed {SEED}"
    (tmp_path / "written").touch()
    wait_for(lambda: server_store.tunnel("work").describe().backlog_rows == 0, 120)
    for worker in workers:
        worker.process.terminate()
        assert worker.process.wait(60) == 0, f"seed {SEED}"
    wait_for((tmp_path / "done").exists, 120)

    # The expected changes are read from the server's store, not over HTTP.
    changes = list(read_all(server_store.tunnel("oracle")))
    handled, processes = worker_actors.handled_by_row(tmp_path)
    assert handled == changes_by_row(changes), f"seed {SEED}"
    assert processes == began, f"seed {SEED}"
    expected = recompute(changes)
    assert compare(sink_content(instance.table("windows")), expected.windows) == [], f"seed {SEED}"
    assert expected.events > 1000, f"seed {SEED}"
    closed = [each for each in server_store.table("orders").describe().partitions if not each.open]
    assert len(closed) == sum({"split": 1, "merge": 2}[what] for what in RESHAPES), f"seed {SEED}"
    instance.close()
    server_store.close()
