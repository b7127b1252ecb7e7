"""Fixtures of the conformance suite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.ports import Queue, Store, Table
from tests.conformance import reading
from tests.conformance.stores import STORES, Place, fits


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the parameters whose store has the capabilities that the test needs."""
    items[:] = [item for item in items if fits(item)]


@pytest.fixture(params=sorted(STORES))
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """The location of the test's store."""
    return Place(request.param, tmp_path)


@pytest.fixture
def store(place: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """An empty store."""
    with place.open() as opened:
        monkeypatch.setattr(reading, "TELLS_ROWS", opened.capabilities.tells_rows)
        yield opened


@pytest.fixture
def orders(store: Store) -> Table:
    """An empty table with a text key and two attributes."""
    return store.create_table("orders", {"id": "string", "price": "long", "note": "string"}, "id")


@pytest.fixture
def queue(store: Store) -> Queue:
    """An empty queue of one column and three partitions."""
    return store.create_queue("clicks", {"data": "string"}, partitions=3)
