"""Kills of drivers with their JVM, of Python workers and of writers: no change is lost or duplicated."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

import headrace
from headrace.model.tables.changes import ChangeOp
from headrace.ports import Store
from headrace.stores.embedded.connection import Database
from tests.chaos import actors
from tests.chaos.oracle import check_tables, read_changes
from tests.chaos.storm import SEED, Actor, random_victims, storm


@pytest.mark.timeout(3600)
def test_kills_at_any_moment_neither_lose_nor_duplicate_changes(tmp_path: Path, actors_of: list[Actor]) -> None:
    store = actors.create(tmp_path)
    driver = Actor("actors", tmp_path, "driver")
    writers = [Actor("actors", tmp_path, "writer", str(SEED + number)) for number in range(2)]
    actors_of += [driver, *writers]
    chance = random.Random(SEED)
    killed = storm(tmp_path, driver, writers, chance, random_victims(chance))
    _check(store, f"seed {SEED}, kills {dict(killed)}")


def _check(store: Store, context: str) -> None:
    changes = check_tables(store, context)
    expected = Counter((version, row["UserId"], row["OrderId"]) for row, _, version in changes)

    # In an append-only sink, a row that was published twice would be an update in the change log.
    for table in ("first_seen", "copy"):
        store.create_tunnel(table, "log", kind="Stream", start="earliest")
        operations = Counter(op for _, op, _ in read_changes(store, "log"))
        store.drop_tunnel("log")
        doubled = sum(count - 1 for count in expected.values()) if table == "copy" else 0
        assert operations.get(ChangeOp.REPLACE, 0) == doubled, (table, operations, context)
    database = Database(Path(store.url.removeprefix("file://")))
    assert database.query("SELECT count(*) FROM stage") == [(0,)], context
    assert database.query("PRAGMA integrity_check") == [("ok",)], context


def test_the_oracle_finds_a_difference(tmp_path: Path) -> None:
    store = actors.create(tmp_path)
    with pytest.raises(AssertionError):
        _check(store, "nothing was streamed")
    assert headrace.open(tmp_path / "store").tables() == store.tables()
