"""Figures of the last published batches of this process, which Spark does not know for ``foreachBatch``."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

PARTS = ("gather", "evaluate", "publish")
"""The parts of Spark's phase ``addBatch``: read the rows that decide, compute and stage rows, publish them."""
_KEPT = 10_000
_guard = threading.Lock()
_figures: OrderedDict[tuple[str, int], BatchFigures] = OrderedDict()


@dataclass
class BatchFigures:
    """Figures of a batch.

    Attributes:
        rows: the rows that it has published into all its targets; None before it is published.
        seconds: the durations of its parts.
        state_rows, state_bytes: the size of the state that headrace keeps; None without state.
    """

    rows: int | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    state_rows: int | None = None
    state_bytes: int | None = None


def figures_of(job: str, batch: int) -> BatchFigures:
    """Return the figures of a batch; empty ones if this process has not published it."""
    with _guard:
        return _figures.get((job, batch)) or BatchFigures()


def begin(job: str, batch: int) -> None:
    """Forget the figures of an attempt at a batch that has failed."""
    with _guard:
        _figures.pop((job, batch), None)


@contextmanager
def part(job: str, batch: int, name: str) -> Iterator[None]:
    """Note the duration of the block as that of a part. A part in it does not count for it."""
    start, before = time.monotonic(), sum(figures_of(job, batch).seconds.values())
    try:
        yield
    finally:
        seconds = time.monotonic() - start
        with _guard:
            noted = _noted(job, batch).seconds
            inner = sum(noted.values()) - before
            noted[name] = noted.get(name, 0.0) + seconds - inner


def note_rows(job: str, batch: int, rows: int) -> None:
    """Keep the number of published rows of a batch."""
    with _guard:
        _noted(job, batch).rows = rows


def note_state(job: str, batch: int, rows: int | None, size: int | None) -> None:
    """Keep the size of the state after a batch."""
    with _guard:
        noted = _noted(job, batch)
        noted.state_rows, noted.state_bytes = rows, size


def _noted(job: str, batch: int) -> BatchFigures:
    found = _figures.setdefault((job, batch), BatchFigures())
    if len(_figures) > _KEPT:
        _figures.popitem(last=False)
    return found
