"""Wrong, broken, slow and many clients: they get the right error, and the cluster stays available."""

from __future__ import annotations

import json
import random
import socket
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from yt.wrapper import YtClient

from tests.descriptors import without_databases
from tests.ytsaurus.interop.ytsaurus_server import PATIENCE, TOKEN, YtServer, serving

CLIENTS = 200
# A command that writes a part of its changes, and then takes ten minutes.
_STUCK = """
import time
from headrace_ytsaurus.endpoint.commands import COMMANDS
from headrace_ytsaurus.endpoint.context import Command
from headrace_ytsaurus.endpoint.cypress.basic_types import MAP_NODE
from headrace_ytsaurus.endpoint.cypress.operations import make_node

def get_stuck(context, parameters, body):
    with context.database.write():
        make_node(context, context.cypress.find("//tmp"), "half", MAP_NODE, {})
        print("stuck", flush=True)
        time.sleep(600)
COMMANDS["get_stuck"] = Command("get_stuck", get_stuck, output=None, heavy=True)
"""
AUTHORIZED = f"Authorization: OAuth {TOKEN}\r\n"
GET = f'GET /api/v4/exists HTTP/1.1\r\nHost: x\r\n{AUTHORIZED}X-YT-Parameters: {{"path": "//tmp"}}\r\n'


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[YtServer]:
    """A server with time limits of half a second."""
    with serving(tmp_path_factory.mktemp("impatient"), impatient=True) as server:
        yield server


def is_well(server: YtServer) -> bool:
    reply = server.call("GET", "exists", {"path": "//tmp"})
    return reply.status == 200 and reply.value == {"value": True}


# -- pages, methods, tokens ----------------------------------------------------------------------------------------


def test_discovery_pages_need_no_token(yt_server: YtServer) -> None:
    assert yt_server.ask("GET", "/api").value == ["v3", "v4"]
    described = {command["name"]: command for command in yt_server.ask("GET", "/api/v4").value}
    assert described["get"] == {
        "name": "get",
        "input_type": "null",
        "output_type": "structured",
        "is_volatile": False,
        "is_heavy": False,
    }
    assert described["write_file"]["input_type"] == "binary"
    host, port = yt_server.address
    assert yt_server.ask("GET", "/hosts?address_type=http").value == [f"{host}:{port}"]
    assert yt_server.ask("GET", "/health").value == {"status": "ok"}
    assert yt_server.ask("GET", "/version").status == 200


@pytest.mark.parametrize("path", ["/", "/nothing", "/api/v2/get", "/api/v4/nothing", "/api/v4/../get", "/api/v4/%00"])
def test_unknown_pages_are_not_found(yt_server: YtServer, path: str) -> None:
    reply = yt_server.ask("GET", path, headers={"Authorization": f"OAuth {TOKEN}"})
    assert (reply.status, reply.code) == (404, 1)


def test_volatile_commands_cannot_use_get(yt_server: YtServer) -> None:
    assert yt_server.call("GET", "remove", {"path": "//tmp/x", "force": True}).status == 405
    assert yt_server.call("POST", "set", {"path": "//tmp/x"}).status == 405


@pytest.mark.parametrize("header", [None, "OAuth wrong", "Basic cm9vdDo=", "OAuth", "\xff", "OAuth " + "x" * 5000])
def test_requests_without_a_token_learn_nothing(yt_server: YtServer, header: str | None) -> None:
    headers = {} if header is None else {"Authorization": header}
    for method, path in (
        ("GET", "/api/v4/get"),
        ("POST", "/api/v4/remove"),
        ("GET", "/api/v4/no"),
        ("POST", "/auth/whoami"),
    ):
        reply = yt_server.ask(method, path, headers=headers, body=b"{}" if method == "POST" else None)
        assert (reply.status, reply.code) == (401, 900)
        assert TOKEN not in str(reply)
    assert TOKEN not in yt_server.log()


# -- fuzz ------------------------------------------------------------------------------------------------------------


def is_refused_well(server: YtServer, method: str, command: str, **request: Any) -> None:
    """Send an invalid request; the response must not be an internal error."""
    reply = server.ask(method, f"/api/v4/{command}", **request)
    assert reply.status in (200, 400, 404, 405, 431), (reply, request)
    if reply.status == 400 and "x-yt-error" in reply.headers:
        assert "Internal" not in reply.value["message"], request


@pytest.mark.parametrize("seed", range(4))
def test_garbled_parameters_get_an_error(yt_server: YtServer, seed: int) -> None:
    """Parameters with special characters, in text and binary YSON and JSON, in headers and bodies."""
    chance = random.Random(seed)
    seeds = [
        b'{path="//tmp/a";attributes=[id;type];max_size=5u}',
        b'{"path": "//tmp/@x", "transaction_id": "1-2-10001-3", "$attributes": {"a": [1]}}',
        b'{path=<append=%true>"//tmp/f";timeout=-1;mode=shared;requests=[{command=get;parameters={path="#0-0-0-0"}}]}',
        b"{\x01\x08path=\x01\x0c//tmp;\x01\x02a=\x02\x80\xff\xff\x01}",
    ]
    special = [
        b"{",
        b"[",
        b"<",
        b"\x01",
        b"\xff\xff",
        b"//",
        b"/@",
        b"&",
        b"#",
        b"\\",
        b"\\x",
        b'"',
        b"%nan",
        b"18446744073709551616",
        b"/*",
    ]
    commands = [
        "get",
        "list",
        "exists",
        "create",
        "remove",
        "copy",
        "lock",
        "start_transaction",
        "execute_batch",
        "set",
    ]
    formats = [b"json", b"<format=text>yson", b"yson", b"<"]
    kinds = [b"application/json", b"application/x-yt-yson-text", b"application/x-yt-yson-binary", b"text/plain"]
    for _ in range(60):
        data = bytearray(chance.choice(seeds))
        for _ in range(chance.randint(0, 4)):
            at = chance.randrange(len(data) + 1)
            if chance.random() < 0.5:
                data[at : at + chance.randint(0, 3)] = chance.choice(special)
            else:
                data[at : at + 1] = bytes([chance.randrange(256)])
        command = chance.choice(commands)
        headers = {"Authorization": f"OAuth {TOKEN}", "Content-Type": chance.choice(kinds).decode()}
        if command in ("get", "list", "exists", "set"):
            in_header = bytes(data).translate(None, b"\r\n\0")
            headers["X-YT-Header-Format"] = chance.choice(formats).decode()
            headers["X-YT-Parameters"] = in_header.decode("latin-1")
            method, body = ("PUT", bytes(data)) if command == "set" else ("GET", None)
        else:
            method, body = "POST", bytes(data)
        is_refused_well(yt_server, method, command, headers=headers, body=body)
    assert is_well(yt_server)


PATHS = [
    *["", "/", "//", "///", "//tmp/", "tmp", "#", "#1", "#x-y-z-w", "#1-2-3-4", "//tmp//a", "//tmp/@", "//tmp/@/"],
    *["//tmp/@@", "//tmp/&", "//tmp&&", "//tmp/a\\", "//tmp/a\\x4", "//tmp/\\xff", "<>//tmp", "<a=>//tmp", "<a=b>"],
    *["//tmp[", "//tmp[#0:#5]", "//tmp{a,b", "//tmp/*", "//tmp/@*", "*", "//tmp/" + "a/" * 20_000, "//" + "x" * 70_000],
    *["other://tmp", "//tmp/\u0000", "//tmp/\u00f0\u009f", "//tmp/@user_attributes/a/b", "//tmp/@locks/0/id"],
]


@pytest.mark.parametrize("command", ["get", "exists", "list", "create", "remove", "lock", "copy"])
def test_unusual_paths_get_an_answer(yt_server: YtServer, command: str) -> None:
    for path in PATHS:
        parameters = {"path": path, "source_path": "//tmp", "destination_path": path, "type": "file", "force": True}
        # In the body of a batch, so that long paths are not refused because of a header's length.
        batch = {"requests": [{"command": command, "parameters": parameters}]}
        reply = yt_server.call("POST", "execute_batch", batch)
        assert reply.status == 200, path
        assert "Internal" not in reply.body.decode(), path
    assert is_well(yt_server)
    assert yt_server.call("GET", "list", {"path": "/"}).value["value"] == ["home", "sys", "tmp"]


@pytest.mark.parametrize(
    "body",
    [b"", b"\x00", b"{", b"[" * 50_000, b'{"a":' * 5000, b"\xff" * 100, b"1e999999", b'"' + b"x" * 1_000_000],
    ids=["nothing", "zero", "half", "deep list", "deep map", "no text", "huge number", "no end"],
)
def test_invalid_values_in_bodies_are_refused(yt_server: YtServer, body: bytes) -> None:
    for form in ("json", "yson"):
        parameters = {"path": "//tmp/@v", "input_format": form}
        reply = yt_server.call("PUT", "set", parameters, body=body)
        assert reply.status == 400 or body == b"1e999999"
    assert yt_server.call("POST", "remove", {"path": "//tmp/@v", "force": True}).status == 200
    assert is_well(yt_server)


def test_a_value_without_json_is_an_error_of_one_part_of_a_batch(yt_server: YtServer) -> None:
    set_infinite = {"command": "set", "parameters": {"path": "//tmp/@infinite"}, "input": float("inf")}
    read = [{"command": "get", "parameters": {"path": path}} for path in ("//tmp/@infinite", "//tmp/@type")]
    remove = {"command": "remove", "parameters": {"path": "//tmp/@infinite"}}
    reply = yt_server.call("POST", "execute_batch", {"requests": [set_infinite, *read, remove]})
    assert reply.status == 200
    done, unsaid, said, removed = reply.value["results"]
    assert (done, said, removed) == ({"output": {}}, {"output": {"value": "map_node"}}, {"output": {}})
    assert "NaN or infinity" in unsaid["error"]["message"]


def test_bodies_in_a_wrong_encoding_are_refused(yt_server: YtServer) -> None:
    yt_server.call("POST", "create", {"type": "file", "path": "//tmp/packed"})
    parameters = {"path": "//tmp/packed"}
    for encoding, body in (("gzip", b"plain"), ("gzip", zlib.compress(b"x" * 1000)[:-5]), ("lzma", b""), ("\xff", b"")):
        reply = yt_server.call("PUT", "write_file", parameters, body=body, headers={"Content-Encoding": encoding})
        assert (reply.status, reply.code) == (400, 1)
    assert yt_server.call("GET", "read_file", parameters).body == b""


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET\r\n\r\n",
        b"\r\n" * 100,
        b"GET /api/v4 HTTP/9.9\r\n\r\n",
        b"PUT /api/v4/set HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"PUT /api/v4/set HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /api/v4 HTTP/1.1\r\n" + b"X: " + b"y" * 300_000 + b"\r\n\r\n",
    ],
)
def test_invalid_http_is_answered_or_closed(impatient: YtServer, data: bytes) -> None:
    with impatient.connect() as connection:
        try:
            connection.sendall(data)
            while connection.recv(65536):
                pass
        except ConnectionError:
            pass
    assert is_well(impatient)


# -- slow and half-closed connections ------------------------------------------------------------------------------


def is_closed(connection: socket.socket) -> bool:
    """Wait until the server closes a connection."""
    connection.settimeout(PATIENCE)
    try:
        while connection.recv(65536):
            pass
    except ConnectionError:
        pass
    return True


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        GET.encode(),
        f"PUT /api/v4/set HTTP/1.1\r\n{AUTHORIZED}Content-Length: 10\r\n\r\n12".encode(),
        f"PUT /api/v4/write_file HTTP/1.1\r\n{AUTHORIZED}Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n".encode(),
    ],
    ids=["nothing", "half of the headers", "half of the body", "half of the chunks"],
)
def test_incomplete_requests_time_out(impatient: YtServer, begun: bytes) -> None:
    with impatient.connect() as connection:
        connection.sendall(begun)
        assert is_closed(connection)
    assert is_well(impatient)


def test_slow_clients_do_not_delay_others(impatient: YtServer) -> None:
    """The server has two workers; twenty clients send one byte from time to time."""
    head = f"PUT /api/v4/write_file HTTP/1.1\r\nAuthorization: OAuth {TOKEN}\r\nContent-Length: 1000\r\n\r\n".encode()
    slow = [impatient.connect() for _ in range(3)]
    try:
        for _ in range(5):
            for connection in slow:
                connection.sendall(head[:1] or b"x")
            head = head[1:]
            started = time.monotonic()
            assert is_well(impatient)
            assert time.monotonic() - started < PATIENCE / 2
    finally:
        for connection in slow:
            connection.close()


def test_a_half_closed_connection_gets_the_response(yt_server: YtServer) -> None:
    with yt_server.connect() as connection:
        connection.sendall(GET.encode() + b"\r\n")
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while part := connection.recv(65536):
            answer += part
    assert b"200 OK" in answer
    assert b'{"value":true}' in answer


def test_a_client_that_does_not_read_is_disconnected(impatient: YtServer) -> None:
    client = impatient.client()
    client.write_file("//tmp/large", bytes(20_000_000))
    with impatient.connect() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        request = GET.replace("exists", "read_file").replace("//tmp", "//tmp/large") + "\r\n"
        connection.sendall(request.encode())
        assert connection.recv(100)
        process, port = psutil.Process(impatient.process.pid), connection.getsockname()[1]
        deadline = time.monotonic() + PATIENCE
        while any(other.raddr and other.raddr.port == port for other in process.net_connections("tcp4")):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert is_well(impatient)


def test_broken_connections_leave_nothing(yt_server: YtServer) -> None:
    assert is_well(yt_server)
    before = without_databases(yt_server.process.pid)
    for _ in range(50):
        connection = yt_server.connect()
        head = f"PUT /api/v4/write_file HTTP/1.1\r\nAuthorization: OAuth {TOKEN}\r\nContent-Length: 100000000\r\n\r\n"
        connection.sendall(head.encode() + bytes(100_000))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
    deadline = time.monotonic() + PATIENCE
    while without_databases(yt_server.process.pid) > before:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert is_well(yt_server)


def test_beyond_its_limits_a_cluster_reports_overload(impatient: YtServer) -> None:
    """Clients get a temporary error, and retry."""
    statuses: list[int] = []

    def ask() -> None:
        statuses.append(impatient.call("GET", "get", {"path": "//sys"}).status)

    threads = [threading.Thread(target=ask) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(statuses) <= {200, 503}
    assert statuses.count(200) >= 1
    assert is_well(impatient)


# -- the end ---------------------------------------------------------------------------------------------------------


def test_a_running_request_is_cancelled_when_the_server_stops(tmp_path: Path) -> None:
    with serving(tmp_path, impatient=True, first=_STUCK) as server, server.connect() as connection:
        connection.sendall(GET.replace("exists", "get_stuck").encode() + b"\r\n")
        assert server.process.stdout is not None
        assert server.process.stdout.readline() == "stuck\n"
        assert server.stop() == 0
        assert connection.recv(65536).startswith(b"HTTP/1.1 503 ")
        assert "cut off" in server.log()
    with serving(tmp_path) as again:
        assert again.call("GET", "list", {"path": "//tmp"}).value == {"value": []}


# -- many ------------------------------------------------------------------------------------------------------------


def test_many_clients_at_once_are_all_served(yt_server: YtServer) -> None:
    """Each client creates a node, changes a shared one, and reads; no change is lost."""
    client = yt_server.client()
    client.create("map_node", "//tmp/many")
    client.set("//tmp/many/@last", -1)

    def work(number: int) -> Any:
        own: YtClient = yt_server.client()
        made = own.create("map_node", f"//tmp/many/{number}", attributes={"number": number})
        own.set("//tmp/many/@last", number)
        return own.get(f"#{made}/@number")

    with ThreadPoolExecutor(CLIENTS) as pool:
        assert list(pool.map(work, range(CLIENTS))) == list(range(CLIENTS))
    assert client.get("//tmp/many/@count") == CLIENTS
    assert 0 <= client.get("//tmp/many/@last") < CLIENTS
    client.remove("//tmp/many", recursive=True)


def test_one_of_many_clients_gets_a_lock_or_moves_a_node(yt_server: YtServer) -> None:
    yt_server.client().create("map_node", "//tmp/race")
    for number in range(10):
        yt_server.client().set(f"//tmp/race/source{number}", number)

    def move(number: int) -> int:
        parameters = {"source_path": f"//tmp/race/source{number}", "destination_path": "//tmp/race/target"}
        return yt_server.call("POST", "move", parameters).code

    with ThreadPoolExecutor(10) as pool:
        assert sorted(pool.map(move, range(10))) == [0] + [501] * 9
    assert len(json.loads(yt_server.call("GET", "list", {"path": "//tmp/race"}).body)["value"]) == 10
