"""Version 3 of YTsaurus' HTTP API, parameters in URLs, and tags of contents."""

from __future__ import annotations

import json
from typing import Any

from yt.wrapper import YtClient

from tests.ytsaurus.interop.ytsaurus_server import TOKEN, Reply, YtServer
from tests.ytsaurus.interop.ytsaurus_tables import AT_ONCE

AUTHORIZED = {"Authorization": f"OAuth {TOKEN}"}


def ask(server: YtServer, command: str, query: str, version: int = 3, method: str = "GET", **headers: str) -> Reply:
    return server.ask(method, f"/api/v{version}/{command}?{query}", headers={**AUTHORIZED, **headers})


def test_version_3_answers_with_bare_values(yt_server: YtServer, home: str) -> None:
    made = ask(yt_server, "create", f"type=map_node&path={home}/d", method="POST")
    node = made.value
    assert (made.status, node) == (200, ask(yt_server, "get", f"path={home}/d/@id").value)
    assert ask(yt_server, "exists", f"path={home}/d").value is True
    assert ask(yt_server, "list", f"path={home}").value == ["d"]
    assert ask(yt_server, "exists", f"path={home}/d", version=4).value == {"value": True}
    # A value of the user that looks like an answer of version 4 stays as it is.
    assert yt_server.call("PUT", "set", {"path": f"{home}/d/@a"}, body=b'{"value": 1}').status == 200
    assert ask(yt_server, "get", f"path={home}/d/@a").value == {"value": 1}
    removed = ask(yt_server, "remove", f"path={home}/d", method="POST")
    assert (removed.status, removed.body) == (200, b"")
    assert ask(yt_server, "get", f"path={home}/d").code == 500


def test_the_python_client_speaks_version_3(yt_server: YtServer, home: str) -> None:
    client = yt_server.client(**AT_ONCE, api_version="v3")
    schema = [{"name": "k", "type": "int64", "sort_order": "ascending"}, {"name": "v", "type": "string"}]
    client.create("table", f"{home}/t", attributes={"dynamic": True, "schema": schema})
    client.mount_table(f"{home}/t", sync=True)
    client.insert_rows(f"{home}/t", [{"k": 1, "v": "x"}])
    assert list(client.select_rows(f"* from [{home}/t]")) == [{"k": 1, "v": "x"}]
    client.write_table(f"{home}/s", [{"a": 1}])
    with client.Transaction():
        client.set(f"{home}/@in", client.list(home))
    assert (client.get(f"{home}/@in"), client.exists(f"{home}/nothing")) == (["s", "t"], False)
    client.write_file(f"{home}/f", b"content")
    assert client.read_file(f"{home}/f").read() == b"content"


def test_parameters_in_a_url_have_lists_and_attributes(yt_server: YtServer, client: YtClient, home: str) -> None:
    client.create("map_node", f"{home}/d", attributes={"title": "жук"})
    output = "output_format[$value]=json&output_format[$attributes][encode_utf8]=false"
    found = ask(yt_server, "list", f"path={home}&attributes[]=type&attributes[]=title&{output}")
    assert json.loads(found.body) == [{"$value": "d", "$attributes": {"type": "map_node", "title": "жук"}}]
    cut = ask(yt_server, "list", f"path={home}&max_size=0").value
    assert cut == {"$attributes": {"incomplete": True}, "$value": []}


def test_a_content_that_a_client_has_is_not_sent_again(yt_server: YtServer, client: YtClient, home: str) -> None:
    client.write_file(f"{home}/f", b"content")

    def read(**headers: str) -> Reply:
        return ask(yt_server, "read_file", f"path={home}/f", 4, **headers)

    first = read()
    tag = first.headers["etag"]
    parameters: dict[str, Any] = json.loads(first.headers["x-yt-response-parameters"])
    assert (first.body, tag) == (b"content", f"{parameters['id']}:{parameters['revision']}")
    for known in (tag, str(parameters["revision"])):
        again = read(**{"If-None-Match": known})
        assert (again.status, again.body, again.headers["etag"]) == (304, b"", tag)
    client.set(f"{home}/f/@note", 1)
    assert read(**{"If-None-Match": tag}).status == 304
    client.write_file(f"{home}/f", b"other")
    assert (read(**{"If-None-Match": tag}).status, read().body) == (200, b"other")
