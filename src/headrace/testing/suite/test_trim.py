"""Retention: changes that a tunnel needs are kept; removed unread changes are reported, and can be skipped."""

from __future__ import annotations

import pytest

from headrace.errors import DataLossError
from headrace.model.tables.changes import ChangeOp
from headrace.model.tunnels.values import FINISHED, Start, StartKind
from headrace.ports import Store, Table
from headrace.testing.reading import drain, only_channel, read_from, replay, state_of

pytestmark = pytest.mark.needs("tunnels", "trims")

KEYS = [f"{number:02}" for number in range(10)]


def put_each(table: Table, *, price: int = 0) -> None:
    """Write `KEYS`, each in its own commit."""
    for key in KEYS:
        table.put({"id": key, "price": price})


def trim_all(table: Table, *, cut_tunnels: bool = False) -> int:
    """Remove all changes that may be removed. Return their number."""
    ends = {part.id: part.next for part in table.describe().partitions}
    return table.trim(before=ends, cut_tunnels=cut_tunnels).changes


def kept(table: Table) -> int:
    return sum(part.next - part.first for part in table.describe().partitions)


def test_changes_that_no_tunnel_needs_are_removed(orders: Table) -> None:
    put_each(orders)
    assert orders.trim().changes == 0
    report = orders.trim(before={part.id: part.next for part in orders.describe().partitions})
    assert (report.changes, report.held_by, report.cut_from) == (10, (), ())
    assert report.bytes > 0
    assert kept(orders) == 0
    assert len(state_of(orders)) == 10


def test_only_changes_below_the_given_row_are_removed(store: Store, orders: Table) -> None:
    put_each(orders)
    (partition,) = orders.describe().partitions
    removed = orders.trim(before={partition.id: 4}).changes
    assert removed <= 4
    assert orders.describe().partitions[0].first == removed
    rest = drain(store.create_tunnel("orders", "rest", "Stream", start="earliest"))
    assert [change.key[0] for change in rest] == KEYS[removed:]


def test_unread_changes_of_a_tunnel_are_kept(store: Store, orders: Table) -> None:
    tunnel = store.create_tunnel("orders", "slow", "Stream")
    done = store.create_tunnel("orders", "done", "Stream")
    put_each(orders)
    drain(done)
    report = orders.trim(before={part.id: part.next for part in orders.describe().partitions})
    assert (report.changes, report.held_by, report.cut_from) == (0, ("slow",), ())
    assert [change.key[0] for change in drain(tunnel)] == KEYS
    assert trim_all(orders) == 10


def test_unread_base_data_keeps_the_changes_after_it(store: Store, orders: Table) -> None:
    put_each(orders)
    tunnel = store.create_tunnel("orders", "both")
    put_each(orders, price=1)
    trim_all(orders)
    assert replay(drain(tunnel)) == state_of(orders)


def test_a_dropped_tunnel_keeps_no_changes(store: Store, orders: Table) -> None:
    store.create_tunnel("orders", "slow", "Stream")
    put_each(orders)
    assert trim_all(orders) == 0
    store.drop_tunnel("slow")
    assert trim_all(orders) == 10


def test_unread_changes_are_removed_only_on_request_and_the_tunnel_is_reported(store: Store, orders: Table) -> None:
    tunnel = store.create_tunnel("orders", "slow", "Stream")
    channel, start = only_channel(tunnel), tunnel.channels()[0].committed
    put_each(orders)
    report = orders.trim(before={part.id: part.next for part in orders.describe().partitions}, cut_tunnels=True)
    assert (report.changes, report.held_by, report.cut_from) == (10, (), ("slow",))
    orders.put({"id": "later"})
    with pytest.raises(DataLossError, match="10"):
        tunnel.read(channel, start, 100)
    found, lost = tunnel.skip_lost(channel, start)
    assert lost == 10
    assert [change.key[0] for change in read_from(tunnel, channel, found)[0]] == ["later"]
    assert tunnel.skip_lost(channel, found) == (found, 0)


def test_lost_rows_are_counted_from_a_position_inside_the_log(store: Store, orders: Table) -> None:
    tunnel = store.create_tunnel("orders", "slow", "Stream")
    channel, start = only_channel(tunnel), tunnel.channels()[0].committed
    put_each(orders)
    position = tunnel.advance(channel, start, 7)
    trim_all(orders, cut_tunnels=True)
    assert tunnel.skip_lost(channel, position)[1] == 3


def test_retention_can_ignore_tunnels(store: Store, orders: Table) -> None:
    store.create_tunnel("orders", "slow", "Stream")
    put_each(orders)
    orders.set_options(retention_seconds=0.0)
    assert orders.describe().held_by == ("slow",)
    assert orders.trim().held_by == ("slow",)
    orders.set_options(retention_ignores_tunnels=True)
    assert orders.describe().held_by == ()
    assert orders.trim().cut_from == ("slow",)
    assert kept(orders) == 0


def test_changes_older_than_the_retention_are_removed(orders: Table) -> None:
    put_each(orders)
    orders.set_options(retention_seconds=3600.0)
    assert orders.trim().changes == 0
    orders.set_options(retention_seconds=0.0)
    orders.trim()
    assert kept(orders) == 0


def test_a_log_is_kept_at_about_its_size(store: Store) -> None:
    table = store.create_table("t", {"id": "string", "text": "string"}, "id", retention_bytes=200_000)
    for number in range(60):
        table.put({"id": str(number), "text": "x" * 20_000})
    table.trim()
    (partition,) = table.describe().partitions
    assert 0 < partition.log_bytes <= 400_000
    assert 0 < partition.next - partition.first < 60


def test_a_log_without_limits_is_kept(store: Store) -> None:
    table = store.create_table("t", {"id": "string"}, "id", retention_seconds=None)
    put = [table.put({"id": str(number)}) for number in range(5)]
    assert table.trim().changes == 0
    assert kept(table) == len(put)


def test_a_start_before_the_first_kept_change_is_data_loss(store: Store, orders: Table) -> None:
    tunnel = store.create_tunnel("orders", "all", "Stream")
    put_each(orders)
    first = drain(tunnel)[0].time
    trim_all(orders)
    for start in (Start(StartKind.EARLIEST), Start(StartKind.TIMESTAMP, first)):
        with pytest.raises(DataLossError):
            tunnel.start_positions(start)
    with pytest.raises(DataLossError):
        store.create_tunnel("orders", "past", "Stream", start=first.isoformat())
    assert drain(store.create_tunnel("orders", "earliest", "Stream", start="earliest")) == []


@pytest.mark.needs("split_partitions")
def test_logs_of_split_partitions_are_removed_after_they_are_read(store: Store, orders: Table) -> None:
    tunnel = store.create_tunnel("orders", "changes", "Stream")
    put_each(orders)
    for _ in range(3):
        orders.split()
        put_each(orders, price=1)
    assert trim_all(orders) == 0
    changes = drain(tunnel)
    assert len(changes) == 40
    assert {change.op for change in changes} == {ChangeOp.INSERT, ChangeOp.REPLACE}
    trim_all(orders)
    assert kept(orders) == 0
    put_each(orders, price=2)
    assert len(drain(tunnel)) == 10
    assert all(channel.committed == FINISHED for channel in tunnel.channels()[:-4])


def test_writing_continues_after_a_trim(store: Store, orders: Table) -> None:
    tunnel = store.create_tunnel("orders", "changes", "Stream")
    for price in range(20):
        put_each(orders, price=price)
        assert len(drain(tunnel)) == 10
        trim_all(orders)
    assert kept(orders) < 100
