"""Kills at random moments: the driver with its JVM, Python workers, writers; nothing is lost and nothing is doubled."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.feeds.reading import read_channel
from headrace.feeds.tunnel_feed import TunnelFeed
from headrace.model import INITIAL_BATCH, ChangeOp
from headrace.ports import Store
from headrace.stores.embedded.database import Database
from tests.chaos import actors
from tests.chaos.storm import KILLS, SEED, Actor, storm


@pytest.mark.timeout(3600)
def test_kills_at_any_moment_lose_nothing_and_double_nothing(tmp_path: Path, actors_of: list[Actor]) -> None:
    store = actors.create(tmp_path)
    driver = Actor("actors", tmp_path, "driver")
    writers = [Actor("actors", tmp_path, "writer", str(SEED + number)) for number in range(2)]
    actors_of += [driver, *writers]
    killed = storm(tmp_path, driver, writers, random.Random(SEED), KILLS)
    _check(store, f"seed {SEED}, kills {dict(killed)}")


def _changes(store: Store, tunnel: str) -> list[tuple[dict[str, Any], ChangeOp, int]]:
    """Read a tunnel to its end in plain Python."""
    feed = TunnelFeed(store.tunnel(tunnel))
    found: list[tuple[dict[str, Any], ChangeOp, int]] = []
    batch = INITIAL_BATCH
    while (following := feed.latest(batch)) != batch:
        batch = following
        for part in feed.plan(batch):
            if part.max_rows != 0:
                for changes in read_channel(feed.tunnel, batch, part):
                    entries = zip(changes.rows.to_pylist(), changes.ops, changes.versions, strict=True)
                    found += [(row, ChangeOp(op.as_py()), version.as_py()) for row, op, version in entries]
    return found


def _check(store: Store, context: str) -> None:
    changes = _changes(store, "oracle")
    live = [row for row, op, _ in changes if op is not ChangeOp.DELETE]
    assert len(changes) > 1000, context

    windows: dict[str, list[float]] = {}
    for row in live:
        start = datetime.fromtimestamp(row["timestamp"] // 30_000 * 30, UTC)
        cell = windows.setdefault(f"{start:%Y-%m-%d %H:%M:%S}", [0, 0.0])
        cell[0] += 1
        cell[1] += row["price"]
    kept = {row["begin"]: [row["count"], row["totalPrice"]] for row in _rows(store, "windows")}
    assert kept == windows, context

    keys = {(row["UserId"], row["OrderId"]) for row in live}
    assert {(row["UserId"], row["OrderId"]) for row in _rows(store, "first_seen")} == keys, context
    expected = Counter((version, row["UserId"], row["OrderId"]) for row, _, version in changes)
    copies = {(row["version"], row["UserId"], row["OrderId"]) for row in _rows(store, "copy")}
    assert copies == set(expected), context

    # A row that was published twice would stand in the log of an append-only sink as a replacement.
    for table in ("first_seen", "copy"):
        store.create_tunnel(table, "log", kind="Stream", start="earliest")
        operations = Counter(op for _, op, _ in _changes(store, "log"))
        store.drop_tunnel("log")
        doubled = sum(count - 1 for count in expected.values()) if table == "copy" else 0
        assert operations.get(ChangeOp.REPLACE, 0) == doubled, (table, operations, context)
    database = Database(Path(store.url.removeprefix("file://")))
    assert database.query("SELECT count(*) FROM stage") == [(0,)], context
    assert database.query("PRAGMA integrity_check") == [("ok",)], context


def _rows(store: Store, table: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = store.table(table).scan().read_all().to_pylist()
    return rows


def test_the_oracle_itself_sees_a_difference(tmp_path: Path) -> None:
    store = actors.create(tmp_path)
    with pytest.raises(AssertionError):
        _check(store, "nothing was streamed")
    assert headrace.open(tmp_path / "store").tables() == store.tables()
