"""Helpers for tests of queues: they make rows and read them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from headrace.ports import Consumer, Queue, Store

Row = dict[str, Any]
_PATIENCE = 30.0


def values(*found: Any) -> list[Row]:
    """Return rows of one column, ``data``."""
    return [{"data": value} for value in found]


def rows_in(queue: Queue, partition: int = 0, page_rows: int = 1000) -> list[Row]:
    """Return the rows of a partition, read page by page."""
    rows: list[Row] = []
    next_row = queue.bounds()[partition].lower
    while True:
        page = queue.read(partition, next_row, page_rows)
        assert (page.partition, page.first) == (partition, next_row)
        if page.rows.num_rows == 0:
            return rows
        assert page.rows.num_rows <= page_rows
        rows += page.rows.to_pylist()
        next_row = page.next


def data_in(queue: Queue, partition: int = 0, page_rows: int = 1000) -> list[Any]:
    """Return the column ``data`` of a partition."""
    return [row["data"] for row in rows_in(queue, partition, page_rows)]


def edges(queue: Queue) -> list[tuple[int, int]]:
    """Return the lower and upper row index of each partition, by number."""
    found = queue.bounds()
    assert list(found) == list(range(len(found)))
    return [(bounds.lower, bounds.upper) for bounds in found.values()]


def consumer_of(store: Store, name: str, queue: str, *, vital: bool = False) -> Consumer:
    """Create a consumer and register it for a queue."""
    consumer = store.create_consumer(name)
    store.register_consumer(queue, name, vital=vital)
    return consumer


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until a condition is true."""
    deadline = time.monotonic() + _PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.005)
