"""Large, long and rare requests of the official client: they succeed, or fail with a clear error."""

from __future__ import annotations

import json
import socket
import time
from typing import Any

import psutil
import pytest
from yt import yson
from yt.wrapper import YtClient
from yt.wrapper.errors import YtResponseError

from tests.ytsaurus.interop.ytsaurus_server import PATIENCE, TOKEN, YtServer
from tests.ytsaurus.interop.ytsaurus_tables import AT_ONCE, WEIGHT, fill, pulled, queue

JSON_ONLY: dict[str, Any] = {
    "tabular_data_format": "json",
    "structured_data_format": "json",
    "proxy": {"header_format": "json"},
}


@pytest.fixture
def numbers(client: YtClient, home: str) -> str:
    """A sorted table with the keys 0 to 99."""
    path = f"{home}/numbers"
    columns = [{"name": "k", "type": "int64", "sort_order": "ascending"}, {"name": "v", "type": "string"}]
    client.create("table", path, attributes={"dynamic": True, "schema": columns})
    client.mount_table(path, sync=True)
    client.insert_rows(path, [{"k": number, "v": f"v{number}"} for number in range(100)])
    return path


# -- queries ---------------------------------------------------------------------------------------------------------


def test_a_query_can_have_thousands_of_keys(client: YtClient, numbers: str) -> None:
    keys = ", ".join(str(key) for key in range(90, 12_000))
    assert len(list(client.select_rows(f"k from [{numbers}] where k in ({keys})"))) == 10


def test_too_long_headers_are_an_error_without_retries(client: YtClient, numbers: str) -> None:
    started = time.monotonic()
    with pytest.raises(YtResponseError, match="headers of the request are too long"):
        list(client.select_rows(f"k from [{numbers}] where v = '{'x' * (300 << 10)}'"))
    assert time.monotonic() - started < PATIENCE


def test_invalid_http_gets_an_error_response(yt_server: YtServer) -> None:
    with yt_server.connect() as connection:
        connection.sendall(b"GET /api/v4 HTTP/1.1\r\nno header\r\n\r\n")
        answer = connection.recv(4096)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"x-yt-error: {" in answer


@pytest.mark.parametrize("clause", ["limit 18446744073709551615", "offset 1 limit 9223372036854775808"])
def test_a_limit_can_be_any_number(client: YtClient, numbers: str, clause: str) -> None:
    assert len(list(client.select_rows(f"k from [{numbers}] {clause}"))) >= 99


@pytest.mark.parametrize("condition", ["k in ()", "k in () between 1 and 2"])
def test_in_needs_values(client: YtClient, numbers: str, condition: str) -> None:
    with pytest.raises(YtResponseError, match="Error while parsing query"):
        list(client.select_rows(f"k from [{numbers}] where {condition}"))


def test_the_documented_number_of_columns_is_accepted(client: YtClient, home: str) -> None:
    columns = [{"name": f"c{number}", "type": "int64"} for number in range(1900)]
    started = time.monotonic()
    client.create("table", f"{home}/wide", attributes={"dynamic": True, "schema": columns})
    client.mount_table(f"{home}/wide", sync=True)
    client.insert_rows(f"{home}/wide", [{"c1899": 1}])
    (row,) = client.select_rows(f"* from [{home}/wide]")
    assert (row["c1899"], row["c0"], len(row)) == (1, None, 1902)
    assert time.monotonic() - started < PATIENCE


# -- memory ----------------------------------------------------------------------------------------------------------


def test_slow_readers_do_not_fill_the_memory(client: YtClient, yt_server: YtServer, home: str) -> None:
    """All responses together have 800 MB, of which a third stays in memory. One of 10 MB is small in each thread."""
    fill(client, queue(client, f"{home}/q"), 1000)
    query = f"'{'x' * (10 << 10)}' as x from [{home}/q]"
    parameters = json.dumps({"query": query, "output_format": "yson"})
    head = f"GET /api/v4/select_rows HTTP/1.1\r\nHost: x\r\nAuthorization: OAuth {TOKEN}\r\nX-YT-Parameters: "
    process = psutil.Process(yt_server.process.pid)
    before = process.memory_info().rss
    readers = []
    try:
        for _ in range(80):
            reader = socket.socket()
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader.settimeout(PATIENCE)
            reader.connect(yt_server.address)
            reader.sendall(f"{head}{parameters}\r\n\r\n".encode())
            readers.append(reader)
        for reader in readers:
            assert reader.recv(12) == b"HTTP/1.1 200"
        assert process.memory_info().rss - before < 750 << 20
    finally:
        for reader in readers:
            reader.close()
    assert client.exists(home)


# -- formats ---------------------------------------------------------------------------------------------------------


def test_response_parameters_have_the_header_format(yt_server: YtServer, home: str) -> None:
    client = yt_server.client()
    path = {"queue_path": queue(client, f"{home}/q"), "offset": 0, "partition_index": 0}
    for format_of_headers, told in ((None, '{"start_row_index":0}'), ("json", '{"start_row_index":0}')):
        headers = {"Authorization": f"OAuth {TOKEN}", "X-YT-Parameters": json.dumps(path)}
        if format_of_headers is not None:
            headers["X-YT-Header-Format"] = format_of_headers
        reply = yt_server.ask("GET", "/api/v4/pull_queue", headers=headers)
        assert reply.headers["x-yt-response-parameters"] == told
    headers |= {"X-YT-Header-Format": "<format=text>yson", "X-YT-Parameters": yson.dumps(path).decode()}
    reply = yt_server.ask("GET", "/api/v4/pull_queue", headers=headers)
    assert yson.loads(reply.headers["x-yt-response-parameters"].encode()) == {"start_row_index": 0}


def test_json_escapes_dollars_in_names(yt_server: YtServer, client: YtClient, home: str) -> None:
    in_json = yt_server.client(**AT_ONCE, **JSON_ONLY)
    path = queue(client, f"{home}/q", tablets=2)
    in_json.insert_rows(path, [{"data": "a", "$$tablet_index": 1}])
    with pytest.raises(YtResponseError, match='starts with single "\\$"'):
        in_json.insert_rows(path, [{"data": "a", "$tablet_index": 1}])
    # The client itself doubles the dollars in structured values.
    in_json.set(f"{home}/@x", {"$y": 1})
    assert client.get(f"{home}/@x") == in_json.get(f"{home}/@x") == {"$y": 1}
    assert [row["data"] for row in pulled(client, path, 0, partition=1)] == ["a"]


def test_nan_and_infinity_need_yson(yt_server: YtServer, client: YtClient, home: str) -> None:
    client.set(f"{home}/@infinite", float("inf"))
    assert client.get(f"{home}/@infinite") == float("inf")
    with pytest.raises(YtResponseError, match="Unexpected NaN or infinity"):
        yt_server.client(**JSON_ONLY).get(f"{home}/@infinite")


# -- attributes ------------------------------------------------------------------------------------------------------


def test_all_attributes_include_only_cheap_values(client: YtClient, home: str) -> None:
    path = queue(client, f"{home}/q", tablets=3)
    fill(client, path, 5)
    found = client.get(f"{path}/@")
    cheap = (
        "schema",
        "dynamic",
        "chunk_row_count",
        "tablet_state",
        "tablet_count",
        "sorted",
        "key_columns",
        "optimize_for",
    )
    for name in cheap:
        assert found[name] == client.get(f"{path}/@{name}")
    assert (found["chunk_row_count"], found["tablet_state"], found["tablet_count"]) == (5, "mounted", 3)
    assert [column["name"] for column in found["schema"]] == ["data"]
    for name in ("tablets", "queue_status", "queue_partitions"):
        assert isinstance(found[name], yson.YsonEntity)
        assert client.get(f"{path}/@{name}")
    assert set(found) == set(client.list(f"{path}/@"))


def test_unsigned_numbers_weigh_eight_bytes(client: YtClient, home: str) -> None:
    path = f"{home}/q"
    client.create("table", path, attributes={"dynamic": True, "schema": [{"name": "u", "type": "uint64"}, WEIGHT]})
    client.mount_table(path, sync=True)
    client.insert_rows(path, [{"u": yson.YsonUint64((1 << 64) - 1)}, {"u": None}])
    assert [row["$cumulative_data_weight"] for row in pulled(client, path, 0)] == [17, 26]


def test_static_exports_of_queues_are_refused(client: YtClient, home: str) -> None:
    config: dict[str, Any] = {"default": {"export_period": 60_000, "export_directory": home}}
    path = queue(client, f"{home}/q")
    with pytest.raises(YtResponseError, match="does not export queues"):
        client.set(f"{path}/@static_export_config", config)
    with pytest.raises(YtResponseError, match="does not export queues"):
        queue(client, f"{home}/other", static_export_config=config)
    assert not client.exists(f"{home}/other")


def test_the_clients_search_descends_into_lists(client: YtClient, home: str) -> None:
    client.set(f"{home}/list", [1, {"a": [True]}])
    found = {str(path)[len(home) :] for path in client.search(home, node_type=["list_node", "boolean_node"])}
    assert found == {"/list", "/list/1/a", "/list/1/a/0"}


def test_a_temporary_table_expires(client: YtClient, home: str) -> None:
    path = client.create_temp_table(path=home, expiration_timeout=1)
    deadline = time.monotonic() + PATIENCE
    # Listing the directory is not a use of the table.
    while client.list(home):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert not client.exists(path)
