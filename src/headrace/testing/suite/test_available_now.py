"""Trigger.AvailableNow on each store: it reads all data from before its start, and then ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import pytest

from headrace.batches.feeds import tunnel_feed
from headrace.batches.feeds.limits import Limits
from headrace.batches.feeds.tunnel_feed import TunnelFeed
from headrace.errors import StoreBusyError
from headrace.model.tunnels.records import INITIAL_BATCH
from headrace.model.tunnels.values import Channel, ChannelKind, ChannelState, Position
from headrace.ports import Store, Table, Tunnel
from headrace.testing.reading import keys_of, next_batch, put, replay, run_to_the_end, state_of

pytestmark = pytest.mark.needs("tunnels")


def available_now(tunnel: Tunnel, *, rows: int | None = None) -> TunnelFeed:
    feed = TunnelFeed(tunnel, limits=Limits(rows_per_batch=rows))
    feed.fix_end()
    return feed


@pytest.mark.parametrize("rows", [None, 1, 3])
def test_available_now_ignores_data_written_after_its_start(orders: Table, tunnel: Tunnel, rows: int | None) -> None:
    put(orders, *"abcd")
    feed = available_now(tunnel, rows=rows)
    put(orders, *"ef")
    batch, changes = next_batch(feed, INITIAL_BATCH)
    put(orders, *"gh")
    batches = run_to_the_end(feed, batch)
    assert keys_of(changes) + [key for _, found in batches for key in keys_of(found)] == [*"abcd"]
    last = batches[-1][0] if batches else batch
    later = run_to_the_end(available_now(tunnel, rows=rows), last)
    assert [key for _, found in later for key in keys_of(found)] == [*"efgh"]


@pytest.mark.parametrize("rows", [None, 1, 4])
def test_available_now_reads_base_data_and_then_the_stream(store: Store, orders: Table, rows: int | None) -> None:
    put(orders, *"abcdef")
    tunnel = store.create_tunnel("orders", "both", base_channels=2)
    put(orders, "a", "g", price=1)
    feed = available_now(tunnel, rows=rows)
    there = state_of(orders)
    put(orders, "a", "h", price=2)
    batches = run_to_the_end(feed)
    assert replay([change for _, changes in batches for change in changes]) == there
    later = run_to_the_end(available_now(tunnel, rows=rows), batches[-1][0])
    assert sorted(key for _, found in later for key in keys_of(found)) == ["a", "h"]


@pytest.mark.needs("split_partitions")
@pytest.mark.parametrize("rows", [None, 1, 5])
def test_available_now_follows_only_splits_made_before_its_start(store: Store, orders: Table, rows: int | None) -> None:
    put(orders, *"abcdef")
    tunnel = store.create_tunnel("orders", "both")
    put(orders, *"abcdef", price=1)
    left, right = orders.split()
    put(orders, *"abcdef", price=2)
    feed = available_now(tunnel, rows=rows)
    there = state_of(orders)
    batch, changes = next_batch(feed, INITIAL_BATCH)
    orders.merge(left, right)
    put(orders, *"abcdef", price=3)
    orders.split()
    put(orders, *"abcdef", price=4)
    batches = run_to_the_end(feed, batch)
    changes += [change for _, found in batches for change in found]
    assert replay(changes) == there
    later = run_to_the_end(available_now(tunnel, rows=rows), batches[-1][0] if batches else batch)
    changes += [change for _, found in later for change in found]
    assert replay(changes) == state_of(orders)
    for key in "abcdef":
        assert [change.row["price"] for change in changes if change.key == (key,)] == list(range(5))


class _SlowToOpen:
    """A tunnel that opens its change logs some requests after the end of the base data."""

    def __init__(self, tunnel: Tunnel, looks: int) -> None:
        self._tunnel = tunnel
        self._looks = looks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tunnel, name)

    def wait_for_change(self, timeout: float) -> bool:
        return True

    def channels(self, known: Mapping[str, Position] | None = None) -> list[Channel]:
        found = self._tunnel.channels(known)
        if all(each.state is ChannelState.FINISHED for each in found if each.kind is ChannelKind.BASE_DATA):
            self._looks -= 1
        if self._looks < 0:
            return found
        return [
            replace(each, state=ChannelState.WAITING) if each.kind is ChannelKind.STREAM else each for each in found
        ]


def test_available_now_waits_for_a_store_that_opens_channels_late(
    store: Store, orders: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(orders, "a")
    tunnel = store.create_tunnel("orders", "both")
    put(orders, "a", price=1)
    slow = cast(Tunnel, _SlowToOpen(tunnel, 3))
    batches = run_to_the_end(available_now(slow))
    assert replay([change for _, found in batches for change in found]) == state_of(orders)
    put(orders, "a", price=2)
    monkeypatch.setattr(tunnel_feed, "OPENING_SECONDS", 0.0)
    never = available_now(cast(Tunnel, _SlowToOpen(tunnel, 1000)))
    with pytest.raises(StoreBusyError, match="does not open"):
        never.latest(batches[-1][0])


def test_available_now_ends_when_all_data_from_before_its_start_is_read(orders: Table, tunnel: Tunnel) -> None:
    assert run_to_the_end(available_now(tunnel)) == []
    feed = available_now(tunnel)
    put(orders, "a")
    assert run_to_the_end(feed) == []
