"""Orders that come, change and go: what the demonstration's writers write, and the writer process itself.

An order is one row; each of its changes is written as a whole event, with the time at which it happened, so that
the time windows of the statistics count every change where it belongs. A deletion has no event of its own.

Run as a process: ``python -m headrace.demo.orders STORE TABLE USER SEED CLOCK_START``. It writes until it is told
to end (SIGTERM) or its parent is gone.
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
# Event time runs faster than the clock on the wall, so that windows of 30 seconds fill while one watches.
EVENT_SECONDS_PER_SECOND = 10.0
# Events come late by up to so many milliseconds of event time.
LATENESS_MS = 15_000
CHANGES_PER_COMMIT = 20
SECONDS_BETWEEN_COMMITS = 0.1


@dataclass(frozen=True)
class Step:
    """What one step of a writer changes, as rows for `put`, `update` and `delete`."""

    new: list[dict[str, Any]]
    changed: list[dict[str, Any]]
    gone: list[dict[str, Any]]


@dataclass
class OrderBook:
    """The orders of one user, and what happens to them next; the same seed gives the same story.

    Prices are multiples of 0.25, so that sums of any order are exact.
    """

    user: str
    seed: int
    _random: random.Random = field(init=False, repr=False)
    _open: list[str] = field(init=False, default_factory=list, repr=False)
    _count: int = field(init=False, default=0, repr=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def place(self, count: int, event_ms: int) -> list[dict[str, Any]]:
        """Return so many new orders."""
        orders = []
        for _ in range(count):
            self._count += 1
            order = f"{self.user}-{self._count:06d}"
            self._open.append(order)
            orders.append(self._event(order, event_ms))
        return orders

    def step(self, event_ms: int, changes: int = CHANGES_PER_COMMIT) -> Step:
        """Return about ``changes`` changes at a time: half of them new orders, most others changed, some gone."""
        new = self.place(changes // 2, event_ms)
        touched = self._random.sample(self._open, min(len(self._open), changes - len(new)))
        gone = touched[: len(touched) // 5]
        changed = [self._event(order, event_ms) for order in touched[len(gone) :]]
        removed = set(gone)
        self._open = [order for order in self._open if order not in removed]
        return Step(new, changed, [{"UserId": self.user, "OrderId": order} for order in gone])

    def _event(self, order: str, event_ms: int) -> dict[str, Any]:
        return {
            "UserId": self.user,
            "OrderId": order,
            "price": self._random.randint(4, 400) * 0.25,
            "timestamp": event_ms - self._random.randint(0, LATENESS_MS),
        }


@dataclass(frozen=True)
class EventClock:
    """Event time in milliseconds since 1970, from a start on the wall clock (seconds since 1970)."""

    start: float

    def now_ms(self) -> int:
        elapsed = time.time() - self.start
        return int((self.start + elapsed * EVENT_SECONDS_PER_SECOND) * 1000)


def write(store_url: str, table_name: str, book: OrderBook, clock: EventClock) -> None:
    """Write changes until the process is told to end."""
    import headrace

    ending = False

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal ending
        ending = True

    signal.signal(signal.SIGTERM, end)
    # An interruption of the terminal reaches all its processes; the one that started this one ends it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = os.getppid()
    with headrace.open(store_url) as store:
        table = store.table(table_name)
        while not ending and os.getppid() == parent:
            step = book.step(clock.now_ms())
            table.put(step.new)
            if step.changed:
                table.update(step.changed)
            if step.gone:
                table.delete(step.gone)
            time.sleep(SECONDS_BETWEEN_COMMITS)


if __name__ == "__main__":
    _store, _table, _user, _seed, _start = sys.argv[1:]
    write(_store, _table, OrderBook(_user, int(_seed)), EventClock(float(_start)))
