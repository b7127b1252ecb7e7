"""Power cuts of the disk under an embedded store: no acknowledged commit is lost, and no other one is half there."""

from __future__ import annotations

import itertools
import pickle
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace
from headrace.errors import HeadraceError
from headrace.model.findings import Status
from headrace.ports import Store
from headrace.stores.embedded import connection
from headrace.testing.effort import thorough
from headrace.testing.processes import CONTEXT
from tests.disk import Disk, Event, chances, recorded

COMMITS = 24
CUTS = thorough(900)


def _work(directory: Path, output: Path, synchronous: str) -> None:
    """Create a store in new directories and write commits, and reports each that is acknowledged."""
    events: list[Event] = []
    # So that commits copy the log into the database, and begin it again.
    connection._WAL_BYTES = 40 * 4096
    with recorded(events):
        store = headrace.open(directory, create=True, synchronous=synchronous)
        store.create_table("orders", {"id": "long", "note": "string"}, "id")
        store.create_queue("clicks", {"n": "long"})
        events.append(("reached", 0))
        for number in range(COMMITS):
            if number == COMMITS // 2:
                store.close()
                store = headrace.open(directory, synchronous=synchronous)
            _commit(store, number)
            events.append(("reached", number + 1))
        store.close()
    output.write_bytes(pickle.dumps(events))


def _commit(store: Store, number: int) -> None:
    if number % 3 == 2:
        store.queue("clicks").append([{"n": number}], partition=0)
    else:
        store.table("orders").put([{"id": number, "note": "n" * (number * 100)}])


def commits(store: Store) -> set[int]:
    """Return the numbers of the commits that a store has."""
    clicks = store.queue("clicks")
    bounds = clicks.bounds()[0]
    rows = [*store.table("orders").scan().read_all()["id"].to_pylist()]
    if bounds.upper:
        rows += clicks.read(0, bounds.lower, 1000).rows["n"].to_pylist()
    return set(rows)


def record(directory: Path, synchronous: str) -> list[Event]:
    """Return what a process does to the disk while it creates a store and writes into it."""
    output = directory / "events"
    disk = directory / "disk"
    disk.mkdir()
    process = CONTEXT.Process(target=_work, args=(disk / "new" / "store", output, synchronous))
    process.start()
    process.join()
    assert process.exitcode == 0
    events: list[Event] = pickle.loads(output.read_bytes())
    return events


def syncs(events: list[Event]) -> list[int]:
    """Return the moments right before a sync, at which most can be lost."""
    return [moment for moment, event in enumerate(events) if event[0].startswith("sync")]


def cuts(
    events: list[Event], moments: list[int], root: Path, target: Path, seed: int
) -> Iterator[tuple[int | None, str]]:
    """Write the files after power cuts at some moments; yield the last acknowledged commit."""
    ways = itertools.cycle(itertools.islice(chances(seed), 40))
    disk, done, reached = Disk(root), 0, None
    for moment in sorted(moments):
        for event in events[done:moment]:
            if event[0] == "reached":
                reached = event[1]
            else:
                disk.apply(event)
        done = moment
        disk.cut(target, next(ways))
        yield reached, f"after event {moment} of {len(events)}, seed {seed}"
        shutil.rmtree(target)


def some_moments(events: list[Event], count: int, seed: int) -> list[int]:
    numbers = random.Random(seed)
    return [*numbers.choices(range(len(events) + 1), k=count // 2), *numbers.choices(syncs(events), k=count // 2)]


@pytest.mark.parametrize("seed", [1, 2])
def test_no_power_cut_loses_an_acknowledged_commit(tmp_path: Path, seed: int) -> None:
    events = record(tmp_path, "full")
    kinds = {event[0] for event in events}
    assert kinds >= {"create", "write", "sync", "sync-directory", "remove", "make-directory"}
    # Commits have copied the log into the database while the store was open.
    assert sum(event[:2] == ("sync", str(tmp_path / "disk/new/store/db")) for event in events) > 4
    for reached, where in cuts(
        events, some_moments(events, CUTS // 2, seed), tmp_path / "disk", tmp_path / "cut", seed
    ):
        directory = tmp_path / "cut" / "new" / "store"
        if reached is None:
            continue
        with headrace.open(directory, synchronous="off") as store:
            found = commits(store)
            assert found in (set(range(reached)), set(range(reached + 1))), where
            assert {finding.status for finding in store.check()} == {Status.OK}, where
            _commit(store, 1000)


def test_a_store_whose_creation_was_cut_off_can_be_created(tmp_path: Path) -> None:
    events = record(tmp_path, "full")
    before = [moment for moment in syncs(events) if moment < events.index(("reached", 0))]
    for reached, _ in cuts(events, before * 12, tmp_path / "disk", tmp_path / "cut", 4):
        assert reached is None
        with headrace.open(tmp_path / "cut" / "new" / "store", create=True, synchronous="off") as store:
            store.create_table("mine", {"id": "long"}, "id").put([{"id": 1}])
            assert {finding.status for finding in store.check()} == {Status.OK}


def test_a_power_cut_undoes_only_the_last_commits_of_a_store_that_does_not_wait_for_the_disk(tmp_path: Path) -> None:
    events = record(tmp_path, "normal")
    lost = 0
    for reached, where in cuts(events, some_moments(events, CUTS // 6, 3), tmp_path / "disk", tmp_path / "cut", 3):
        directory = tmp_path / "cut" / "new" / "store"
        if reached is None:
            continue
        try:
            with headrace.open(directory, synchronous="normal") as store:
                found = commits(store)
        except HeadraceError:
            # Its tables were the last commits.
            assert reached < COMMITS, where
            continue
        assert found == set(range(len(found))), where
        assert len(found) <= reached + 1, where
        lost += len(found) < reached
    assert lost
