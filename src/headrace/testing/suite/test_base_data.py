"""Base data, and the transition to the stream: exact with writers before, between and after the pages."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.errors import DataLossError
from headrace.model.tunnels.values import FINISHED, ChannelKind, ChannelState, Position
from headrace.ports import Store, Table, Tunnel
from headrace.testing.capabilities import traits
from headrace.testing.effort import thorough
from headrace.testing.reading import Change, State, drain, filled, read_from, replay, state_of, unpack

pytestmark = pytest.mark.needs("tunnels")


_numbers = itertools.count()


def base_channels(tunnel: Tunnel) -> dict[str, Position]:
    """Return the base channels and their start positions."""
    return {each.id: each.committed for each in tunnel.channels() if each.kind is ChannelKind.BASE_DATA}


def read_base(tunnel: Tunnel, positions: dict[str, Position]) -> list[Change]:
    return [change for channel, start in positions.items() for change in read_from(tunnel, channel, start)[0]]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_base_channels_cover_the_table_once(store: Store, orders: Table, count: int) -> None:
    rows = [{"id": f"{number:03}", "price": number, "note": None} for number in range(100)]
    orders.put(rows)
    tunnel = store.create_tunnel("orders", "both", base_channels=count)
    channels = base_channels(tunnel)
    # A service that splits tables automatically also divides base data automatically.
    assert len(channels) == count or not traits(store).split_partitions
    assert [change.row for change in read_base(tunnel, channels)] == rows
    assert {channel.state for channel in tunnel.channels() if channel.id in channels} == {ChannelState.OPEN}


def test_an_empty_table_has_base_data_that_ends_at_once(store: Store, orders: Table) -> None:
    tunnel = store.create_tunnel("orders", "both")
    orders.put({"id": "a"})
    assert read_base(tunnel, base_channels(tunnel)) == []
    assert [change.key for change in drain(tunnel)] == [("a",)]


@pytest.mark.needs("transactions", "starts_in_past")
def test_base_data_carries_the_version_before_the_first_change(store: Store, orders: Table) -> None:
    orders.put([{"id": "a"}, {"id": "b"}])
    tunnel = store.create_tunnel("orders", "both")
    orders.put({"id": "c"})
    base, stream = drain(tunnel)[:2], drain(store.create_tunnel("orders", "again", "Stream", start="earliest"))
    assert {change.version for change in base} <= {stream[0].version}
    assert {change.time for change in base} <= {stream[0].time}


def test_committed_base_data_cannot_be_read_again(store: Store, orders: Table) -> None:
    orders.put({"id": "a"})
    tunnel = store.create_tunnel("orders", "both")
    channels = base_channels(tunnel)
    drain(tunnel)
    for channel, start in channels.items():
        with pytest.raises(DataLossError):
            tunnel.read(channel, start, 10)
        assert tunnel.skip_lost(channel, start) == (FINISHED, 0)


@pytest.mark.needs("split_partitions", "add_columns")
def test_base_data_is_unchanged_by_splits_merges_and_new_columns(store: Store, orders: Table) -> None:
    orders.put([{"id": f"{number:03}", "price": number} for number in range(60)])
    left, right = orders.split()
    before = state_of(orders)
    tunnel = store.create_tunnel("orders", "both", base_channels=3)
    channels = base_channels(tunnel)
    merged = orders.merge(left, right)
    orders.put([{"id": f"{number:03}", "price": -1} for number in range(0, 60, 2)])
    orders.split(merged)
    orders.add_columns({"colour": "string", "size": "double"})
    orders.update([{"id": f"{number:03}", "colour": "red"} for number in range(0, 60, 3)])
    orders.delete([{"id": f"{number:03}"} for number in range(0, 60, 5)])
    base = read_base(tunnel, channels)
    assert filled(replay(base)) == filled(before)
    assert filled(replay(drain(tunnel))) == filled(state_of(orders))


def test_each_tunnel_begins_with_the_table_at_its_creation(store: Store, orders: Table) -> None:
    beginnings: list[tuple[Tunnel, State]] = []
    for number in range(4):
        orders.put([{"id": f"{number}{key}", "price": number} for key in "abc"])
        orders.update([{"id": "0a", "price": number * 10}])
        orders.delete({"id": f"{number - 1}b"})
        beginnings.append((store.create_tunnel("orders", str(number), base_channels=2), state_of(orders)))
    store.drop_tunnel("1")
    del beginnings[1]
    for tunnel, state in beginnings:
        base = read_base(tunnel, base_channels(tunnel))
        assert replay(base) == state
        assert replay(drain(tunnel)) == state_of(orders)


_KEYS = [f"{number:02}" for number in range(24)]
_writes = st.lists(
    st.tuples(
        st.sampled_from(["put", "update", "delete"]),
        st.lists(st.sampled_from(_KEYS), min_size=1, max_size=5),
        st.integers(0, 9),
    ),
    max_size=3,
)


def _write(table: Table, writes: list[tuple[str, list[str], int]]) -> None:
    for operation, keys, price in writes:
        rows: list[dict[str, Any]] = [{"id": key, "price": price} for key in keys]
        getattr(table, operation)(rows)


@settings(max_examples=thorough(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    before=_writes,
    between=st.lists(st.tuples(_writes, st.integers(0, 2), st.integers(1, 6)), max_size=12),
    pieces=st.integers(1, 3),
)
def test_base_data_and_stream_are_complete_while_writers_run(
    store: Store, before: Any, between: Any, pieces: int
) -> None:
    name = f"table_{next(_numbers)}"
    table = store.create_table(name, {"id": "string", "price": "long", "note": "string"}, "id")
    table.put([{"id": key, "price": 100, "note": key} for key in _KEYS[::2]])
    _write(table, before)
    beginning = state_of(table)
    tunnel = store.create_tunnel(name, "both", base_channels=pieces)
    starts = base_channels(tunnel)
    positions = dict(starts)
    base: list[Change] = []
    for writes, channel_number, rows in between:
        _write(table, writes)
        channel = list(starts)[channel_number % len(starts)]
        page = tunnel.read(channel, positions[channel], rows)
        positions[channel] = page.next
        base += unpack(page.changes, ("id",))
    for channel, position in positions.items():
        base += read_from(tunnel, channel, position, page_rows=5)[0]
    assert replay(base) == beginning
    assert replay(read_base(tunnel, starts)) == beginning
    tunnel.commit(dict.fromkeys(starts, FINISHED))
    stream = drain(tunnel)
    assert replay(stream, beginning, whole_rows=store.capabilities.whole_rows) == state_of(table)
