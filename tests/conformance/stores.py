"""The stores that the conformance suite runs against. A new store is one entry in `STORES`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import headrace
from headrace.ports import Store


def _embedded(directory: Path) -> Store:
    return headrace.open(directory / "store", create=True, synchronous="off")


STORES: dict[str, Callable[[Path], Store]] = {"embedded": _embedded}
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


def require(store: Store, capability: str) -> None:
    """Skip the test where the store cannot do what it is about; see `headrace.ports.Capabilities`."""
    if not getattr(store.capabilities, capability):
        pytest.skip(f"the store does not have: {capability}")
