"""The writers of the demonstration: they insert, update and delete orders.

An order is one row. Each insert and update writes the whole row with the time of the event, so the window of that time
counts it. A deletion has no time.

Run as a process: ``python -m headrace.demo.orders STORE TABLE USER SEED CLOCK_START``. It writes until it receives
SIGTERM or its parent has ended.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

COLUMNS = {"UserId": "string", "OrderId": "string", "price": "double", "timestamp": "long"}
PRIMARY_KEY = ("UserId", "OrderId")
# Event time runs faster than the system clock, so that windows of 30 seconds fill quickly.
EVENT_SECONDS_PER_SECOND = 10.0
# The maximum delay of an event, in milliseconds of event time.
LATENESS_MS = 15_000
CHANGES_PER_COMMIT = 20
SECONDS_BETWEEN_COMMITS = 0.1


@dataclass(frozen=True)
class Step:
    """The changes of one step of a writer: rows to put, rows to update, and keys to delete."""

    new: list[dict[str, Any]]
    changed: list[dict[str, Any]]
    deleted: list[dict[str, Any]]


@dataclass
class OrderBook:
    """The orders of one user, and their next changes. The same seed gives the same changes.

    Prices are multiples of 0.25, so that sums are exact in any order of addition.
    """

    user: str
    seed: int
    _random: random.Random = field(init=False, repr=False)
    _open: list[str] = field(init=False, default_factory=list, repr=False)
    _count: int = field(init=False, default=0, repr=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def place(self, count: int, event_ms: int) -> list[dict[str, Any]]:
        """Return ``count`` new orders."""
        orders = []
        for _ in range(count):
            self._count += 1
            order = f"{self.user}-{self._count:06d}"
            self._open.append(order)
            orders.append(self._event(order, event_ms))
        return orders

    def step(self, event_ms: int, changes: int = CHANGES_PER_COMMIT) -> Step:
        """Return at most ``changes`` changes of one time: half are inserts, two fifths updates, a tenth deletes."""
        new = self.place(changes // 2, event_ms)
        sample = self._random.sample(self._open, min(len(self._open), changes - len(new)))
        deleted = sample[: len(sample) // 5]
        changed = [self._event(order, event_ms) for order in sample[len(deleted) :]]
        removed = set(deleted)
        self._open = [order for order in self._open if order not in removed]
        return Step(new, changed, [{"UserId": self.user, "OrderId": order} for order in deleted])

    def _event(self, order: str, event_ms: int) -> dict[str, Any]:
        return {
            "UserId": self.user,
            "OrderId": order,
            "price": self._random.randint(4, 400) * 0.25,
            "timestamp": event_ms - self._random.randint(0, LATENESS_MS),
        }


@dataclass(frozen=True)
class EventClock:
    """Event time in milliseconds since 1970. ``start`` is the system time at the start, in seconds since 1970."""

    start: float

    def now_ms(self) -> int:
        elapsed = time.time() - self.start
        return int((self.start + elapsed * EVENT_SECONDS_PER_SECOND) * 1000)


def write(store_url: str, table_name: str, book: OrderBook, clock: EventClock) -> None:
    """Write changes until SIGTERM, or until the parent process has ended."""
    import headrace

    ending = False

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal ending
        ending = True

    signal.signal(signal.SIGTERM, end)
    # Ctrl-C reaches all processes of the terminal. The parent process ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = os.getppid()
    with headrace.open(store_url) as store:
        table = store.table(table_name)
        while not ending and os.getppid() == parent:
            step = book.step(clock.now_ms())
            table.put(step.new)
            if step.changed:
                table.update(step.changed)
            if step.deleted:
                table.delete(step.deleted)
            time.sleep(SECONDS_BETWEEN_COMMITS)


if __name__ == "__main__":
    _store, _table, _user, _seed, _start = sys.argv[1:]
    write(_store, _table, OrderBook(_user, int(_seed)), EventClock(float(_start)))
