"""What servers keep and what they refuse: connections, requests, bytes, descriptors."""

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
    """A connection that notes its end."""

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


def test_the_oldest_anonymous_connection_of_an_address_leaves_for_a_new_one() -> None:
    admission = Admission(Limits(connections=100, anonymous=50, anonymous_per_address=3))
    here = [Connection(admission) for _ in range(5)]
    there = [Connection(admission, "198.51.100.7") for _ in range(2)]
    assert open_ones(here) == [2, 3, 4]
    assert open_ones(there) == [0, 1]


def test_the_address_with_most_anonymous_connections_makes_room_for_others() -> None:
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
def test_addresses_of_one_ipv6_network_count_as_one(first: str, second: str, same: bool) -> None:
    admission = Admission(Limits(connections=100, anonymous=50, anonymous_per_address=1))
    connection = Connection(admission, first)
    Connection(admission, second)
    assert connection.is_open is not same


def test_a_connection_with_a_credential_never_leaves_for_an_anonymous_one_while_it_works() -> None:
    admission = Admission(Limits(connections=4, anonymous=2, anonymous_per_address=2))
    clients = [known(admission) for _ in range(4)]
    assert admission.is_full
    assert not admission.make_room()
    assert open_ones(clients) == [0, 1, 2, 3]


def test_the_longest_idle_connection_leaves_when_all_have_a_credential() -> None:
    admission = Admission(Limits(connections=3, anonymous=2, anonymous_per_address=2))
    clients = [known(admission, idle=True) for _ in range(3)]
    admission.set_busy(clients[0])
    admission.set_idle(clients[0])
    assert admission.make_room()
    assert open_ones(clients) == [0, 2]


def test_many_anonymous_connections_leave_before_an_idle_one_with_a_credential() -> None:
    admission = Admission(Limits(connections=5, anonymous=4, anonymous_per_address=4))
    client = known(admission, idle=True)
    strangers = [Connection(admission) for _ in range(4)]
    assert admission.make_room()
    assert client.is_open
    assert open_ones(strangers) == [1, 2, 3]


def test_a_place_that_gets_free_is_offered() -> None:
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


def test_connections_take_a_quarter_of_the_descriptors_and_anonymous_ones_half_of_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 256))
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
    lowered = Limits().within_descriptors()
    assert (lowered.connections, lowered.anonymous, lowered.anonymous_per_address) == (64, 32, 16)


def test_the_soft_limit_is_raised_as_far_as_the_connections_need_it(soft_limit: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, soft_limit))
    limits = Limits(connections=300).within_descriptors()
    assert limits.connections == 300
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 1200


def test_where_the_soft_limit_cannot_be_raised_fewer_connections_are_accepted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: Any) -> None:
        raise ValueError("current limit exceeds maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert LIMITS.within_descriptors().connections == 256


def test_200_executors_fit_into_the_limits_of_checkpoints() -> None:
    """Each with five connections that Java keeps open, and five uploads that last as long as their tasks."""
    assert LIMITS.connections >= 200 * (5 + 5)


# -- requests and bytes -----------------------------------------------------------------------------------


def test_requests_and_bytes_beyond_the_limits_are_refused_and_given_back() -> None:
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
    """Return a body that comes in parts; a ``silent`` one does not end."""
    left = list(parts)

    async def receive() -> Any:
        if not left:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left) or silent}

    return IncomingBody({"headers": headers or []}, receive, silent_seconds=0.05)


def test_a_body_that_is_silent_ends_with_an_error() -> None:
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
def test_the_rest_of_a_body_is_dropped_within_limits(most: int, headers: list[tuple[bytes, bytes]], left: bool) -> None:
    body = body_of(b"xx", b"xx", headers=headers)
    asyncio.run(body.drain(most, 5))
    assert body.complete is left


@pytest.mark.parametrize(
    ("declared", "length"), [(b"12", 12), (b"", None), (b"-1", None), (b"\xb2", None), (b"9" * 5000, 10**18)]
)
def test_any_declared_length_of_a_body_is_read(declared: bytes, length: int | None) -> None:
    assert body_of(headers=[(b"content-length", declared)]).length == length


def test_a_body_without_end_is_not_dropped_for_ever() -> None:
    asyncio.run(body_of(b"x", silent=True).drain(1 << 20, 0.05))


# -- addresses --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "[::1]"])
def test_hosts_of_all_forms_are_listened_at(host: str) -> None:
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
