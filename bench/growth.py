"""Growth of an embedded store: the time and the memory of single steps against the size of what they work on.

Long logs are made by copying chunks inside the store's database, so each row is stored as an append would store it.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import apsw
import numpy as np
import psutil
import pyarrow as pa

import headrace
from bench.measure import Ratio, Result
from headrace.feeds.queue_feed import QueueFeed
from headrace.feeds.tunnel_feed import TunnelFeed
from headrace.ports import Store
from headrace.stores.embedded.chunks import MAX_CHUNK_ROWS
from headrace.stores.embedded.connection import DATABASE_FILE, ROW_INDEX_BITS
from headrace.streaming_sql.stream_registry import StreamRegistry
from headrace.streaming_sql.workspace import Workspace
from headrace.tunnels.records import INITIAL_BATCH
from headrace.tunnels.values import Start, StartKind

_REPEATS = 5
_EARLIEST = Start(StartKind.EARLIEST)
# Below this, a clock measures other things than growth.
_FLOOR_SECONDS = 0.002
# A step that takes n log n, on a machine with other work, stays below this.
_BOUND = 2.0
DATA = Path(__file__).parent.parent / "docs" / "images" / "growth.json"
"""The measured points, of which `tools/growth_pictures.py` draws the curves."""


@dataclass(frozen=True)
class Point:
    """A step at one size.

    Attributes:
        what: the step.
        size: the number of partitions, channels, streams, tables or rows.
        seconds: the median time of the step.
        megabytes: the memory that the process has taken for it.
    """

    what: str
    size: int
    seconds: float
    megabytes: float


def growth(directory: Path, scale: float) -> Result:
    """Planning, looking up and reading at up to 10,000 objects and 1,000,000,000 rows."""
    points: list[Point] = []
    many = int(10_000 * scale)
    for size in _sizes(many, 3):
        points += _partitions(directory / f"partitions-{size}", size)
        points += _tables(directory / f"tables-{size}", size)
    for size in _sizes(many, 3):
        points += _channels(directory / f"channels-{size}", size)
    for size in _sizes(int(1000 * scale), 3):
        points += _streams(directory / f"streams-{size}", size)
    points += _queue_rows(directory / "queue", _sizes(int(1_000_000_000 * scale), 4))
    points += _log_rows(directory / "log", _sizes(int(100_000_000 * scale), 3))
    DATA.parent.mkdir(exist_ok=True)
    DATA.write_text(json.dumps([asdict(point) for point in points], indent=1) + "\n")
    return Result(
        "growth: steps of an embedded store against size",
        {
            f"{what}, {_count(point.size)}": f"{1000 * point.seconds:.1f} ms, {point.megabytes:.0f} MB"
            for what, curve in curves(points).items()
            for point in curve
        },
        [
            Ratio(f"{what}: growth / growth of n log n", _beyond(curve), _BOUND, at_most=True)
            for what, curve in curves(points).items()
        ],
        "Medians of repeated steps in one process, and the memory that the process has taken for them. A time below "
        f"{1000 * _FLOOR_SECONDS:.0f} ms counts as that.",
    )


def curves(points: list[Point]) -> dict[str, list[Point]]:
    """Return the points by step, by size."""
    names = dict.fromkeys(point.what for point in points)
    return {name: sorted((p for p in points if p.what == name), key=lambda p: p.size) for name in names}


def _beyond(curve: list[Point]) -> float:
    """Return how much faster the time has grown than n log n between the two largest sizes."""
    small, large = curve[-2:]
    grown = max(large.seconds, _FLOOR_SECONDS) / max(small.seconds, _FLOOR_SECONDS)
    return grown / (large.size * math.log(large.size) / (small.size * math.log(small.size)))


def _sizes(largest: int, count: int) -> list[int]:
    """Return ``count`` sizes, each ten times the one before."""
    return [max(2, largest // 10**power) for power in reversed(range(count))]


def _count(size: int) -> str:
    return f"{size:,}"


def _timed(what: str, size: int, run: Callable[[], object], repeats: int = _REPEATS) -> Point:
    process = psutil.Process()
    before, taken = process.memory_info().rss, []
    for _ in range(repeats):
        begin = time.perf_counter()
        run()
        taken.append(time.perf_counter() - begin)
    return Point(what, size, statistics.median(taken), max(0, process.memory_info().rss - before) / 1e6)


def _partitions(directory: Path, size: int) -> Iterator[Point]:
    """A queue with many partitions, with a row in each."""
    with headrace.open(directory, create=True, synchronous="off") as store:
        queue = store.create_queue("events", {"value": "long"}, partitions=size)
        numbers = np.arange(size)
        queue.append(pa.table({"$tablet_index": numbers, "value": numbers}))
        feed = QueueFeed(store, [queue], start=_EARLIEST)
        start = feed.latest(feed.initial())

        def plan() -> None:
            assert sum(len(task) for task in feed.tasks(start, feed.latest(start))) == size

        yield _timed("plan a batch over partitions of a queue", size, plan)


def _channels(directory: Path, size: int) -> Iterator[Point]:
    """A table with many partitions, each with a change that a tunnel has not read."""
    with headrace.open(directory, create=True, synchronous="off") as store:
        table = store.create_table("events", {"id": "long", "value": "long"}, ["id"])
        begin = time.perf_counter()
        _split(store, size)
        yield Point("split a table to partitions", size, time.perf_counter() - begin, 0.0)
        tunnel = store.create_tunnel("events", "all", kind="Stream")
        numbers = np.arange(size)
        table.put(pa.table({"id": numbers, "value": numbers}))

        def plan() -> None:
            feed = TunnelFeed(tunnel)
            assert len(feed.plan(feed.latest(INITIAL_BATCH)).channels) == size

        yield _timed("plan a batch over channels of a tunnel", size, plan, repeats=3)


def _split(store: Store, size: int) -> None:
    """Split table ``events`` into partitions of one key each, halves first."""
    table = store.table("events")
    (whole,) = table.describe().partitions
    parts = [(whole.id, 0, size)]
    while parts:
        partition, low, high = parts.pop()
        if high - low > 1:
            middle = (low + high) // 2
            left, right = table.split(partition, at={"id": middle})
            parts += [(left, low, middle), (right, middle, high)]


def _tables(directory: Path, size: int) -> Iterator[Point]:
    """A store with many tables."""
    with headrace.open(directory, create=True, synchronous="off") as store:
        begin = time.perf_counter()
        for number in range(size):
            store.create_table(f"table{number}", {"id": "long", "value": "long"}, ["id"])
        yield Point("create tables", size, time.perf_counter() - begin, 0.0)
        yield _timed("list the tables", size, store.tables)
        row = pa.table({"id": [1], "value": [1]})
    with headrace.open(directory) as store:
        yield _timed("open one of the tables and put a row", size, lambda: store.table(f"table{size - 1}").put(row))


def _streams(directory: Path, size: int) -> Iterator[Point]:
    """A workspace with many streams that have run."""
    directory.mkdir()
    workspace = Workspace(directory)
    registry = StreamRegistry(workspace)
    begin = time.perf_counter()
    for number in range(size):
        name = f"stream{number}"
        registry.record_start(name, script="", fingerprint="", target="t", checkpoint=f"/tmp/{name}")
        registry.set_running(name, name)
    yield Point("start streams of a workspace", size, time.perf_counter() - begin, 0.0)
    yield _timed("show the streams of a workspace", size, registry.all)
    yield _timed("find one of the streams", size, lambda: registry.get(f"stream{size // 2}"))
    workspace.close()


def _queue_rows(directory: Path, sizes: list[int]) -> Iterator[Point]:
    """A queue that grows: appends, plans, and reads at its end."""
    rows = pa.table({"value": pa.array(np.arange(MAX_CHUNK_ROWS) % 128, pa.int8())})
    with headrace.open(directory, create=True, synchronous="off") as store:
        queue = store.create_queue("events", {"value": "byte"})
        queue.append(rows)
        few = rows.slice(0, 100)
        for size in sizes:
            _copy_chunks(directory, size)
            end = queue.bounds()[0].upper
            yield _timed("append 100 rows to a queue of rows", size, lambda: queue.append(few))

            def plan() -> None:
                feed = QueueFeed(store, [queue], start=_EARLIEST)
                start = feed.latest(feed.initial())
                assert feed.tasks(start, feed.latest(start))

            yield _timed("plan a batch over a queue of rows", size, plan)
            yield _timed(
                "read 10,000 rows at the end of a queue of rows",
                size,
                lambda end=end: queue.read(partition=0, first_row=end - 10_000, max_rows=10_000),  # type: ignore[misc]
            )


def _log_rows(directory: Path, sizes: list[int]) -> Iterator[Point]:
    """A change log that grows: puts, lag, and reads at its end."""
    count = MAX_CHUNK_ROWS
    with headrace.open(directory, create=True, synchronous="off") as store:
        table = store.create_table("events", {"id": "long", "value": "byte"}, ["id"])
        tunnel = store.create_tunnel("events", "all", kind="Stream")
        rows = pa.table({"id": np.arange(count), "value": pa.array(np.arange(count) % 128, pa.int8())})
        table.put(rows)
        (channel,) = tunnel.channels()
        few = rows.slice(0, 100)
        for size in sizes:
            _copy_chunks(directory, size)
            yield _timed("put 100 rows into a table with a log of changes", size, lambda: table.put(few))
            yield _timed("lag of a tunnel over a log of changes", size, tunnel.describe)
            end = tunnel.advance(channel.id, channel.committed, size - 10_000)
            yield _timed(
                "read 10,000 changes at the end of a log of changes",
                size,
                lambda end=end: tunnel.read(channel.id, end, 10_000),  # type: ignore[misc]
            )


def _copy_chunks(directory: Path, rows: int) -> None:
    """Let the log of the store's only object grow to about ``rows`` rows, by copies of its first chunk."""
    database = apsw.Connection(str(directory / DATABASE_FILE))
    database.pragma("synchronous", "off")
    ((partition, first, following),) = database.execute("SELECT id, first, next FROM partition")
    copies = max(0, (rows - (following - first)) // MAX_CHUNK_ROWS)
    base = partition << ROW_INDEX_BITS
    with database:
        database.execute(
            "WITH RECURSIVE number(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM number WHERE i + 1 < ?1) "
            "INSERT INTO chunk (id, n, level, schema, version, ts, commits, data, blob) "
            "SELECT ?2 + i * n, n, level, schema, version, ts, commits, data, blob FROM number, chunk "
            "WHERE id = ?3 AND ?1 > 0",
            (copies, base + following, base),
        )
        database.execute(
            "UPDATE partition SET next = next + ?1, small = 0, log_bytes = log_bytes + ?1 * ("
            "SELECT log_bytes / next FROM partition) WHERE id = ?2",
            (copies * MAX_CHUNK_ROWS, partition),
        )
    database.close()
