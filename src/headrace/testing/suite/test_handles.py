"""Handles: the last reference to a store closes its files and connections."""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from headrace.ports import Store
from headrace.testing import Place
from headrace.testing.queue_reading import wait_until
from headrace.testing.reading import drain

DESCRIPTORS = Path("/proc/self/fd")


@pytest.fixture
def _no_collection() -> Iterator[None]:
    """No object ends later than its last reference, and the descriptors of earlier tests have ended."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def use(store: Store, name: str) -> None:
    """Let each kind of handle open what it needs."""
    orders = store.create_table(name, {"id": "string", "price": "long"}, "id")
    orders.put([{"id": str(number), "price": 1} for number in range(100)])
    orders.get({"id": "1"})
    orders.scan().read_next_batch()
    if store.capabilities.tunnels:
        tunnel = store.create_tunnel(name, "changes")
        tunnel.describe()
        drain(tunnel)
    if store.capabilities.queues:
        queue = store.create_queue(f"{name} clicks", {"data": "string"}, partitions=1)
        queue.append([{"data": "a"}])
        queue.read(0, 0)


def descriptors() -> Counter[str]:
    """Return the open files of this process, and one name for all connections."""
    found: Counter[str] = Counter()
    for descriptor in DESCRIPTORS.iterdir():
        # That of the listing itself is closed.
        with suppress(FileNotFoundError):
            name = str(descriptor.readlink())
            found["connection" if name.startswith("socket:") else name] += 1
    return found


@pytest.mark.skipif(not DESCRIPTORS.is_dir(), reason="open files are those of Linux")
@pytest.mark.usefixtures("_no_collection")
def test_the_last_reference_to_a_store_closes_its_files_and_connections(place: Place) -> None:
    # A thread may keep connections for the next handle.
    use(place.open(), "first")
    before = descriptors()
    store = place.open()
    use(store, "second")
    ended = weakref.ref(store)
    del store
    assert ended() is None
    # A library can close a file in a thread of its own, such as Arrow after the last column of a row group.
    wait_until(lambda: descriptors() - before == Counter())
