"""Reading of queues in cases in which SPYT fails: order, trimming, partitions, two readers."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pytest
from yt.wrapper import YtClient

import headrace
from headrace.batches.feeds.queue_feed import QueueFeed
from headrace.batches.feeds.queue_reading import QueueRange, read_rows
from headrace.errors import DataLossError, OffsetConflictError
from headrace.model.tunnels.values import Start, StartKind
from headrace.ports import Queue, Store
from headrace.testing.queue_reading import consumer_of, edges, values
from headrace_ytsaurus.store import connection
from tests.ytsaurus.interop.ytsaurus_server import TOKEN, YtServer

EARLIEST = Start(StartKind.EARLIEST)


@pytest.fixture
def store(yt_server: YtServer, home: str) -> Store:
    return headrace.open(f"yt+{yt_server.url}{home}", token=TOKEN, retry_seconds=10)


@pytest.fixture
def client(yt_server: YtServer) -> YtClient:
    """The official client in its default configuration."""
    return YtClient(proxy=yt_server.url, token=TOKEN)


@pytest.fixture
def queue(store: Store) -> Queue:
    queue = store.create_queue("q", {"n": "long"}, partitions=2)
    queue.append(pa.table({"n": range(1000)}), partition=0)
    return queue


def numbers(queue: Queue, part: QueueRange) -> list[int]:
    found: list[int] = []
    for page in read_rows(queue, part):
        assert page.first == part.first + len(found)
        found += page.rows.column("n").to_pylist()
    return found


def test_rows_keep_their_order_over_several_pulls(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    # A pull has a maximum of bytes, so it returns fewer rows than requested.
    monkeypatch.setattr(connection, "_PULL_BYTES", 900)
    assert queue.read(0, 0, 1000).rows.num_rows < 200
    assert numbers(queue, QueueRange("q", 0, 10, 990)) == list(range(10, 990))


def test_rows_trimmed_after_planning_are_not_replaced_by_others(queue: Queue, client: YtClient, home: str) -> None:
    planned = QueueRange("q", 0, 0, 500)
    client.trim_rows(f"{home}/q", 0, 100)
    with pytest.raises(DataLossError, match=r"rows 0 to 99 of partition 0.*failOnDataLoss"):
        numbers(queue, planned)
    pages = list(read_rows(queue, planned, fail_on_data_loss=False))
    found = [number for page in pages for number in page.rows.column("n").to_pylist()]
    # Never beyond the planned end, because later rows belong to the next batch.
    assert found == list(range(100, 500))


def test_partitions_added_during_a_query_are_read(store: Store, queue: Queue) -> None:
    feed = QueueFeed(store, [queue], start=EARLIEST)
    start = feed.latest(feed.initial())
    end = feed.latest(start)
    assert queue.add_partitions(1) == 3
    queue.append({"n": 7}, partition=2)
    after = feed.latest(end)
    assert feed.ranges(end, after) == [QueueRange("q", 2, 0, 1)]
    assert edges(queue) == [(0, 1000), (0, 0), (0, 1)]


def test_removed_partitions_are_an_error(store: Store, queue: Queue, client: YtClient, home: str) -> None:
    feed = QueueFeed(store, [queue], start=EARLIEST)
    end = feed.latest(feed.latest(feed.initial()))
    path = f"{home}/q"
    client.unmount_table(path, sync=True)
    client.reshard_table(path, tablet_count=1, sync=True)
    client.mount_table(path, sync=True)
    with pytest.raises(DataLossError, match="'q' has fewer partitions"):
        feed.latest(end)
    accepting = QueueFeed(store, [store.queue("q")], start=EARLIEST, fail_on_data_loss=False)
    left = accepting.latest(end)
    assert set(left.queues["q"]) == {0}


def test_a_second_reader_of_a_consumer_is_detected(store: Store, queue: Queue) -> None:
    consumer_of(store, "reader", "q")
    feeds = [QueueFeed(store, [queue], store.consumer("reader"), start=EARLIEST) for _ in range(2)]
    starts = [feed.latest(feed.initial()) for feed in feeds]
    ends = [feed.latest(start) for feed, start in zip(feeds, starts, strict=True)]
    queue.append({"n": 1}, partition=1)
    feeds[0].latest(ends[0])
    with pytest.raises(OffsetConflictError):
        store.consumer("reader").advance("q", {0: 5}, {0: 0})


def test_rows_are_exchanged_with_other_clients(store: Store, queue: Queue, client: YtClient, home: str) -> None:
    client.insert_rows(f"{home}/q", [{"n": 5, "$tablet_index": 1}, {"$tablet_index": 1}])
    assert queue.read(1, 0).rows.to_pylist() == [{"n": 5}, {"n": None}]
    queue.append({"n": 6}, partition=1)
    found = list(client.pull_queue(f"{home}/q", 2, 1))
    assert [(row["$row_index"], row["n"]) for row in found] == [(2, 6)]


def test_appends_return_addresses_despite_concurrent_writers(
    store: Store, client: YtClient, home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = store.create_queue("busy", {"data": "string", "x": "double"})
    path = f"{home}/busy"
    found = type(queue)._ends  # type: ignore[attr-defined]

    def looked(*arguments: object) -> object:
        ends = found(*arguments)
        client.insert_rows(path, [{"data": "other"}])
        return ends

    monkeypatch.setattr(type(queue), "_ends", looked)
    (where,) = queue.append([{"data": "mine", "x": float("nan")}, {"data": "too"}])
    assert queue.read(0, where.first, 2).rows.column("data").to_pylist() == ["mine", "too"]
    assert values("other")[0]["data"] in queue.read(0, 0, 1).rows.column("data").to_pylist()


def test_sizes_come_from_the_clusters_queue_counters(queue: Queue) -> None:
    sizes = [bounds.bytes for bounds in queue.bounds().values()]
    assert sizes[0] > 1000
    assert sizes[1] == 0


def test_the_first_row_of_a_time_is_found_with_few_reads(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = store.create_queue("times", {"n": "long", "$timestamp": "timestamp"})
    for number in range(8):
        queue.append(pa.table({"n": [number] * 10}))
    times = [row["$timestamp"].timestamp() for row in queue.read(0, 0, 80).rows.to_pylist()]
    monkeypatch.setattr("headrace_ytsaurus.store.queues.queue._ROWS_LOOKED_AT", 6)
    asked: list[str] = []
    select = connection.YtConnection.select

    def selecting(self: connection.YtConnection, query: str, *arguments: Any, **options: Any) -> pa.RecordBatch:
        asked.append(query)
        return select(self, query, *arguments, **options)

    monkeypatch.setattr(connection.YtConnection, "select", selecting)
    for row, moment in enumerate(times):
        found = queue.row_at(0, moment)
        assert found == times.index(moment)
        lowest = re.search(r"row_index\] >= (\d+)", asked[-1])
        assert lowest is not None
        assert found - 12 <= int(lowest[1]) <= found, row
    assert queue.row_at(0, times[-1] + 1) == 80
    assert queue.row_at(0, 0.0) == 0
