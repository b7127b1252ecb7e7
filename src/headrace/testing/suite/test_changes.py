"""The change log, read through a Stream tunnel: every change once, in commit order, with its kind."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest

from headrace.errors import SchemaError
from headrace.model.tables.changes import ChangeOp
from headrace.ports import Store, Table, Tunnel
from headrace.testing import Place
from headrace.testing.capabilities import traits
from headrace.testing.reading import SETS_CELLS, Change, drain, filled, only_channel, read_from, replay, state_of


@pytest.fixture
def with_preimages(store: Store) -> Table:
    return store.create_table("orders", {"id": "string", "price": "long", "note": "string"}, "id", pre_images=True)


def ops(changes: list[Change]) -> list[tuple[ChangeOp, str]]:
    return [(change.op, change.key[0]) for change in changes]


@pytest.mark.needs("tunnels", "tells_rows", "logs_calls")
def test_each_write_logs_its_kind_of_change(store: Store, orders: Table, tunnel: Tunnel) -> None:
    orders.put({"id": "a", "price": 1})
    orders.put({"id": "a", "price": 2})
    orders.update({"id": "a", "price": 3})
    orders.update({"id": "b", "price": 4})
    orders.delete({"id": "a"})
    orders.put({"id": "a"})
    assert ops(drain(tunnel)) == [
        (ChangeOp.INSERT, "a"),
        (ChangeOp.REPLACE, "a"),
        (ChangeOp.UPDATE, "a"),
        (ChangeOp.UPSERT, "b"),
        (ChangeOp.DELETE, "a"),
        (ChangeOp.INSERT, "a"),
    ]


@pytest.mark.needs("tunnels", "logs_calls")
def test_changes_distinguish_puts_from_updates(orders: Table, tunnel: Tunnel) -> None:
    orders.put({"id": "a", "price": 1})
    orders.update({"id": "b", "price": 4})
    orders.put({"id": "a", "price": 2})
    orders.delete({"id": "a"})
    changes = drain(tunnel)
    assert [change.op in SETS_CELLS for change in changes] == [False, True, False, False]
    assert changes[-1].op is ChangeOp.DELETE
    assert [change.row["price"] for change in changes] == [1, 4, 2, None]


@pytest.mark.needs("tunnels")
def test_deleting_a_missing_row_is_no_change(orders: Table, tunnel: Tunnel) -> None:
    orders.put([{"id": "a"}, {"id": "b"}])
    orders.delete([{"id": "nobody"}])
    orders.delete([{"id": "a"}, {"id": "nobody"}, {"id": "a"}])
    changes = drain(tunnel)
    assert ops(changes[2:]) == [(ChangeOp.DELETE, "a")]


@pytest.mark.needs("tunnels")
def test_writing_no_rows_is_no_change(orders: Table, tunnel: Tunnel) -> None:
    orders.put([])
    orders.delete([])
    orders.update(orders.schema.arrow.empty_table())
    assert drain(tunnel) == []


@pytest.mark.needs("tunnels")
def test_a_refused_write_is_no_change(orders: Table, tunnel: Tunnel) -> None:
    with pytest.raises(SchemaError):
        orders.put([{"id": "a"}, {"id": None}])
    assert drain(tunnel) == []


@pytest.mark.needs("tunnels", "transactions", "returns_versions")
def test_changes_carry_the_version_that_the_write_returned(store: Store, orders: Table, tunnel: Tunnel) -> None:
    returned = [
        orders.put([{"id": "a"}, {"id": "b"}]),
        orders.update([{"id": "a", "price": 1}, {"id": "c", "price": 1}]),
        orders.delete([{"id": "b"}, {"id": "c"}]),
    ]
    assert [change.version for change in drain(tunnel)] == [version for version in returned for _ in range(2)]


@pytest.mark.needs("tunnels")
def test_versions_and_timestamps_rise_strictly_from_commit_to_commit(place: Place, store: Store, orders: Table) -> None:
    count = place.commits(1000)
    tunnel = store.create_tunnel("orders", "changes", "Stream")
    for number in range(count):
        orders.put([{"id": "a", "price": number}, {"id": f"b{number}"}])
    changes = drain(tunnel)
    commits = sorted({(change.version, change.time) for change in changes})
    assert len(commits) == count
    assert len({version for version, _ in commits}) == len({time for _, time in commits}) == count
    assert [time for _, time in commits] == sorted(time for _, time in commits)
    assert [change.version for change in changes] == sorted(change.version for change in changes)
    assert [change.row["price"] for change in changes if change.key == ("a",)] == list(range(count))


@pytest.mark.needs("transactions")
def test_versions_rise_over_all_tables_of_a_store(store: Store) -> None:
    tables = [store.create_table(name, {"id": "string", "n": "long"}, "id") for name in "xyz"]
    versions = [table.put({"id": str(number)}) for number in range(5) for table in tables]
    if traits(store).own_versions:
        versions = versions[::3]
    assert versions == sorted(set(versions))


@pytest.mark.needs("tunnels", "transactions", "logs_calls")
def test_changes_of_one_key_in_one_call_keep_their_order(store: Store, orders: Table, tunnel: Tunnel) -> None:
    orders.put([{"id": "b", "price": 0}])
    orders.put([{"id": key, "price": number} for number in range(3) for key in ("b", "a")])
    orders.update(
        pa.table({"id": ["a", "c", "a", "c"], "price": [None, 7, 8, None], "note": ["x", None, None, "y"]}),
        keep_nulls=False,
    )
    changes = drain(tunnel)
    assert [(c.op, c.row["price"]) for c in changes[1:7] if c.key == ("a",)] == [
        (ChangeOp.INSERT, 0),
        (ChangeOp.REPLACE, 1),
        (ChangeOp.REPLACE, 2),
    ]
    assert [(c.op, c.row["price"]) for c in changes[1:7] if c.key == ("b",)] == [
        (ChangeOp.REPLACE, 0),
        (ChangeOp.REPLACE, 1),
        (ChangeOp.REPLACE, 2),
    ]
    assert [(c.op, set(c.written)) for c in changes[7:] if c.key == ("a",)] == [
        (ChangeOp.UPDATE, {"note"}),
        (ChangeOp.UPDATE, {"price"}),
    ]
    assert [(c.op, set(c.written)) for c in changes[7:] if c.key == ("c",)] == [
        (ChangeOp.UPSERT, {"price"}),
        (ChangeOp.UPDATE, {"note"}),
    ]
    assert replay(changes) == state_of(orders)


@pytest.mark.needs("tunnels", "logs_calls")
def test_updates_name_the_cells_that_they_set(orders: Table, tunnel: Tunnel) -> None:
    orders.put({"id": "a", "price": 1, "note": "x"})
    orders.update({"id": "a", "price": None})
    orders.update({"id": "a", "note": "y", "price": None}, keep_nulls=False)
    orders.update({"id": "a", "note": "y", "price": 5})
    orders.update({"id": "b", "note": "z"})
    changes = drain(tunnel)[1:]
    assert [change.written for change in changes] == [{"price"}, {"note"}, {"price", "note"}, {"note"}]
    assert [change.row["price"] for change in changes[:3]][::2] == [None, 5]


@pytest.mark.needs("tunnels", "whole_rows")
def test_updates_hold_the_whole_new_row(store: Store, orders: Table, tunnel: Tunnel) -> None:
    orders.put({"id": "a", "price": 1, "note": "x"})
    orders.update({"id": "a", "price": 2})
    orders.update({"id": "a", "note": None})
    orders.update({"id": "b", "price": 3})
    assert [change.row for change in drain(tunnel)[1:]] == [
        {"id": "a", "price": 2, "note": "x"},
        {"id": "a", "price": 2, "note": None},
        {"id": "b", "price": 3, "note": None},
    ]


@pytest.mark.needs("tunnels")
def test_a_delete_holds_only_its_key(orders: Table, tunnel: Tunnel) -> None:
    orders.put({"id": "a", "price": 1, "note": "x"})
    orders.delete({"id": "a"})
    assert drain(tunnel)[1].row == {"id": "a", "price": None, "note": None}


@pytest.mark.needs("tunnels", "pre_images", "logs_calls")
def test_a_preimage_comes_right_before_its_change_and_a_delete_is_one_change(
    store: Store, with_preimages: Table
) -> None:
    tunnel = store.create_tunnel("orders", "changes", "Stream")
    with_preimages.put([{"id": "a", "price": 1}, {"id": "b", "price": 1}])
    with_preimages.put([{"id": "a", "price": 2}, {"id": "c", "price": 2}])
    with_preimages.update([{"id": "a", "note": "x"}, {"id": "d", "note": "x"}])
    with_preimages.put([{"id": "b", "price": 3}, {"id": "b", "price": 4}])
    with_preimages.delete([{"id": "a"}, {"id": "b"}])
    changes = drain(tunnel)
    assert ops([change for change in changes if change.key == ("a",)]) == [
        (op, "a")
        for op in (
            ChangeOp.INSERT,
            ChangeOp.PREIMAGE,
            ChangeOp.REPLACE,
            ChangeOp.PREIMAGE,
            ChangeOp.UPDATE,
            ChangeOp.DELETE_WITH_ROW,
        )
    ]
    for change, following in itertools.pairwise(changes):
        if change.op is ChangeOp.PREIMAGE:
            assert (following.key, following.version) == (change.key, change.version)
            assert following.op in (ChangeOp.REPLACE, ChangeOp.UPDATE)
    assert changes[-1].row == {"id": "b", "price": 4, "note": None}
    assert filled(replay(changes)) == filled(state_of(with_preimages))


@pytest.mark.needs("tunnels", "pre_images")
def test_preimages_can_be_switched_on_and_off(store: Store, orders: Table, tunnel: Tunnel) -> None:
    for price, wanted in enumerate((False, True, False)):
        orders.set_options(pre_images=wanted)
        orders.put({"id": "a", "price": price})
        orders.put({"id": "b"})
        orders.delete({"id": "b"})
    changes = drain(tunnel)
    assert [op for op, key in ops(changes) if key == "a"] == [
        ChangeOp.INSERT,
        ChangeOp.PREIMAGE,
        ChangeOp.REPLACE,
        ChangeOp.REPLACE,
    ]
    deletes = (ChangeOp.DELETE, ChangeOp.DELETE_WITH_ROW, ChangeOp.DELETE)
    assert [op for op, key in ops(changes) if key == "b"] == [op for each in deletes for op in (ChangeOp.INSERT, each)]


@pytest.mark.needs("tunnels", "add_columns", "logs_calls")
def test_a_log_continues_after_columns_are_added(store: Store, orders: Table, tunnel: Tunnel) -> None:
    orders.put({"id": "a", "price": 1})
    orders.update({"id": "a", "price": 2})
    orders.add_columns({"colour": "string", "size": "double"})
    orders.update({"id": "a", "size": 0.5})
    orders.put({"id": "b", "colour": "red"})
    orders.add_columns({"day": "date"})
    changes = drain(tunnel)
    assert [tuple(change.row) for change in changes] == [("id", "price", "note", "colour", "size", "day")] * 4
    assert [change.written for change in changes[1:3]] == [{"price"}, {"size"}]
    assert [change.row["size"] for change in changes] == [None, None, 0.5, None]
    assert replay(changes, whole_rows=store.capabilities.whole_rows) == state_of(orders)


@pytest.mark.needs("tunnels")
def test_many_small_commits_read_the_same_from_every_position(
    place: Place, store: Store, orders: Table, tunnel: Tunnel
) -> None:
    count = place.commits(1500)
    versions = [orders.put({"id": f"{number % 50:02}", "price": number}) for number in range(count)]
    channel = only_channel(tunnel)
    start = tunnel.channels()[0].committed
    whole, end = read_from(tunnel, channel, start)
    if store.capabilities.transactions and traits(store).returns_versions:
        assert [change.version for change in whole] == versions
    assert [change.row["price"] for change in whole] == list(range(count))
    for after in (1, 63, 64, 65, 127, 128, 250, count - 1, count):
        if after <= count:
            position = tunnel.advance(channel, start, after)
            assert read_from(tunnel, channel, position, page_rows=7) == (whole[after:], end)


@pytest.mark.needs("tunnels", "transactions")
def test_a_large_commit_is_read_page_by_page_in_order(store: Store, orders: Table, tunnel: Tunnel) -> None:
    count = 150_000
    orders.put(pa.table({"id": [f"{number:06}" for number in range(count)], "price": range(count)}))
    channel, position, prices = only_channel(tunnel), tunnel.channels()[0].committed, []
    while True:
        changes, position = (page := tunnel.read(channel, position, 10_000)).changes, page.next
        if changes.num_rows == 0:
            break
        prices.append(changes.rows.column("price"))
        assert changes.versions[0] == changes.versions[changes.num_rows - 1]
    assert pa.chunked_array(prices).equals(pa.chunked_array([pa.array(range(count))]))
