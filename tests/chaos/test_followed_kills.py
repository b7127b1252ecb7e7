"""Kills around followed queries: their targets are the results over the current rows, and stay so with more changes."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from headrace.ports import Store
from tests.chaos import followed_actors
from tests.chaos.actors import order
from tests.chaos.oracle import total_by_user
from tests.chaos.storm import SEED, Actor, random_victims, storm, wait_for
from tests.conformance import serving


@pytest.mark.storm
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["embedded", "postgres"])
def test_after_kills_at_any_moment_followed_queries_have_their_results(
    tmp_path: Path, actors_of: list[Actor], kind: str
) -> None:
    if kind == "postgres":
        (tmp_path / "address").write_text(serving.postgres_database())
    store = followed_actors.create(tmp_path)
    driver = Actor("followed_actors", tmp_path, "driver")
    # A table of PostgreSQL cannot be split.
    writer = Actor("followed_actors", tmp_path, "writer", str(SEED), "3" if kind == "embedded" else "0")
    actors_of += [driver, writer]
    chance = random.Random(SEED)
    killed = storm(tmp_path, driver, [writer], chance, random_victims(chance))
    context = f"seed {SEED}, kills {dict(killed)}"
    _check(store, context)
    # A wrong state can have right results, until more changes come.
    driver.process.wait(60)
    (tmp_path / "done").unlink()
    orders = store.table("orders")
    keys = orders.scan(["UserId", "OrderId"]).read_all().to_pylist()
    orders.delete(chance.sample(keys, len(keys) // 2))
    orders.put([order(chance, number) for number in range(0, 5_000, 7)])
    driver.start()
    wait_for((tmp_path / "done").exists, 300)
    _check(store, context)
    store.close()


def _check(store: Store, context: str) -> None:
    orders: list[dict[str, Any]] = store.table("orders").scan().read_all().to_pylist()
    assert orders, context
    found = store.table("totals").scan().read_all().to_pylist()
    assert {row.pop("UserId"): tuple(row.values()) for row in found} == total_by_user(orders), context
    large = {(row["UserId"], row["OrderId"]): row["price"] * 2 for row in orders if row["price"] > 50}
    found = store.table("large").scan().read_all().to_pylist()
    assert {(row["UserId"], row["OrderId"]): row["double_price"] for row in found} == large, context
    priced = [row for row in orders if row["price"] is not None]
    most = {row["UserId"]: max(each["price"] for each in priced if each["UserId"] == row["UserId"]) for row in priced}
    best = {(row["UserId"], row["OrderId"]): row["price"] for row in priced if row["price"] == most[row["UserId"]]}
    found = store.table("best").scan().read_all().to_pylist()
    assert {(row["UserId"], row["OrderId"]): row["price"] for row in found} == best, context
