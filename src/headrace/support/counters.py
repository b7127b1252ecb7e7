"""Counts and durations of the operations of this process, for `headrace.monitoring`. Off until `enable` is called."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

enabled = False
# A bound, should labels have more values than expected.
_MOST = 1000
_guard = threading.Lock()


@dataclass
class Tally:
    """How many operations there were, and their seconds in total."""

    count: int = 0
    seconds: float = 0.0


_tallies: dict[tuple[str, ...], Tally] = {}


def enable() -> None:
    """Count operations from now on."""
    global enabled
    enabled = True


def disable() -> None:
    """Count no more operations, and forget the counts."""
    global enabled
    enabled = False
    with _guard:
        _tallies.clear()


def add(family: str, *labels: str, seconds: float, count: int = 1) -> None:
    """Count an operation.

    Args:
        family: the kind of operation: ``store``, ``http``, ``unrepresentable``, ``mirror`` or ``mirror_refused``.
        labels: the values of the family's labels. Their number must be bounded.
        count: how many there were.
    """
    key = (family, *labels)
    with _guard:
        tally = _tallies.get(key)
        if tally is None:
            if len(_tallies) >= _MOST:
                return
            tally = _tallies[key] = Tally()
        tally.count += count
        tally.seconds += seconds


@contextlib.contextmanager
def store_operation(name: str) -> Iterator[None]:
    """Count the block as an operation of a store, with its outcome."""
    begin, outcome = time.perf_counter(), "error"
    try:
        yield
        outcome = "success"
    finally:
        add("store", name, outcome, seconds=time.perf_counter() - begin)


def of_family(family: str) -> dict[tuple[str, ...], Tally]:
    """Return the counts of a family by the values of its labels."""
    with _guard:
        return {
            labels: Tally(tally.count, tally.seconds)
            for (name, *rest), tally in _tallies.items()
            for labels in [tuple(rest)]
            if name == family
        }
