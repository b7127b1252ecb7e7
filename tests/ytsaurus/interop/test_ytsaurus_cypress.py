"""Cypress of the endpoint, with YTsaurus' client in its default configuration."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest
import yt.wrapper
from yt.wrapper import YtClient, YtResponseError, ypath_join
from yt.wrapper.errors import (
    YtCypressTransactionLockConflict,
    YtResolveError,
    YtTokenError,
)

from tests.ytsaurus.interop.ytsaurus_server import TOKEN, YtServer, serving


@pytest.fixture(scope="module")
def client(yt_server: YtServer) -> YtClient:
    return yt_server.client()


# -- nodes and attributes ---------------------------------------------------------------------------------------


VALUES: dict[str, Any] = {
    "text": "ключ",
    "empty": "",
    "number": -5,
    "large": 2**63 - 1,
    "unsigned": yt.wrapper.yson.YsonUint64(2**64 - 1),
    "double": 1.5,
    "yes": True,
    "list": [1, "two", [3.0], {}],
    "map": {"a": {"b": [None]}, "ü": 1},
}


@pytest.mark.parametrize("name", VALUES)
def test_values_round_trip_in_nodes_documents_and_attributes(client: YtClient, home: str, name: str) -> None:
    value = VALUES[name]
    client.create("document", f"{home}/document", attributes={"value": value})
    client.set(f"{home}/@kept", value)
    assert client.get(f"{home}/document") == value
    assert client.get(f"{home}/@kept") == value
    if name != "map":
        client.set(f"{home}/node", value)
        assert client.get(f"{home}/node") == value


SIMPLE: dict[str, Any] = {
    "structured_data_format": "json",
    "tabular_data_format": "json",
    "proxy": {"header_format": "json", "content_encoding": "identity", "accept_encoding": "identity"},
    "write_retries": {"enable": False},
    "read_retries": {"enable": False, "create_transaction_and_take_snapshot_lock": False},
}


def test_json_clients_have_the_same_results(yt_server: YtServer, client: YtClient, home: str) -> None:
    simple = yt_server.client(**SIMPLE)
    for name, value in VALUES.items():
        simple.set(f"{home}/@{name}", value)
        assert simple.get(f"{home}/@{name}") == value
        if name != "double":
            assert client.get(f"{home}/@{name}") == value
    simple.create("document", f"{home}/имя", attributes={"value": {"$a": "ü"}})
    assert simple.get(f"{home}/имя") == client.get(f"{home}/имя") == {"$a": "ü"}
    assert [str(name) for name in simple.list(home, attributes=["type"])] == ["имя"]
    simple.write_file(f"{home}/f", b"\x00\xff")
    assert simple.read_file(f"{home}/f").read() == client.read_file(f"{home}/f").read() == b"\x00\xff"
    with pytest.raises(YtResolveError):
        simple.get(f"{home}/ничего")


def test_setting_a_map_creates_nodes(client: YtClient, home: str) -> None:
    client.set(f"{home}/tree", {"a": {"b": [10, 20]}, "c": "x"})
    assert client.get(f"{home}/tree/a/b/1") == 20
    assert client.get(f"{home}/tree/a/@type") == "map_node"
    assert client.list(f"{home}/tree") == ["a", "c"]
    assert client.exists(f"{home}/tree/a/b/0")
    assert not client.exists(f"{home}/tree/a/b/2")
    client.set(f"{home}/tree/a/b/end", 30)
    client.remove(f"{home}/tree/a/b/0")
    assert client.get(f"{home}/tree") == {"a": {"b": [20, 30]}, "c": "x"}


def test_names_of_all_kinds_are_escaped_in_paths(client: YtClient, home: str) -> None:
    for name in ["a/b", "@x", "a&b", "[1]", "a\\b", "имя", "a b", "{c}", "*"]:
        path = ypath_join(home, yt.wrapper.escape_ypath_literal(name))
        client.set(path, name)
        assert client.get(path) == name
        assert client.get(f"{path}/@key") == name
        assert client.get(client.get(f"{path}/@path")) == name
    assert len(client.list(home)) == 9


def test_attributes_are_set_inside_read_together_and_removed(client: YtClient, home: str) -> None:
    client.create("file", f"{home}/f", attributes={"executable": True, "deep": {"a": [1, 2]}})
    client.set(f"{home}/f/@deep/a/1", 3)
    assert client.get(f"{home}/f/@deep") == {"a": [1, 3]}
    listed = client.list(home, attributes=["type", "deep", "not_there"])
    assert [str(name) for name in listed] == ["f"]
    assert listed[0].attributes == {"type": "file", "deep": {"a": [1, 3]}}
    assert client.get(f"{home}/f", attributes=["executable"]).attributes == {"executable": True}
    everything = client.get(f"{home}/f/@")
    assert everything["uncompressed_data_size"] == 0
    assert everything["id"] == client.get(f"{home}/f/@id")
    assert set(client.list(f"{home}/f/@")) == set(everything)
    client.remove_attribute(f"{home}/f", "deep")
    assert client.get_attribute(f"{home}/f", "deep", default="gone") == "gone"
    assert not client.has_attribute(f"{home}/f", "deep")


def test_computed_attributes_cannot_be_set(client: YtClient, home: str) -> None:
    for name in ("id", "type", "count", "modification_time"):
        with pytest.raises(YtResponseError, match="Builtin attribute"):
            client.set(f"{home}/@{name}", 1)


def test_changes_update_the_modification_time(client: YtClient, home: str) -> None:
    before = client.get(f"{home}/@modification_time"), client.get(f"{home}/@revision")
    client.set(f"{home}/@x", 1)
    assert before < (client.get(f"{home}/@modification_time"), client.get(f"{home}/@revision"))


def test_create_reports_existing_nodes(client: YtClient, home: str) -> None:
    made = client.create("map_node", f"{home}/a/b", recursive=True)
    assert client.create("map_node", f"{home}/a/b", ignore_existing=True) == made
    with pytest.raises(YtResponseError) as taken:
        client.create("map_node", f"{home}/a/b")
    assert taken.value.contains_code(501)
    with pytest.raises(YtResponseError) as other:
        client.create("file", f"{home}/a/b", ignore_existing=True)
    assert other.value.contains_code(501)
    assert client.create("file", f"{home}/a/b", force=True) != made
    with pytest.raises(YtResolveError):
        client.create("file", f"{home}/x/y")
    with pytest.raises(YtResponseError, match="nonsense"):
        client.create("nonsense", f"{home}/x")


def test_set_replaces_a_tree_only_with_force(client: YtClient, home: str) -> None:
    client.set(f"{home}/m", {"a": 1})
    with pytest.raises(YtResponseError, match="force"):
        client.set(f"{home}/m", {"b": 2})
    client.set(f"{home}/m", {"b": 2}, force=True)
    assert client.get(f"{home}/m") == {"b": 2}
    with pytest.raises(YtResponseError, match="types must match"):
        client.set(f"{home}/m/b", "text")


def test_nodes_and_values_are_removed(client: YtClient, home: str) -> None:
    client.set(f"{home}/m", {"a": {"b": 1}})
    with pytest.raises(YtResponseError, match="non-empty"):
        client.remove(f"{home}/m")
    client.remove(f"{home}/m", recursive=True)
    with pytest.raises(YtResolveError):
        client.remove(f"{home}/m")
    client.remove(f"{home}/m", force=True)
    with pytest.raises(YtResponseError):
        client.remove("/", recursive=True, force=True)


def test_copies_are_complete_and_independent(client: YtClient, home: str) -> None:
    client.set(f"{home}/a", {"v": 1, "m": {}})
    client.set(f"{home}/a/@mark", "x")
    client.write_file(f"{home}/a/m/f", b"content")
    client.copy(f"{home}/a", f"{home}/b/c", recursive=True)
    client.set(f"{home}/a/v", 2)
    client.write_file(f"{home}/a/m/f", b"other")
    assert client.get(f"{home}/b/c/v") == 1
    assert client.get(f"{home}/b/c/@mark") == "x"
    assert client.read_file(f"{home}/b/c/m/f").read() == b"content"
    with pytest.raises(YtResponseError) as taken:
        client.copy(f"{home}/a", f"{home}/b")
    assert taken.value.contains_code(501)
    with pytest.raises(YtResponseError):
        client.copy(f"{home}/a", f"{home}/a/inside")


def test_a_move_replaces_another_node_only_with_force(client: YtClient, home: str) -> None:
    client.write_file(f"{home}/.f.tmp", b"new")
    client.write_file(f"{home}/f", b"old")
    with pytest.raises(YtResponseError) as taken:
        client.move(f"{home}/.f.tmp", f"{home}/f")
    assert taken.value.contains_code(501)
    client.move(f"{home}/.f.tmp", f"{home}/f", force=True)
    assert client.read_file(f"{home}/f").read() == b"new"
    assert client.list(home) == ["f"]
    with pytest.raises(YtResolveError):
        client.move(f"{home}/.f.tmp", f"{home}/g")
    with pytest.raises(YtResponseError):
        client.move(home, f"{home}/f/below")


def test_links_are_followed_unless_the_path_ends_in_an_ampersand(client: YtClient, home: str) -> None:
    client.set(f"{home}/m", {"a": 1})
    client.link(f"{home}/m", f"{home}/l")
    client.link(f"{home}/l", f"{home}/ll")
    assert client.get(f"{home}/ll/a") == 1
    client.set(f"{home}/ll/b", 2)
    assert client.get(f"{home}/m") == {"a": 1, "b": 2}
    assert client.get(f"{home}/ll/@path") == f"{home}/m"
    assert client.get(f"{home}/ll&/@target_path") == f"{home}/l"
    assert client.get(f"{home}/ll&/@type") == "link"
    assert not client.get(f"{home}/ll&/@broken")
    client.remove(f"{home}/m", recursive=True)
    assert client.get(f"{home}/ll&/@broken")
    assert not client.exists(f"{home}/ll")
    client.remove(f"{home}/l")
    assert client.list(home) == ["ll"]


def test_circular_links_do_not_resolve(client: YtClient, home: str) -> None:
    client.create("map_node", f"{home}/m")
    client.link(f"{home}/m", f"{home}/a")
    client.link(f"{home}/a", f"{home}/b")
    client.link(f"{home}/b", f"{home}/a", force=True)
    with pytest.raises(YtResolveError):
        client.get(f"{home}/a/x")
    client.remove(f"{home}/a")


def test_a_cluster_has_the_nodes_that_clients_need(client: YtClient) -> None:
    assert client.get("//sys/@cluster_name") == "primary"
    cells = client.list("//sys/tablet_cells", attributes=["health"])
    assert cells
    assert all(cell.attributes["health"] == "good" for cell in cells)
    made = client.create("tablet_cell", attributes={"size": 1})
    assert client.get(f"//sys/tablet_cells/{made}/@health") == "good"
    assert client.get(f"#{made}/@type") == "tablet_cell"
    assert client.get_user_name() == "root"
    assert client.generate_timestamp() < client.generate_timestamp()


# -- files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 5_000_000], ids=["empty", "small", "in pieces"])
def test_files_are_read_whole_and_in_parts(client: YtClient, home: str, size: int) -> None:
    content = (bytes(range(256)) * (size // 256 + 1))[:size]
    client.write_file(f"{home}/f", content)
    assert client.read_file(f"{home}/f").read() == content
    assert client.get(f"{home}/f/@uncompressed_data_size") == size
    half = size // 2
    assert client.read_file(f"{home}/f", offset=half, length=3).read() == content[half : half + 3]


def test_a_stream_in_blocks_becomes_one_file(yt_server: YtServer, home: str) -> None:
    client = yt_server.client(write_retries={"chunk_size": 1000})
    client.write_file(f"{home}/f", iter([b"a" * 1500, b"b" * 2500]))
    assert client.read_file(f"{home}/f").read() == b"a" * 1500 + b"b" * 2500
    client.write_file(f"<append=%true>{home}/f", b"end")
    assert client.read_file(f"{home}/f", offset=3999).read() == b"bend"


def test_files_are_concatenated(client: YtClient, home: str) -> None:
    for name in ("a", "b"):
        client.write_file(f"{home}/{name}", name.encode() * 3)
    client.concatenate([f"{home}/a", f"{home}/b", f"{home}/a"], f"{home}/c")
    assert client.read_file(f"{home}/c").read() == b"aaabbbaaa"


def test_files_have_an_md5(client: YtClient, home: str) -> None:
    client.write_file(f"{home}/f", b"hello", compute_md5=True)
    assert client.get(f"{home}/f/@md5") == "5d41402abc4b2a76b9719d911017c592"
    client.write_file(f"{home}/f", b"other")
    assert not client.exists(f"{home}/f/@md5")


def test_a_reader_is_unaffected_by_later_writes(yt_server: YtServer, client: YtClient, home: str) -> None:
    client.write_file(f"{home}/f", b"old")
    with client.Transaction():
        locked = client.lock(f"{home}/f", mode="snapshot")
        yt_server.client().write_file(f"{home}/f", b"new")
        yt_server.client().remove(f"{home}/f")
        assert client.read_file(f"#{locked['node_id']}").read() == b"old"
    assert not client.exists(f"{home}/f")


def test_reading_another_node_as_a_file_is_an_error(client: YtClient, home: str) -> None:
    with pytest.raises(YtResponseError, match="is not a file"):
        client.read_file(home)
    with pytest.raises(YtResolveError):
        client.read_file(f"{home}/nothing")


# -- batches, numbers of mutations, tokens ------------------------------------------------------------------------


def test_a_batch_answers_each_of_its_requests(client: YtClient, home: str) -> None:
    batch = client.create_batch_client()
    results = {
        "set": batch.set(f"{home}/a", [1, "ключ"]),
        "get": batch.get(f"{home}/a"),
        "exists": batch.exists(f"{home}/a"),
        "list": batch.list(home, attributes=["type"]),
        "create": batch.create("map_node", f"{home}/m"),
        "wrong": batch.get(f"{home}/nothing"),
        "default": batch.get_attribute(home, "nothing", default=5),
    }
    batch.commit_batch()
    assert results["get"].get_result() == [1, "ключ"]
    assert results["exists"].get_result()
    assert [str(name) for name in results["list"].get_result()] == ["a"]
    assert results["create"].get_result() == client.get(f"{home}/m/@id")
    assert not results["wrong"].is_ok()
    assert YtResponseError(results["wrong"].get_error()).contains_code(500)
    assert results["set"].is_ok()
    assert results["default"].get_result() == 5


def test_a_repeated_mutation_gets_the_saved_answer(yt_server: YtServer, home: str) -> None:
    request = {"type": "map_node", "path": f"{home}/a", "mutation_id": uuid.uuid4().hex}
    first = yt_server.call("POST", "create", request)
    again = yt_server.call("POST", "create", {**request, "retry": True})
    assert first.status == again.status == 200
    assert first.value == again.value
    assert yt_server.call("POST", "create", {**request, "mutation_id": uuid.uuid4().hex}).code == 501
    batch = {"mutation_id": uuid.uuid4().hex, "requests": [{"command": "remove", "parameters": {"path": f"{home}/a"}}]}
    replies = [yt_server.call("POST", "execute_batch", batch) for _ in range(2)]
    assert [reply.value for reply in replies] == [{"results": [{"output": {}}]}] * 2


def test_a_failed_mutation_can_be_repeated(yt_server: YtServer, client: YtClient, home: str) -> None:
    request = {"type": "map_node", "path": f"{home}/a/b", "mutation_id": uuid.uuid4().hex}
    assert yt_server.call("POST", "create", request).code == 500
    client.create("map_node", f"{home}/a")
    assert yt_server.call("POST", "create", request).status == 200


@pytest.mark.parametrize("token", ["", "wrong", TOKEN + "x"])
def test_commands_need_a_valid_token(yt_server: YtServer, token: str) -> None:
    client = yt_server.client(token=token)
    with pytest.raises(YtTokenError):
        client.list("/")
    with pytest.raises(YtTokenError):
        client.write_file("//tmp/f", b"x")


def test_the_cluster_survives_a_restart(tmp_path: Path) -> None:
    """After a kill, open transactions and mutation ids are still known."""
    create = {"type": "map_node", "path": "//tmp/once", "mutation_id": uuid.uuid4().hex}
    with serving(tmp_path) as server:
        client = server.client()
        client.write_file("//tmp/f", b"content")
        transaction = client.start_transaction(timeout=60_000)
        with client.Transaction(transaction_id=transaction):
            client.set("//tmp/a", 1)
            client.lock("//tmp/f")
        made = server.call("POST", "create", create).value
        server.kill()
    with serving(tmp_path) as server:
        client = server.client()
        assert server.call("POST", "create", create).value == made
        assert client.read_file("//tmp/f").read() == b"content"
        assert not client.exists("//tmp/a")
        with pytest.raises(YtCypressTransactionLockConflict):
            client.remove("//tmp/f")
        client.commit_transaction(transaction)
        assert client.get("//tmp/a") == 1
        client.remove("//tmp/f")
