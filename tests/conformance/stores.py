"""The stores that the conformance suite runs against. A new store is one entry in `STORES`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import headrace
from headrace.ports import Store
from headrace.stores.ytsaurus.files import YtFiles
from headrace.stores.ytsaurus.store import YtStore
from tests.conformance import serving


def _embedded(directory: Path) -> Store:
    return headrace.open(directory / "store", create=True, synchronous="off")


def _instance(directory: Path) -> str:
    # An instance's name has at most 16 characters.
    return "t" + hashlib.sha256(str(directory).encode()).hexdigest()[:15]


def _tablestore(directory: Path) -> Store:
    url = f"tablestore+{serving.tablestore_endpoint()}/{_instance(directory)}"
    return headrace.open(url, access_key_id=serving.KEY_ID, access_key_secret=serving.KEY_SECRET)


def _ytsaurus(directory: Path) -> Store:
    url = f"yt+{serving.ytsaurus_endpoint()}//tests/{_instance(directory)}"
    store = headrace.open(url, token=serving.TOKEN, retry_seconds=20)
    assert isinstance(store, YtStore)
    # Files are those of the whole cluster, and tests share one.
    store.files = lambda: YtFiles(store._connection, store._names, f"{store._names.directory}/files")  # type: ignore[method-assign]
    return store


STORES: dict[str, Callable[[Path], Store]] = {
    "embedded": _embedded,
    "tablestore": _tablestore,
    "ytsaurus": _ytsaurus,
}
"""For each store a function that opens it, making it where it is not there.

The argument is a directory of the test's own. Calls with the same one, in this process or another, open the same
store; another one gives a store with nothing of this one in it.
"""


@dataclass(frozen=True)
class Place:
    """Where a test's store is. It can be pickled, so that another process can open the store too."""

    kind: str
    directory: Path

    def open(self) -> Store:
        """Return a handle on the store."""
        return STORES[self.kind](self.directory)

    def commits(self, count: int) -> int:
        """Return how many commits a test of many processes makes: fewer where each takes several requests."""
        return count // 8 if self.kind == "ytsaurus" else count

    def split(self, table: str) -> None:
        """Split the largest partition of a table, as services do by themselves when they see fit."""
        with _embedded_behind(self) as store:
            store.table(table).split()


def _embedded_behind(place: Place) -> Store:
    """Return the embedded store that has the rows of a test's store: itself, or what the endpoint serves."""
    if place.kind == "embedded":
        return place.open()
    return headrace.open(serving.tablestore_root() / _instance(place.directory))


def require(store: Store, capability: str) -> None:
    """Skip the test where the store cannot do what it is about; see `headrace.ports.Capabilities`."""
    if not getattr(store.capabilities, capability):
        pytest.skip(f"the store does not have: {capability}")


def has_type(store: Store, kind: str) -> bool:
    """Tell whether columns of the store can have a type."""
    types = store.capabilities.column_types
    return types is None or kind in types


def require_type(store: Store, kind: str) -> None:
    """Skip the test where columns of the store cannot have a type."""
    if not has_type(store, kind):
        pytest.skip(f"the store does not have the type {kind}")
