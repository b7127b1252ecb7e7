"""Fixtures of the conformance tests. The fixture ``place`` is of the package that has the store."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.ports import Publisher, Queue, Store, Table, Tunnel
from headrace.testing import Place, reading
from headrace.testing.capabilities import TRAITS, lacking


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marks of the tests."""
    config.addinivalue_line("markers", "needs(*capabilities): the capabilities that a test needs of its store")
    config.addinivalue_line("markers", "needs_type(*types): the types of columns that a test needs of its store")
    config.addinivalue_line(
        "markers", "needs_key_type(*types): the types of key columns that a test needs of its store"
    )


@pytest.fixture
def store(place: Place, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """An empty store."""
    with place.open() as opened:
        if lacks := lacking(request.node, opened.capabilities, place.traits):
            pytest.skip(f"the store lacks {', '.join(lacks)}")
        TRAITS[type(opened)] = place.traits
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


@pytest.fixture
def tunnel(store: Store, orders: Table) -> Tunnel:
    """A tunnel of the changes of `orders`."""
    return store.create_tunnel("orders", "changes", "Stream")


@pytest.fixture
def publisher(store: Store) -> Publisher:
    """The publisher of a job."""
    return store.publisher("job")
