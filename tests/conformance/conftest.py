"""Fixtures of the conformance suite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.ports import Store, Table
from tests.conformance.stores import STORES, Place


@pytest.fixture(params=sorted(STORES))
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Where the test's store is."""
    return Place(request.param, tmp_path)


@pytest.fixture
def store(place: Place) -> Iterator[Store]:
    """An empty store."""
    with place.open() as opened:
        yield opened


@pytest.fixture
def orders(store: Store) -> Table:
    """An empty table with a text key and two attributes."""
    return store.create_table("orders", {"id": "string", "price": "long", "note": "string"}, "id")
