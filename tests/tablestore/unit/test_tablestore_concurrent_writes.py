"""Bulk writes of several requests at once, which the endpoint does together."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from headrace.errors import StoreBusyError
from headrace_tablestore.endpoint.instances import Instance
from headrace_tablestore.endpoint.rows.batches import batch_write_row
from headrace_tablestore.endpoint.rows.concurrent_writes import ConcurrentWrites
from headrace_tablestore.endpoint.tables.table_operations import create_table
from headrace_tablestore.wire import table_pb2 as pb
from headrace_tablestore.wire.errors import ServiceError
from headrace_tablestore.wire.plainbuffer.rows import encode_row
from headrace_tablestore.wire.plainbuffer.values import Cell, Row

THREADS = 8


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


class Writes:
    """Writes whose first call waits until all other requests wait behind it."""

    def __init__(self, write: Callable[[Sequence[bytes]], bool]) -> None:
        self.calls: list[list[bytes]] = []
        self._writes = ConcurrentWrites()
        self._write = write
        self._go_on = threading.Event()

    def results(self, requests: Sequence[tuple[int, bytes]]) -> list[Future[bool]]:
        """Write the requests, each a kind and a row, behind a first one; return their results."""
        with ThreadPoolExecutor(len(requests) + 1) as pool:
            first = pool.submit(self._writes.write, pb.PUT, [b"first"], self._called)
            until(lambda: bool(self.calls))
            results = []
            for number, (kind, row) in enumerate(requests, start=1):
                results.append(pool.submit(self._writes.write, kind, [row], self._called))
                until(lambda number=number: len(self._writes._waiting) == number)  # type: ignore[misc]
            self._go_on.set()
        assert first.result()
        return results

    def _called(self, records: Sequence[bytes]) -> bool:
        self.calls.append(list(records))
        self._go_on.wait(60)
        return self._write(records)


def test_requests_that_wait_are_written_together_by_kind() -> None:
    writes = Writes(lambda _: True)
    results = writes.results([(pb.PUT, b"a"), (pb.UPDATE, b"b"), (pb.PUT, b"c"), (pb.UPDATE, b"d")])
    assert [each.result() for each in results] == [True] * 4
    assert writes.calls == [[b"first"], [b"a", b"c"], [b"b", b"d"]]


def test_requests_that_do_not_fit_together_are_written_alone() -> None:
    writes = Writes(lambda records: len(records) == 1 and records != [b"b"])
    results = writes.results([(pb.PUT, b"a"), (pb.PUT, b"b"), (pb.PUT, b"c")])
    assert [each.result() for each in results] == [True, False, True]
    assert writes.calls == [[b"first"], [b"a", b"b", b"c"], [b"a"], [b"b"], [b"c"]]


def test_a_row_that_is_refused_fails_only_its_own_request() -> None:
    def write(records: Sequence[bytes]) -> bool:
        if b"bad" in records:
            raise ServiceError("OTSParameterInvalid", "bad")
        return True

    results = Writes(write).results([(pb.PUT, b"a"), (pb.PUT, b"bad")])
    assert results[0].result()
    with pytest.raises(ServiceError, match="bad"):
        results[1].result()


def test_an_error_of_the_store_fails_all_requests_at_once() -> None:
    def write(records: Sequence[bytes]) -> bool:
        if records != [b"first"]:
            raise StoreBusyError("another process holds the store")
        return True

    writes = Writes(write)
    for result in writes.results([(pb.PUT, b"a"), (pb.PUT, b"b")]):
        with pytest.raises(StoreBusyError):
            result.result()
    assert writes.calls == [[b"first"], [b"a", b"b"]]


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Instance]:
    instance = Instance("shop", tmp_path / "shop")
    request = pb.CreateTableRequest()
    request.table_meta.table_name = "t"
    request.table_meta.primary_key.add(name="k", type=pb.INTEGER)
    request.reserved_throughput.capacity_unit.read = 0
    create_table(instance, request)
    yield instance
    instance.store.close()


def request_of(thread: int, number: int) -> pb.BatchWriteRowRequest:
    """Return a request whose keys other threads write, too; some have columns of their own, or are updates."""
    kind = pb.UPDATE if number % 5 == 4 else pb.PUT
    other = "other" if number % 3 == 2 else "value"
    request = pb.BatchWriteRowRequest()
    part = request.tables.add(table_name="t")
    for key in range(10):
        row = encode_row(Row((("k", key),), (Cell("thread", thread), Cell("number", number), Cell(other, key))))
        part.rows.add(type=kind, row_change=row, condition=pb.Condition(row_existence=pb.IGNORE))
    return request


def test_writes_of_many_threads_are_all_in_the_log_and_in_order(instance: Instance) -> None:
    tunnel = instance.store.create_tunnel("t", "changes", "Stream")

    def write(thread: int) -> None:
        for number in range(20):
            response = batch_write_row(instance, request_of(thread, number))
            assert all(row.is_ok for row in response.tables[0].rows)

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(write, range(THREADS)))

    (channel,) = tunnel.channels()
    page = tunnel.read(channel.id, channel.committed, 100_000).changes
    seen: dict[tuple[int, int], list[int]] = {}
    last: dict[int, dict[str, int]] = {}
    for row in page.rows.to_pylist():
        seen.setdefault((row["k"], row["thread"]), []).append(row["number"])
        last[row["k"]] = row
    assert seen == {(key, thread): list(range(20)) for key in range(10) for thread in range(THREADS)}
    stored = instance.table("t").get_many([{"k": key} for key in range(10)])
    for row in stored.to_pylist():
        assert (row["thread"], row["number"]) == (last[row["k"]]["thread"], last[row["k"]]["number"])
