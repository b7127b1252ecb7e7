"""Growth with the number of objects: partitions of a queue, channels of a tunnel, tables, streams."""

from __future__ import annotations

import contextlib
import io
import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

import headrace
from bench.growth.points import Point, result, sizes, timed
from bench.measure import Result
from headrace.batches.feeds.queue_feed import QueueFeed
from headrace.batches.feeds.tunnel_feed import TunnelFeed
from headrace.cli.main import main as command
from headrace.model.tunnels.records import INITIAL_BATCH, ChannelEnd
from headrace.model.tunnels.values import Start, StartKind
from headrace.ports import Table
from headrace.streaming_sql.catalog import Catalog, TableDefinition
from headrace.streaming_sql.stream_registry import StreamRegistry
from headrace.streaming_sql.workspace import Workspace
from headrace.ui.requests import Request
from headrace.ui.site import Site
from headrace.ui.stream_pages import stream_list
from headrace.ui.table_pages import table_list

_EARLIEST = Start(StartKind.EARLIEST)
_MANY = 10_000


def growth_partitions(directory: Path, scale: float) -> Result:
    """A queue of up to 10,000 partitions."""
    points = itertools.chain.from_iterable(_partitions(directory / str(size), size) for size in sizes(_MANY * scale, 5))
    return result("partitions", "partitions of a queue", "partitions", points, scale)


def _partitions(directory: Path, size: int) -> Iterator[Point]:
    with headrace.open(directory, create=True, synchronous="off") as store:
        names = (f"queue{number}" for number in itertools.count())
        columns = {"value": "long"}
        yield timed(
            "create the queue", size, lambda: store.create_queue(next(names), columns, partitions=size), repeats=3
        )
        queue = store.queue("queue0")
        rows = pa.table({"$tablet_index": np.arange(size), "value": np.arange(size)})
        yield timed("append a row to each partition, in one call", size, lambda: queue.append(rows), repeats=3)
        row = rows.slice(0, 1)
        yield timed("append one row", size, lambda: queue.append(row))
        consumer = store.create_consumer("reader")
        store.register_consumer("queue0", "reader", vital=True)
        feed = QueueFeed(store, [queue], consumer, start=_EARLIEST)
        start = feed.latest(feed.initial())
        yield timed("plan a batch", size, lambda: feed.tasks(start, feed.latest(start)))
        end = feed.latest(start)
        yield timed("commit a batch", size, lambda: feed.commit(end), repeats=1)
        yield timed("describe the queue", size, queue.describe)


def growth_channels(directory: Path, scale: float) -> Result:
    """A tunnel of up to 10,000 channels, over a table with as many partitions."""
    points = itertools.chain.from_iterable(_channels(directory / str(size), size) for size in sizes(_MANY * scale, 5))
    return result("channels", "channels of a tunnel", "channels", points, scale)


def _channels(directory: Path, size: int) -> Iterator[Point]:
    with headrace.open(directory, create=True, synchronous="off") as store:
        table = store.create_table("events", {"id": "long", "value": "long"}, ["id"])
        yield timed("split the table into one partition for each channel", size, lambda: _split(table, size), repeats=1)
        numbers = np.arange(size)
        rows = pa.table({"id": numbers, "value": numbers})
        table.put(rows)
        tunnels = (store.create_tunnel("events", f"tunnel{number}", kind="Stream") for number in itertools.count())
        yield timed("create a tunnel", size, lambda: next(tunnels), repeats=3)
        tunnel = next(tunnels)
        yield timed("put a row of each partition, in one call", size, lambda: table.put(rows), repeats=3)
        row = rows.slice(0, 1)
        yield timed("put one row", size, lambda: table.put(row))
        feed = TunnelFeed(tunnel)
        yield timed("plan a batch", size, lambda: feed.plan(feed.latest(INITIAL_BATCH)), repeats=3)
        batch = feed.latest(INITIAL_BATCH)
        latest = tunnel.latest_positions()

        def record() -> None:
            for part in feed.plan(batch):
                assert tunnel.batches.end(batch, part.channel) is None
                tunnel.batches.record_end(batch, part.channel, ChannelEnd(latest[part.channel], 2))

        yield timed("record the ends of a batch, as its tasks do", size, record, repeats=1)
        yield timed("commit a batch and look for the next", size, lambda: feed.latest(batch), repeats=1)
        yield timed("describe the tunnel", size, tunnel.describe)
        yield timed("describe the table", size, table.describe, repeats=3)


def _split(table: Table, size: int) -> None:
    """Split a table into partitions of one key each, halves first."""
    (whole,) = table.describe().partitions
    parts = [(whole.id, 0, size)]
    while parts:
        partition, low, high = parts.pop()
        if high - low > 1:
            middle = (low + high) // 2
            left, right = table.split(partition, at={"id": middle})
            parts += [(left, low, middle), (right, middle, high)]


def growth_tables(directory: Path, scale: float) -> Result:
    """A store of up to 10,000 tables."""
    return result("tables", "tables of a store", "tables", _tables(directory, sizes(_MANY * scale, 5)), scale)


def _tables(directory: Path, steps: list[int]) -> Iterator[Point]:
    columns = {"id": "long", "value": "long"}
    names = (f"table{number}" for number in itertools.count())
    row = pa.table({"id": [1], "value": [1]})
    place, workspace = directory / "store", directory / "workspace"
    with headrace.open(place, create=True, synchronous="off") as store, headrace.open(place) as idle:
        site = Site(store, workspace)
        for size in steps:
            while len(store.tables()) < size - 5:
                for _ in range(min(100, size - 5 - len(store.tables()))):
                    store.create_table(next(names), columns, ["id"])
            idle.table("table0").put(row)
            yield timed("create one table", size, lambda: store.create_table(next(names), columns, ["id"]))
            yield timed(
                "put a row after another process has created a table",
                size,
                lambda: idle.table("table0").put(row),
                repeats=1,
            )
            yield timed("list the tables", size, store.tables)
            yield timed("put a row", size, lambda: store.table("table0").put(row))

            def open_and_put() -> None:
                with headrace.open(place, synchronous="off") as opened:
                    opened.table("table0").put(row)

            yield timed("open the store and put a row", size, open_and_put)
            yield timed("headrace table list", size, lambda: _run("table", "list", "-s", str(place)), repeats=1)
            yield timed("content of the page of tables", size, lambda: table_list(site, _request("/tables")))
    site.close()


def growth_streams(directory: Path, scale: float) -> Result:
    """A workspace of up to 1,000 streams whose queries do not run."""
    points = itertools.chain.from_iterable(
        _streams(directory / str(size), size) for size in sizes(1000 * scale, 5, 10**0.5)
    )
    return result("streams", "streams of a workspace", "streams", points, scale)


def _streams(directory: Path, size: int) -> Iterator[Point]:
    directory.mkdir(parents=True)
    workspace = Workspace(directory)
    registry, catalog = StreamRegistry(workspace), Catalog(workspace)
    for number in range(size):
        for name in (f"source{number}", f"target{number}"):
            catalog.add_table(TableDefinition(name, "headrace", {"store": "/data/shop", "table": name}, None))

    def start() -> None:
        for number in range(size):
            name, script = f"stream{number}", _SCRIPT.format(number=number)
            registry.record_start(name, script=script, fingerprint="", target=f"target{number}", checkpoint=name)
            registry.set_running(name, name)

    yield timed("record the starts of all streams", size, start, repeats=1)
    yield timed("record the progress of one stream", size, lambda: registry.set_progress("stream0", 1, 1.0, None))
    yield timed("find one stream", size, lambda: registry.get(f"stream{size // 2}"))
    yield timed("headrace stream list", size, lambda: _run("stream", "list", "-w", str(directory)))
    site = Site(None, directory)
    yield timed("content of the page of streams", size, lambda: stream_list(site, _request("/")))
    site.close()
    workspace.close()


_SCRIPT = """CREATE SCAN scan{number} ON source{number} USING STREAM;
CREATE STREAM stream{number} OPTIONS (checkpointLocation = '/data/checkpoints/{number}')
INSERT INTO target{number} SELECT * FROM scan{number};"""


def _run(*arguments: str) -> None:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        assert command([*arguments, "--json"]) == 0


def _request(path: str) -> Request:
    return Request("GET", path, {}, {}, {}, 0)
