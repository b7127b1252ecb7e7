"""Growth with the number of processes that write into one embedded store."""

from __future__ import annotations

import itertools
import multiprocessing
import time
from collections.abc import Iterator
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path

import numpy as np
import pyarrow as pa

import headrace
from bench.growth.points import Point, result, sizes, timed
from bench.measure import Result

_APPENDED_ROWS = 100
_APPENDS = 60


def growth_writers(directory: Path, scale: float) -> Result:
    """Durable appends of 100 rows by up to 32 processes."""
    with headrace.open(directory, create=True) as store:
        store.create_queue("events", {"value": "long"})
    points = itertools.chain.from_iterable(_writers(directory, size) for size in sizes(32 * scale, 5, 2))
    return result("writers", "processes that write into one store", "processes", points, scale)


def _writers(directory: Path, size: int) -> Iterator[Point]:
    """Measure one process beside others, which append until it has ended."""
    context = multiprocessing.get_context("spawn")
    stop, ready = context.Event(), context.Barrier(size)
    others = [context.Process(target=_append, args=(directory, stop, ready), daemon=True) for _ in range(size - 1)]
    for other in others:
        other.start()
    rows = _rows()
    with headrace.open(directory) as store:
        queue = store.queue("events")
        ready.wait()
        before, begin = queue.bounds()[0].upper, time.perf_counter()
        waited = timed(f"an append of {_APPENDED_ROWS} rows", size, lambda: queue.append(rows), repeats=_APPENDS)
        taken, appended = time.perf_counter() - begin, (queue.bounds()[0].upper - before) / _APPENDED_ROWS
    stop.set()
    for other in others:
        other.join()
    yield waited
    yield Point("a commit of any process", size, taken / appended, waited.peak_mb)


def _append(directory: Path, stop: Event, ready: Barrier) -> None:
    rows = _rows()
    with headrace.open(directory) as store:
        queue = store.queue("events")
        ready.wait()
        while not stop.is_set():
            queue.append(rows)


def _rows() -> pa.Table:
    return pa.table({"value": np.arange(_APPENDED_ROWS)})
