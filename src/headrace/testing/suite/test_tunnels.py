"""Tunnels: the changes of their channels, the order in which channels open, and committed positions."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import cast

import pytest

from headrace.errors import AlreadyExistsError, NotFoundError, OptionError, UnsupportedError
from headrace.model.tables.changes import ChangeOp
from headrace.model.tunnels.records import INITIAL_BATCH, BatchPlan, ChannelEnd, ChannelPlan
from headrace.model.tunnels.values import (
    FINISHED,
    Backlog,
    ChannelKind,
    ChannelState,
    KindName,
    Position,
    Start,
    StartKind,
    TunnelKind,
)
from headrace.ports import Store, Table, Tunnel
from headrace.testing import Place
from headrace.testing.reading import drain, only_channel, put, read_from, replay, state_of

pytestmark = pytest.mark.needs("tunnels")


EARLIEST, LATEST = Start(StartKind.EARLIEST), Start(StartKind.LATEST)


def states(tunnel: Tunnel) -> list[ChannelState]:
    return [channel.state for channel in tunnel.channels()]


def finish_all(tunnel: Tunnel) -> None:
    tunnel.commit({channel.id: FINISHED for channel in tunnel.channels() if channel.state is ChannelState.OPEN})


# -- kinds ----------------------------------------------------------------------------------------------


def test_each_kind_of_tunnel_returns_its_changes(store: Store, orders: Table) -> None:
    put(orders, "a", "b")
    tunnels = {kind: store.create_tunnel("orders", kind.value, kind) for kind in TunnelKind}
    put(orders, "c")
    found = {kind: [(change.op, change.key[0]) for change in drain(tunnel)] for kind, tunnel in tunnels.items()}
    base, stream = [(ChangeOp.BASE, "a"), (ChangeOp.BASE, "b")], [(ChangeOp.INSERT, "c")]
    assert found == {
        TunnelKind.BASE_DATA: base,
        TunnelKind.STREAM: stream,
        TunnelKind.BASE_AND_STREAM: base + stream,
    }


def test_the_kind_may_be_a_text_in_any_case_and_is_both_by_default(store: Store, orders: Table) -> None:
    assert store.create_tunnel("orders", "a", cast(KindName, "basedata")).kind is TunnelKind.BASE_DATA
    assert store.create_tunnel("orders", "b").kind is TunnelKind.BASE_AND_STREAM
    with pytest.raises(OptionError, match="BaseAndStream"):
        store.create_tunnel("orders", "c", cast(KindName, "everything"))


def test_the_stage_is_base_data_until_all_of_it_is_read(store: Store, orders: Table) -> None:
    put(orders, *"abcdef")
    both = store.create_tunnel("orders", "both", base_channels=2)
    base = [channel for channel in both.channels() if channel.kind is ChannelKind.BASE_DATA]
    stream = [channel for channel in both.channels() if channel.kind is ChannelKind.STREAM]
    assert both.describe().stage == "BaseData"
    assert [channel.state for channel in stream] == [ChannelState.WAITING]
    for channel in base[1:]:
        both.commit({channel.id: FINISHED})
        assert both.describe().stage == "BaseData"
    both.commit({channel.id: FINISHED for channel in base})
    assert both.describe().stage == "Stream"
    assert [c.state for c in both.channels() if c.kind is ChannelKind.STREAM] == [ChannelState.OPEN]
    assert store.create_tunnel("orders", "stream", "Stream").describe().stage == "Stream"


def test_a_tunnel_follows_several_tables_if_the_store_has_such_tunnels(store: Store, orders: Table) -> None:
    if store.capabilities.several_tables:
        assert store.create_tunnel(["orders"], "several").whole_transactions
    else:
        with pytest.raises(UnsupportedError, match=r"follows one table.*an embedded store or a PostgreSQL database"):
            store.create_tunnel(["orders"], "several")
        assert store.tunnels() == []


def test_the_table_of_a_tunnel_covers_what_it_follows(store: Store, orders: Table) -> None:
    other = store.create_table("others", {"id": "string"}, "id")
    several = ["several"] if store.capabilities.several_tables else []
    tunnels = [store.create_tunnel("orders", "one"), *(store.create_tunnel(["orders"], name) for name in several)]
    for followed in (orders, *(tunnel.table for tunnel in tunnels)):
        assert followed.covers(orders.name, orders.identity())
        assert not followed.covers(other.name, other.identity())
        assert not followed.covers("none", "")
    assert [tunnel.table.without(["orders"]) is None for tunnel in tunnels] == [True, *(False for _ in several)]


def test_tunnels_of_a_table_are_independent(store: Store, orders: Table) -> None:
    first = store.create_tunnel("orders", "first", "Stream")
    put(orders, "a")
    second = store.create_tunnel("orders", "second", "Stream")
    put(orders, "b")
    assert [change.key for change in drain(first)] == [("a",), ("b",)]
    assert [change.key for change in drain(second)] == [("b",)]
    assert drain(first) == []


# -- reading --------------------------------------------------------------------------------------------


def test_a_position_always_returns_the_same_rows(orders: Table, tunnel: Tunnel) -> None:
    channel, start = only_channel(tunnel), tunnel.channels()[0].committed
    for number in range(40):
        put(orders, f"{number:02}", f"{number:02}x")
    whole, end = read_from(tunnel, channel, start)
    positions = [tunnel.advance(channel, start, count) for count in range(0, 81, 9)]
    for number in range(100):
        orders.update({"id": "00", "price": number})
    for count, position in zip(range(0, 81, 9), positions, strict=True):
        assert read_from(tunnel, channel, position, until=end, page_rows=5)[0] == whole[count:]
        assert read_from(tunnel, channel, Position(start.token, start.skip + count), until=end)[0] == whole[count:]
    assert read_from(tunnel, channel, start)[0][:80] == whole


def test_a_position_in_base_data_always_returns_the_same_rows(store: Store, orders: Table) -> None:
    keys = [f"{number:02}" for number in range(40)]
    put(orders, *keys)
    base = store.create_tunnel("orders", "base", "BaseData", base_channels=1)
    channel, start = only_channel(base), base.channels()[0].committed
    whole, end = read_from(base, channel, start, page_rows=6)
    assert ([change.key[0] for change in whole], end) == (keys, FINISHED)
    orders.delete([{"id": key} for key in keys[::3]])
    put(orders, *keys[1::3], *[f"{key}x" for key in keys], price=9)
    for count in (0, 1, 7, 39):
        for position in (base.advance(channel, start, count), Position(start.token, start.skip + count)):
            assert read_from(base, channel, position, page_rows=6)[0] == whole[count:]
            middle = base.advance(channel, start, 39)
            assert read_from(base, channel, position, until=middle)[0] == whole[count:39]


def test_reading_ends_at_until(orders: Table, tunnel: Tunnel) -> None:
    channel, start = only_channel(tunnel), tunnel.channels()[0].committed
    put(orders, "a", "b")
    until = tunnel.latest_positions()[channel]
    put(orders, "c")
    assert [change.key[0] for change in read_from(tunnel, channel, start, until=until)[0]] == ["a", "b"]
    assert read_from(tunnel, channel, until, until=until)[0] == []
    assert [change.key[0] for change in read_from(tunnel, channel, until)[0]] == ["c"]
    assert tunnel.backlog(channel, start, until).rows == 2
    assert tunnel.backlog(channel, until, until).rows == 0


def test_a_page_is_empty_only_at_the_end(orders: Table, tunnel: Tunnel) -> None:
    channel, position = only_channel(tunnel), tunnel.channels()[0].committed
    assert tunnel.read(channel, position, 10).changes.num_rows == 0
    put(orders, "a")
    page = tunnel.read(channel, position, 1)
    assert page.changes.num_rows == 1
    assert page.changes.rows.schema == orders.schema.arrow
    assert tunnel.read(channel, page.next, 1).changes.num_rows == 0


def test_an_unknown_channel_is_an_error_that_names_it(tunnel: Tunnel) -> None:
    position = tunnel.channels()[0].committed
    with pytest.raises(NotFoundError, match="nobody"):
        tunnel.read("nobody", position, 1)
    with pytest.raises(NotFoundError, match="nobody"):
        tunnel.commit({"nobody": position})


# -- splits and merges ----------------------------------------------------------------------------------


@pytest.fixture
def split_table(store: Store, orders: Table) -> Table:
    put(orders, *"abcdefgh")
    return orders


@pytest.mark.needs("split_partitions")
def test_children_of_a_split_wait_until_the_parent_is_finished_and_committed(store: Store, split_table: Table) -> None:
    tunnel = store.create_tunnel("orders", "changes", "Stream")
    parent = only_channel(tunnel)
    put(split_table, "a", price=1)
    split_table.split(at={"id": "e"})
    put(split_table, "a", "f", price=2)
    assert [channel.parents for channel in tunnel.channels()] == [(), (parent,), (parent,)]
    assert states(tunnel) == [ChannelState.OPEN, ChannelState.WAITING, ChannelState.WAITING]
    changes, position = read_from(tunnel, parent, tunnel.channels()[0].committed)
    assert ([change.key[0] for change in changes], position) == (["a"], FINISHED)
    assert states(tunnel) == [ChannelState.OPEN, ChannelState.WAITING, ChannelState.WAITING]
    tunnel.commit({parent: position})
    assert states(tunnel) == [ChannelState.FINISHED, ChannelState.OPEN, ChannelState.OPEN]
    assert sorted((change.key[0], change.row["price"]) for change in drain(tunnel)) == [("a", 2), ("f", 2)]


@pytest.mark.needs("split_partitions")
def test_a_channel_of_merged_partitions_waits_for_both(store: Store, split_table: Table) -> None:
    left, right = split_table.split(at={"id": "e"})
    tunnel = store.create_tunnel("orders", "changes", "Stream")
    first, second = [channel.id for channel in tunnel.channels()]
    put(split_table, "a", "f", price=1)
    split_table.merge(left, right)
    put(split_table, "a", "f", price=2)
    assert states(tunnel) == [ChannelState.OPEN, ChannelState.OPEN, ChannelState.WAITING]
    assert sorted(tunnel.channels()[2].parents) == sorted((first, second))
    tunnel.commit({first: FINISHED})
    assert states(tunnel) == [ChannelState.FINISHED, ChannelState.OPEN, ChannelState.WAITING]
    tunnel.commit({second: FINISHED})
    assert [channel.state for channel in tunnel.channels()][-1] is ChannelState.OPEN
    assert [(change.key[0], change.row["price"]) for change in drain(tunnel)] == [("a", 2), ("f", 2)]


@pytest.mark.needs("split_partitions")
def test_the_changes_of_a_key_keep_their_order_over_splits_and_merges(store: Store, split_table: Table) -> None:
    tunnel = store.create_tunnel("orders", "changes", "Stream")
    for number in range(12):
        put(split_table, *"abcdefgh", price=number)
        parts = [part for part in split_table.describe().partitions if part.open]
        if number % 3 < 2:
            split_table.split()
        else:
            by_low = sorted(parts, key=lambda part: part.keys.low or ())
            split_table.merge(by_low[0].id, by_low[1].id)
    changes = drain(tunnel, page_rows=3)
    assert len(changes) == 12 * 8
    for key in "abcdefgh":
        assert [change.row["price"] for change in changes if change.key == (key,)] == list(range(12))
    assert drain(tunnel) == []


def test_a_tunnel_with_a_slot_describes_it(store: Store, orders: Table) -> None:
    tunnel = store.create_tunnel("orders", "changes", "Stream")
    assert (tunnel.slot() is not None) == ("slot" in tunnel.describe().details)


@pytest.mark.needs("split_partitions")
def test_a_split_without_unread_changes_is_an_end_without_rows(store: Store, split_table: Table) -> None:
    tunnel = store.create_tunnel("orders", "changes", "Stream")
    channel = tunnel.channels()[0]
    assert not tunnel.backlog(channel.id, channel.committed).ends
    split_table.split()
    backlog = tunnel.backlog(channel.id, channel.committed)
    assert (backlog.rows, backlog.ends, backlog.empty) == (0, True, True)
    page = tunnel.read(channel.id, channel.committed, 10)
    assert (page.changes.num_rows, page.next) == (0, FINISHED)
    assert tunnel.latest_positions()[channel.id] == FINISHED


@pytest.mark.needs("split_partitions")
def test_a_finished_channel_stays_finished(store: Store, split_table: Table) -> None:
    tunnel = store.create_tunnel("orders", "changes", "Stream")
    channel = tunnel.channels()[0]
    split_table.split()
    tunnel.commit({channel.id: FINISHED})
    tunnel.commit({channel.id: channel.committed})
    for handle in (tunnel, store.tunnel("changes")):
        found = [each for each in handle.channels() if each.id == channel.id]
        assert [(each.state, each.committed) for each in found] in ([], [(ChannelState.FINISHED, FINISHED)])


@pytest.mark.needs("split_partitions")
def test_rows_of_a_table_go_to_the_partition_of_their_key(store: Store, split_table: Table) -> None:
    left, right = split_table.split(at={"id": "d"})
    put(split_table, "c", "cz", "d", "e", price=5)
    described = {part.id: part for part in split_table.describe().partitions}
    assert (described[left].rows, described[right].rows) == (4, 5)
    assert (described[left].next, described[right].next) == (2, 2)
    assert (described[left].keys.high, described[right].keys.low) == (("d",), ("d",))
    assert split_table.describe().rows == 9


@pytest.mark.needs("split_partitions")
def test_invalid_splits_and_merges_are_refused(store: Store, split_table: Table) -> None:
    (only,) = split_table.describe().partitions
    left, right = split_table.split(at={"id": "d"})
    middle, last = split_table.split(right, at={"id": "f"})
    with pytest.raises(OptionError):
        split_table.merge(left, last)
    with pytest.raises(OptionError):
        split_table.merge(middle, left)
    for gone in (only.id, 10**6):
        with pytest.raises(NotFoundError):
            split_table.split(gone)
        with pytest.raises(NotFoundError):
            split_table.merge(gone, middle)
    with pytest.raises(OptionError):
        split_table.split(left, at={"id": "x"})
    split_table.delete([{"id": key} for key in "abcdefgh"])
    with pytest.raises(OptionError):
        split_table.split()


# -- progress -------------------------------------------------------------------------------------------


def test_commit_is_seen_by_other_handles_and_never_moves_back(place: Place, orders: Table, tunnel: Tunnel) -> None:
    channel, start = only_channel(tunnel), tunnel.channels()[0].committed
    put(orders, *"abcd")
    tunnel.commit({channel: tunnel.advance(channel, start, 3)})
    tunnel.commit({channel: tunnel.advance(channel, start, 1)})
    tunnel.commit({channel: start})
    with place.open() as other:
        assert [change.key[0] for change in drain(other.tunnel("changes"))] == ["d"]
    assert drain(tunnel) == []


def test_a_position_inside_a_page_can_be_committed(orders: Table, tunnel: Tunnel) -> None:
    channel, start = only_channel(tunnel), tunnel.channels()[0].committed
    put(orders, *"abcd")
    tunnel.commit({channel: Position(start.token, start.skip + 2)})
    assert [change.key[0] for change in drain(tunnel)] == ["c", "d"]


def test_no_changes_follow_the_latest_positions(store: Store, orders: Table) -> None:
    put(orders, *"abcdef")
    tunnel = store.create_tunnel("orders", "both", base_channels=2)
    put(orders, "g")
    latest = tunnel.latest_positions()
    assert set(latest) == {channel.id for channel in tunnel.channels()}
    for channel in tunnel.channels():
        if channel.kind is ChannelKind.STREAM:
            assert tunnel.backlog(channel.id, latest[channel.id]).rows == 0
        else:
            assert latest[channel.id] == FINISHED


def test_the_backlog_counts_rows_and_their_age(orders: Table, tunnel: Tunnel) -> None:
    channel = tunnel.channels()[0]
    empty = tunnel.backlog(channel.id, channel.committed)
    assert (empty.rows, empty.seconds, empty.ends) == (0, 0.0, False)
    put(orders, "a")
    put(orders, "b", "c")
    waiting = tunnel.backlog(channel.id, channel.committed)
    assert waiting.rows == 3
    assert waiting.seconds is not None
    assert 0.0 <= waiting.seconds < 300.0
    assert waiting.bytes is None or waiting.bytes > 0
    last = tunnel.advance(channel.id, channel.committed, 2)
    assert tunnel.backlog(channel.id, last).rows == 1
    described = tunnel.describe()
    assert described.backlog_rows == 3
    tunnel.commit({channel.id: last})
    assert tunnel.describe().backlog_rows == 1
    drain(tunnel)
    assert tunnel.describe().backlog_rows == 0


# -- start positions -------------------------------------------------------------------------------------


def test_a_new_reader_begins_at_its_start_position(store: Store, orders: Table, tunnel: Tunnel) -> None:
    for key in "abcd":
        put(orders, key)
    channel = only_channel(tunnel)
    changes, end = read_from(tunnel, channel, tunnel.channels()[0].committed)

    def first_from(start: Start) -> list[str]:
        found, _ = read_from(tunnel, channel, tunnel.start_positions(start)[channel])
        return [change.key[0] for change in found]

    epoch, tick = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC), datetime.timedelta(microseconds=1)
    for committed in (None, end) if store.capabilities.rewinds else (None,):
        if committed is not None:
            tunnel.commit({channel: committed})
        assert first_from(LATEST) == []
        for index, change in enumerate(changes):
            assert first_from(Start(StartKind.TIMESTAMP, change.time)) == [*"abcd"][index:]
            assert first_from(Start(StartKind.TIMESTAMP, change.time + tick)) == [*"abcd"][index + 1 :]
        assert first_from(Start(StartKind.TIMESTAMP, epoch)) == [*"abcd"]
    if store.capabilities.rewinds:
        assert first_from(EARLIEST) == [*"abcd"]
    else:
        with pytest.raises(UnsupportedError):
            first_from(EARLIEST)
    with pytest.raises(OptionError):
        tunnel.start_positions(Start())


@pytest.mark.needs("rewinds")
def test_only_the_earliest_start_includes_base_data(store: Store, orders: Table) -> None:
    put(orders, "a")
    tunnel = store.create_tunnel("orders", "both")
    put(orders, "b")
    base, stream = tunnel.channels()
    now = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=1)
    for start in (LATEST, Start(StartKind.TIMESTAMP, now)):
        positions = tunnel.start_positions(start)
        assert positions[base.id] == FINISHED
        assert read_from(tunnel, stream.id, positions[stream.id])[0] == []
    positions = tunnel.start_positions(EARLIEST)
    assert [change.key[0] for change in read_from(tunnel, base.id, positions[base.id])[0]] == ["a"]
    assert [change.key[0] for change in read_from(tunnel, stream.id, positions[stream.id])[0]] == ["b"]


@pytest.mark.needs("starts_in_past")
def test_a_stream_tunnel_can_begin_in_the_past(store: Store, orders: Table) -> None:
    before = store.create_tunnel("orders", "before", "Stream")
    for key in "abcd":
        put(orders, key)
    third = drain(before)[2].time
    found = {
        start: [change.key[0] for change in drain(store.create_tunnel("orders", start, "Stream", start=start))]
        for start in ("earliest", "latest", third.isoformat())
    }
    assert found == {"earliest": [*"abcd"], "latest": [], third.isoformat(): ["c", "d"]}


@pytest.mark.needs("split_partitions")
def test_the_past_of_a_split_table_can_be_read_in_order(store: Store, split_table: Table) -> None:
    put(split_table, *"aceg", price=1)
    split_table.split(at={"id": "d"})
    put(split_table, *"aceg", price=2)
    tunnel = store.create_tunnel("orders", "past", "Stream", start="earliest")
    assert replay(drain(tunnel, page_rows=2)) == state_of(split_table)


def test_an_invalid_start_is_refused(store: Store, orders: Table) -> None:
    starts: list[tuple[KindName, str]] = [
        ("Stream", "committed"),
        ("Stream", "yesterday"),
        ("BaseAndStream", "earliest"),
    ]
    for kind, start in starts:
        with pytest.raises(OptionError):
            store.create_tunnel("orders", "t", kind, start=start)
    with pytest.raises(OptionError):
        store.create_tunnel("orders", "t", base_channels=0)
    assert store.tunnels() == []


# -- names ----------------------------------------------------------------------------------------------


def test_tunnels_are_found_by_id_and_by_name(store: Store, orders: Table) -> None:
    made = store.create_tunnel("orders", "//home/'stats' 🙂")
    for key in (made.id, made.name):
        found = store.tunnel(key)
        assert (found.id, found.name, found.kind, found.table.name) == (made.id, made.name, made.kind, "orders")
    with pytest.raises(NotFoundError, match="stats"):
        store.tunnel("nobody")
    with pytest.raises(AlreadyExistsError):
        store.create_tunnel("orders", made.name)
    with pytest.raises(NotFoundError):
        store.create_tunnel("nothing", "t")
    with pytest.raises(OptionError):
        store.create_tunnel("orders", "")


def test_a_name_on_two_tables_needs_its_table(store: Store, orders: Table) -> None:
    store.create_table("other", {"id": "string", "n": "long"}, "id")
    made = {table: store.create_tunnel(table, "stats") for table in ("orders", "other")}
    assert {tunnel.id for tunnel in store.tunnels()} == {tunnel.id for tunnel in made.values()}
    assert [tunnel.id for tunnel in store.tunnels("other")] == [made["other"].id]
    with pytest.raises(OptionError, match=made["other"].id):
        store.tunnel("stats")
    with pytest.raises(OptionError):
        store.drop_tunnel("stats")
    assert store.tunnel("stats", "other").id == made["other"].id
    store.drop_tunnel("stats", "orders")
    assert store.tunnel("stats").id == made["other"].id


def test_a_tunnel_is_described(store: Store, orders: Table) -> None:
    put(orders, "a")
    tunnel = store.create_tunnel("orders", "both")
    described = tunnel.describe()
    assert (described.id, described.name, described.table, described.kind) == (tunnel.id, "both", "orders", tunnel.kind)
    assert abs(datetime.datetime.now().timestamp() - described.created) < 300
    assert tuple(each.channel for each in described.channels) == tuple(tunnel.channels())


def test_a_dropped_tunnel_is_an_error_for_all_its_handles(store: Store, orders: Table) -> None:
    put(orders, "a")
    tunnel = store.create_tunnel("orders", "both")
    channel = tunnel.channels()[0]
    store.drop_tunnel("both")
    calls: list[Callable[[], object]] = [
        tunnel.channels,
        tunnel.describe,
        tunnel.latest_positions,
        lambda: tunnel.start_positions(LATEST),
        lambda: tunnel.read(channel.id, channel.committed, 1),
        lambda: tunnel.backlog(channel.id, channel.committed),
        lambda: tunnel.backlogs({channel.id: channel.committed}),
        lambda: tunnel.commit({channel.id: FINISHED}),
        lambda: store.tunnel("both"),
        lambda: store.drop_tunnel("both"),
    ]
    if store.capabilities.transactions:
        # Other stores record batches outside of the tunnel, and do not check that it exists.
        calls.append(lambda: tunnel.batches.save_plan(BatchPlan("batch", "before", ())))
        calls.append(lambda: tunnel.batches.record_end("batch", channel.id, ChannelEnd(FINISHED, 0)))
    for call in calls:
        with pytest.raises(NotFoundError):
            call()
    store.drop_tunnel("both", missing_ok=True)
    assert [change.key for change in drain(store.create_tunnel("orders", "both"))] == [("a",)]


def test_dropping_a_table_drops_its_tunnels(store: Store, orders: Table) -> None:
    tunnel = store.create_tunnel("orders", "both")
    store.drop_table("orders")
    assert store.tunnels() == []
    with pytest.raises(NotFoundError):
        tunnel.channels()


# -- the meta table -------------------------------------------------------------------------------------


def test_the_first_saved_plan_is_kept(place: Place, tunnel: Tunnel) -> None:
    part = ChannelPlan("one", Position("token", 3), max_rows=7, until=Position("end"))
    plan = BatchPlan("batch", INITIAL_BATCH, (part, ChannelPlan("two", FINISHED)), ("gone",))
    tunnel.batches.save_plan(plan)
    tunnel.batches.save_plan(BatchPlan("batch", INITIAL_BATCH, ()))
    with place.open() as other:
        assert other.tunnel("changes").batches.load_plan("batch") == plan
    assert tunnel.batches.load_plan("other") is None


def test_the_first_recorded_end_is_kept(place: Place, tunnel: Tunnel) -> None:
    first, second = ChannelEnd(Position("token", 3), 5), ChannelEnd(FINISHED, 9)
    assert tunnel.batches.record_end("batch", "one", first) == first
    with place.open() as other:
        assert other.tunnel("changes").batches.record_end("batch", "one", second) == first
        assert other.tunnel("changes").batches.record_end("batch", "two", second) == second
    assert tunnel.batches.ends("batch") == {"one": first, "two": second}
    assert tunnel.batches.ends("other") == {}
    assert (tunnel.batches.end("batch", "one"), tunnel.batches.end("batch", "two")) == (first, second)
    assert tunnel.batches.end("batch", "three") is None
    assert tunnel.batches.end("other", "one") is None


def test_the_backlogs_of_all_channels_are_those_of_each(store: Store, orders: Table) -> None:
    put(orders, "a", "b", "c")
    tunnel = store.create_tunnel("orders", "both")
    put(orders, "d")
    starts = {channel.id: channel.committed for channel in tunnel.channels()}

    def known(backlog: Backlog) -> tuple[object, ...]:
        # Without the age, which grows between two calls.
        return backlog.rows, backlog.bytes, backlog.ends, backlog.known, backlog.empty

    for until in (None, tunnel.latest_positions()):
        bounds = until or {}
        each = {name: known(tunnel.backlog(name, at, bounds.get(name))) for name, at in starts.items()}
        assert {name: known(found) for name, found in tunnel.backlogs(starts, until).items()} == each
    assert tunnel.backlogs({}) == {}
