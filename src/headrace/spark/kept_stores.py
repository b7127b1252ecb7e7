"""Stores that stay open between the tasks of a process.

To open a database takes longer than a batch of one row: each driver connects, and ADBC reads the catalog. So a task
leaves its store open for the next task with the same address, if the store permits it (`Store.stays_open`). One task at
a time has it. A store that no task takes for `IDLE_SECONDS` is closed, and so is that of a task with an error.

A store is opened again after `LONGEST_SECONDS`, however busy it is: the settings and the password of its user, which
others can change, are those of the time when it connects.
"""

from __future__ import annotations

import atexit
import itertools
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

from headrace.ports import Store
from headrace.stores.registry import StoreAddress, opening_of

IDLE_SECONDS = 10.0
"""How long a store stays open without a task. A server without a free connection is asked again for longer."""
LONGEST_SECONDS = 600.0
"""How long tasks use a store that was opened once."""
_MOST = 4


class _Kept:
    """A store that is open for a later task; its text shows no secret.

    Args:
        place: where it was opened, see `_place`.
        until: the monotonic time after which no task takes it.
    """

    def __init__(self, number: int, place: tuple[Any, ...], store: Store, until: float) -> None:
        self.place = place
        self.until = until
        self._store = store
        self._timer = threading.Timer(IDLE_SECONDS, _close, (number,))
        self._timer.name = "headrace-closes-idle-store"
        self._timer.daemon = True

    def start(self) -> None:
        """Close the store after the longest time, unless a task takes it."""
        self._timer.start()

    def take(self) -> Store:
        self._timer.cancel()
        return self._store


# Who removes an entry has its store. That is one step, so no lock is needed, which a fork could leave locked.
_kept: dict[int, _Kept] = {}
_numbers = itertools.count()


@contextmanager
def lent(address: StoreAddress) -> Iterator[Store]:
    """Give the caller a store that nothing else uses: one that was kept, or a new one. After an error it is closed."""
    # As of now: a task can change the environment, and then the store is not that of the new one.
    place = _place(address)
    store, until = _taken(place) or (address.open(), monotonic() + LONGEST_SECONDS)
    try:
        yield store
        stays = len(_kept) < _MOST and monotonic() < until and store.stays_open()
    except BaseException:
        store.close()
        raise
    if stays:
        number = next(_numbers)
        kept = _kept[number] = _Kept(number, place, store, until)
        kept.start()
    else:
        store.close()


def _taken(place: tuple[Any, ...]) -> tuple[Store, float] | None:
    for number, kept in list(_kept.items()):
        if kept.place == place and _kept.pop(number, None) is not None:
            return kept.take(), kept.until
    return None


def close_all() -> None:
    """Close all stores that no task has."""
    for number in list(_kept):
        _close(number)


def _close(number: int) -> None:
    if (kept := _kept.pop(number, None)) is not None:
        kept.take().close()


def _place(address: StoreAddress) -> tuple[Any, ...]:
    """Return all that decides which store an address opens, and as which user."""
    prefixes = opening_of(address.url).environment
    environment = {name: value for name, value in os.environ.items() if name.startswith(prefixes)}
    return address.url, dict(address.options), address.instance, environment


atexit.register(close_all)
