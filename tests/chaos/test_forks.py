"""Forks: each acknowledged row is stored once, for any order of opening, forking, closing and ending."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import headrace
from headrace.model.queues.values import Bounds
from tests.chaos import fork_actors
from tests.chaos.storm import SEED

SEQUENCES = int(os.environ.get("HEADRACE_CHAOS_FORKS", "5"))


def test_rows_acknowledged_around_forks_are_stored_once(tmp_path: Path) -> None:
    subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore::DeprecationWarning",
            "-m",
            fork_actors.__name__,
            tmp_path,
            str(SEED),
            str(SEQUENCES),
        ],
        check=True,
        timeout=60 * SEQUENCES,
    )
    for number in range(SEED, SEED + SEQUENCES):
        check(tmp_path / str(number), number)


def check(directory: Path, seed: int) -> None:
    """Compare a store with the logs of its writers."""
    lines = (directory / "log").read_text().splitlines()
    said = {mark: [line[1:] for line in lines if line[0] == mark] for mark in fork_actors.MARKS}
    assert not said[fork_actors.BROKEN], (seed, said[fork_actors.BROKEN])
    assert sorted(said[fork_actors.BEGUN]) == sorted(said[fork_actors.ENDED]), (seed, "a process did not end")
    # Only a fork inside a transaction can make a store unusable, and the actors do not fork inside transactions. A scan
    # cannot continue after a fork.
    errors = {error for error in said[fork_actors.RAISED] if "in the middle of a transaction or scan" not in error}
    assert not errors, (seed, errors)
    with headrace.open(directory / "store") as store:
        found = Counter(f"table {row['id']}" for row in store.table("rows").scan().read_all().to_pylist())
        queue = store.queue("log")
        for partition, bounds in queue.bounds().items():
            while bounds.rows:
                page = queue.read(partition, bounds.lower, bounds.rows)
                found.update(f"queue {row['id']}" for row in page.rows.to_pylist())
                bounds = Bounds(bounds.lower + page.rows.num_rows, bounds.upper)
    acknowledged, tried = Counter(said[fork_actors.DONE]), Counter(said[fork_actors.TRIED])
    assert acknowledged - found == Counter(), (seed, "lost")
    assert found - tried == Counter(), (seed, "doubled")
    assert acknowledged
