"""Growth with the number of rows in a log: a queue of up to 10⁹ rows, a change log of up to 10⁸ changes.

Long logs are made by copying chunks inside the store's database, so each row is stored as an append would store it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import apsw
import numpy as np
import pyarrow as pa

import headrace
from bench.growth.points import Point, result, sizes, timed
from bench.measure import Result
from headrace.batches.feeds.queue_feed import QueueFeed
from headrace.batches.feeds.tunnel_feed import TunnelFeed
from headrace.model.tunnels.records import INITIAL_BATCH
from headrace.model.tunnels.values import Start, StartKind
from headrace.stores.embedded.chunks import MAX_CHUNK_ROWS
from headrace.stores.embedded.connection import ROW_INDEX_BITS
from headrace.stores.embedded.store_files import DATABASE_FILE
from headrace.support.sqlite.opening import checksum_vfs

_EARLIEST = Start(StartKind.EARLIEST)
_BATCH_ROWS = 10_000
# Chunks that one transaction copies.
_COPIED_AT_ONCE = 1000


def growth_queue(directory: Path, scale: float) -> Result:
    """A queue of up to 1,000,000,000 rows in one partition."""
    points = itertools.chain.from_iterable(
        _queue(directory / str(size), size) for size in sizes(1_000_000_000 * scale, 4, 10)
    )
    return result("queue", "rows of a queue", "rows", points, scale)


def _queue(directory: Path, size: int) -> Iterator[Point]:
    rows = pa.table({"value": pa.array(np.arange(MAX_CHUNK_ROWS) % 128, pa.int8())})
    with headrace.open(directory, create=True, synchronous="off") as store:
        queue = store.create_queue("events", {"value": "byte"})
        queue.append(rows)
        _copy_chunks(directory, size)
        end, few = queue.bounds()[0].upper, rows.slice(0, 100)
        consumer = store.create_consumer("reader")
        store.register_consumer("events", "reader", vital=True)
        yield timed("append 100 rows", size, lambda: queue.append(few))
        feed = QueueFeed(store, [queue], start=_EARLIEST)
        start = feed.latest(feed.initial())
        yield timed("plan a batch with all rows", size, lambda: feed.tasks(start, feed.latest(start)))
        for what, first in (("first", 0), ("last", end - _BATCH_ROWS)):
            yield timed(
                f"read the {what} {_BATCH_ROWS:,} rows",
                size,
                lambda first=first: queue.read(partition=0, first_row=first, max_rows=_BATCH_ROWS),  # type: ignore[misc]
            )
        yield timed("find a row by its time", size, lambda: queue.row_at(0, 0.0))
        yield timed("describe the queue", size, queue.describe)
        yield timed("headrace store check", size, store.check, repeats=1)
        consumer.advance("events", {0: end}, {0: 0})
        yield timed("append 100 rows, with a part of all rows trimmed", size, lambda: queue.append(few))
        yield timed("trim all rows that are read", size, queue.trim, repeats=1)
    _remove(directory)


def growth_log(directory: Path, scale: float) -> Result:
    """A table with a log of up to 100,000,000 changes."""
    points = itertools.chain.from_iterable(
        _log(directory / str(size), size) for size in sizes(100_000_000 * scale, 4, 10)
    )
    return result("log", "changes in the log of a table", "changes", points, scale)


def _log(directory: Path, size: int) -> Iterator[Point]:
    count = MAX_CHUNK_ROWS
    with headrace.open(directory, create=True, synchronous="off") as store:
        table = store.create_table("events", {"id": "long", "value": "byte"}, ["id"])
        tunnel = store.create_tunnel("events", "all", kind="Stream")
        rows = pa.table({"id": np.arange(count), "value": pa.array(np.arange(count) % 128, pa.int8())})
        table.put(rows)
        _copy_chunks(directory, size)
        (channel,) = tunnel.channels()
        few = rows.slice(0, 100)
        yield timed("put 100 rows", size, lambda: table.put(few))
        yield timed("describe the tunnel, with its lag", size, tunnel.describe)
        feed = TunnelFeed(tunnel)
        yield timed("plan the first batch", size, lambda: feed.plan(feed.latest(INITIAL_BATCH)))
        end = tunnel.advance(channel.id, channel.committed, max(0, size - 2 * _BATCH_ROWS))
        for what, place in (("first", channel.committed), ("last", end)):
            yield timed(
                f"read {_BATCH_ROWS:,} changes at the {'beginning' if what == 'first' else 'end'}",
                size,
                lambda place=place: tunnel.read(channel.id, place, _BATCH_ROWS),  # type: ignore[misc]
            )
        yield timed("headrace store check", size, store.check, repeats=1)
        tunnel.commit({channel.id: end})
        yield timed("plan a batch at the end", size, lambda: feed.plan(feed.latest(INITIAL_BATCH)))
        (partition,) = table.describe().partitions
        yield timed("trim all changes that are read", size, lambda: table.trim(before={partition.id: size}), repeats=1)
        assert table.describe().partitions[0].first > size - 2 * MAX_CHUNK_ROWS
    _remove(directory)


def _copy_chunks(directory: Path, rows: int) -> None:
    """Let the log of the store's only object grow to about ``rows`` rows, by copies of its first chunk."""
    database = apsw.Connection(str(directory / DATABASE_FILE), vfs=checksum_vfs())
    database.pragma("synchronous", "off")
    ((partition, first, following, size),) = database.execute("SELECT id, first, next, log_bytes FROM partition")
    base = partition << ROW_INDEX_BITS
    copies = max(0, (rows - (following - first)) // MAX_CHUNK_ROWS)
    for begin in range(0, copies, _COPIED_AT_ONCE):
        count = min(_COPIED_AT_ONCE, copies - begin)
        with database:
            database.execute(
                "WITH RECURSIVE number(i) AS (SELECT ?1 UNION ALL SELECT i + 1 FROM number WHERE i + 1 < ?1 + ?2) "
                "INSERT INTO chunk (id, n, level, schema, version, ts, commits, data, blob) "
                "SELECT ?3 + i * n, n, level, schema, version, ts, commits, data, blob FROM number, chunk "
                "WHERE id = ?4",
                (begin, count, base + following, base),
            )
            database.execute(
                "UPDATE partition SET next = next + ?1, small = 0, log_bytes = log_bytes + ?2 WHERE id = ?3",
                (count * MAX_CHUNK_ROWS, count * size, partition),
            )
    database.close()


def _remove(directory: Path) -> None:
    """Remove a store, so that only one long log is on the disk."""
    for file in directory.iterdir():
        file.unlink()
