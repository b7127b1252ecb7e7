"""Mirrors without Spark on every store: each change of the source is in the log of the copy once, and in order."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest

import headrace
from headrace.errors import OptionError, UnsupportedError
from headrace.model.tunnels.values import ChannelKind
from headrace.ports import Store
from headrace.testing import Place
from headrace.testing.effort import THOROUGH
from headrace.testing.processes import CONTEXT
from tests.conformance import mirroring

DEADLINE = 120.0
# Transactions of the begin and of heartbeats count, too.
WRITES = (
    tuple(f"{point}:{times}" for point in ("uncommitted", "committed") for times in range(1, 60, 4))
    if THOROUGH
    else ("uncommitted:5", "committed:30")
)
POINTS = ("rows-written:2", "marker-written:9", "published:14", *WRITES)
from_whole_rows = pytest.mark.needs("tunnels", "whole_rows")


@from_whole_rows
@pytest.mark.parametrize("point", POINTS)
def test_a_worker_that_is_killed_at_any_step_copies_each_change_once(
    place: Place, store: Store, tmp_path: Path, point: str
) -> None:
    orders, source, copied = mirroring.create(store, tmp_path)
    for number in range(3):
        mirroring.change(orders, number)
    process = CONTEXT.Process(target=mirroring.work, args=(place, tmp_path, point))
    process.start()
    process.join(DEADLINE)
    try:
        assert process.exitcode == -signal.SIGKILL, "the worker was not killed there"
    finally:
        process.kill()
        process.join()
    mirroring.change(orders, 3)
    mirroring.work(place, tmp_path)
    assert mirroring.log_of(copied) == mirroring.log_of(source)


@from_whole_rows
def test_workers_share_the_channels_while_the_table_changes(place: Place, store: Store, tmp_path: Path) -> None:
    orders, source, copied = mirroring.create(store, tmp_path)
    workers = [threading.Thread(target=mirroring.work, args=(place, tmp_path)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for number in range(6):
        mirroring.change(orders, number)
        if number % 2:
            place.split("orders")
    for worker in workers:
        worker.join(DEADLINE)
    mirroring.work(place, tmp_path)
    assert mirroring.log_of(copied) == mirroring.log_of(source)


@from_whole_rows
def test_a_tunnel_whose_base_data_is_read_in_part_fills_no_mirror(place: Place, store: Store, tmp_path: Path) -> None:
    table = store.create_table("orders", mirroring.COLUMNS, "id")
    table.put([{"id": str(number), "price": number} for number in range(4)])
    tunnel = store.create_tunnel("orders", "given", base_channels=1)
    channel = next(each for each in tunnel.channels() if each.kind is ChannelKind.BASE_DATA)
    tunnel.commit({channel.id: tunnel.read(channel.id, channel.committed, 2).next})
    with mirroring.target_of(place, store, tmp_path, create=True) as target:
        with pytest.raises(OptionError, match=r"base data.*at least in part.*leave out the tunnel"):
            headrace.mirror_worker(store, "orders", target, "copy", tunnel="given", idle="stop").run()
        assert "copy" not in target.tables()


@from_whole_rows
def test_workers_that_begin_at_the_same_time_create_one_mirror(place: Place, store: Store, tmp_path: Path) -> None:
    orders = store.create_table("orders", mirroring.COLUMNS, "id")
    mirroring.change(orders, 1)
    with mirroring.target_of(place, store, tmp_path, create=True) as target:
        begin, failed = threading.Barrier(3), list[BaseException]()

        def work() -> None:
            try:
                begin.wait(DEADLINE)
                mirroring.work(place, tmp_path)
            except BaseException as error:
                failed.append(error)

        workers = [threading.Thread(target=work) for _ in range(3)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(DEADLINE)
        assert failed == []
        assert [each.name for each in store.tunnels("orders")] == ["mirror-copy"]
        assert headrace.diff_tables(orders, target.table("copy")).equal


@from_whole_rows
def test_a_copy_and_a_history_are_those_of_the_table(place: Place, store: Store, tmp_path: Path) -> None:
    orders, _, _ = mirroring.create(store, tmp_path)
    with mirroring.target_of(place, store, tmp_path) as target:
        for number in range(3):
            for copy, history in (("copy", False), ("past", True)):
                headrace.mirror_worker(store, "orders", target, copy, history=history, idle="stop").run()
            assert headrace.diff_tables(orders, target.table("copy")).equal
            current = [row for row in target.table("past").scan().read_all().to_pylist() if row["is_current"]]
            rows = orders.scan().read_all().to_pylist()
            assert [{name: row[name] for name in mirroring.COLUMNS} for row in current] == rows
            mirroring.change(orders, number)


@pytest.mark.needs("tunnels")
def test_stores_that_cannot_be_source_or_target_are_refused_by_name(place: Place, store: Store, tmp_path: Path) -> None:
    store.create_table("orders", mirroring.COLUMNS, "id")
    with headrace.open(tmp_path / "other", create=True) as other:
        if not store.capabilities.whole_rows:
            with pytest.raises(UnsupportedError, match="only the cells that were set"):
                headrace.mirror_worker(store, "orders", other).run()
        if not store.capabilities.markers:
            other.create_table("orders", mirroring.COLUMNS, "id")
            with pytest.raises(UnsupportedError, match="keeps its position in the markers"):
                headrace.mirror_worker(other, "orders", store).run()
            assert other.tunnels() == []
