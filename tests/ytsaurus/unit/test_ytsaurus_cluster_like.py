"""Details of many commands that the tests of official clients check."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from yt import yson

from headrace_ytsaurus.endpoint.cluster import Cluster
from headrace_ytsaurus.endpoint.contents.static_table_commands import DEFAULT_ROW_BYTES, check_row_weights
from headrace_ytsaurus.endpoint.parameters import Parameters
from headrace_ytsaurus.endpoint.tables import past_states
from headrace_ytsaurus.endpoint.tables.past_states import MAX_STATES
from headrace_ytsaurus.wire.errors import Code, YtError
from headrace_ytsaurus.wire.yson import documents
from tests.ytsaurus.unit.ytsaurus_cluster import call, value_of

SCHEMA = [{"name": "k", "type": "string", "sort_order": "ascending"}, {"name": "v", "type": "int64"}]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    yield cluster
    cluster.close()


def rows(cluster: Cluster, query: str, **parameters: Any) -> list[dict[str, Any]]:
    answer = call(cluster, "select_rows", query=query, **parameters)
    assert answer.batches is not None
    return [row for batch in answer.batches for row in batch.to_pylist()]


def insert(cluster: Cluster, *values: dict[str, Any]) -> None:
    from headrace_ytsaurus.endpoint.commands import COMMANDS
    from headrace_ytsaurus.endpoint.dispatcher import execute

    body = b"".join(documents.dumps(row, text=False) + b";" for row in values)
    command = COMMANDS["insert_rows"]
    execute(cluster.context(), command, Parameters({"path": "//tmp/t"}, command.name), body)


def table(cluster: Cluster, *values: dict[str, Any]) -> None:
    call(cluster, "create", type="table", path="//tmp/t", attributes={"dynamic": True, "schema": SCHEMA})
    call(cluster, "mount_table", path="//tmp/t")
    if values:
        insert(cluster, *values)


def test_get_returns_descendants_except_opaque_nodes(cluster: Cluster) -> None:
    call(cluster, "create", type="map_node", path="//tmp/a/b/c", recursive=True)
    for opaque, shown in ((False, {"b": {"c": {}}}), (True, {"b": None}), (False, {"b": {"c": {}}})):
        call(cluster, "set", opaque, path="//tmp/a/b/@opaque")
        assert value_of(cluster, "//tmp/a") == shown
        assert value_of(cluster, "//tmp/a/b") == {"c": {}}


def test_items_of_lists_and_documents_have_attributes(cluster: Cluster) -> None:
    item = yson.to_yson_type({"n": 5}, attributes={"color": "red"})
    for kind in ("list_node", "document"):
        path = f"//tmp/{kind}"
        call(cluster, "create", type=kind, path=path)
        call(cluster, "set", [1, item], path=path)
        assert value_of(cluster, f"{path}/1/@color") == "red"
        assert value_of(cluster, f"{path}/1/@type") == "map_node"
        assert value_of(cluster, f"{path}/1/n/@type") == "int64_node"
        call(cluster, "set", {"x": 1}, path=f"{path}/0/@size")
        call(cluster, "set", 2, path=f"{path}/0/@size/x")
        assert value_of(cluster, f"{path}/0/@size") == {"x": 2}
        assert sorted(value_of(cluster, f"{path}/0/@").keys() - {"key"}) == ["path", "size", "type"]
        assert call(cluster, "exists", path=f"{path}/0/@size/x").value == {"value": True}
        assert call(cluster, "exists", path=f"{path}/0/@none").value == {"value": False}
        assert call(cluster, "exists", path=f"{path}/7/@type").value == {"value": False}
        call(cluster, "remove", path=f"{path}/0/@size")
        assert call(cluster, "exists", path=f"{path}/0/@size").value == {"value": False}
        assert value_of(cluster, path) == [1, item]
        with pytest.raises(YtError) as wrong:
            value_of(cluster, f"{path}/7/@type")
        assert wrong.value.code == Code.RESOLVE
        with pytest.raises(YtError, match="Builtin attribute"):
            call(cluster, "set", "x", path=f"{path}/0/@type")


def test_create_inserts_items_into_a_list(cluster: Cluster) -> None:
    call(cluster, "create", type="list_node", path="//tmp/l")
    for kind, place in (("map_node", "end"), ("string_node", "begin"), ("list_node", "after:0")):
        call(cluster, "create", type=kind, path=f"//tmp/l/{place}")
    assert value_of(cluster, "//tmp/l") == ["", [], {}]
    with pytest.raises(YtError, match="An item of a list is a value"):
        call(cluster, "create", type="table", path="//tmp/l/end")
    with pytest.raises(YtError) as wrong:
        call(cluster, "create", type="map_node", path="//tmp/l/7")
    assert wrong.value.code == Code.RESOLVE
    call(cluster, "remove", path="//tmp/l/*")
    assert value_of(cluster, "//tmp/l") == []


def test_tables_have_a_tablet_balancer_config(cluster: Cluster) -> None:
    table(cluster)
    path = "//tmp/t/@tablet_balancer_config"
    assert value_of(cluster, path) == {"enable_auto_reshard": True, "enable_auto_tablet_move": True}
    call(cluster, "set", False, path=f"{path}/enable_auto_reshard")
    assert value_of(cluster, path) == {"enable_auto_reshard": False, "enable_auto_tablet_move": True}


def test_resharding_by_count_divides_the_rows(cluster: Cluster) -> None:
    table(cluster, *({"k": f"{number:02}", "v": number} for number in range(40)))
    call(cluster, "unmount_table", path="//tmp/t")

    def reshard(count: int, **more: int) -> list[list[str]]:
        call(cluster, "reshard_table", path="//tmp/t", tablet_count=count, **more)
        pivots = value_of(cluster, "//tmp/t/@pivot_keys")
        return [[value.decode() if isinstance(value, bytes) else value for value in pivot] for pivot in pivots]

    assert reshard(4) == [[], ["10"], ["20"], ["30"]]
    assert reshard(2, first_tablet_index=1, last_tablet_index=1) == [[], ["10"], ["15"], ["20"], ["30"]]
    assert reshard(1) == [[]]
    assert len(reshard(100)) == 40
    assert reshard(1, first_tablet_index=20) == [[], *([f"{number:02}"] for number in range(1, 21))]


def test_resharding_an_empty_table_by_count_adds_no_tablets(cluster: Cluster) -> None:
    table(cluster)
    call(cluster, "unmount_table", path="//tmp/t")
    call(cluster, "reshard_table", path="//tmp/t", pivot_keys=[[], ["a"], ["b"]])
    call(cluster, "reshard_table", path="//tmp/t", tablet_count=6)
    assert value_of(cluster, "//tmp/t/@tablet_count") == 3
    call(cluster, "reshard_table", path="//tmp/t", tablet_count=2)
    assert value_of(cluster, "//tmp/t/@tablet_count") == 2


def test_rows_are_read_at_generated_timestamps(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    table(cluster)

    def generated() -> int:
        return int(call(cluster, "generate_timestamp").value["timestamp"])

    empty = generated()
    insert(cluster, {"k": "a", "v": 1})
    one, again = generated(), generated()
    insert(cluster, {"k": "a", "v": 2})
    two = generated()
    assert empty < one < again < two
    for timestamp, wanted in ((two, [2]), (one, [1]), (again, [1]), (empty, [])):
        assert [row["v"] for row in rows(cluster, "v from [//tmp/t]", timestamp=timestamp)] == wanted
    for _ in range(MAX_STATES):
        insert(cluster, {"k": "b", "v": 3})
        last = generated()
    with pytest.raises(YtError, match="newest rows only"):
        rows(cluster, "v from [//tmp/t]", timestamp=one)
    monkeypatch.setattr(past_states, "KEPT_SECONDS", -1.0)
    assert last < generated()
    insert(cluster, {"k": "b", "v": 4})
    cluster.past_states.expire()
    with pytest.raises(YtError, match="newest rows only"):
        rows(cluster, "v from [//tmp/t]", timestamp=last)


def test_accounts_users_and_groups_are_created_by_name(cluster: Cluster) -> None:
    for kind in ("account", "user", "group"):
        made = call(cluster, "create", type=kind, attributes={"name": "alice"}).value["object_id"]
        assert value_of(cluster, f"//sys/{kind}s/alice/@id") == made
        assert value_of(cluster, f"//sys/{kind}s/alice/@name") == "alice"
        with pytest.raises(YtError) as wrong:
            call(cluster, "create", type=kind, attributes={"name": "alice"})
        assert wrong.value.code == Code.ALREADY_EXISTS
        again = call(cluster, "create", type=kind, attributes={"name": "alice"}, ignore_existing=True)
        assert again.value["object_id"] == made
        with pytest.raises(YtError, match="needs the attribute name"):
            call(cluster, "create", type=kind)


def test_an_unlocked_node_is_locked_by_the_waiting_transaction(cluster: Cluster) -> None:
    one, other = (call(cluster, "start_transaction").value["transaction_id"] for _ in range(2))
    call(cluster, "lock", path="//tmp", mode="exclusive", transaction_id=one)
    waits = call(cluster, "lock", path="//tmp", mode="exclusive", waitable=True, transaction_id=other).value["lock_id"]
    assert value_of(cluster, f"#{waits}/@state") == "pending"
    call(cluster, "unlock", path="//tmp", transaction_id=one)
    assert value_of(cluster, f"#{waits}/@state") == "acquired"


@pytest.mark.parametrize("most", [None, 100, DEFAULT_ROW_BYTES + 1])
def test_rows_longer_than_max_row_weight_are_refused(most: int | None) -> None:
    parameters = Parameters({} if most is None else {"table_writer": {"max_row_weight": most}}, "write_table")
    size = most or DEFAULT_ROW_BYTES
    fits, longer = (b'{"a"="' + b"x" * length + b'"};' for length in (size, size + 1))
    check_row_weights(parameters, [(3, fits + fits + b"{a=1};")])
    with pytest.raises(YtError) as wrong:
        check_row_weights(parameters, [(1, fits), (2, fits + longer)])
    assert wrong.value.code == Code.ROW_WEIGHT_LIMIT_EXCEEDED


@pytest.mark.parametrize("query", ["v = {}", "v = -{}", "v = {}u", "v > {}.5", "v < 1e{}"])
def test_numbers_with_thousands_of_digits_are_client_errors(cluster: Cluster, query: str) -> None:
    table(cluster)
    for digits in ("1" * 4500, "9" * 100_000):
        # Only errors of YTsaurus are allowed.
        with contextlib.suppress(YtError):
            rows(cluster, f"k from [//tmp/t] where {query.format(digits)}")


def test_names_of_nodes_may_be_any_bytes(cluster: Cluster) -> None:
    raw = b"\xff\xfe/\x00"
    path = r"//tmp/\xff\xfe\/" + "\0"
    name = yson.yson_types.make_byte_key(raw)
    call(cluster, "create", type="map_node", path=path)
    call(cluster, "create", type="document", path=f"{path}/d", attributes={"value": {name: 1}})
    assert [yson.get_bytes(each) for each in call(cluster, "list", path="//tmp").value["value"]] == [raw]
    assert list(value_of(cluster, "//tmp")) == [name]
    assert value_of(cluster, f"{path}/d/" + path.removeprefix("//tmp/")) == 1
    assert value_of(cluster, f"{path}/@path") == path
    assert yson.get_bytes(value_of(cluster, f"{path}/@key")) == raw
    assert call(cluster, "exists", path=b"//tmp/\xff\xfe\\/\x00/d").value == {"value": True}
    listed = call(cluster, "list", path="//tmp", attributes=["type"]).value["value"]
    assert (yson.get_bytes(listed[0]), listed[0].attributes) == (raw, {"type": "map_node"})
    call(cluster, "set", {name: {"x": 1}}, path="//tmp/m")
    assert value_of(cluster, "//tmp/m") == {name: {"x": 1}}
    call(cluster, "move", source_path=path, destination_path=r"//tmp/\xee")
    call(cluster, "link", target_path=r"//tmp/\xee", link_path="//tmp/l")
    assert list(value_of(cluster, "//tmp/l")) == ["d"]
    transaction = call(cluster, "start_transaction").value["transaction_id"]
    call(cluster, "create", type="map_node", path=r"//tmp/\xaa", transaction_id=transaction)
    (lock,) = value_of(cluster, "//tmp/@locks")
    assert yson.get_bytes(lock["child_key"]) == b"\xaa"
    call(cluster, "abort_transaction", transaction_id=transaction)
    call(cluster, "remove", path=r"//tmp/\xee", recursive=True)
    assert call(cluster, "exists", path=r"//tmp/\xee").value == {"value": False}


@pytest.mark.parametrize("path", [r"//tmp/\x99", r"//tmp/@\x99", r"//tmp/d/\x99", r"//\x99/a"])
def test_errors_about_names_of_any_bytes_are_texts(cluster: Cluster, path: str) -> None:
    call(cluster, "create", type="document", path="//tmp/d", attributes={"value": {}})
    with pytest.raises(YtError) as wrong:
        value_of(cluster, path)
    assert wrong.value.code == Code.RESOLVE
    assert rb"\\x99" in documents.dumps(wrong.value.to_json())
    with pytest.raises(YtError, match="not UTF-8"):
        call(cluster, "set", 1, path=r"//tmp/@\x99")
