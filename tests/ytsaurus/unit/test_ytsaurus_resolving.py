"""Paths of the YTsaurus endpoint: links that are not followed, attributes of values, errors; computed attributes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace_ytsaurus.endpoint.cluster import Cluster
from headrace_ytsaurus.wire.errors import Code, YtError
from headrace_ytsaurus.wire.paths import AttributeName, PathError, parse_path
from tests.ytsaurus.unit.ytsaurus_cluster import abort, call, commit, start, value_of


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    found = Cluster(tmp_path_factory.mktemp("cluster"))
    yield found
    found.close()


@pytest.fixture(scope="module")
def linked(cluster: Cluster) -> str:
    """A directory with a table, a link to the directory with it, and a broken link."""
    home = "//tmp/linked"
    schema = [{"name": "a", "type": "int64"}]
    call(cluster, "create", type="table", path=f"{home}/d/t", recursive=True, attributes={"schema": schema})
    call(cluster, "link", target_path=f"{home}/d", link_path=f"{home}/l")
    call(cluster, "create", type="map_node", path=f"{home}/removed")
    call(cluster, "link", target_path=f"{home}/removed", link_path=f"{home}/broken")
    call(cluster, "remove", path=f"{home}/removed")
    return home


@pytest.mark.parametrize(
    ("path", "nodes", "unfollowed", "link"),
    [
        ("//a&/b&/c", ("a", "b", "c"), {1, 2}, False),
        ("//a&/b&/@c", ("a", "b"), {1}, True),
        ("#1-2-3-4&/b", ("b",), {0}, False),
        ("//a/b&", ("a", "b"), set(), True),
    ],
)
def test_each_name_of_a_path_can_have_an_ampersand(
    path: str, nodes: tuple[str, ...], unfollowed: set[int], link: bool
) -> None:
    found = parse_path(path)
    assert (found.nodes, set(found.unfollowed), found.link, found.text) == (nodes, unfollowed, link, path)


def test_a_path_can_lead_to_attributes_of_a_value() -> None:
    found = parse_path("//a/@b/c/@d/e")
    assert found.attribute == ("b", "c", "d", "e")
    assert [isinstance(name, AttributeName) for name in found.attribute] == [False, False, True, False]
    assert (found.text, parse_path("//a/@b/@").text) == ("//a/@b/c/@d/e", "//a/@b/@")
    for wrong in ("//a&&", "//a/@b&", "//a/@/@b", "//a/@b/@@"):
        with pytest.raises(PathError):
            parse_path(wrong)


def test_a_link_before_an_ampersand_is_not_followed(cluster: Cluster, linked: str) -> None:
    assert value_of(cluster, f"{linked}/l/t/@type") == "table"
    assert value_of(cluster, f"{linked}&/d&/t&/@type") == "table"
    assert value_of(cluster, f"{linked}/l&/@type") == "link"
    with pytest.raises(YtError, match='of type "link" cannot have children') as wrong:
        value_of(cluster, f"{linked}&/l&/t/@type")
    assert wrong.value.code == Code.RESOLVE


def test_an_error_names_the_whole_path(cluster: Cluster, linked: str) -> None:
    for path in (f"{linked}/broken/@", f"{linked}/broken/@type", f"{linked}/nothing/@type"):
        with pytest.raises(YtError) as wrong:
            value_of(cluster, path)
        assert wrong.value.message == f"Error resolving path {path}"


def test_attributes_of_a_schema_are_read_by_name(cluster: Cluster, linked: str) -> None:
    assert value_of(cluster, f"{linked}/d/t/@schema/@strict") is True
    assert value_of(cluster, f"{linked}/d/t/@schema/@") == {"strict": True, "unique_keys": False}
    assert call(cluster, "exists", path=f"{linked}/d/t/@schema/@nothing").value == {"value": False}
    with pytest.raises(YtError):
        call(cluster, "set", True, path=f"{linked}/d/t/@schema/@unique_keys")


def test_chunks_and_schemas_have_ids(cluster: Cluster, linked: str) -> None:
    path, copied = f"{linked}/d/t", f"{linked}/copied"
    assert value_of(cluster, f"{path}/@chunk_ids") == []
    call(cluster, "write_table", [{"a": 1}], path=path)
    call(cluster, "copy", source_path=path, destination_path=copied)
    assert value_of(cluster, f"{path}/@chunk_ids") == value_of(cluster, f"{copied}/@chunk_ids") != []
    assert value_of(cluster, f"{path}/@schema_id") == value_of(cluster, f"{copied}/@schema_id")
    call(cluster, "write_table", [{"a": 2}], path=path)
    assert value_of(cluster, f"{path}/@chunk_ids") != value_of(cluster, f"{copied}/@chunk_ids")
    call(cluster, "alter_table", path=copied, schema=[{"name": "a", "type": "int64"}, {"name": "b", "type": "any"}])
    assert value_of(cluster, f"{path}/@schema_id") != value_of(cluster, f"{copied}/@schema_id")
    call(cluster, "create", type="file", path=f"{linked}/f")
    call(cluster, "write_file", b"content", path=f"{linked}/f")
    assert len(value_of(cluster, f"{linked}/f/@chunk_ids")) == 1
    assert value_of(cluster, f"{linked}/@recursive_resource_usage/node_count") == 7


def test_a_changed_attribute_changes_no_content(cluster: Cluster) -> None:
    call(cluster, "create", type="document", path="//tmp/revised", attributes={"value": 1})
    names = ("revision", "content_revision", "attribute_revision")

    def revisions() -> list[int]:
        return [value_of(cluster, f"//tmp/revised/@{name}") for name in names]

    first = revisions()
    call(cluster, "set", 1, path="//tmp/revised/@note")
    second = revisions()
    assert (second[0], second[1], second[2]) == (second[2], first[1], second[0])
    assert second[0] > first[0]
    transaction = start(cluster)
    call(cluster, "set", 2, path="//tmp/revised", transaction_id=transaction)
    commit(cluster, transaction)
    third = revisions()
    assert (third[0], third[2]) == (third[1], second[2])
    assert third[1] > second[0]


def test_transactions_are_listed_with_their_attributes(cluster: Cluster) -> None:
    transaction = start(cluster, attributes={"title": "mine"})
    for command in ("get", "list"):
        found = call(cluster, command, path="//sys/transactions", attributes=["title", "owner", "nothing"]).value
        items = found["value"] if command == "list" else [found["value"][transaction]]
        assert [dict(item.attributes) for item in items] == [{"title": "mine", "owner": "root"}]
    assert call(cluster, "list", path="//sys/transactions").value == {"value": [transaction]}
    abort(cluster, transaction)


def test_a_filter_of_attributes_has_names_only(cluster: Cluster, linked: str) -> None:
    found = call(cluster, "get", path=f"{linked}/l", attributes={"keys": ["type"]}).value["value"]
    assert dict(found.attributes) == {"type": "map_node"}
    with pytest.raises(YtError, match="received: paths; valid: keys"):
        call(cluster, "get", path=f"{linked}/l", attributes={"keys": [], "paths": ["/type"]})


def test_a_cluster_has_its_accounts_users_and_groups(cluster: Cluster) -> None:
    assert value_of(cluster, "//sys/accounts/sys/@name") == "sys"
    assert call(cluster, "exists", path=f"//sys/accounts/{value_of(cluster, '//tmp/@account')}").value["value"]
    assert call(cluster, "exists", path="//sys/users/root").value["value"]
    assert value_of(cluster, "//sys/groups/everyone/@members") == []
    call(cluster, "create", type="group", attributes={"name": "mine"})
    assert value_of(cluster, "//sys/groups/mine/@members") == []
    with pytest.raises(YtError, match="Access denied"):
        call(cluster, "remove", path="//sys/accounts/sys")


def test_a_frozen_table_is_to_be_unfrozen_for_writes(cluster: Cluster) -> None:
    schema = [{"name": "k", "type": "int64", "sort_order": "ascending"}, {"name": "v", "type": "int64"}]
    call(cluster, "create", type="table", path="//tmp/frozen", attributes={"dynamic": True, "schema": schema})
    call(cluster, "mount_table", path="//tmp/frozen")
    for command, remedy in (("freeze_table", "unfreeze the table"), ("unmount_table", "mount the table")):
        call(cluster, command, path="//tmp/frozen")
        with pytest.raises(YtError, match=f"; {remedy}") as wrong:
            call(cluster, "insert_rows", [{"k": 1, "v": 1}], path="//tmp/frozen")
        assert wrong.value.code == Code.TABLET_NOT_MOUNTED
