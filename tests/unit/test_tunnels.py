"""Tunnels of the embedded store: every row is read once, over base data, splits, merges, skips and restarts."""

from __future__ import annotations

import datetime
import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace
from headrace.errors import AlreadyExistsError, DataLossError, NotFoundError, OptionError
from headrace.model.tables.changes import DELETES, ChangeOp
from headrace.model.tables.conditions import KeyRange
from headrace.model.tunnels.records import INITIAL_BATCH, BatchPlan, ChannelEnd
from headrace.model.tunnels.values import (
    FINISHED,
    Channel,
    ChannelKind,
    ChannelState,
    KindName,
    Position,
    Start,
    StartKind,
)
from headrace.ports import Store, Table, Tunnel
from headrace.stores.embedded.tunnels.positions import is_after, key_of, key_position
from headrace.stores.embedded.tunnels.stored_tunnels import cut
from headrace.testing.effort import thorough

EARLIEST, LATEST = Start(StartKind.EARLIEST), Start(StartKind.LATEST)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return headrace.open(tmp_path / "store", create=True, synchronous="off")


@pytest.fixture
def table(store: Store) -> Table:
    return store.create_table("orders", {"id": "long", "value": "long"}, "id")


def rows(*ids: int, value: int = 0) -> list[dict[str, Any]]:
    return [{"id": n, "value": value} for n in ids]


def read_to_end(tunnel: Tunnel, channel: Channel, max_rows: int = 100) -> tuple[list[dict[str, Any]], Position]:
    """Read a channel to its current end. Return its changes and the position after them."""
    position, found = channel.committed, []
    while position != FINISHED:
        page = tunnel.read(channel.id, position, max_rows)
        ops = [ChangeOp(op) for op in page.changes.ops.to_pylist()]
        found += [{**row, "op": op} for row, op in zip(page.changes.rows.to_pylist(), ops, strict=True)]
        position = page.next
        if page.changes.num_rows == 0:
            break
    return found, position


def drain(tunnel: Tunnel, state: dict[int, int], max_rows: int = 100) -> int:
    """Read and commit all open channels until there are no more changes. Apply the changes to ``state``."""
    count = 0
    while True:
        positions = {}
        for channel in tunnel.channels():
            if channel.state is ChannelState.OPEN:
                changes, position = read_to_end(tunnel, channel, max_rows)
                for change in changes:
                    if change["op"] in DELETES:
                        state.pop(change["id"], None)
                    else:
                        state[change["id"]] = change["value"]
                count += len(changes)
                if position != channel.committed:
                    positions[channel.id] = position
        if not positions:
            return count
        tunnel.commit(positions)


def of_kind(tunnel: Tunnel, kind: ChannelKind) -> list[Channel]:
    return [channel for channel in tunnel.channels() if channel.kind is kind]


def states(tunnel: Tunnel) -> dict[str, str]:
    return {channel.id: channel.state.value for channel in tunnel.channels()}


def count_of(store: Store, sql: str) -> int:
    found = store._database.query(sql)  # type: ignore[attr-defined]
    return int(found[0][0])


def has_old_rows(store: Store, object_id: int) -> bool:
    return bool(count_of(store, f"SELECT count(*) FROM sqlite_schema WHERE name = 'u{object_id}'"))


# -- base data ------------------------------------------------------------------------------------------


def test_base_data_is_the_table_at_the_tunnels_creation_and_the_stream_follows(store: Store, table: Table) -> None:
    table.put(rows(*range(1000)))
    tunnel = store.create_tunnel("orders", "t", base_channels=3)
    table.put(rows(5, 2000, value=7))
    table.delete([{"id": 6}])
    base = of_kind(tunnel, ChannelKind.BASE_DATA)
    assert len(base) == 3
    found = [change for channel in base for change in read_to_end(tunnel, channel)[0]]
    assert sorted(change["id"] for change in found) == list(range(1000))
    assert {change["value"] for change in found} == {0}
    assert {change["op"] for change in found} == {ChangeOp.BASE}
    (stream,) = of_kind(tunnel, ChannelKind.STREAM)
    assert stream.state is ChannelState.WAITING
    assert [change["id"] for change in read_to_end(tunnel, stream)[0]] == [5, 2000, 6]


def test_base_changes_carry_the_snapshot_and_come_before_the_stream(store: Store, table: Table) -> None:
    version = table.put(rows(1))
    tunnel = store.create_tunnel("orders", "t")
    table.put(rows(2))
    base, stream = tunnel.channels()
    first = tunnel.read(base.id, base.committed, 10).changes
    second = tunnel.read(stream.id, stream.committed, 10).changes
    assert first.versions.to_pylist() == [version]
    assert second.versions.to_pylist() == [version + 1]
    assert first.timestamps[0].as_py() < second.timestamps[0].as_py()


def test_the_stream_opens_once_all_base_channels_are_committed(store: Store, table: Table) -> None:
    table.put(rows(*range(10)))
    tunnel = store.create_tunnel("orders", "t", base_channels=2)
    first, second, stream = tunnel.channels()
    tunnel.commit({first.id: FINISHED})
    assert states(tunnel)[stream.id] == "waiting"
    assert tunnel.describe().stage == "BaseData"
    tunnel.commit({second.id: FINISHED})
    assert states(tunnel) == {first.id: "finished", second.id: "finished", stream.id: "open"}
    assert tunnel.describe().stage == "Stream"


def test_reading_released_base_data_is_an_error(store: Store, table: Table) -> None:
    table.put(rows(*range(10)))
    tunnel = store.create_tunnel("orders", "t", "BaseData", base_channels=2)
    table.put(rows(*range(10), value=1))
    object_id = count_of(store, "SELECT id FROM object")
    assert count_of(store, f"SELECT count(*) FROM u{object_id}") == 10
    first, second = tunnel.channels()
    tunnel.commit({first.id: FINISHED})
    assert count_of(store, f"SELECT count(*) FROM u{object_id}") == 5
    with pytest.raises(DataLossError, match="read and released"):
        tunnel.read(first.id, first.committed, 10)
    assert tunnel.skip_lost(first.id, first.committed) == (FINISHED, 0)
    tunnel.commit({second.id: FINISHED})
    assert not has_old_rows(store, object_id)
    assert count_of(store, "SELECT count(*) FROM snapshot") == 0
    with pytest.raises(DataLossError, match="create a new tunnel"):
        tunnel.start_positions(EARLIEST)


def test_a_table_keeps_old_rows_until_its_last_tunnel_has_read_its_base_data(store: Store, table: Table) -> None:
    object_id = count_of(store, "SELECT id FROM object")
    table.put(rows(*range(10)))
    store.create_tunnel("orders", "changes", "Stream")
    assert not has_old_rows(store, object_id)
    first, second = (store.create_tunnel("orders", name, "BaseData", base_channels=1) for name in ("first", "second"))
    table.add_columns({"later": "string"})
    table.put(rows(*range(10), value=1))
    assert count_of(store, f"SELECT count(*) FROM u{object_id}") == 20
    first.commit({first.channels()[0].id: FINISHED})
    assert count_of(store, f"SELECT count(*) FROM u{object_id}") == 10
    old: dict[int, int] = {}
    drain(second, old)
    assert old == dict.fromkeys(range(10), 0)
    assert not has_old_rows(store, object_id)
    table.put(rows(*range(5), value=2))
    again = store.create_tunnel("orders", "again", "BaseData")
    table.delete([{"id": number} for number in range(10)])
    old = {}
    drain(again, old)
    assert old == dict.fromkeys(range(5), 2) | dict.fromkeys(range(5, 10), 1)
    assert not has_old_rows(store, object_id)
    assert all(finding.status == "ok" for finding in store.check())


def test_an_empty_table_has_no_base_data_and_keeps_no_snapshot(store: Store, table: Table) -> None:
    assert of_kind(store.create_tunnel("orders", "t"), ChannelKind.BASE_DATA) == []
    assert store.create_tunnel("orders", "base", kind="BaseData").channels() == []
    assert count_of(store, "SELECT count(*) FROM snapshot") == 0


def test_base_channels_follow_the_size_of_the_table(store: Store, table: Table) -> None:
    table.put(rows(*range(100)))
    table.split()
    assert len(of_kind(store.create_tunnel("orders", "small"), ChannelKind.BASE_DATA)) == 2
    assert len(of_kind(store.create_tunnel("orders", "asked", base_channels=8), ChannelKind.BASE_DATA)) == 8


@given(st.sets(st.integers(0, 30)), st.integers(0, 30), st.integers(1, 30))
def test_a_split_key_range_has_no_gap_and_no_overlap(boundaries: set[int], low: int, width: int) -> None:
    pieces = cut(KeyRange((low,), (low + width,)), [(key,) for key in sorted(boundaries)])
    assert (pieces[0].low, pieces[-1].high) == ((low,), (low + width,))
    assert all(a.high == b.low for a, b in itertools.pairwise(pieces))
    assert len(pieces) == 1 + len([key for key in boundaries if low < key < low + width])


def test_a_tunnel_and_its_table_in_the_wrong_order_are_named(store: Store, table: Table) -> None:
    store.create_tunnel("orders", "stats")
    with pytest.raises(NotFoundError, match=r"write tunnel\('stats', table='orders'\)"):
        store.tunnel("orders", "stats")


# -- positions ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["BaseData", "Stream"])
def test_reading_can_continue_after_any_row_of_a_page(store: Store, table: Table, kind: KindName) -> None:
    if kind == "BaseData":
        table.put(rows(*range(50)))
    tunnel = store.create_tunnel("orders", "t", kind)
    if kind == "Stream":
        table.put(rows(*range(50)))
    (channel,) = tunnel.channels()
    for cut_at in (1, 7, 49):
        position = tunnel.advance(channel.id, channel.committed, cut_at)
        assert position.skip == 0
        after = tunnel.read(channel.id, position, 1000).changes.rows["id"].to_pylist()
        assert after == list(range(cut_at, 50))
        skipping = Position(channel.committed.token, cut_at)
        assert tunnel.read(channel.id, skipping, 1000).changes.rows["id"].to_pylist() == after
        before = tunnel.read(channel.id, channel.committed, 1000, until=position).changes.rows["id"].to_pylist()
        assert before == list(range(cut_at))


def test_commit_never_moves_back_and_adds_skipped_rows_to_the_index(store: Store, table: Table) -> None:
    tunnel = store.create_tunnel("orders", "t", "Stream")
    table.put(rows(*range(10)))
    (channel,) = tunnel.channels()
    tunnel.commit({channel.id: Position(channel.committed.token, 4)})
    tunnel.commit({channel.id: tunnel.advance(channel.id, channel.committed, 2)})
    (now,) = tunnel.channels()
    assert now.committed == tunnel.advance(channel.id, channel.committed, 4)


def test_committing_an_unknown_channel_names_the_valid_ones_and_records_nothing(store: Store, table: Table) -> None:
    tunnel = store.create_tunnel("orders", "t", "Stream")
    table.put(rows(1))
    (channel,) = tunnel.channels()
    with pytest.raises(NotFoundError, match=r"'nope'.*valid: stream-"):
        tunnel.commit({channel.id: tunnel.advance(channel.id, channel.committed, 1), "nope": FINISHED})
    assert tunnel.channels() == [channel]


def test_a_foreign_token_is_refused(store: Store, table: Table) -> None:
    table.put([{"id": 1, "value": 1}])
    tunnel = store.create_tunnel("orders", "t")
    base, stream = tunnel.channels()
    for channel, token in ((stream, "no token"), (stream, base.committed.token), (base, stream.committed.token)):
        with pytest.raises(OptionError):
            tunnel.read(channel.id, Position(token), 1)


@given(st.lists(st.one_of(st.none(), st.tuples(st.text(), st.binary())), min_size=2, max_size=2))
def test_key_positions_keep_their_order(keys: list[tuple[str, bytes] | None]) -> None:
    first, second = keys
    assert key_of(key_position(first)) == first
    after = first is not None and (second is None or first > second)
    assert is_after(key_position(first), key_position(second)) == after
    assert is_after(FINISHED, key_position(first))
    assert not is_after(key_position(first), FINISHED)
    assert not is_after(FINISHED, FINISHED)


# -- splits and merges ----------------------------------------------------------------------------------


def test_children_open_after_their_parents_and_continue_after_their_ends(store: Store, table: Table) -> None:
    tunnel = store.create_tunnel("orders", "t", "Stream")
    table.put(rows(*range(10)))
    left, right = table.split()
    table.put(rows(*range(10), value=1))
    merged = table.merge(left, right)
    table.put(rows(*range(10), value=2))
    assert states(tunnel) == {
        "stream-1": "open",
        f"stream-{left}": "waiting",
        f"stream-{right}": "waiting",
        f"stream-{merged}": "waiting",
    }
    state: dict[int, int] = {}
    assert drain(tunnel, state) == 30
    assert state == dict.fromkeys(range(10), 2)
    assert states(tunnel)[f"stream-{merged}"] == "open"


operations = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.lists(st.integers(0, 20), min_size=1, max_size=8, unique=True)),
        st.tuples(st.just("delete"), st.lists(st.integers(0, 20), min_size=1, max_size=4, unique=True)),
        st.tuples(st.just("split"), st.integers(1, 20)),
        st.tuples(st.just("merge"), st.integers(0, 5)),
        st.tuples(st.just("read"), st.integers(1, 10)),
        st.tuples(st.just("tunnel"), st.integers(1, 4)),
    ),
    max_size=25,
)


@settings(max_examples=thorough(40), deadline=None)
@given(operations=operations)
def test_the_changes_that_a_reader_gets_lead_to_the_tables_content(
    tmp_path_factory: pytest.TempPathFactory, operations: list[tuple[str, Any]]
) -> None:
    store = headrace.open(tmp_path_factory.mktemp("store"), create=True, synchronous="off")
    table = store.create_table("orders", {"id": "long", "value": "long"}, "id")
    table.put(rows(*range(0, 20, 3)))
    tunnels: dict[Tunnel, dict[int, int]] = {store.create_tunnel("orders", "t0"): {}}
    for number, (operation, value) in enumerate(operations):
        opened = sorted(
            (each for each in table.describe().partitions if each.open), key=lambda each: each.keys.low or ()
        )
        if operation == "put":
            table.put(rows(*value, value=number))
        elif operation == "delete":
            table.delete([{"id": n} for n in value])
        elif operation == "split" and not any(each.keys.low == (value,) for each in opened):
            chosen = [each for each in opened if each.keys.low is None or each.keys.low < (value,)][-1]
            table.split(chosen.id, {"id": value})
        elif operation == "merge" and value + 1 < len(opened):
            table.merge(opened[value].id, opened[value + 1].id)
        elif operation == "read":
            for tunnel, state in tunnels.items():
                drain(tunnel, state, max_rows=value)
        elif operation == "tunnel":
            tunnels[store.create_tunnel("orders", f"t{number + 1}", base_channels=value)] = {}
    expected = {row["id"]: row["value"] for row in table.scan().read_all().to_pylist()}
    for tunnel, state in tunnels.items():
        drain(tunnel, state)
        assert state == expected
        assert tunnel.describe().backlog_rows == 0
    store.close()


def test_finished_channels_are_deleted_when_no_batch_names_them(store: Store, table: Table) -> None:
    tunnel = store.create_tunnel("orders", "t", "Stream")
    table.put(rows(*range(10)))
    table.split()
    tunnel.batches.save_plan(BatchPlan("a", INITIAL_BATCH, ()))
    tunnel.batches.record_end("a", "stream-1", ChannelEnd(FINISHED, 10))
    tunnel.commit({"stream-1": FINISHED})
    tunnel.batches.prune("a", 0)
    assert "stream-1" in states(tunnel)
    tunnel.batches.save_plan(BatchPlan("b", "a", ()))
    tunnel.batches.prune("b", 0)
    assert set(states(tunnel).values()) == {"open"}
    with pytest.raises(DataLossError, match="deleted"):
        tunnel.start_positions(EARLIEST)


# -- starts, latest positions, backlog ------------------------------------------------------------------


def test_latest_skips_base_data_and_existing_changes(store: Store, table: Table) -> None:
    table.put(rows(*range(4)))
    tunnel = store.create_tunnel("orders", "t")
    table.put(rows(4))
    table.split()
    latest = tunnel.start_positions(LATEST)
    assert latest == tunnel.latest_positions()
    assert [position == FINISHED for position in latest.values()] == [True, True, False, False]


def test_a_time_begins_with_the_first_change_at_or_after_it(store: Store, table: Table) -> None:
    tunnel = store.create_tunnel("orders", "t", "Stream")
    for n in range(5):
        table.put(rows(n))
    (channel,) = tunnel.channels()
    times = tunnel.read(channel.id, channel.committed, 10).changes.timestamps.to_pylist()
    for n, instant in enumerate(times):
        positions = tunnel.start_positions(Start(StartKind.TIMESTAMP, instant))
        assert tunnel.read(channel.id, positions[channel.id], 10).changes.rows["id"].to_pylist()[0] == n
    later = Start(StartKind.TIMESTAMP, times[-1] + datetime.timedelta(seconds=1))
    assert tunnel.start_positions(later) == tunnel.latest_positions()


def test_a_stream_tunnel_can_begin_with_the_oldest_change_kept(store: Store, table: Table) -> None:
    table.put(rows(*range(10)))
    table.split()
    table.put(rows(*range(10), value=1))
    tunnel = store.create_tunnel("orders", "t", "Stream", start="earliest")
    assert list(states(tunnel).values()) == ["open", "waiting", "waiting"]
    state: dict[int, int] = {}
    assert drain(tunnel, state) == 20


@pytest.mark.parametrize("trimmed", [False, True])
def test_children_of_an_empty_partition_follow_its_parents(store: Store, table: Table, trimmed: bool) -> None:
    table.put(rows(*range(8)))
    left, _ = table.split()
    table.split(left)
    if trimmed:
        table.trim(before={left: 0})
    table.put(rows(*range(8), value=1))
    tunnel = store.create_tunnel("orders", "t", "Stream", start="earliest")
    assert [channel.id for channel in tunnel.channels() if channel.state is ChannelState.OPEN] == ["stream-1"]
    state: dict[int, int] = {}
    drain(tunnel, state)
    assert state == dict.fromkeys(range(8), 1)


def test_a_stream_tunnel_can_begin_at_a_time(store: Store, table: Table) -> None:
    table.put(rows(1))
    reader = store.create_tunnel("orders", "all", "Stream", start="earliest")
    table.put(rows(2))
    (channel,) = reader.channels()
    instant = reader.read(channel.id, channel.committed, 10).changes.timestamps[1].as_py()
    tunnel = store.create_tunnel("orders", "t", "Stream", start=instant.isoformat())
    state: dict[int, int] = {}
    assert (drain(tunnel, state), state) == (1, {2: 0})


@pytest.mark.parametrize(
    ("kind", "start"), [("BaseAndStream", "earliest"), ("BaseData", "earliest"), ("Stream", "committed")]
)
def test_an_invalid_start_is_refused(store: Store, table: Table, kind: KindName, start: str) -> None:
    with pytest.raises(OptionError):
        store.create_tunnel("orders", "t", kind, start=start)
    assert store.tunnels() == []


def test_backlog_counts_rows_and_their_age(store: Store, table: Table) -> None:
    tunnel = store.create_tunnel("orders", "t", "Stream")
    (channel,) = tunnel.channels()
    nothing = tunnel.backlog(channel.id, channel.committed)
    assert (nothing.rows, nothing.seconds, nothing.ends) == (0, 0.0, False)
    table.put(rows(*range(10)))
    pinned = tunnel.latest_positions()[channel.id]
    table.put(rows(*range(10)))
    some = tunnel.backlog(channel.id, channel.committed)
    assert some.rows == 20
    assert some.bytes is not None
    assert some.bytes > 0
    assert some.seconds is not None
    assert some.seconds > 0
    assert tunnel.backlog(channel.id, channel.committed, pinned).rows == 10
    assert tunnel.backlog(channel.id, pinned, pinned).rows == 0
    table.split()
    assert tunnel.backlog(channel.id, channel.committed).ends
    assert not tunnel.backlog(channel.id, channel.committed, pinned).ends


# -- creating, finding, dropping ------------------------------------------------------------------------


def test_a_tunnel_is_found_by_id_and_by_name(store: Store, table: Table) -> None:
    tunnel = store.create_tunnel("orders", "t", "Stream")
    assert store.tunnel(tunnel.id).name == "t"
    assert store.tunnel("t").id == tunnel.id
    store.create_table("other", {"id": "long"}, "id")
    store.create_tunnel("other", "t", "Stream")
    with pytest.raises(OptionError, match="pass the table"):
        store.tunnel("t")
    assert store.tunnel("t", "orders").id == tunnel.id
    with pytest.raises(NotFoundError, match="valid: t"):
        store.tunnel("u")
    with pytest.raises(AlreadyExistsError):
        store.create_tunnel("orders", "t")


@pytest.mark.parametrize("by", ["tunnel", "table"])
def test_a_dropped_tunnel_leaves_no_rows_in_the_database(store: Store, table: Table, by: str) -> None:
    table.put(rows(*range(10)))
    tunnel = store.create_tunnel("orders", "t")
    table.put(rows(*range(10), value=1))
    tunnel.batches.save_plan(BatchPlan("a", INITIAL_BATCH, ()))
    tunnel.batches.record_end("a", "stream-1", ChannelEnd(FINISHED, 10))
    if by == "tunnel":
        object_id = count_of(store, "SELECT id FROM object")
        store.drop_tunnel("t")
        assert not has_old_rows(store, object_id)
    else:
        store.drop_table("orders")
        for name in ("partition", "chunk", "object", "object_schema"):
            assert count_of(store, f"SELECT count(*) FROM {name}") == 0
    for name in ("tunnel", "channel", "snapshot", "batch_plan", "batch_end"):
        assert count_of(store, f"SELECT count(*) FROM {name}") == 0
    with pytest.raises(NotFoundError):
        tunnel.channels()
    store.drop_tunnel("t", missing_ok=True)


def test_the_former_name_of_the_committed_position_is_deprecated() -> None:
    channel = Channel("c", ChannelKind.STREAM, ChannelState.OPEN, FINISHED)
    with pytest.warns(DeprecationWarning, match="Channel.committed"):
        assert channel.checkpoint == FINISHED
