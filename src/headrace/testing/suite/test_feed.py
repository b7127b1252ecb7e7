"""The tunnel feed on each store: a batch always has the same rows, and every change is in one batch."""

from __future__ import annotations

import logging
import re
import uuid

import pyarrow as pa
import pytest

from headrace.batches.feeds.channel_reading import read_channel
from headrace.batches.feeds.limits import Limits
from headrace.batches.feeds.tunnel_feed import TunnelFeed
from headrace.errors import DataLossError, LostRaceError, NotFoundError, TunnelTakenError
from headrace.model.tables.changes import ChangeOp
from headrace.model.tunnels.records import INITIAL_BATCH, BatchPlan, ChannelPlan
from headrace.model.tunnels.values import ChannelState, Start, StartKind
from headrace.ports import Store, Table, Tunnel
from headrace.testing import Place
from headrace.testing.reading import keys_of, next_batch, put, read_batch, replay, run_to_the_end, state_of, unpack

pytestmark = pytest.mark.needs("tunnels")


EARLIEST, LATEST = Start(StartKind.EARLIEST), Start(StartKind.LATEST)


# -- 1. a replay is the same batch ----------------------------------------------------------------------


def test_a_batch_returns_the_same_rows_every_time(place: Place, orders: Table, tunnel: Tunnel) -> None:
    put(orders, *"abc")
    feed = TunnelFeed(tunnel)
    batch, first = next_batch(feed, INITIAL_BATCH)
    put(orders, *"de")
    with place.open() as other:
        again = TunnelFeed(other.tunnel("changes"))
        assert read_batch(again.tunnel, again.plan(batch)) == first
    assert read_batch(tunnel, feed.plan(batch)) == first
    assert keys_of(first) == [*"abc"]
    following, second = next_batch(feed, batch)
    assert keys_of(second) == [*"de"]
    assert read_batch(tunnel, feed.plan(batch)) == first
    feed.commit(following)
    assert read_batch(tunnel, feed.plan(following)) == second


def test_a_batch_read_late_ends_at_its_planned_position(orders: Table, tunnel: Tunnel) -> None:
    put(orders, *"abc")
    feed = TunnelFeed(tunnel)
    batch = feed.latest(INITIAL_BATCH)
    put(orders, *"de")
    assert keys_of(read_batch(tunnel, feed.plan(batch))) == [*"abc"]
    assert keys_of(next_batch(feed, batch)[1]) == [*"de"]


def test_the_second_of_two_readers_with_different_ends_fails_and_then_reads_the_recorded_rows(
    orders: Table, tunnel: Tunnel
) -> None:
    batch, (channel,) = str(uuid.uuid4()), tunnel.channels()
    part = ChannelPlan(channel.id, channel.committed)
    tunnel.batches.save_plan(BatchPlan(batch, INITIAL_BATCH, (part,)))
    put(orders, *"abc")
    slow = read_channel(tunnel, batch, part)
    assert next(slow).num_rows == 3
    fast = [keys_of(unpack(changes, ("id",))) for changes in read_channel(tunnel, batch, part)]
    put(orders, "d")
    with pytest.raises(LostRaceError):
        list(slow)
    retried = [keys_of(unpack(changes, ("id",))) for changes in read_channel(tunnel, batch, part)]
    assert retried == fast == [[*"abc"]]


def test_speculative_tasks_that_read_the_same_rows_both_succeed(orders: Table, tunnel: Tunnel) -> None:
    put(orders, *"abc")
    feed = TunnelFeed(tunnel)
    (part,) = feed.plan(batch := feed.latest(INITIAL_BATCH))
    first, second = read_channel(tunnel, batch, part), read_channel(tunnel, batch, part)
    assert next(first).num_rows == next(second).num_rows == 3
    put(orders, *"de")
    assert list(first) == list(second) == []
    assert tunnel.batches.ends(batch)[part.channel].rows == 3


# -- 2. no new data, no batch ---------------------------------------------------------------------------


def test_without_new_data_there_is_no_new_batch(orders: Table, tunnel: Tunnel) -> None:
    feed = TunnelFeed(tunnel)
    assert feed.latest(INITIAL_BATCH) == INITIAL_BATCH
    put(orders, "a")
    batch, _ = next_batch(feed, INITIAL_BATCH)
    assert feed.latest(batch) == batch
    assert TunnelFeed(tunnel).latest(batch) == batch
    orders.delete({"id": "nobody"})
    assert feed.latest(batch) == batch


def test_a_second_reader_takes_over_the_tunnel_and_the_first_fails(store: Store, orders: Table, tunnel: Tunnel) -> None:
    put(orders, "a")
    first = TunnelFeed(tunnel)
    batch, _ = next_batch(first, INITIAL_BATCH)
    next_batch(TunnelFeed(store.tunnel(tunnel.id), start=LATEST), INITIAL_BATCH)
    put(orders, "b")
    # After its commits the first reader would miss the changes that the second has read.
    with pytest.raises(TunnelTakenError, match="a tunnel for each query"):
        first.latest(batch)


def test_the_base_data_of_an_empty_table_is_no_batch(store: Store, orders: Table) -> None:
    feed = TunnelFeed(store.create_tunnel(orders.name, "empty", kind="BaseAndStream"))
    assert feed.latest(INITIAL_BATCH) == INITIAL_BATCH
    put(orders, "a")
    _, changes = next_batch(feed, INITIAL_BATCH)
    assert keys_of(changes) == ["a"]


@pytest.mark.needs("split_partitions")
def test_a_split_without_rows_is_no_batch(store: Store, orders: Table, tunnel: Tunnel) -> None:
    put(orders, *"abcd")
    feed = TunnelFeed(tunnel)
    batch, _ = next_batch(feed, INITIAL_BATCH)
    orders.split()
    assert feed.latest(batch) == batch
    put(orders, "a", "d")
    assert sorted(keys_of(next_batch(feed, batch)[1])) == ["a", "d"]


# -- 3. limits always progress --------------------------------------------------------------------------


def test_a_batch_respects_the_limit_of_a_channel_and_all_rows_arrive(store: Store, orders: Table) -> None:
    tunnel = store.create_tunnel("orders", "changes", "Stream")
    put(orders, *(f"{number:03}" for number in range(20)))
    batches = run_to_the_end(TunnelFeed(tunnel, limits=Limits(rows_per_channel=3)))
    assert [len(changes) for _, changes in batches] == [3] * 6 + [2]
    assert [key for _, changes in batches for key in keys_of(changes)] == [f"{number:03}" for number in range(20)]


def test_limits_apply_to_base_data(store: Store, orders: Table) -> None:
    put(orders, *(f"{number:03}" for number in range(20)))
    tunnel = store.create_tunnel("orders", "both", base_channels=2)
    put(orders, "b")
    batches = run_to_the_end(TunnelFeed(tunnel, limits=Limits(rows_per_channel=3)))
    assert max(len(changes) for _, changes in batches) <= 6
    assert replay([change for _, changes in batches for change in changes]) == state_of(orders)


@pytest.mark.needs("split_partitions")
@pytest.mark.parametrize("limits", [Limits(rows_per_batch=1), Limits(rows_per_batch=5), Limits(bytes_per_batch=1)])
def test_a_batch_holds_at_most_its_limit_over_all_channels(store: Store, orders: Table, limits: Limits) -> None:
    put(orders, *"abcdef")
    orders.split()
    orders.split()
    tunnel = store.create_tunnel("orders", "changes", "Stream")
    for price in range(3):
        put(orders, *"abcdef", price=price)
    batches = run_to_the_end(TunnelFeed(tunnel, limits=limits))
    most = limits.rows_per_batch or 1
    assert all(1 <= len(changes) <= most for _, changes in batches)
    changes = [change for _, found in batches for change in found]
    for key in "abcdef":
        assert [change.row["price"] for change in changes if change.key == (key,)] == [0, 1, 2]


@pytest.mark.needs("pre_images")
def test_a_preimage_stays_with_its_change_under_any_limit(store: Store) -> None:
    table = store.create_table("t", {"id": "string", "price": "long"}, "id", pre_images=True)
    put(table, *"abc")
    tunnel = store.create_tunnel("t", "changes", "Stream")
    put(table, *"abc", price=1)
    batches = run_to_the_end(TunnelFeed(tunnel, limits=Limits(rows_per_batch=1)))
    assert [[change.op for change in changes] for _, changes in batches] == [[ChangeOp.PREIMAGE, ChangeOp.REPLACE]] * 3


@pytest.mark.needs("pre_images")
def test_a_preimage_stays_with_its_change_in_a_large_commit(store: Store) -> None:
    table = store.create_table("t", {"id": "long", "price": "long"}, "id", pre_images=True)
    count = 40_000
    table.put(pa.table({"id": range(1, count)}))
    tunnel = store.create_tunnel("t", "changes", "Stream")
    table.put(pa.table({"id": range(count), "price": range(count)}))
    feed, batch, rows = TunnelFeed(tunnel, limits=Limits(rows_per_channel=65_536)), INITIAL_BATCH, 0
    while (following := feed.latest(batch)) != batch:
        batch = following
        (part,) = feed.plan(batch)
        for changes in read_channel(tunnel, batch, part):
            rows += changes.num_rows
            last = changes.ops[changes.num_rows - 1].as_py()
        assert last != ChangeOp.PREIMAGE
    assert rows == 2 * count - 1


def test_read_all_available_overrides_the_limits(orders: Table, tunnel: Tunnel) -> None:
    put(orders, *"abcdef")
    feed = TunnelFeed(tunnel, limits=Limits(rows_per_channel=1, rows_per_batch=1, min_rows=100))
    batch = feed.latest(INITIAL_BATCH, unlimited=True)
    assert keys_of(read_batch(tunnel, feed.plan(batch))) == [*"abcdef"]


def test_a_batch_waits_for_enough_rows_or_for_the_delay(orders: Table, tunnel: Tunnel) -> None:
    patient = TunnelFeed(tunnel, limits=Limits(min_rows=3, max_delay=900.0))
    put(orders, "a", "b")
    assert patient.latest(INITIAL_BATCH) == INITIAL_BATCH
    hasty = TunnelFeed(tunnel, limits=Limits(min_rows=3, max_delay=0.0))
    assert hasty.latest(INITIAL_BATCH) != INITIAL_BATCH
    put(orders, "c")
    assert keys_of(next_batch(patient, INITIAL_BATCH)[1]) == [*"abc"]


# -- 4. finished, split, merged and new channels --------------------------------------------------------


@pytest.mark.needs("split_partitions")
def test_splits_and_merges_between_batches_lose_nothing_and_keep_the_order(store: Store, orders: Table) -> None:
    put(orders, *"abcdefgh")
    tunnel = store.create_tunnel("orders", "both", base_channels=2)
    feed, batch, changes = TunnelFeed(tunnel, limits=Limits(rows_per_channel=2)), INITIAL_BATCH, []
    for price in range(1, 13):
        put(orders, *"abcdefgh", price=price)
        if price % 3:
            orders.split()
        else:
            opened = sorted((p for p in orders.describe().partitions if p.open), key=lambda p: p.keys.low or ())
            orders.merge(opened[0].id, opened[1].id)
        batch, found = next_batch(feed, batch)
        changes += found
        feed = TunnelFeed(tunnel, limits=Limits(rows_per_channel=price)) if price % 4 == 0 else feed
    changes += [change for _, found in run_to_the_end(feed, batch) for change in found]
    for key in "abcdefgh":
        assert [change.row["price"] for change in changes if change.key == (key,)] == list(range(13))
    assert replay(changes) == state_of(orders)


@pytest.mark.needs("split_partitions")
def test_children_are_read_only_when_their_parent_is_finished_and_committed(store: Store, orders: Table) -> None:
    put(orders, *"abcd")
    tunnel = store.create_tunnel("orders", "changes", "Stream")
    (parent,) = tunnel.channels()
    put(orders, *"abcd", price=1)
    orders.split()
    put(orders, *"abcd", price=2)
    feed = TunnelFeed(tunnel)
    batch = feed.latest(INITIAL_BATCH)
    assert [part.channel for part in feed.plan(batch) if part.max_rows != 0] == [parent.id]
    assert [change.row["price"] for change in read_batch(tunnel, feed.plan(batch))] == [1] * 4
    following, changes = next_batch(feed, batch)
    assert [change.row["price"] for change in changes] == [2] * 4
    assert [channel.id for channel in tunnel.channels() if channel.state is ChannelState.FINISHED] == [parent.id]
    assert parent.id not in [part.channel for part in feed.plan(following) if part.max_rows != 0]


@pytest.mark.needs("split_partitions")
def test_splits_of_empty_splits_delay_no_rows(store: Store, orders: Table) -> None:
    put(orders, *"abcdefgh")
    tunnel = store.create_tunnel("orders", "changes", "Stream")
    feed = TunnelFeed(tunnel)
    put(orders, "a", price=1)
    batch, _ = next_batch(feed, INITIAL_BATCH)
    left, right = orders.split()
    middle, _ = orders.split(right)
    orders.split(orders.merge(left, middle))
    put(orders, *"abcdefgh", price=2)
    assert sorted(keys_of(next_batch(feed, batch)[1])) == [*"abcdefgh"]


# -- 5. rows that were not read to the end --------------------------------------------------------------


def test_a_partly_read_batch_records_no_end_and_is_read_again(orders: Table, tunnel: Tunnel) -> None:
    put(orders, *"abc")
    feed = TunnelFeed(tunnel)
    batch = feed.latest(INITIAL_BATCH)
    (part,) = feed.plan(batch)
    failing = read_channel(tunnel, batch, part)
    next(failing)
    failing.close()  # type: ignore[attr-defined]
    assert tunnel.batches.ends(batch) == {}
    put(orders, "d")
    assert keys_of(next_batch(feed, batch)[1]) == [*"abcd"]


# -- 6. old records -------------------------------------------------------------------------------------


def test_retained_batches_stay_readable(orders: Table, tunnel: Tunnel) -> None:
    feed, previous, batches = TunnelFeed(tunnel, retain_batches=3), INITIAL_BATCH, []
    for key in "abcdefgh":
        put(orders, key)
        previous, changes = next_batch(feed, previous)
        batches.append((previous, changes))
    feed.commit(previous)
    for batch, changes in batches[-4:]:
        assert read_batch(tunnel, feed.plan(batch)) == changes
    for batch, _ in batches[:-4]:
        assert tunnel.batches.ends(batch) == {}
        with pytest.raises(DataLossError, match="retainBatches"):
            feed.plan(batch)


def test_a_batch_that_was_never_recorded_is_data_loss(tunnel: Tunnel) -> None:
    with pytest.raises(DataLossError, match="checkpoint"):
        TunnelFeed(tunnel).latest(str(uuid.uuid4()))


# -- 7. the true latest position --------------------------------------------------------------------------


@pytest.mark.parametrize("dropped", ["tunnel", "table"])
def test_a_tunnel_that_is_dropped_under_a_query_is_named(
    place: Place, store: Store, orders: Table, tunnel: Tunnel, dropped: str
) -> None:
    put(orders, "u1")
    feed = TunnelFeed(tunnel)
    batch = feed.latest(INITIAL_BATCH)
    if dropped == "table":
        store.drop_table(orders.name)
        expected = f"table {orders.name!r} was dropped, and tunnel {tunnel.name!r} with it"
    else:
        store.drop_tunnel(tunnel.id)
        expected = f"tunnel {tunnel.name!r} of table {orders.name!r} was dropped"
    for step in (lambda: feed.latest(batch), lambda: feed.tasks(INITIAL_BATCH, batch)):
        with pytest.raises(NotFoundError, match=re.escape(expected)):
            step()


def test_a_feed_reports_the_lag_after_a_planned_batch(orders: Table, tunnel: Tunnel) -> None:
    put(orders, *"abcde")
    feed = TunnelFeed(tunnel, limits=Limits(rows_per_batch=2))
    feed.latest(INITIAL_BATCH)
    assert sum(feed.rows_behind().values()) == 3


# -- 8. missing data ------------------------------------------------------------------------------------


@pytest.mark.needs("trims")
def test_lost_rows_fail_the_batch_or_are_counted_and_skipped(
    store: Store, orders: Table, tunnel: Tunnel, caplog: pytest.LogCaptureFixture
) -> None:
    for key in "abc":
        put(orders, key)
    feed = TunnelFeed(tunnel)
    orders.trim(before={part.id: part.next for part in orders.describe().partitions}, cut_tunnels=True)
    put(orders, "d")
    batch = feed.latest(INITIAL_BATCH)
    with pytest.raises(DataLossError, match="failOnDataLoss"):
        read_batch(tunnel, feed.plan(batch))
    with caplog.at_level(logging.WARNING, "headrace"):
        assert keys_of(read_batch(tunnel, feed.plan(batch), fail_on_data_loss=False)) == ["d"]
    assert "3 changes" in caplog.text
    assert keys_of(read_batch(tunnel, feed.plan(batch), fail_on_data_loss=False)) == ["d"]
    put(orders, "e")
    assert keys_of(next_batch(feed, batch)[1]) == ["e"]


@pytest.mark.needs("trims")
def test_a_batch_trimmed_after_it_was_read_is_data_loss(store: Store, orders: Table, tunnel: Tunnel) -> None:
    put(orders, "a", "b")
    feed = TunnelFeed(tunnel)
    batch, _ = next_batch(feed, INITIAL_BATCH)
    orders.trim(before={part.id: part.next for part in orders.describe().partitions}, cut_tunnels=True)
    with pytest.raises(DataLossError):
        read_batch(tunnel, feed.plan(batch))
    assert read_batch(tunnel, feed.plan(batch), fail_on_data_loss=False) == []


# -- start positions, commits, several tunnels ----------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "expected"),
    [(Start(), ["b"]), pytest.param(EARLIEST, ["a", "b"], marks=pytest.mark.needs("rewinds")), (LATEST, [])],
)
def test_a_feed_begins_at_its_start_position_and_continues_after_its_last_batch(
    store: Store, orders: Table, tunnel: Tunnel, start: Start, expected: list[str]
) -> None:
    put(orders, "a")
    tunnel.commit(tunnel.latest_positions())
    put(orders, "b")
    batches = run_to_the_end(TunnelFeed(tunnel, start=start))
    assert [key for _, changes in batches for key in keys_of(changes)] == expected
    put(orders, "c")
    again = run_to_the_end(TunnelFeed(tunnel, start=start), batches[-1][0])
    assert [key for _, changes in again for key in keys_of(changes)] == ["c"]


def test_the_latest_start_is_fixed_by_the_first_batch(orders: Table, tunnel: Tunnel) -> None:
    put(orders, "a")
    feed = TunnelFeed(tunnel, start=LATEST)
    batch, changes = next_batch(feed, INITIAL_BATCH)
    assert changes == []
    put(orders, "b")
    assert keys_of(next_batch(TunnelFeed(tunnel, start=LATEST), batch)[1]) == ["b"]


def test_a_committed_batch_moves_the_tunnels_committed_positions(orders: Table, tunnel: Tunnel) -> None:
    put(orders, *"abc")
    feed = TunnelFeed(tunnel, limits=Limits(rows_per_batch=2))
    batch, _ = next_batch(feed, INITIAL_BATCH)
    assert tunnel.describe().backlog_rows == 3
    feed.commit(batch)
    feed.commit(batch)
    feed.commit(INITIAL_BATCH)
    assert tunnel.describe().backlog_rows == 1
    assert keys_of(next_batch(feed, batch)[1]) == ["c"]


def test_feeds_of_several_tunnels_are_independent(store: Store, orders: Table) -> None:
    put(orders, *"ab")
    feeds = {
        "one": TunnelFeed(store.create_tunnel("orders", "one", base_channels=2), limits=Limits(rows_per_batch=1)),
        "two": TunnelFeed(store.create_tunnel("orders", "two")),
    }
    put(orders, *"cd")
    found = {
        name: [change for _, changes in run_to_the_end(feed) for change in changes] for name, feed in feeds.items()
    }
    assert replay(found["one"]) == replay(found["two"]) == state_of(orders)
    assert len(found["one"]) == len(found["two"]) == 4
