"""Workers that read a tunnel, and their failures."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.batches.feeds.tunnel_feed import TunnelFeed
from headrace.errors import DataLossError, NotFoundError, OptionError, StoreBusyError, StoreError, TunnelTakenError
from headrace.model.tunnels.leases import Lease
from headrace.model.tunnels.records import INITIAL_BATCH
from headrace.ports import Store, Table, Tunnel
from headrace.stores.embedded.tunnels.records import SqliteStatements
from headrace.stores.shared.tunnel_clients import SharingClient
from headrace.workers import ChangeBatch, TunnelWorker, engine
from tests.clocks import patch_time
from tests.interrupting import interrupted_in

DEADLINE = 30.0


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return headrace.open(tmp_path / "shop", create=True, synchronous="off")


@pytest.fixture
def table(store: Store) -> Table:
    return store.create_table("orders", {"id": "long", "value": "long"}, "id")


@pytest.fixture
def tunnel(store: Store, table: Table) -> Tunnel:
    """A tunnel with 30 changes."""
    tunnel = store.create_tunnel("orders", "changes", "Stream")
    put(table, *range(30))
    return tunnel


@pytest.fixture(autouse=True)
def all_threads_end() -> Iterable[None]:
    yield
    # The process may have other threads of headrace, such as the checkpoint server, which runs until the end.
    of_workers = ("headrace-keeper", "headrace-reader")
    until(lambda: not [thread for thread in threading.enumerate() if thread.name in of_workers])


def put(table: Table, *ids: int) -> None:
    table.put([{"id": number, "value": 0} for number in ids])


def ids(batches: Iterable[ChangeBatch]) -> list[int]:
    return [number for batch in batches for number in batch.changes.rows.column("id").to_pylist()]


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def clients(tunnel: Tunnel) -> set[str]:
    return {found.client for found in tunnel.describe().channels if found.client is not None}


def quick(tunnel: Tunnel, **options: Any) -> TunnelWorker:
    """A worker with short intervals and batches of 10 rows."""
    return tunnel.consume("quick", **{"batch_rows": 10, "heartbeat_interval": 0.05, "timeout": 10.0, **options})


# -- the end of an iteration ------------------------------------------------------------------------------


def test_a_break_releases_the_channels(tunnel: Tunnel) -> None:
    for batch in quick(tunnel):
        assert ids([batch]) == list(range(10))
        assert clients(tunnel)
        break
    until(lambda: not clients(tunnel))
    assert ids(quick(tunnel, idle="stop")) == list(range(30))


def test_pages_are_prefetched_up_to_a_limit_of_all_channels(
    store: Store, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(table, *range(2000))
    tunnel = store.create_tunnel("orders", "base", "BaseData", base_channels=40)
    pages, read = list[str](), type(tunnel).read

    def count(tunnel: Tunnel, channel: str, *arguments: Any) -> Any:
        pages.append(channel)
        # All readers begin while there is room.
        time.sleep(0.02)
        return read(tunnel, channel, *arguments)

    monkeypatch.setattr(type(tunnel), "read", count)
    with quick(tunnel) as batches:
        next(batches)
        until(lambda: len(pages) >= 9)
        time.sleep(0.3)
        # 7 pages and one of each reader wait, beside the batch in hand.
        assert 9 <= len(pages) <= 12
        assert len(set(pages)) > 8


def test_an_error_in_the_loop_keeps_the_batches_before_it(tunnel: Tunnel) -> None:
    def fail_at_the_second() -> None:
        with quick(tunnel) as batches:
            for batch in batches:
                if 10 in ids([batch]):
                    raise ArithmeticError

    with pytest.raises(ArithmeticError):
        fail_at_the_second()
    assert clients(tunnel) == set()
    assert ids(quick(tunnel, idle="stop")) == list(range(10, 30))


def test_an_interrupt_while_waiting_saves_and_releases(tunnel: Tunnel) -> None:
    batches = quick(tunnel)
    found = ids([next(batches), next(batches), next(batches)])
    with pytest.raises(KeyboardInterrupt), interrupted_in("take", "wait"):
        next(batches)
    assert found == list(range(30))
    assert clients(tunnel) == set()
    assert ids(quick(tunnel, idle="stop")) == []


def test_stop_ends_a_waiting_worker(tunnel: Tunnel) -> None:
    with quick(tunnel) as batches, ThreadPoolExecutor(1) as pool:
        found = pool.submit(ids, batches)
        until(lambda: tunnel.describe().backlog_rows == 30 and clients(tunnel))
        batches.stop()
        assert found.result(DEADLINE) == list(range(30))[: len(found.result())]
    with pytest.raises(StopIteration):
        next(batches)
    assert len(ids(quick(tunnel, idle="stop"))) == 30 - len(found.result())


def test_a_worker_that_was_closed_before_its_start_delivers_nothing(tunnel: Tunnel) -> None:
    batches = quick(tunnel)
    batches.close()
    assert ids(batches) == []
    assert clients(tunnel) == set()


def test_a_process_that_ends_without_close_saves_its_progress(tunnel: Tunnel, tmp_path: Path) -> None:
    script = (
        "import headrace\n"
        f"worker = headrace.open({str(tmp_path / 'shop')!r}).tunnel('changes').consume(batch_rows=10)\n"
        "next(worker), next(worker)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=DEADLINE)
    assert clients(tunnel) == set()
    assert ids(quick(tunnel, idle="stop")) == list(range(10, 30))


# -- progress -----------------------------------------------------------------------------------------------


def test_close_does_not_wait_long_for_an_unreachable_store(
    tunnel: Tunnel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    away, back = threading.Event(), threading.Event()
    save = SharingClient.save

    def hang(*args: Any) -> None:
        away.set()
        back.wait()
        save(*args)

    monkeypatch.setattr(SharingClient, "save", hang)
    monkeypatch.setattr(engine, "_LAST_SAVE_SECONDS", 0.1)
    worker = quick(tunnel)
    next(worker).done()
    worker.close()
    assert away.is_set()
    assert "may not be saved" in caplog.text
    back.set()
    until(lambda: not clients(tunnel))


def test_progress_is_saved_while_a_worker_waits(tunnel: Tunnel) -> None:
    with quick(tunnel, checkpoint_interval=0.05) as batches:
        for batch in (next(batches), next(batches), next(batches)):
            batch.done()
        until(lambda: tunnel.describe().backlog_rows == 0)


def test_a_batch_that_takes_long_keeps_its_channels(tunnel: Tunnel, monkeypatch: pytest.MonkeyPatch) -> None:
    real, now, beats = SharingClient.heartbeat, time.time(), list[float]()

    def heartbeat(client: SharingClient[SqliteStatements], leases: Sequence[Lease]) -> list[Lease]:
        beats.append(now)
        return real(client, leases)

    def has_beaten() -> bool:
        # The first of two has ended when the second begins.
        return beats.count(now) > 1

    other = tunnel.connect()
    monkeypatch.setattr(SharingClient, "heartbeat", heartbeat)
    patch_time(monkeypatch, "headrace.stores.shared.tunnel_clients", time=lambda: now)
    with quick(tunnel, timeout=10.0, idle="stop") as batches:
        found = ids([next(batches)])
        for _ in range(4):
            now += 6
            until(has_beaten)
            assert other.heartbeat([]) == []
        other.close()
        found += ids(batches)
    assert found == list(range(30))


def test_stopping_at_the_end_waits_for_the_channels_of_a_dead_client(tunnel: Tunnel) -> None:
    dead = tunnel.connect(timeout=0.5)
    assert len(dead.heartbeat([])) == 1
    assert ids(quick(tunnel, idle="stop")) == list(range(30))


def test_the_end_is_found_by_the_readers(tunnel: Tunnel, monkeypatch: pytest.MonkeyPatch) -> None:
    # A read in another place of the log would make a store decode the log again.
    read, saved, threads = tunnel.read, SharingClient.saved, set()
    consumer_reads = threading.Event()

    def noted(*arguments: Any) -> Any:
        threads.add(threading.current_thread().name)
        if threading.current_thread() is threading.main_thread():
            consumer_reads.set()
        return read(*arguments)

    def slow(*arguments: Any) -> Any:
        # The worker has a heartbeat, and does not know its channels yet.
        consumer_reads.wait(0.3)
        return saved(*arguments)

    monkeypatch.setattr(tunnel, "read", noted)
    monkeypatch.setattr(SharingClient, "saved", slow)
    assert ids(quick(tunnel, idle="stop")) == list(range(30))
    assert threads == {"headrace-reader"}


def test_progress_is_not_saved_while_a_reader_reads(tunnel: Tunnel, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    read, all_taken = tunnel.read, threading.Event()

    def counted(name: str) -> Callable[..., Any]:
        real = getattr(SharingClient, name)

        def call(*arguments: Any) -> Any:
            calls.append(name)
            return real(*arguments)

        return call

    def slow_at_the_end(*arguments: Any) -> Any:
        page = read(*arguments)
        if not page.changes.num_rows:
            assert all_taken.wait(DEADLINE)
            # Now the consumer waits for this read.
            heartbeats = calls.count("heartbeat")
            until(lambda: calls.count("heartbeat") > heartbeats + 5)
            calls.append("end")
        return page

    for name in ("heartbeat", "save"):
        monkeypatch.setattr(SharingClient, name, counted(name))
    monkeypatch.setattr(tunnel, "read", slow_at_the_end)
    with quick(tunnel, idle="stop", checkpoint_interval=DEADLINE) as batches:
        found = ids([next(batches), next(batches), next(batches)])
        all_taken.set()
        assert next(batches, None) is None
    assert found == list(range(30))
    assert calls.index("end") < calls.index("save")


def test_a_save_by_another_client_loses_no_rows(tunnel: Tunnel) -> None:
    with quick(tunnel, idle="stop", checkpoint_interval=0.01) as batches:
        found = ids([next(batches)])
        (client,), channel = clients(tunnel), tunnel.channels()[0]
        tunnel.client(client).save(channel.id, tunnel.read(channel.id, channel.committed, 5).next, 7)
        found += ids(batches)
    assert found == list(range(30))
    again = tunnel.connect()
    again.heartbeat([])
    assert again.saved(channel.id).sequence > 7
    again.close()


def test_batches_have_the_requested_size_and_a_pre_image_stays_with_its_change(
    store: Store, table: Table, tunnel: Tunnel
) -> None:
    assert [len(batch) for batch in quick(tunnel, batch_rows=7, idle="stop")] == [7, 7, 7, 7, 2]
    table.set_options(pre_images=True)
    expected = {1: [2, 2, 2, 2], 3: [2, 2, 2, 2], 5: [4, 4]}
    tunnels = {rows: store.create_tunnel("orders", str(rows), "Stream") for rows in expected}
    put(table, *range(4))
    for rows, sizes in expected.items():
        assert [len(batch) for batch in quick(tunnels[rows], batch_rows=rows, idle="stop")] == sizes


# -- failures -----------------------------------------------------------------------------------------------


def test_a_read_is_repeated_after_a_temporary_error(tunnel: Tunnel, monkeypatch: pytest.MonkeyPatch) -> None:
    read, failures = tunnel.read, iter([StoreBusyError("not now")] * 3)

    def sometimes(*arguments: Any) -> Any:
        if (failure := next(failures, None)) is not None:
            raise failure
        return read(*arguments)

    monkeypatch.setattr(tunnel, "read", sometimes)
    assert ids(quick(tunnel, idle="stop")) == list(range(30))


@pytest.mark.parametrize("call", ["heartbeat", "save", "saved"])
def test_a_request_of_the_client_is_repeated_after_a_temporary_error(
    tunnel: Tunnel, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    real, failures = getattr(SharingClient, call), iter([StoreBusyError("not now")] * 3)

    def sometimes(*arguments: Any) -> Any:
        if (failure := next(failures, None)) is not None:
            raise failure
        return real(*arguments)

    monkeypatch.setattr(SharingClient, call, sometimes)
    assert ids(quick(tunnel, idle="stop")) == list(range(30))


@pytest.mark.parametrize("failure", [StoreError("the disk has failed"), DataLossError("the log was removed")])
def test_a_permanent_error_at_the_end_is_raised_to_the_consumer(
    tunnel: Tunnel, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    read, empty = tunnel.read, []

    def fail_after_the_end(*arguments: Any) -> Any:
        page = read(*arguments)
        if not page.changes.num_rows:
            empty.append(page)
            if len(empty) > 1:
                raise failure
        return page

    monkeypatch.setattr(tunnel, "read", fail_after_the_end)
    with pytest.raises(type(failure), match=str(failure)):
        ids(quick(tunnel))


@pytest.mark.parametrize("failure", [StoreError("the disk has failed"), ArithmeticError("a defect")])
@pytest.mark.parametrize("call", ["read", "wait_for_change", "heartbeat"])
def test_a_permanent_error_is_raised_to_the_consumer(
    tunnel: Tunnel, monkeypatch: pytest.MonkeyPatch, call: str, failure: Exception
) -> None:
    def fail(*arguments: Any) -> Any:
        raise failure

    monkeypatch.setattr(SharingClient if call == "heartbeat" else tunnel, call, fail)
    with pytest.raises(type(failure), match=str(failure)):
        ids(quick(tunnel))
    assert clients(tunnel) == set()


def test_lost_changes_are_an_error(tunnel: Tunnel, table: Table) -> None:
    put(table, *range(30, 30_000))
    (partition,) = table.describe().partitions
    table.trim(before={partition.id: partition.next}, cut_tunnels=True)
    with pytest.raises(DataLossError, match="set option fail_on_data_loss=False to continue after them"):
        ids(quick(tunnel))
    put(table, 7)
    assert ids(quick(tunnel, idle="stop", fail_on_data_loss=False)) == [7]


def test_a_dropped_tunnel_ends_a_waiting_worker(store: Store, tunnel: Tunnel) -> None:
    def drop_when_read() -> None:
        with quick(tunnel) as batches:
            for batch in batches:
                if 29 in ids([batch]):
                    store.drop_tunnel(tunnel.id)

    with pytest.raises(NotFoundError):
        drop_when_read()


def test_a_worker_that_lost_its_client_connects_again(tunnel: Tunnel, table: Table) -> None:
    with quick(tunnel) as batches:
        found = ids([next(batches), next(batches)])
        (client,) = clients(tunnel)
        tunnel.client(client).close()
        until(lambda: clients(tunnel) - {client})
        found += ids([next(batches)])
        # The acknowledgement of the batch in hand was lost with the client. Unsaved changes are delivered again.
        assert found[:20] == list(range(20))
        assert found[20:] in (list(range(10)), list(range(10, 20)))
        put(table, 99)
        while 99 not in found:
            found += ids([next(batches)])
    assert set(found) == {*range(30), 99}


def test_a_worker_that_was_cut_off_delivers_nothing_of_channels_that_others_have(
    tunnel: Tunnel, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, cut_off = SharingClient.heartbeat, threading.Event()
    first: list[SharingClient[SqliteStatements]] = []

    def heartbeat(client: SharingClient[SqliteStatements], leases: Sequence[Lease]) -> list[Lease]:
        first[:] = first or [client]
        if client is first[0] and cut_off.is_set():
            raise StoreBusyError("no connection")
        return real(client, leases)

    monkeypatch.setattr(SharingClient, "heartbeat", heartbeat)
    with quick(tunnel, timeout=0.5) as worker, ThreadPoolExecutor(1) as pool:
        assert ids([next(worker)]) == list(range(10))
        cut_off.set()
        assert ids(quick(tunnel, idle="stop")) == list(range(30))
        coming = pool.submit(next, worker)
        put(table, 99)
        cut_off.clear()
        assert ids([coming.result(DEADLINE)]) == [99]


def test_a_channel_is_read_again_for_the_batch_in_hand_and_not_for_an_older_one(tunnel: Tunnel) -> None:
    with TunnelWorker(
        tunnel,
        "resuming",
        batch_rows=10,
        checkpoint_interval=5.0,
        heartbeat_interval=0.05,
        timeout=10.0,
        idle="wait",
        fail_on_data_loss=True,
        resume=lambda _, saved: saved.position,
    ) as worker:
        before, found = worker.take(), list[int]()
        assert before is not None
        worker.read_again(before)
        for _ in range(3):
            batch = worker.take()
            assert batch is not None
            # Another thread has had the batch before since then.
            worker.read_again(before)
            batch.done()
            found += ids([batch])
    assert found == list(range(30))


def test_a_query_takes_the_tunnel_from_workers_and_workers_from_a_query(tunnel: Tunnel) -> None:
    query = TunnelFeed(tunnel)
    batch = query.latest(INITIAL_BATCH)
    with quick(tunnel) as batches:
        next(batches)
        with pytest.raises(TunnelTakenError):
            query.latest(batch)
        TunnelFeed(tunnel).latest(INITIAL_BATCH)
        with pytest.raises(TunnelTakenError):
            ids(batches)


@pytest.mark.parametrize("timeout", [0.0, -1.0, float("nan"), float("inf")])
def test_a_client_has_a_positive_timeout(tunnel: Tunnel, timeout: float) -> None:
    with pytest.raises(OptionError):
        tunnel.connect(timeout=timeout)


@pytest.mark.parametrize(
    "options",
    [
        {"batch_rows": 0},
        {"checkpoint_interval": 0},
        {"checkpoint_interval": float("nan")},
        {"timeout": -1.0},
        {"timeout": float("inf")},
        {"heartbeat_interval": 0},
        {"heartbeat_interval": 6.0},
        {"idle": "sleep"},
    ],
)
def test_options_are_checked(tunnel: Tunnel, options: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        quick(tunnel, **options)


# Newer versions of Python warn about a fork in a process with threads.
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_does_not_affect_its_parents_worker(tunnel: Tunnel) -> None:
    with tunnel.consume(batch_rows=10, idle="stop") as worker:
        first = next(worker)
        child = os.fork()
        if child == 0:
            # A child that waited for its parent's threads would never end.
            signal.alarm(int(DEADLINE))
            try:
                with pytest.raises(StoreError, match="a fork of that process"):
                    next(worker)
                worker.close()
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert sorted(ids([first, *worker])) == list(range(30))
