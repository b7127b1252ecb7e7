"""Attributes of nodes, which of them can be set, and master transactions in Cypress."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from yt.wrapper import YtClient, YtResponseError

from tests.ytsaurus.interop.ytsaurus_tables import DATA, queue


@pytest.mark.parametrize(
    "attributes", [{"type": "table"}, {"id": "1-2-3-4"}, {"revision": 1}, {"locks": []}, {"count": 5}], ids=repr
)
def test_computed_attributes_cannot_be_given_to_create(client: YtClient, home: str, attributes: dict[str, Any]) -> None:
    with pytest.raises(YtResponseError, match="Builtin attribute"):
        client.create("map_node", f"{home}/m", attributes=attributes)
    assert not client.exists(f"{home}/m")


def test_settable_table_attributes_are_not_user_attributes(client: YtClient, home: str) -> None:
    given: dict[str, Any] = {
        "optimize_for": "scan",
        "in_memory_mode": "uncompressed",
        "replication_factor": 3,
        "min_data_ttl": 0,
    }
    path = queue(client, f"{home}/q", mine=1, tablet_balancer_config={"enable_auto_reshard": False}, **given)
    assert client.get(f"{path}/@", attributes=list(given)) == given
    client.set(f"{path}/@tablet_balancer_config/enable_auto_reshard", True)
    assert client.get(f"{path}/@user_attribute_keys") == ["mine"]
    client.remove(f"{path}/@*")
    assert client.get(f"{path}/@user_attributes") == {}
    assert client.get(f"{path}/@optimize_for") == "scan"
    assert client.get(f"{path}/@queue_agent_stage") == "production"
    client.create("file", f"{home}/f", attributes={"replication_factor": 3, "compression_codec": "lz4"})


def test_names_of_attributes_are_texts_and_those_of_nodes_any_bytes(client: YtClient, home: str) -> None:
    with pytest.raises(YtResponseError, match="UTF-8"):
        client.set(f"{home}/@", {b"\xee": 1}, force=True)
    client.set(f"{home}/m", {b"\xee": 1}, force=True)
    assert client.get(f"{home}/m") == {b"\xee": 1}
    # Keys inside of a value can be any bytes.
    client.set(f"{home}/@inside", {b"\xee": b"\xff"})
    assert client.get(f"{home}/@inside") == {b"\xee": b"\xff"}


def test_times_without_a_zone_are_utc(client: YtClient, home: str) -> None:
    moment = datetime.datetime(2130, 1, 31)
    client.create("map_node", f"{home}/m", attributes={"expiration_time": str(moment)})
    assert client.get(f"{home}/m/@expiration_time") == "2130-01-31T00:00:00.000000Z"


def test_a_copy_can_preserve_its_creation_time(client: YtClient, home: str) -> None:
    client.create("table", f"{home}/dir/t", recursive=True)
    for keep in (True, False):
        client.copy(f"{home}/dir", f"{home}/copy", force=True, preserve_creation_time=keep)
        for name in ("", "/t"):
            made = [client.get(f"{home}/{each}{name}/@creation_time") for each in ("dir", "copy")]
            assert (made[0] == made[1]) is keep
    with pytest.raises(YtResponseError, match="ignore_existing"):
        client.copy(f"{home}/dir", f"{home}/copy", force=True, ignore_existing=True)


def test_pretty_yson_is_supported(client: YtClient, home: str) -> None:
    client.set(f"{home}/@a", {"b": [1, "x"]})
    written = {each: client.get(f"{home}/@a", format=f"<format={each}>yson") for each in ("text", "pretty")}
    assert written["text"] == b'{"b"=[1;"x";];}'
    assert [line.strip() for line in written["pretty"].splitlines()] == [b"{", b'"b" = [', b"1;", b'"x";', b"];", b"}"]


def test_nodes_have_a_resource_usage(client: YtClient, home: str) -> None:
    client.write_file(f"{home}/f", b"12345")
    (found,) = client.list(home, attributes=["resource_usage"])
    assert found.attributes["resource_usage"]["disk_space"] == 5
    assert client.get(f"{home}/@resource_usage/node_count") == 1


def test_master_transactions_are_listed_in_cypress(client: YtClient, home: str) -> None:
    everything = "//sys/transactions"
    with client.Transaction(attributes={"title": "mine"}) as transaction:
        path = f"{everything}/{transaction.transaction_id}"
        assert client.exists(path)
        assert transaction.transaction_id in client.list(everything)
        assert client.get(f"{everything}/@count") == len(client.list(everything))
        assert client.get(f"{path}/@title") == "mine"
        assert client.exists(f"{path}/@title")
        assert not client.exists(f"{path}/@other")
    assert not client.exists(path)
    assert not client.exists(f"{path}/@title")
    with pytest.raises(YtResponseError, match="part of the cluster"):
        client.remove(everything, recursive=True)


def test_a_table_with_other_columns_is_not_a_consumer(client: YtClient, home: str) -> None:
    path = queue(client, f"{home}/q", DATA | {"name": "more"})
    with pytest.raises(YtResponseError, match="schema of a queue consumer"):
        client.set(f"{path}/@treat_as_queue_consumer", True)
