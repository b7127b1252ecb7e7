"""Retention: old changes are removed in whole chunks. Changes that a tunnel needs are removed only on request."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from headrace.errors import DataLossError
from headrace.model.tunnels.values import FINISHED, Position, Start, StartKind
from headrace.ports import Store, Table, TrimReport
from headrace.stores.embedded.tables import retention
from headrace.testing.effort import thorough

OLD = 100_000_000


@pytest.fixture(autouse=True)
def _nobody_was_warned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_warned", set())


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return headrace.open(tmp_path / "store", create=True, synchronous="off")


@pytest.fixture
def table(store: Store) -> Table:
    return make_table(store)


def make_table(store: Store, **options: Any) -> Table:
    return store.create_table("orders", {"id": "long", "text": "string"}, "id", **options)


def put(table: Table, count: int = 1) -> None:
    table.put([{"id": n, "text": "x"} for n in range(count)])


def age(store: Store) -> None:
    """Make all existing changes older than any retention."""
    with store._database.write() as connection:  # type: ignore[attr-defined]
        connection.execute("UPDATE chunk SET ts = ts - 100 * 86400 * 1000000 WHERE ts > ?", (OLD,))


def kept(table: Table) -> tuple[int, int]:
    (partition,) = (each for each in table.describe().partitions if each.open)
    return partition.first, partition.next


def test_a_later_write_removes_old_changes(store: Store, table: Table) -> None:
    put(table, 10)
    age(store)
    put(table, 5)
    assert kept(table) == (10, 15)
    assert table.describe().partitions[0].log_bytes > 0
    found = store._database.query("SELECT sum(length(data)) FROM chunk")  # type: ignore[attr-defined]
    assert found[0][0] == table.describe().partitions[0].log_bytes


def test_recent_changes_are_kept(table: Table) -> None:
    put(table, 10)
    put(table, 10)
    assert table.trim() == TrimReport(0, 0)
    assert kept(table) == (0, 20)


def test_the_size_of_a_log_is_limited(store: Store) -> None:
    table = make_table(store, retention_seconds=None, retention_bytes=10_000)
    for _ in range(50):
        put(table, 50)
    (partition,) = table.describe().partitions
    assert partition.first > 0
    assert 0 < partition.log_bytes <= 10_000


def test_a_table_can_keep_everything(store: Store) -> None:
    table = make_table(store, retention_seconds=None)
    put(table, 10)
    age(store)
    put(table)
    assert table.trim() == TrimReport(0, 0)


def test_changes_that_a_tunnel_needs_are_kept_with_a_warning(
    store: Store, table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    put(table, 3)
    tunnel = store.create_tunnel("orders", "slow", "Stream")
    put(table, 5)
    put(table, 7)
    age(store)
    with caplog.at_level(logging.WARNING, "headrace"):
        put(table, 1)
        put(table, 1)
    assert len([record for record in caplog.records if "'slow'" in record.getMessage()]) == 1
    assert kept(table) == (3, 17)
    assert table.describe().held_by == ("slow",)
    assert table.trim() == TrimReport(0, 0, held_by=("slow",))
    (channel,) = tunnel.channels()
    tunnel.commit({channel.id: tunnel.advance(channel.id, channel.committed, 5)})
    assert table.trim().changes == 5
    tunnel.commit(tunnel.latest_positions())
    assert table.trim().held_by == ()
    assert kept(table) == (15, 17)
    assert table.describe().held_by == ()


def test_unread_base_data_keeps_the_changes_after_it(store: Store, table: Table) -> None:
    put(table, 3)
    tunnel = store.create_tunnel("orders", "t")
    put(table, 5)
    age(store)
    base, _ = tunnel.channels()
    assert table.trim().changes == 3
    assert table.trim().held_by == ("t",)
    tunnel.commit({base.id: FINISHED})
    assert table.trim().held_by == ("t",)


@pytest.mark.parametrize("told_by", ["call", "option"])
def test_unread_changes_are_removed_only_on_request_and_with_a_warning(
    store: Store, table: Table, caplog: pytest.LogCaptureFixture, told_by: str
) -> None:
    tunnel = store.create_tunnel("orders", "slow", "Stream")
    put(table, 5)
    age(store)
    if told_by == "option":
        table.set_options(retention_ignores_tunnels=True)
    with caplog.at_level(logging.WARNING, "headrace"):
        report = table.trim(cut_tunnels=told_by == "call")
    assert (report.changes, report.held_by, report.cut_from) == (5, (), ("slow",))
    assert "'slow'" in caplog.text
    put(table, 2)
    (channel,) = tunnel.channels()
    with pytest.raises(DataLossError, match=r"'orders'.*log rows 0 to 4 \(5 changes\).*failOnDataLoss=false"):
        tunnel.read(channel.id, channel.committed, 10)
    with pytest.raises(DataLossError):
        tunnel.start_positions(Start(StartKind.EARLIEST))
    position, lost = tunnel.skip_lost(channel.id, channel.committed)
    assert lost == 5
    assert tunnel.read(channel.id, position, 10).changes.num_rows == 2
    assert tunnel.skip_lost(channel.id, position) == (position, 0)
    assert tunnel.backlog(channel.id, channel.committed).rows == 7


def test_a_start_before_the_log_is_refused(store: Store, table: Table) -> None:
    put(table)
    put(table)
    table.trim(before={1: 1})
    with pytest.raises(DataLossError, match="begins later"):
        store.create_tunnel("orders", "t", "Stream", start="2001-01-01T00:00:00")
    tunnel = store.create_tunnel("orders", "t", "Stream", start="earliest")
    assert tunnel.backlog("stream-1", tunnel.channels()[0].committed).rows == 1


def test_trimming_below_a_row_removes_whole_chunks_of_its_partition(table: Table) -> None:
    for _ in range(4):
        put(table, 10)
    assert table.trim(before={1: 25}).changes == 20
    assert kept(table) == (20, 40)
    assert table.trim(before={99: 1}) == TrimReport(0, 0)
    assert table.trim(before={1: 1000}).changes == 20
    assert kept(table) == (40, 40)
    put(table, 1)
    assert kept(table) == (40, 41)


def test_closed_partitions_are_deleted_with_an_empty_log_and_without_channels(store: Store, table: Table) -> None:
    tunnel = store.create_tunnel("orders", "t", "Stream")
    put(table, 10)
    table.split()
    age(store)
    put(table, 10)
    assert [each.open for each in table.describe().partitions] == [False, True, True]
    tunnel.commit({"stream-1": FINISHED})
    put(table, 10)
    assert table.describe().partitions[0].first == 10
    store.drop_tunnel("t")
    put(table, 10)
    assert [each.open for each in table.describe().partitions] == [True, True]


def test_a_write_removes_at_most_256_chunks(store: Store) -> None:
    table = make_table(store, retention_seconds=None)
    for _ in range(300):
        put(table)
    with store._database.write() as connection:  # type: ignore[attr-defined]
        connection.execute("DELETE FROM chunk")
        connection.executemany(
            "INSERT INTO chunk (id, n, level, schema, version, ts, data) VALUES (?, 1, 9, 1, 1, 1, x'00')",
            [((1 << 40) + n,) for n in range(300)],
        )
    table.set_options(retention_seconds=1)
    put(table)
    assert kept(table)[0] == 256
    put(table)
    assert kept(table)[0] == 300


@settings(max_examples=thorough(40), deadline=None)
@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=90),
    reads=st.lists(st.integers(0, 200), max_size=3),
    before=st.integers(0, 300),
    cut=st.booleans(),
)
def test_trim_removes_the_whole_chunks_below_the_needed_rows(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], reads: list[int], before: int, cut: bool
) -> None:
    store = headrace.open(tmp_path_factory.mktemp("store"), create=True, synchronous="off")
    table = make_table(store)
    tunnels = [store.create_tunnel("orders", f"t{n}", "Stream") for n in range(len(reads))]
    for size in sizes:
        put(table, size)
    needs = {}
    for tunnel, row in zip(tunnels, reads, strict=True):
        (channel,) = tunnel.channels()
        needs[tunnel.name] = min(row, sum(sizes))
        tunnel.commit({channel.id: Position(channel.committed.token, needs[tunnel.name])})
    query = "SELECT id & 1099511627775, n FROM chunk WHERE id >= 1099511627776 ORDER BY id"
    chunks = store._database.query(query)  # type: ignore[attr-defined]
    limit = before if cut else min([before, *needs.values()])
    first = max((start + n for start, n in chunks if start + n <= limit), default=0)
    wanted = max((start + n for start, n in chunks if start + n <= before), default=0)
    report = table.trim(before={1: before}, cut_tunnels=cut)
    assert (kept(table), report.changes) == ((first, sum(sizes)), first)
    assert report.cut_from == tuple(sorted(name for name, row in needs.items() if row < first))
    assert set(report.held_by) <= {name for name, row in needs.items() if row < wanted}
    assert bool(report.held_by) == (first < wanted)
    store.close()
