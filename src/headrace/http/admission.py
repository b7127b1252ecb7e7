"""The connections that a server keeps: first those with a credential, then a few anonymous ones of each address."""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Callable
from typing import Protocol

from headrace.http.limits import Limits

_IPV6_PREFIX = 64
"""A client that has one IPv6 address usually has all addresses with the same first 64 bits."""


class Connection(Protocol):
    """A connection as `Admission` sees it."""

    def discard(self) -> None:
        """End the connection at once."""

    def close_socket(self) -> None:
        """Close the descriptor only."""


class Admission:
    """The open connections of one server. Used by the event loop's thread.

    Args:
        limits: the limits of the server.

    Attributes:
        on_room: called when a connection can be accepted again.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._addresses: dict[Connection, str] = {}
        # Ordered sets: the oldest, or the longest idle, connection is the first.
        self._anonymous: defaultdict[str, dict[Connection, None]] = defaultdict(dict)
        self._anonymous_count = 0
        self._idle: dict[Connection, None] = {}
        self.on_room: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        return len(self._addresses)

    @property
    def is_full(self) -> bool:
        return len(self._addresses) >= self._limits.connections

    def add(self, connection: Connection, address: str) -> None:
        """Add a new anonymous connection. If there are too many, discard an older one."""
        key = network_of(address)
        self._addresses[connection] = key
        if len(self._anonymous[key]) >= self._limits.anonymous_per_address:
            self._discard_oldest(key)
        elif self._anonymous_count >= self._limits.anonymous:
            self._discard_oldest(self._largest())
        self._anonymous[key][connection] = None
        self._anonymous_count += 1

    def remove(self, connection: Connection) -> None:
        """Remove a connection that is closed."""
        self._forget_anonymous(connection)
        self._idle.pop(connection, None)
        if self._addresses.pop(connection, None) is not None:
            self.on_room()

    def authenticate(self, connection: Connection) -> None:
        """Record that a connection has sent a request with a valid credential."""
        self._forget_anonymous(connection)

    def set_idle(self, connection: Connection) -> None:
        """Record that a connection with a credential waits for its next request."""
        self._idle[connection] = None
        if self.is_full:
            self.on_room()

    def set_busy(self, connection: Connection) -> None:
        """Record that a connection has a request."""
        self._idle.pop(connection, None)

    def make_room(self) -> bool:
        """Discard one connection. Return False if all connections have a credential and a request.

        An anonymous connection is discarded first. If there are few of them, the longest idle connection is discarded
        instead, because a client with a credential is also anonymous until its first request is read.
        """
        if self._idle and self._anonymous_count <= self._limits.anonymous // 2:
            connection = next(iter(self._idle))
            del self._idle[connection]
            connection.discard()
        elif self._anonymous_count:
            self._discard_oldest(self._largest())
        else:
            return False
        return True

    def close_sockets(self) -> None:
        """Close the descriptors of all connections in a forked child process, which inherited them."""
        for connection in list(self._addresses):
            connection.close_socket()

    def _largest(self) -> str:
        return max(self._anonymous, key=lambda key: len(self._anonymous[key]))

    def _discard_oldest(self, key: str) -> None:
        connection = next(iter(self._anonymous[key]))
        self._forget_anonymous(connection)
        connection.discard()

    def _forget_anonymous(self, connection: Connection) -> None:
        key = self._addresses.get(connection)
        if key is None or connection not in self._anonymous.get(key, ()):
            return
        del self._anonymous[key][connection]
        self._anonymous_count -= 1
        if not self._anonymous[key]:
            del self._anonymous[key]


def network_of(address: str) -> str:
    """Return the address of a peer, or the network of an IPv6 peer."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.IPv6Network((parsed, _IPV6_PREFIX), strict=False))
