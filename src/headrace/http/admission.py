"""Which connections a server keeps: those with a credential first, and of the others a few from each address."""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Callable
from typing import Protocol

from headrace.http.limits import Limits

_IPV6_PREFIX = 64
"""Whoever has one IPv6 address usually has all that share its first 64 bits."""


class Connection(Protocol):
    """A connection as `Admission` sees it."""

    def discard(self) -> None:
        """End at once."""

    def close_socket(self) -> None:
        """Close the descriptor and nothing else."""


class Admission:
    """The open connections of one server. Used by the event loop's thread.

    Args:
        limits: how many there may be.

    Attributes:
        on_room: called when there is room for a connection again.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._addresses: dict[Connection, str] = {}
        # Dictionaries without values are ordered sets here: the oldest or the longest idle comes first.
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
        """Add a new connection, which is anonymous; it may cost an older one its place."""
        key = _network(address)
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
        """Note that a connection brought a request with a credential."""
        self._forget_anonymous(connection)

    def set_idle(self, connection: Connection) -> None:
        """Note that a connection with a credential waits for its next request."""
        self._idle[connection] = None
        if self.is_full:
            self.on_room()

    def set_busy(self, connection: Connection) -> None:
        """Note that a connection has a request."""
        self._idle.pop(connection, None)

    def make_room(self) -> bool:
        """Discard the connection that is worth least; False if all have a credential and are at work.

        That is an anonymous one, unless they are few: then the longest idle one has to make room, for a client with a
        credential is anonymous too until its first request is read.
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
        """Close the descriptors of all connections, in a forked child that inherited them."""
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


def _network(address: str) -> str:
    """Return what the connections of one peer have in common."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.IPv6Network((parsed, _IPV6_PREFIX), strict=False))
