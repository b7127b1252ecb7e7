"""Delta tables: batches of changes by key that rewrite files, delta-rs' merge, and deletion vectors."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

import headrace
from bench.measure import COLUMNS, Ratio, Result, orders, seconds

_KEY = ["UserId", "OrderId"]
_REPEATS = 5


def delta_changes(directory: Path, scale: float) -> Result:
    """10,000 changes of random keys, half updates and half new rows, into 1,000,000 rows."""
    return _changes(directory, int(1_000_000 * scale), int(10_000 * scale), files=16, ratio=1.5, rewriting=0.5)


def delta_large(directory: Path, scale: float) -> Result:
    """100 changes of random keys, half updates and half new rows, into 10,000,000 rows."""
    return _changes(directory, int(10_000_000 * scale), 100, files=64, ratio=8.0, rewriting=1.0)


def _changes(directory: Path, rows: int, count: int, *, files: int, ratio: float, rewriting: float) -> Result:
    """Compare the three ways.

    Args:
        ratio: the goal: how often the CPU time of a batch with vectors is in that of the merge.
        rewriting: the goal: the share of the merge's wall time that a batch without vectors takes.
    """
    store = headrace.open(f"delta://{directory}", create=True)
    tables = {
        name: store.create_table(name, COLUMNS, _KEY, deletion_vectors=name == "vectors")
        for name in ("rewriting", "vectors", "merge")
    }
    for first in range(0, rows, -(-rows // files)):
        part = orders(first, min(-(-rows // files), rows - first))
        for table in tables.values():
            table.put(part)
    ways: dict[str, Callable[[pa.Table], object]] = {
        "rewriting": tables["rewriting"].put,
        "merge": lambda part: _merge(directory / "merge", part),
        "vectors": tables["vectors"].put,
    }
    cpu: dict[str, list[float]] = {name: [] for name in ways}
    wall: dict[str, list[float]] = {name: [] for name in ways}
    written: dict[str, list[int]] = {name: [] for name in ways}
    for number in range(1 + _REPEATS):
        part = _batch(number, rows, count)
        for name, write in ways.items():
            before, begin = _size(directory / name), time.process_time()
            wall[name].append(seconds(partial(write, part)))
            cpu[name].append(time.process_time() - begin)
            written[name].append(_size(directory / name) - before)
    expected = rows + (1 + _REPEATS) * (count - count // 2)
    assert [table.scan([]).read_all().num_rows for table in tables.values()] == [expected] * 3
    # The first batch of each warms up.
    spent, taken, size = (
        {name: statistics.median(each[1:]) for name, each in figures.items()} for figures in (cpu, wall, written)
    )
    texts = {name: f"{taken[name]:.2f} s, {spent[name]:.2f} CPU seconds, {size[name] / 1e6:.2f} MB" for name in ways}
    return Result(
        f"Delta Lake: batches of {count:,} changes of random keys into a table of {rows:,} rows in {files} files",
        {
            "headrace, rewriting files": texts["rewriting"],
            "`merge` of delta-rs": texts["merge"],
            "headrace, deletion vectors": texts["vectors"],
        },
        [
            Ratio("merge / vectors, CPU", spent["merge"] / spent["vectors"], ratio),
            Ratio("rewriting / merge, wall time", taken["rewriting"] / taken["merge"], rewriting, at_most=True),
        ],
        "Medians of five batches, in turn. headrace waits until files and log are on the disk; delta-rs does not.",
    )


def _batch(number: int, rows: int, count: int) -> pa.Table:
    """Return changes: half of the keys are random ones of the table, and half new."""
    old = orders(number, count // 2, shuffled=rows)
    return pa.concat_tables([old, orders(rows + number * count, count - count // 2)]).combine_chunks()


def _merge(path: Path, part: pa.Table) -> None:
    on = " AND ".join(f"t.{name} = s.{name}" for name in _KEY)
    merger = DeltaTable(path).merge(part, on, source_alias="s", target_alias="t")
    merger.when_matched_update_all().when_not_matched_insert_all().execute()


def _size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
