"""One test for each of the defects a to k of the vendor's connector for Spark, which headrace does not have.

The tests of defects in its meta table and its columns (g, i, j) are `test_tablestore_batches.py` and
`test_tablestore_tunnel.py` in `tests/tablestore/unit`.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.batches.feeds.channel_reading import read_channel
from headrace.batches.feeds.limits import Limits
from headrace.batches.feeds.tunnel_feed import TunnelFeed
from headrace.errors import NotFoundError
from headrace.model.tunnels.records import INITIAL_BATCH, BatchPlan, ChannelEnd, ChannelPlan
from headrace.model.tunnels.values import FINISHED, ChannelState
from headrace.ports import Store, Table, Tunnel
from headrace.testing import Place
from headrace.testing.reading import Change, put, read_batch, run_to_the_end, unpack

pytestmark = pytest.mark.needs("tunnels")


def keys_of(changes: list[Change]) -> list[str]:
    return sorted(change.key[0] for change in changes)


def test_defect_a_a_page_larger_than_the_limit_is_split_and_not_discarded(orders: Table, tunnel: Tunnel) -> None:
    put(orders, *"abcdefg")
    batches = run_to_the_end(TunnelFeed(tunnel, limits=Limits(rows_per_channel=2)), most=5)
    assert [len(changes) for _, changes in batches] == [2, 2, 2, 1]
    assert keys_of([change for _, changes in batches for change in changes]) == [*"abcdefg"]


def test_defect_b_a_finished_channel_is_read_without_an_error(tunnel: Tunnel) -> None:
    (channel,) = tunnel.channels()
    part = ChannelPlan(channel.id, FINISHED)
    tunnel.batches.save_plan(BatchPlan("batch", INITIAL_BATCH, (part,)))
    for _ in range(2):
        assert list(read_channel(tunnel, "batch", part)) == []
        assert tunnel.batches.ends("batch") == {channel.id: ChannelEnd(FINISHED, 0)}


def test_defect_c_a_channel_that_just_finished_is_not_read_again(place: Place, orders: Table, tunnel: Tunnel) -> None:
    put(orders, *"abcd")
    feed = TunnelFeed(tunnel)
    batch = feed.latest(INITIAL_BATCH)
    first = read_batch(tunnel, feed.plan(batch))
    place.split("orders")
    put(orders, *"abcd", price=1)
    found = run_to_the_end(feed, batch)
    changes = first + [change for _, changes in found for change in changes]
    for key in "abcd":
        assert [change.row["price"] for change in changes if change.key == (key,)] == [0, 1]
    assert run_to_the_end(TunnelFeed(tunnel), found[-1][0]) == []
    states = [channel.state for channel in tunnel.channels()]
    children = [ChannelState.OPEN] * (2 if place.has_partitions else 1)
    assert states in ([ChannelState.FINISHED, *children], children)


def test_defect_d_a_partly_read_batch_does_not_reset_the_next_batch(orders: Table, tunnel: Tunnel) -> None:
    feed = TunnelFeed(tunnel)
    put(orders, *"abc")
    # Nothing is committed to the tunnel: its position is still before a.
    first = feed.latest(INITIAL_BATCH)
    assert keys_of(read_batch(tunnel, feed.plan(first))) == [*"abc"]
    put(orders, *"de")
    second = feed.latest(first)
    (part,) = feed.plan(second)
    stopped_early = read_channel(tunnel, second, part)
    next(stopped_early)
    stopped_early.close()  # type: ignore[attr-defined]
    assert tunnel.batches.ends(second) == {}
    third = TunnelFeed(tunnel).latest(second)
    assert keys_of(read_batch(tunnel, feed.plan(third))) == [*"de"]


def test_defect_e_two_stores_in_one_process_do_not_share_a_client(
    place: Place, store: Store, orders: Table, tunnel: Tunnel
) -> None:
    put(orders, "here")
    elsewhere = replace(place, directory=place.directory / "elsewhere")
    elsewhere.directory.mkdir()
    with elsewhere.open() as other:
        there = other.create_table("orders", {"id": "string", "price": "long", "note": "string"}, "id")
        put(there, "before")
        others = other.create_tunnel("orders", "changes", "BaseData")
        assert [keys_of(changes) for _, changes in run_to_the_end(TunnelFeed(others))] == [["before"]]
    with place.open():
        pass
    assert [keys_of(changes) for _, changes in run_to_the_end(TunnelFeed(tunnel))] == [["here"]]
    assert store.tunnel("changes").id == tunnel.id != others.id


def test_defect_f_all_of_many_rows_are_returned(orders: Table, tunnel: Tunnel) -> None:
    keys = [f"{number:05}" for number in range(11_000)]
    put(orders, *keys)
    (batch,) = run_to_the_end(TunnelFeed(tunnel))
    assert keys_of(batch[1]) == keys


def test_defect_h_an_error_before_the_first_row_fails_the_task_and_records_nothing(
    store: Store, orders: Table, tunnel: Tunnel
) -> None:
    put(orders, "a")
    feed = TunnelFeed(tunnel)
    batch = feed.latest(INITIAL_BATCH)
    (part,) = feed.plan(batch)
    with pytest.raises(NotFoundError):
        list(read_channel(tunnel, batch, replace(part, channel="nobody")))
    assert tunnel.batches.ends(batch) == {}
    store.drop_tunnel("changes")
    fresh = store.create_tunnel("orders", "changes", "Stream")
    with pytest.raises(NotFoundError):
        list(read_channel(tunnel, batch, part))
    assert fresh.batches.ends(batch) == {}


def test_defect_k_channels_without_rows_make_no_batches_and_no_tasks(
    place: Place, orders: Table, tunnel: Tunnel
) -> None:
    put(orders, *"abcdefgh")
    feed = TunnelFeed(tunnel)
    ((batch, _),) = run_to_the_end(feed)
    for _ in range(3):
        place.split("orders")
    assert feed.latest(batch) == batch
    put(orders, "a", price=1)
    following = feed.latest(batch)
    assert [part.max_rows != 0 for part in feed.plan(following)].count(True) == 1
    read = read_batch(tunnel, replace(feed.plan(following), channels=_tasks(feed.plan(following))))
    assert keys_of(read) == ["a"]
    assert feed.latest(following) == following


def _tasks(plan: BatchPlan) -> tuple[ChannelPlan, ...]:
    """Return the parts of a plan that become tasks of Spark."""
    return tuple(part for part in plan if part.max_rows != 0)


def test_an_end_is_not_moved_by_a_second_action_on_a_batch(orders: Table, tunnel: Tunnel) -> None:
    """The connector's batches have no fixed content: a second read returns more or fewer rows."""
    put(orders, *"abc")
    feed = TunnelFeed(tunnel)
    (part,) = feed.plan(batch := feed.latest(INITIAL_BATCH))
    first = [change for changes in read_channel(tunnel, batch, part) for change in unpack(changes, ("id",))]
    put(orders, *"de")
    again = [change for changes in read_channel(tunnel, batch, part) for change in unpack(changes, ("id",))]
    assert again == first
