"""Connections without a credential, of any number and kind, do not harm authenticated clients."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.http.limits import Limits
from tests.interop.hostile_clients import CONNECTIONS, DESCRIPTORS, KINDS, PATIENCE, Victim, victim

MANY = 300
SOME = 80
# Connections that the process is about to close, and files of new threads.
_SLACK = 8
_CHUNK = b"10\r\n" + b"x" * 16 + b"\r\n"


@pytest.fixture(scope="module", params=KINDS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    with victim(request.param, tmp_path_factory.mktemp(request.param)) as started:
        yield started


def idle(server: Victim) -> bytes:
    return b""


def half_a_request_line(server: Victim) -> bytes:
    return server.anonymous()[:7]


def half_of_the_headers(server: Victim) -> bytes:
    return server.anonymous() + b"X-Half: "


def half_of_a_body(server: Victim) -> bytes:
    return server.anonymous() + b"Content-Length: 1000000\r\n\r\n" + b"x" * 1000


def half_of_a_form(server: Victim) -> bytes:
    return b"POST /oauth2/token HTTP/1.1\r\nHost: x\r\nContent-Length: 8000\r\n\r\ngrant_type="


def chunks_without_end(server: Victim) -> bytes:
    return server.anonymous() + b"Transfer-Encoding: chunked\r\n\r\n" + _CHUNK * 100


def small_chunks(server: Victim) -> bytes:
    return server.anonymous() + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 50_000


def huge_headers(server: Victim) -> bytes:
    return server.anonymous() + b"X-Huge: " + b"x" * 600_000


def countless_headers(server: Victim) -> bytes:
    return server.anonymous() + b"a:b\r\n" * 100_000


def requests_without_a_credential(server: Victim) -> bytes:
    return (server.anonymous() + b"Content-Length: 0\r\n\r\n") * 10


def a_pipeline_without_end(server: Victim) -> bytes:
    return b"GET /x HTTP/1.1\r\n\r\n" * 20_000


def a_pipeline_of_rubbish(server: Victim) -> bytes:
    return (server.anonymous() + b"Content-Length: 2\r\n\r\nxxyz\0\xff\r\n\r\n") * 100


def another_protocol(server: Victim) -> bytes:
    return b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200)


def an_upgrade(server: Victim) -> bytes:
    return server.anonymous() + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n" + b"x" * 1000


ATTACKS: list[Callable[[Victim], bytes]] = [
    idle,
    half_a_request_line,
    half_of_the_headers,
    half_of_a_body,
    half_of_a_form,
    chunks_without_end,
    small_chunks,
    huge_headers,
    countless_headers,
    requests_without_a_credential,
    a_pipeline_without_end,
    a_pipeline_of_rubbish,
    another_protocol,
    an_upgrade,
]


def attack(server: Victim, data: bytes, stack: contextlib.ExitStack) -> None:
    """Open a connection, send as much as the server accepts, and never read."""
    connection = stack.enter_context(socket.socket(socket.AF_INET6 if ":" in server.host else socket.AF_INET))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(PATIENCE)
    with contextlib.suppress(ConnectionError):
        connection.connect((server.host, server.port))
        connection.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            connection.send(data)


def until(holds: Callable[[], bool]) -> bool:
    ends = time.monotonic() + PATIENCE
    while not holds():
        if time.monotonic() > ends:
            return False
        time.sleep(0.02)
    return True


@pytest.mark.parametrize("kind", ATTACKS, ids=lambda kind: kind.__name__)
def test_connections_without_a_credential_do_not_harm_clients_with_one(
    server: Victim, kind: Callable[[Victim], bytes]
) -> None:
    """More connections than descriptors: a connected client stays, and new clients can connect."""
    data = kind(server)
    with contextlib.ExitStack() as stack:
        known = stack.enter_context(contextlib.closing(server.client()))
        assert known.is_served()
        known.stays()
        most = 0
        for number in range(SOME if data else MANY):
            attack(server, data, stack)
            if number % 40 == 39:
                assert known.is_served()
                with contextlib.closing(server.client()) as new:
                    assert new.is_served()
                most = max(most, server.descriptors())
        assert most <= server.idle + CONNECTIONS + _SLACK
        assert server.opens(DESCRIPTORS - CONNECTIONS - server.idle - _SLACK)
        # The server's timers end all of them, because no client closes its side.
        assert until(lambda: server.descriptors() <= server.idle + _SLACK)
        assert known.is_served()
    assert server.memory() < 400 << 20


def test_a_flood_of_requests_without_a_credential_does_not_block_others(server: Victim) -> None:
    """Eight clients send as fast as they can, over old and new connections."""
    stopped = threading.Event()
    data = requests_without_a_credential(server)

    def flood() -> None:
        while not stopped.is_set():
            with contextlib.suppress(OSError), server.connect() as connection:
                for _ in range(5):
                    connection.sendall(data)
                    connection.recv(1 << 16)

    threads = [threading.Thread(target=flood) for _ in range(8)]
    for thread in threads:
        thread.start()
    try:
        with contextlib.closing(server.client()) as known:
            assert known.is_served()
            known.stays()
            for _ in range(20):
                assert known.is_served()
                with contextlib.closing(server.client()) as new:
                    assert new.is_served()
    finally:
        stopped.set()
        for thread in threads:
            thread.join()
    assert until(lambda: server.descriptors() <= server.idle + _SLACK)


def test_broken_connections_release_their_descriptors(server: Victim) -> None:
    with contextlib.ExitStack() as stack:
        for number in range(SOME):
            connection = stack.enter_context(server.connect())
            with contextlib.suppress(ConnectionError):
                connection.sendall(server.anonymous()[: number % 60])
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
    assert until(lambda: server.descriptors() <= server.idle + _SLACK)


def test_clients_with_a_credential_share_the_connections_above_the_limit(server: Victim) -> None:
    """Twice as many clients as connections: the longest idle connection is closed for a new one."""
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(contextlib.closing(server.client())) for _ in range(2 * CONNECTIONS)]
        assert all(client.is_served() for client in clients)
        assert server.descriptors() <= server.idle + CONNECTIONS + _SLACK
    assert until(lambda: server.descriptors() <= server.idle + _SLACK)


# -- start and shutdown ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_open_connections_do_not_delay_the_shutdown_and_the_port_is_freed(kind: str, tmp_path: Path) -> None:
    with victim(kind, tmp_path, seconds=0) as server, contextlib.ExitStack() as stack:
        known = stack.enter_context(contextlib.closing(server.client()))
        assert known.is_served()
        for each in (idle, half_of_the_headers, half_of_a_body, half_of_a_form, chunks_without_end):
            attack(server, each(server), stack)
        # The server has read earlier connections before it responds to this request.
        assert known.is_served()
        started = time.monotonic()
        server.process.terminate()
        assert server.process.wait(PATIENCE) == 0
        # The shortest time after which a server closes such a connection.
        assert time.monotonic() - started < Limits().head_seconds
        if kind != "tablestore":
            # The checkpoint server takes a free port each time. The endpoints listen in the same way.
            return
        with victim(kind, tmp_path, port=server.port, seconds=0) as again:
            assert again.port == server.port
            attack(again, idle(again), stack)
            again.process.kill()
            again.process.wait()
        with victim(kind, tmp_path, port=server.port, seconds=0) as after_kill:
            assert after_kill.port == server.port


@pytest.mark.parametrize("kind", ["checkpoints", "tablestore"])
def test_a_server_listens_at_an_ipv6_address(kind: str, tmp_path: Path) -> None:
    with victim(kind, tmp_path, host="::1") as server, contextlib.ExitStack() as stack:
        for _ in range(MANY):
            attack(server, idle(server), stack)
        with contextlib.closing(server.client()) as known:
            assert known.is_served()
        assert server.descriptors() <= server.idle + CONNECTIONS + _SLACK
