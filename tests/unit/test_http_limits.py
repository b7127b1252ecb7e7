"""Limits of servers: connections, requests, bytes, descriptors."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.checkpoint_server.app import LIMITS
from headrace.errors import OptionError
from headrace.http.admission import Admission
from headrace.http.limits import Limits
from headrace.http.listening import in_url, listen
from headrace.http.workload import IncomingBody, OverloadedError, Workload


class Connection:
    """A connection that records whether it is open."""

    def __init__(self, admission: Admission, address: str = "192.0.2.1") -> None:
        self.admission = admission
        self.is_open = True
        admission.add(self, address)

    def discard(self) -> None:
        self.is_open = False
        self.admission.remove(self)

    def close_socket(self) -> None:
        raise AssertionError


def known(admission: Admission, *, idle: bool = False) -> Connection:
    connection = Connection(admission)
    admission.authenticate(connection)
    if idle:
        admission.set_idle(connection)
    return connection


def open_ones(connections: list[Connection]) -> list[int]:
    return [number for number, connection in enumerate(connections) if connection.is_open]


# -- connections ------------------------------------------------------------------------------------------


def test_a_new_connection_replaces_the_oldest_anonymous_one_of_its_address() -> None:
    admission = Admission(Limits(connections=100, anonymous=50, anonymous_per_address=3))
    here = [Connection(admission) for _ in range(5)]
    there = [Connection(admission, "198.51.100.7") for _ in range(2)]
    assert open_ones(here) == [2, 3, 4]
    assert open_ones(there) == [0, 1]


def test_a_connection_of_the_address_with_the_most_is_closed_first() -> None:
    admission = Admission(Limits(connections=100, anonymous=6, anonymous_per_address=5))
    greedy = [Connection(admission) for _ in range(5)]
    others = [Connection(admission, f"198.51.100.{number}") for number in range(4)]
    assert open_ones(others) == [0, 1, 2, 3]
    assert open_ones(greedy) == [3, 4]


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("fe80::1%eth0", "fe80::2", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("a socket", "another", False),
    ],
)
def test_addresses_of_one_ipv6_network_share_a_limit(first: str, second: str, same: bool) -> None:
    admission = Admission(Limits(connections=100, anonymous=50, anonymous_per_address=1))
    connection = Connection(admission, first)
    Connection(admission, second)
    assert connection.is_open is not same


def test_a_busy_connection_with_a_credential_is_never_closed() -> None:
    admission = Admission(Limits(connections=4, anonymous=2, anonymous_per_address=2))
    clients = [known(admission) for _ in range(4)]
    assert admission.is_full
    assert not admission.make_room()
    assert open_ones(clients) == [0, 1, 2, 3]


def test_the_longest_idle_connection_is_closed_when_all_have_a_credential() -> None:
    admission = Admission(Limits(connections=3, anonymous=2, anonymous_per_address=2))
    clients = [known(admission, idle=True) for _ in range(3)]
    admission.set_busy(clients[0])
    admission.set_idle(clients[0])
    assert admission.make_room()
    assert open_ones(clients) == [0, 2]


def test_many_anonymous_connections_are_closed_before_an_idle_one_with_a_credential() -> None:
    admission = Admission(Limits(connections=5, anonymous=4, anonymous_per_address=4))
    client = known(admission, idle=True)
    strangers = [Connection(admission) for _ in range(4)]
    assert admission.make_room()
    assert client.is_open
    assert open_ones(strangers) == [1, 2, 3]


def test_on_room_is_called_when_a_connection_becomes_idle_or_closes() -> None:
    admission = Admission(Limits(connections=1))
    offered: list[int] = []
    client = known(admission)
    admission.on_room = lambda: offered.append(len(admission))
    admission.set_idle(client)
    admission.remove(client)
    admission.remove(client)
    assert offered == [1, 0]


# -- descriptors ------------------------------------------------------------------------------------------


@pytest.fixture
def soft_limit() -> Iterator[int]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_connections_use_a_quarter_of_the_descriptors_and_anonymous_ones_an_eighth(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 256))
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
    lowered = Limits().within_descriptors()
    assert (lowered.connections, lowered.anonymous, lowered.anonymous_per_address) == (64, 32, 16)


def test_the_soft_limit_is_raised_as_far_as_needed(soft_limit: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, soft_limit))
    limits = Limits(connections=300).within_descriptors()
    assert limits.connections == 300
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 1200


def test_a_fixed_soft_limit_lowers_the_number_of_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: Any) -> None:
        raise ValueError("current limit exceeds maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert LIMITS.within_descriptors().connections == 256


def test_the_checkpoint_server_has_connections_for_200_executors() -> None:
    """An executor has five connections that Java keeps open, and five uploads that last as long as their tasks."""
    assert LIMITS.connections >= 200 * (5 + 5)


# -- requests and bytes -----------------------------------------------------------------------------------


def test_requests_and_bytes_above_the_limits_are_refused() -> None:
    workload = Workload(requests=2, body_bytes=100)
    with workload.request() as first, workload.request() as second:
        first.add(60)
        with pytest.raises(OverloadedError, match="bytes"):
            second.add(41)
        first.release(20)
        second.add(41)
        with pytest.raises(OverloadedError, match="requests"), workload.request():
            pass
    assert (workload.requests, workload.body_bytes) == (0, 0)


def body_of(*parts: bytes, headers: list[tuple[bytes, bytes]] | None = None, silent: bool = False) -> IncomingBody:
    """Return a body that arrives in parts. A ``silent`` body does not end."""
    left = list(parts)

    async def receive() -> Any:
        if not left:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left) or silent}

    return IncomingBody({"headers": headers or []}, receive, silent_seconds=0.05)


def test_a_silent_body_is_an_error() -> None:
    async def read() -> None:
        body = body_of(b"x", silent=True)
        assert await body.next_part() == b"x"
        with pytest.raises(TimeoutError):
            await body.next_part()

    asyncio.run(read())


@pytest.mark.parametrize(
    ("most", "headers", "left"),
    [(100, [], True), (2, [], False), (100, [(b"content-length", b"101")], False)],
)
def test_a_body_is_drained_within_limits(most: int, headers: list[tuple[bytes, bytes]], left: bool) -> None:
    body = body_of(b"xx", b"xx", headers=headers)
    asyncio.run(body.drain(most, 5))
    assert body.complete is left


@pytest.mark.parametrize(
    ("declared", "length"), [(b"12", 12), (b"", None), (b"-1", None), (b"\xb2", None), (b"9" * 5000, 10**18)]
)
def test_any_content_length_is_parsed(declared: bytes, length: int | None) -> None:
    assert body_of(headers=[(b"content-length", declared)]).length == length


def test_an_endless_body_is_drained_for_a_limited_time() -> None:
    asyncio.run(body_of(b"x", silent=True).drain(1 << 20, 0.05))


# -- addresses --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "[::1]"])
def test_all_forms_of_hosts_are_accepted(host: str) -> None:
    with listen(host, 0) as listener:
        assert listener.getsockname()[1] > 0


def test_a_port_that_is_taken_and_an_address_of_another_machine_are_refused() -> None:
    with listen("127.0.0.1", 0) as listener, pytest.raises(OptionError, match="cannot listen"):
        listen("127.0.0.1", listener.getsockname()[1])
    with pytest.raises(OptionError, match=r"received: 192\.0\.2\.77:0"):
        listen("192.0.2.77", 0)
    with pytest.raises(OptionError, match="cannot listen"):
        listen("127.0.0.1", 99999)


@pytest.mark.parametrize(("host", "shown"), [("::1", "[::1]"), ("[::1]", "[::1]"), ("driver.local", "driver.local")])
def test_an_ipv6_address_has_brackets_in_urls(host: str, shown: str) -> None:
    assert in_url(host) == shown
