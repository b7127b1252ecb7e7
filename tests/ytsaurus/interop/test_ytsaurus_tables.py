"""Sorted tables and tablet transactions of the endpoint, with YTsaurus' client."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from yt import yson
from yt.wrapper import YtClient, YtError, YtResponseError
from yt.wrapper.errors import YtNoSuchTransaction

import headrace
from tests.ytsaurus.interop.ytsaurus_server import YtServer
from tests.ytsaurus.interop.ytsaurus_tables import AT_ONCE, losing_transaction

KEY = {"name": "k", "type": "int64", "sort_order": "ascending"}
SIMPLE = [KEY, {"name": "v", "type": "string"}, {"name": "n", "type": "int64"}]


@pytest.fixture(scope="module")
def other(yt_server: YtServer) -> YtClient:
    """Another client with its own transactions."""
    return yt_server.client(**AT_ONCE)


def table(client: YtClient, path: str, schema: Any = SIMPLE, **attributes: Any) -> str:
    client.create("table", path, attributes={"dynamic": True, "schema": schema, **attributes})
    client.mount_table(path, sync=True)
    return path


@pytest.fixture
def path(client: YtClient, home: str) -> str:
    return table(client, f"{home}/t")


def rows_of(client: YtClient, path: str) -> list[dict[str, Any]]:
    return list(client.select_rows(f"* from [{path}]"))


def values_of(client: YtClient, path: str) -> dict[Any, Any]:
    return {row["k"]: row["v"] for row in rows_of(client, path)}


# -- rows -----------------------------------------------------------------------------------------------------


def test_an_inserted_row_replaces_one_with_the_same_key(client: YtClient, path: str) -> None:
    client.insert_rows(path, [{"k": 1, "v": "a", "n": 1}, {"k": 2, "v": "b", "n": 2}])
    client.insert_rows(path, [{"k": 1, "n": 5}])
    client.insert_rows(path, [{"k": 2, "n": 6}, {"k": 3, "v": "c"}, {"k": 4}], update=True)
    assert rows_of(client, path) == [
        {"k": 1, "v": None, "n": 5},
        {"k": 2, "v": "b", "n": 6},
        {"k": 3, "v": "c", "n": None},
        {"k": 4, "v": None, "n": None},
    ]
    client.insert_rows(path, [{"k": 2, "v": None}, {"k": 2, "n": 7}], update=True)
    assert rows_of(client, path)[1] == {"k": 2, "v": None, "n": 7}


def test_the_last_row_with_a_key_in_a_request_counts(client: YtClient, path: str) -> None:
    client.insert_rows(path, [{"k": 1, "v": str(number)} for number in range(5)])
    assert values_of(client, path) == {1: "4"}


def test_rows_are_looked_up_in_the_order_of_the_given_keys(client: YtClient, path: str) -> None:
    client.insert_rows(path, [{"k": number, "v": str(number)} for number in range(5)])
    keys = [{"k": 3}, {"k": 99}, {"k": 0}, {"k": 3}]
    assert [row["v"] for row in client.lookup_rows(path, keys)] == ["3", "0", "3"]
    found = list(client.lookup_rows(path, keys, keep_missing_rows=True, column_names=["v"]))
    assert found == [{"v": "3"}, None, {"v": "0"}, {"v": "3"}]
    assert list(client.lookup_rows(path, [])) == []
    with pytest.raises(YtResponseError, match="No such column 'x'"):
        list(client.lookup_rows(path, keys, column_names=["x"]))


def test_rows_are_deleted_by_their_keys(client: YtClient, path: str) -> None:
    client.insert_rows(path, [{"k": number, "v": "x"} for number in range(4)])
    client.delete_rows(path, [{"k": 1}, {"k": 3}, {"k": 77}])
    assert sorted(values_of(client, path)) == [0, 2]


def test_aggregating_columns_combine_old_and_new_values(client: YtClient, home: str) -> None:
    functions = ("sum", "min", "max", "first")
    schema = [KEY, *({"name": name, "type": "int64", "aggregate": name} for name in functions)]
    path = table(client, f"{home}/a", schema)
    for value in (5, 3, None, 9):
        client.insert_rows(path, [{"k": 1, **dict.fromkeys(functions, value)}], aggregate=True)
    expected = {"k": 1, "sum": 17, "min": 3, "max": 9, "first": 5}
    assert rows_of(client, path) == [expected]
    client.insert_rows(path, [{"k": 2, "sum": 1}] * 3 + [{"k": 1, "sum": 1}], aggregate=True, update=True)
    assert [row["sum"] for row in rows_of(client, path)] == [18, 3]
    client.insert_rows(path, [{"k": 1, "sum": 1}])
    assert rows_of(client, path)[0] == {"k": 1, "sum": 1, "min": None, "max": None, "first": None}


@pytest.mark.parametrize(
    "row", [{"v": "no key"}, {"k": None}, {"k": "text"}, {"k": 1, "v": 5}, {"k": 1, "nonsense": 2}]
)
def test_rows_that_do_not_fit_are_refused_as_a_whole(client: YtClient, path: str, row: dict[str, Any]) -> None:
    with pytest.raises(YtResponseError):
        client.insert_rows(path, [{"k": 5}, row])
    assert rows_of(client, path) == []


def test_a_required_column_is_never_null(client: YtClient, home: str) -> None:
    path = table(client, f"{home}/r", [KEY, {"name": "v", "type": "string", "required": True}])
    for update in (False, True):
        with pytest.raises(YtResponseError, match="'v'"):
            client.insert_rows(path, [{"k": 1, "v": None}], update=update)
    assert rows_of(client, path) == []


def test_values_of_every_type_round_trip(client: YtClient, home: str) -> None:
    columns: dict[str, tuple[Any, list[Any]]] = {
        "int8": ("int8", [-128, 127]),
        "uint8": ("uint8", [0, 255]),
        "uint16": ("uint16", [0, 65535]),
        "uint32": ("uint32", [0, 2**32 - 1]),
        "uint64": ("uint64", [0, 2**64 - 1]),
        "int64": ("int64", [-(2**63), 2**63 - 1]),
        "double": ("double", [0.5, -1e300]),
        "bool": ("bool", [True, False]),
        "utf8": ("utf8", ["ключ", ""]),
        "datetime": ("datetime", [0, 1_700_000_000]),
        "timestamp": ("timestamp", [0, 1_700_000_000_000_001]),
        "interval": ("interval", [-5, 5]),
        "date32": ("date32", [-1000, 1000]),
        "any": ({"type_name": "optional", "item": "yson"}, [{"a": [1, "x"]}, 5]),
        "list": ({"type_name": "list", "item": "int64"}, [[], [1, 2]]),
    }
    schema: list[dict[str, Any]] = [KEY]
    schema += [{"name": name, "type_v3": kind} for name, (kind, _) in columns.items()]
    path = table(client, f"{home}/types", schema)
    for place in range(2):
        row: dict[str, Any] = {name: values[place] for name, (_, values) in columns.items()}
        for name in ("uint8", "uint16", "uint32", "uint64", "datetime", "timestamp"):
            row[name] = yson.YsonUint64(row[name])
        client.insert_rows(path, [{"k": place, **row}])
        (found,) = client.lookup_rows(path, [{"k": place}])
        assert found == {"k": place, **row}
    assert [column["type_v3"] for column in client.get(f"{path}/@schema")][1:] == [kind for kind, _ in columns.values()]


@pytest.mark.parametrize(
    ("kinds", "keys"),
    [
        (["uint64"], [(0,), (5,), (2**63,), (2**64 - 1,)]),
        (["double"], [(-1.5,), (0.0,), (2.5,)]),
        (["boolean", "string"], [(False, ""), (False, "a\x00"), (False, "a\x00b"), (False, "ab"), (True, "a")]),
        (["int64"] * 6, [(1, 2, 3, 4, 5, 6), (1, 2, 3, 4, 6, 0), (2, 0, 0, 0, 0, 0)]),
        (["int32", "string"], [(-5, "b"), (-5, "c"), (7, "")]),
        (["uint64", "string"], [(None, None), (None, "x"), (1, None), (1, "x")]),
    ],
)
def test_keys_of_any_type_and_number_are_ordered(
    client: YtClient, home: str, kinds: list[str], keys: list[tuple[Any, ...]]
) -> None:
    names = [f"k{place}" for place in range(len(kinds))]
    schema = [{"name": n, "type": kind, "sort_order": "ascending"} for n, kind in zip(names, kinds, strict=True)]
    path = table(client, f"{home}/keyed", [*schema, {"name": "v", "type": "int64"}])

    def row_of(key: tuple[Any, ...]) -> dict[str, Any]:
        unsigned = [
            yson.YsonUint64(v) if k == "uint64" and v is not None else v for k, v in zip(kinds, key, strict=True)
        ]
        return dict(zip(names, unsigned, strict=True))

    for number, key in reversed(list(enumerate(keys))):
        client.insert_rows(path, [{**row_of(key), "v": number}])
    assert [row["v"] for row in rows_of(client, path)] == list(range(len(keys)))
    assert [row["v"] for row in client.lookup_rows(path, [row_of(key) for key in keys])] == list(range(len(keys)))
    client.delete_rows(path, [row_of(keys[1])])
    assert [row["v"] for row in rows_of(client, path)] == [0, *range(2, len(keys))]


def test_a_sorted_table_is_a_table_of_the_embedded_store(client: YtClient, yt_server: YtServer, path: str) -> None:
    client.insert_rows(path, [{"k": 1, "v": "a"}])
    with headrace.open(str(yt_server.root)) as store:
        stored = store.table(path)
        assert stored.schema.primary_key == ("k",)
        stored.put({"k": 2, "v": b"from beside", "n": 7})
    assert values_of(client, path) == {1: "a", 2: "from beside"}
    client.move(path, f"{path}-moved")
    with headrace.open(str(yt_server.root)) as store:
        assert store.table(f"{path}-moved").get({"k": 1}, ["v"]) == {"v": b"a"}
    client.remove(f"{path}-moved")
    with headrace.open(str(yt_server.root)) as store:
        assert f"{path}-moved" not in store.tables()


def test_columns_can_be_added_to_an_unmounted_table(client: YtClient, path: str) -> None:
    client.insert_rows(path, [{"k": 1, "v": "a"}])
    wider = [*SIMPLE, {"name": "d", "type": "double"}]
    with pytest.raises(YtResponseError, match="mounted"):
        client.alter_table(path, schema=wider)
    client.unmount_table(path, sync=True)
    with pytest.raises(YtResponseError, match="'n' would be removed or changed"):
        client.alter_table(path, schema=SIMPLE[:2])
    client.alter_table(path, schema=wider)
    client.mount_table(path, sync=True)
    client.insert_rows(path, [{"k": 2, "d": 0.5}])
    assert rows_of(client, path) == [
        {"k": 1, "v": "a", "n": None, "d": None},
        {"k": 2, "v": None, "n": None, "d": 0.5},
    ]


def test_tablets_of_a_sorted_table_begin_at_pivot_keys(client: YtClient, home: str) -> None:
    path = f"{home}/t"
    client.create("table", path, attributes={"dynamic": True, "schema": SIMPLE})
    client.reshard_table(path, [[], [10], [20]], sync=True)
    assert client.get(f"{path}/@tablet_count") == 3
    assert client.get(f"{path}/@pivot_keys") == [[], [10], [20]]
    client.mount_table(path, first_tablet_index=0, last_tablet_index=1, sync=True)
    assert client.get(f"{path}/@tablet_state") == "mixed"
    client.mount_table(path, sync=True)
    assert [tablet["pivot_key"] for tablet in client.get(f"{path}/@tablets")] == [[], [10], [20]]
    client.insert_rows(path, [{"k": 15}])
    client.unmount_table(path, sync=True)
    for wrong in ([[], [20], [10]], [[5], [10]]):
        with pytest.raises(YtResponseError, match=r"[Pp]ivot"):
            client.reshard_table(path, wrong)
    client.reshard_table(path, [[]], sync=True)
    client.mount_table(path, sync=True)
    assert [row["k"] for row in rows_of(client, path)] == [15]


@pytest.mark.parametrize(
    ("kind", "pivots"),
    [
        ("uint64", [[], [2**62], [2**63], [3 * 2**62]]),
        ("int64", [[], [-(2**62)], [0], [2**62]]),
        ("int8", [[], [-64], [0], [64]]),
    ],
)
def test_integer_keys_can_be_resharded_uniformly(
    client: YtClient, home: str, kind: str, pivots: list[list[int]]
) -> None:
    path = f"{home}/t"
    schema = [{**KEY, "type": kind}, *SIMPLE[1:]]
    client.create("table", path, attributes={"dynamic": True, "schema": schema})
    client.reshard_table(path, tablet_count=4, uniform=True, sync=True)
    assert client.get(f"{path}/@pivot_keys") == pivots
    client.reshard_table(path, tablet_count=1, sync=True)
    assert client.get(f"{path}/@pivot_keys") == [[]]


def test_other_keys_cannot_be_resharded_uniformly(client: YtClient, home: str) -> None:
    schema = [{**KEY, "type": "string"}, *SIMPLE[1:]]
    client.create("table", f"{home}/t", attributes={"dynamic": True, "schema": schema})
    with pytest.raises(YtResponseError, match="whole number"):
        client.reshard_table(f"{home}/t", tablet_count=4, uniform=True)


@pytest.mark.parametrize("schema", [SIMPLE, SIMPLE[1:]], ids=["sorted", "ordered"])
def test_a_static_table_becomes_a_dynamic_one_with_its_rows(client: YtClient, home: str, schema: Any) -> None:
    client.create("table", f"{home}/s", attributes={"schema": schema})
    rows = [{column["name"]: None for column in schema} | {"v": str(number), "n": number} for number in range(3)]
    for number, row in enumerate(rows):
        if "k" in row:
            row["k"] = number
    client.write_table(f"{home}/s", rows)
    client.alter_table(f"{home}/s", dynamic=True)
    client.mount_table(f"{home}/s", sync=True)
    assert list(client.select_rows(f"v, n from [{home}/s]")) == [{"v": str(n), "n": n} for n in range(3)]
    assert client.get(f"{home}/s/@dynamic")


def test_an_unmounted_table_can_be_copied(client: YtClient, path: str) -> None:
    client.insert_rows(path, [{"k": number, "v": "x"} for number in range(3)])
    client.unmount_table(path, sync=True)
    client.copy(path, f"{path}-copy")
    for each in (path, f"{path}-copy"):
        client.mount_table(each, sync=True)
    client.insert_rows(path, [{"k": 7}])
    assert sorted(values_of(client, f"{path}-copy")) == [0, 1, 2]


def test_reads_at_unknown_past_timestamps_are_errors(client: YtClient, path: str) -> None:
    client.insert_rows(path, [{"k": 1, "v": "a"}])
    now = client.generate_timestamp()
    assert [row["v"] for row in client.lookup_rows(path, [{"k": 1}], timestamp=now)] == ["a"]
    assert list(client.select_rows(f"v from [{path}]", timestamp=0x3FFFFFFFFFFFFF01)) == [{"v": "a"}]
    client.insert_rows(path, [{"k": 1, "v": "b"}])
    assert list(client.select_rows(f"v from [{path}]", timestamp=now)) == [{"v": "a"}]
    assert [row["v"] for row in client.lookup_rows(path, [{"k": 1}], timestamp=client.generate_timestamp())] == ["b"]
    with pytest.raises(YtResponseError, match="newest rows only"):
        list(client.select_rows(f"v from [{path}]", timestamp=now - (1 << 40)))
    with pytest.raises(YtResponseError, match="retention_timestamp"):
        list(client.lookup_rows(path, [{"k": 1}], retention_timestamp=now))


# -- transactions ---------------------------------------------------------------------------------------------


def test_a_transaction_reads_the_state_at_its_start(client: YtClient, other: YtClient, path: str) -> None:
    client.insert_rows(path, [{"k": 1, "v": "before"}])
    with client.Transaction(type="tablet"):
        other.insert_rows(path, [{"k": 1, "v": "after"}, {"k": 2, "v": "new"}])
        client.insert_rows(path, [{"k": 3, "v": "own"}])
        assert values_of(client, path) == {1: "before"}
        assert list(client.lookup_rows(path, [{"k": 2}, {"k": 3}])) == []
    assert values_of(client, path) == {1: "after", 2: "new", 3: "own"}


def test_the_first_to_commit_a_row_wins(client: YtClient, other: YtClient, path: str) -> None:
    with losing_transaction(client) as error:
        client.insert_rows(path, [{"k": 1, "v": "slow"}, {"k": 2, "v": "slow"}])
        with other.Transaction(type="tablet"):
            other.insert_rows(path, [{"k": 1, "v": "fast"}])
    assert error.value.error["code"] == 1700
    assert values_of(client, path) == {1: "fast"}


def test_writing_the_same_value_is_a_conflict_too(client: YtClient, other: YtClient, path: str) -> None:
    client.insert_rows(path, [{"k": 1, "v": "a"}])
    with losing_transaction(client):
        client.delete_rows(path, [{"k": 1}])
        other.insert_rows(path, [{"k": 1, "v": "a"}])
    assert values_of(client, path) == {1: "a"}


def test_transactions_on_different_rows_do_not_conflict(client: YtClient, other: YtClient, path: str) -> None:
    with client.Transaction(type="tablet"), other.Transaction(type="tablet"):
        client.insert_rows(path, [{"k": 1, "v": "a"}])
        other.insert_rows(path, [{"k": 2, "v": "b"}])
    assert values_of(client, path) == {1: "a", 2: "b"}


def test_locked_rows_cannot_be_changed_by_others(client: YtClient, other: YtClient, path: str) -> None:
    client.insert_rows(path, [{"k": 1, "v": "a"}])
    with losing_transaction(client):
        client.lock_rows(path, [{"k": 1}], lock_type="shared_strong")
        client.insert_rows(path, [{"k": 2, "v": "b"}])
        other.insert_rows(path, [{"k": 1, "v": "changed"}])
    with client.Transaction(type="tablet"), other.Transaction(type="tablet"):
        for each in (client, other):
            each.lock_rows(path, [{"k": 1}], lock_type="shared_weak")
    assert values_of(client, path) == {1: "changed"}
    with losing_transaction(client):
        client.lock_rows(path, [{"k": 1}], lock_type="exclusive")
        with other.Transaction(type="tablet"):
            other.lock_rows(path, [{"k": 1}], lock_type="exclusive")


def test_an_aborted_transaction_has_no_effect(client: YtClient, path: str) -> None:
    with losing_transaction(client, ZeroDivisionError):
        client.insert_rows(path, [{"k": 1, "v": "a"}])
        raise ZeroDivisionError
    assert rows_of(client, path) == []


def test_rows_of_several_tables_and_an_advance_are_committed_together(client: YtClient, home: str) -> None:
    sorted_table = table(client, f"{home}/t")
    queue = table(client, f"{home}/q", [{"name": "data", "type": "string"}])
    client.create("queue_consumer", f"{home}/c")
    with client.Transaction(type="tablet"):
        client.insert_rows(sorted_table, [{"k": 1, "v": "a"}])
        client.insert_rows(sorted_table, [{"k": 1, "n": 5}], update=True)
        client.insert_rows(queue, [{"data": "one"}])
        client.insert_rows(queue, [{"data": "two"}])
        client.advance_queue_consumer(f"{home}/c", queue, 0, 0, 1)
        assert rows_of(client, queue) == rows_of(client, sorted_table) == []
    assert rows_of(client, sorted_table) == [{"k": 1, "v": "a", "n": 5}]
    assert [row["data"] for row in rows_of(client, queue)] == ["one", "two"]
    assert [row["offset"] for row in client.select_rows(f"[offset] from [{home}/c]")] == [1]


def test_a_failed_transaction_writes_nothing(client: YtClient, other: YtClient, home: str) -> None:
    sorted_table = table(client, f"{home}/t")
    queue = table(client, f"{home}/q", [{"name": "data", "type": "string"}])
    with losing_transaction(client):
        client.insert_rows(queue, [{"data": "one"}])
        client.insert_rows(sorted_table, [{"k": 1, "v": "a"}])
        other.insert_rows(sorted_table, [{"k": 1, "v": "b"}])
    assert rows_of(client, queue) == []


def test_a_transaction_without_pings_expires(client: YtClient, path: str) -> None:
    transaction = client.start_transaction(type="tablet", timeout=100)
    gone = threading.Event()
    for _ in range(200):
        if not client.exists(f"#{transaction}"):
            gone.set()
            break
        gone.wait(0.02)
    assert gone.is_set()
    with pytest.raises(YtNoSuchTransaction), client.Transaction(transaction_id=transaction, ping=False):
        client.insert_rows(path, [{"k": 1}])


def test_a_transaction_has_a_maximum_of_rows_for_each_tablet(client: YtClient, home: str) -> None:
    queue = table(client, f"{home}/q", [{"name": "data", "type": "int64"}])
    rows = [{"data": number} for number in range(60_000)]
    with losing_transaction(client, YtResponseError, "too many rows in tablet") as error:
        client.insert_rows(queue, rows)
        client.insert_rows(queue, rows)
    assert error.value.error["code"] == 1717
    assert rows_of(client, f"{home}/q") == []


def test_master_and_tablet_transactions_do_not_mix(client: YtClient, path: str) -> None:
    # YTsaurus' client refuses some cases itself; the endpoint refuses the others.
    with client.Transaction(), pytest.raises(YtError, match="master transaction"):
        client.insert_rows(path, [{"k": 1}])
    with client.Transaction(), pytest.raises(YtError, match="master transaction"):
        list(client.lookup_rows(path, [{"k": 1}]))


# -- static tables --------------------------------------------------------------------------------------------


def test_small_static_tables_are_written_read_and_copied(client: YtClient, home: str) -> None:
    rows: list[dict[str, Any]] = [{"a": 1, "b": "x"}, {"a": None, "c": [1.5, {"d": True}]}]
    client.write_table(f"{home}/s", rows)
    client.write_table(f"<append=%true>{home}/s", [{"a": 3}])
    assert list(client.read_table(f"{home}/s")) == [*rows, {"a": 3}]
    assert [row["a"] for row in client.read_table(f"{home}/s[#1:#3]")] == [None, 3]
    assert next(iter(client.read_table(f"{home}/s{{b}}"))) == {"b": "x"}
    assert client.get(f"{home}/s/@row_count") == 3
    client.copy(f"{home}/s", f"{home}/copy")
    client.write_table(f"{home}/s", [{"a": 9}])
    assert client.row_count(f"{home}/copy") == 3
    assert [row["a"] for row in client.read_table(f"{home}/s")] == [9]


def test_a_static_table_with_a_schema_takes_only_what_fits(client: YtClient, home: str) -> None:
    schema = [{"name": "a", "type": "int64"}, {"name": "d", "type": "double"}]
    client.create("table", f"{home}/s", attributes={"schema": schema})
    client.write_table(f"{home}/s", [{"a": 1, "d": 0.5}])
    with pytest.raises(YtResponseError):
        client.write_table(f"{home}/s", [{"a": "text"}])
    assert list(client.read_table(f"{home}/s")) == [{"a": 1, "d": 0.5}]
    assert client.get(f"{home}/s/@dynamic") == False  # noqa: E712


def test_dynamic_tables_can_be_read_as_a_whole(client: YtClient, path: str) -> None:
    client.insert_rows(path, [{"k": 2}, {"k": 1, "v": "x"}])
    rows = [{"k": 1, "v": "x", "n": None}, {"k": 2, "v": None, "n": None}]
    assert list(client.read_table(path)) == rows
    client.unmount_table(path, sync=True)
    assert list(client.read_table(path)) == rows
