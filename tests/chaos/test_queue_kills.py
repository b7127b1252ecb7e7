"""Kills around queues: every pushed row arrives once, in the order of its partition, while rows are trimmed."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from headrace.ports import Store
from headrace.stores.embedded.connection import Database
from tests.chaos import queue_actors as actors
from tests.chaos.oracle import queue_rows
from tests.chaos.storm import SEED, Actor, random_victims, storm

WRITERS = ("0", "1", "2")


@pytest.mark.storm
@pytest.mark.timeout(3600)
def test_kills_at_any_moment_deliver_every_row_once_and_in_order(tmp_path: Path, actors_of: list[Actor]) -> None:
    store = actors.create(tmp_path)
    driver = Actor("queue_actors", tmp_path, "driver")
    writers = [Actor("queue_actors", tmp_path, "writer", name) for name in WRITERS]
    trimmer = Actor("queue_actors", tmp_path, "trimmer")
    actors_of += [driver, trimmer, *writers]
    chance = random.Random(SEED)
    killed = storm(tmp_path, driver, [*writers, trimmer], chance, random_victims(chance))
    check_sinks(store, f"seed {SEED}, kills {dict(killed)}")


def check_sinks(store: Store, context: str) -> None:
    """Compare the sinks with the pushed rows, which follow from the last number of each writer."""
    pushed = {session.session: session.sequence_number for session in store.producer("//producer").sessions()}
    assert set(pushed) == set(WRITERS), (pushed, context)
    assert sum(pushed.values()) > 1000, (pushed, context)
    expected = {(name, number) for name, last in pushed.items() for number in range(last + 1)}

    copied = [row for number in store.queue("copied").bounds() for row in queue_rows(store, "copied", number)]
    copies = Counter((row["writer"], row["n"]) for row in copied)
    assert set(copies) == expected, context
    assert max(copies.values()) == 1, context
    assert all(row["tags"] == actors.row(row["writer"], row["n"])["tags"] for row in copied), context

    # All rows of a source partition are in one partition of the sink, numbered from 0 without gaps.
    order: dict[tuple[str, int], list[int]] = {}
    for row in copied:
        order.setdefault((row["queue"], row["partition"]), []).append(row["row"])
    for address, rows in order.items():
        assert rows == list(range(len(rows))), (address, context)

    prices = {(row["writer"], row["n"]): row["price"] for row in _rows(store, "prices")}
    assert prices == {(name, number): actors.row(name, number)["price"] for name, number in expected}, context
    sums: dict[int, list[float]] = {}
    for name, number in expected:
        row = actors.row(name, number)
        cell = sums.setdefault(row["key"], [0, 0.0])
        cell[0] += 1
        cell[1] += row["price"]
    assert {row["key"]: [row["count"], row["total"]] for row in _rows(store, "sums")} == sums, context

    # The consumers are at the end. The rows that both have read are trimmed, except those of the last batch, which
    # could run again.
    for queue in actors.QUEUES:
        store.queue(queue).trim()
        ends = {number: bounds.upper for number, bounds in store.queue(queue).bounds().items()}
        for consumer in (actors.COPIER, actors.SUMMER):
            assert store.consumer(consumer).offsets(queue) == ends, (queue, consumer, context)
        assert sum(bounds.rows for bounds in store.queue(queue).bounds().values()) <= actors.BATCH_ROWS, context
    if store.url.startswith("file://"):
        _check_database(store, context)


def _check_database(store: Store, context: str) -> None:
    """Check that no staged rows are left, and that the database is intact."""
    database = Database(Path(store.url.removeprefix("file://")))
    assert database.query("SELECT count(*) FROM stage") == [(0,)], context
    # Every blob belongs to an existing row.
    orphans = "SELECT count(*) FROM blob WHERE id NOT IN (SELECT blob FROM chunk WHERE blob IS NOT NULL)"
    assert database.query(orphans) == [(0,)], context
    assert database.query("PRAGMA integrity_check") == [("ok",)], context


def _rows(store: Store, table: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = store.table(table).scan().read_all().to_pylist()
    return rows


def test_the_oracle_finds_a_difference(tmp_path: Path) -> None:
    store = actors.create(tmp_path)
    producer = store.producer("//producer")
    for name in WRITERS:
        session = producer.open_session("left", name)
        producer.push(session, [actors.row(name, number) for number in range(1000)], sequence_number=0)
    with pytest.raises(AssertionError):
        check_sinks(store, "nothing was streamed")
