"""Limits of a server's connections: numbers, sizes, times, and descriptors."""

from __future__ import annotations

import resource
from dataclasses import dataclass, replace

_SHARE = 4
"""Connections use at most one descriptor in four; databases, files and, in a driver, Spark need the others."""


@dataclass(frozen=True)
class Limits:
    """The limits of a server's connections. A connection is anonymous until it sends a request with a credential.

    Attributes:
        connections: open connections. At the limit, the oldest anonymous or the longest idle connection is closed for
            a new one. While all connections have requests, new ones wait in the listener's backlog.
        anonymous: anonymous connections. At the limit, the oldest one of the address with the most is closed.
        anonymous_per_address: anonymous connections of one address, or of one IPv6 network of 64 bits.
        pipelined: requests of one connection that wait for earlier responses.
        headers: headers of a request.
        head_bytes: bytes of a request without its body. Chunk frames may have as many bytes as the body, in addition.
        head_seconds: time for the headers of a request, from its first byte or from the start of the connection.
        anonymous_seconds: time for a whole request of an anonymous connection, and until its next request.
        idle_seconds: time between the requests of a connection with a credential.
        reading_seconds: time in which a client must read some bytes of its response.
        drain_seconds: time for the rest of the body of a refused request.
        stopping_seconds: time for unfinished bodies when the server stops.
        grace_seconds: time for requests to end when the server stops, before they are cancelled.
        stop_seconds: time after which a stopping server no longer waits for its threads.
    """

    connections: int = 4096
    anonymous: int = 1024
    anonymous_per_address: int = 512
    pipelined: int = 16
    headers: int = 200
    head_bytes: int = 64 << 10
    head_seconds: float = 20.0
    anonymous_seconds: float = 30.0
    idle_seconds: float = 75.0
    reading_seconds: float = 60.0
    drain_seconds: float = 10.0
    stopping_seconds: float = 5.0
    grace_seconds: int = 7
    stop_seconds: float = 10.0

    def within_descriptors(self) -> Limits:
        """Return these limits, lowered to the descriptors of the process. Raises the soft limit first if that helps."""
        connections = min(self.connections, max(_allow_files(_SHARE * self.connections) // _SHARE, 1))
        anonymous = min(self.anonymous, max(connections // 2, 1))
        return replace(
            self,
            connections=connections,
            anonymous=anonymous,
            anonymous_per_address=min(self.anonymous_per_address, max(anonymous // 2, 1)),
        )


def _allow_files(wanted: int) -> int:
    """Raise the limit of open files of the process to ``wanted`` if possible, and return the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    except (OSError, ValueError):
        # Some systems have another limit below the hard limit.
        return soft
    return raised
