"""The parts of the demonstration whose faults would not be visible: writers, proof, processes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace
from headrace.demo.orders import COLUMNS, LATENESS_MS, PRIMARY_KEY, OrderBook
from headrace.demo.processes import Children, session_members
from headrace.demo.proof import compare, current_totals, read_all, recompute, totals_content, window_key
from headrace.demo.script import TOTALS_COLUMNS, TOTALS_KEY, script, store_script, totals_script
from headrace.demo.story import QUICK_JAVA
from headrace.demo.view import Snapshot, as_facts, as_line, as_picture
from headrace.errors import HeadraceError
from headrace.streaming_sql.language.grammar import parse
from tests.startup import spark_archive


def test_the_demonstration_can_use_the_archive_of_classes() -> None:
    # Java uses an archive that was written with other sizes, and the tests of a whole run need larger ones.
    assert spark_archive.OPTIONS.startswith(f"{QUICK_JAVA} "), "an archive for another kind of Java process"


@given(st.integers(), st.lists(st.integers(0, 60), max_size=20))
def test_an_order_book_changes_only_existing_orders(seed: int, sizes: list[int]) -> None:
    book, existing = OrderBook("u", seed), set[str]()
    for number, size in enumerate(sizes):
        step = book.step(number * 1000, size)
        new = {row["OrderId"] for row in step.new}
        changed = {row["OrderId"] for row in step.changed}
        deleted = {row["OrderId"] for row in step.deleted}
        assert not new & existing
        existing |= new
        assert changed <= existing
        assert deleted <= existing
        assert not changed & deleted
        existing -= deleted
        for row in step.new + step.changed:
            assert row["price"] * 4 == int(row["price"] * 4)
            assert number * 1000 - LATENESS_MS <= row["timestamp"] <= number * 1000


def test_the_same_seed_gives_the_same_steps() -> None:
    first, second = OrderBook("u", 7), OrderBook("u", 7)
    assert [first.step(n) for n in range(5)] == [second.step(n) for n in range(5)]


def test_the_recomputation_counts_all_changes(tmp_path: Path) -> None:
    expected: Counter[tuple[str, str]] = Counter()
    sums: Counter[tuple[str, str]] = Counter()
    deletions = 0
    with headrace.open(tmp_path / "store", create=True) as store:
        table = store.create_table("orders", COLUMNS, PRIMARY_KEY, pre_images=True)
        book = OrderBook("u", 1)
        table.put(book.place(100, 0))
        tunnel = store.create_tunnel("orders", "proof")
        events = list(table.scan().read_all().to_pylist())
        for number in range(30):
            step = book.step(number * 5_000)
            table.put(step.new)
            table.update(step.changed)
            if step.deleted:
                table.delete(step.deleted)
            if number == 10:
                table.split()
            events += step.new + step.changed
            deletions += len(step.deleted)
        for row in events:
            window = window_key(row["timestamp"] // 30_000 * 30_000)
            expected[window] += 1
            sums[window] += row["price"]
        result = recompute(read_all(tunnel))
        assert list(read_all(tunnel)) == []
    assert result.deletions == deletions > 0
    assert result.events == len(events)
    assert result.windows == {window: (expected[window], sums[window]) for window in expected}


def test_windows_have_sparks_names_in_utc() -> None:
    assert window_key(-30_000) == ("1969-12-31 23:59:30", "1970-01-01 00:00:00")


def test_every_kind_of_difference_is_found() -> None:
    a, b, c = ("a", "b"), ("c", "d"), ("e", "f")
    found = compare({a: (1, 1.0), b: (1, 1.0)}, {a: (1, 1.0), b: (1, 1.25), c: (2, 0.0)})
    assert [(one.key, one.in_sink, one.recomputed) for one in found] == [
        (b, (1, 1.0), (1, 1.25)),
        (c, None, (2, 0.0)),
    ]
    assert compare({a: (1, 1.0)}, {a: (1, 1.0)}) == []


def test_totals_are_those_of_the_orders_that_exist(tmp_path: Path) -> None:
    with headrace.open(tmp_path / "store", create=True) as store:
        orders = store.create_table("orders", COLUMNS, PRIMARY_KEY)
        rows = [("a", "1", 2.5), ("a", "2", 10.0), ("b", "3", 4.0), ("c", "4", 1.0)]
        orders.put([{"UserId": user, "OrderId": order, "price": price} for user, order, price in rows])
        orders.delete({"UserId": "c", "OrderId": "4"})
        found = current_totals(orders)
        assert found == {"a": (2, 12.5, 10.0), "b": (1, 4.0, 4.0)}
        table = store.create_table("totals", TOTALS_COLUMNS, TOTALS_KEY)
        assert totals_content(table) == {}
        table.put([{"UserId": user, "orders": n, "spent": s, "highest": h} for user, (n, s, h) in found.items()])
        assert totals_content(table) == found


def test_the_script_is_in_the_dialect() -> None:
    text = script(endpoint=Path("/data"), tunnel_id="0-1", checkpoint=Path("/checkpoint"))
    text += store_script(store="postgresql://db/shop", tunnel="events", checkpoint=Path("/checkpoint"))
    text += totals_script(store=Path("/data/i"), tunnel="totals", checkpoint=Path("/checkpoint"))
    assert [type(statement).__name__ for statement in parse(text)] == [
        "CreateTable",
        "CreateTable",
        "CreateScan",
        "CreateStream",
    ] * 3


def test_killing_a_child_kills_its_descendants_in_other_process_groups(tmp_path: Path) -> None:
    grandchild = "import os, time; os.setpgid(0, 0); print('up', flush=True); time.sleep(600)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {grandchild!r}])"
    log = tmp_path / "log"
    with Children() as children:
        child = children.start("child", ["-c", code], log)
        while "up" not in log.read_text():
            child.check()
        assert len(session_members(child.pid)) == 2
        assert child.kill() == 2
        assert session_members(child.pid) == []


def test_no_child_outlives_its_block(tmp_path: Path) -> None:
    def interrupted() -> int:
        with Children() as children:
            child = children.start("child", ["-c", "import time; time.sleep(600)"], tmp_path / "log")
            pids.append(child.pid)
            raise KeyboardInterrupt

    pids: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert session_members(pids[0]) == []


def test_a_child_that_ends_by_itself_is_reported_with_its_output(tmp_path: Path) -> None:
    with Children() as children:
        child = children.start("worker", ["-c", "print('the reason'); raise SystemExit(3)"], tmp_path / "log")
        while child.running:
            pass
        with pytest.raises(HeadraceError, match=r"the worker ended by itself with code 3[\s\S]*the reason"):
            child.check()


def test_a_child_ends_on_request(tmp_path: Path) -> None:
    code = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); print('up', flush=True)\n"
    log = tmp_path / "log"
    with Children() as children:
        child = children.start("child", ["-c", code + "while True: signal.pause()"], log)
        while "up" not in log.read_text():
            child.check()
        assert child.end(timeout=60) == 7


def test_every_snapshot_can_be_shown() -> None:
    windows = {window_key(number * 30_000): (number, number * 0.25) for number in range(20)}
    totals = {"alice": (2, 12.5, 10.0), "bob": (1, 4.0, 4.0)}
    for snapshot in (
        Snapshot(0.0, "starting", 0, 0, None, None),
        Snapshot(1.0, "running", None, None, 2, 1),
        Snapshot(12.5, "running", 10, 5, 3, 7, windows, totals),
        Snapshot(99.0, "killed", 10, 5, 0, 0, {window_key(0): (0, 0.0)}),
    ):
        assert snapshot.driver in as_line(snapshot)
        assert as_facts(snapshot)["driver"] == snapshot.driver
        assert as_picture(snapshot) is not None
