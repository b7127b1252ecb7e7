"""Limits of a server's connections: how many, how long, how large; and how many descriptors they may take."""

from __future__ import annotations

import resource
from dataclasses import dataclass, replace

_SHARE = 4
"""Connections take at most one descriptor in four; databases, files and, in a driver, Spark need the others."""


@dataclass(frozen=True)
class Limits:
    """What a server grants its connections. A connection is anonymous until it brings a request with a credential.

    Attributes:
        connections: open connections. Beyond it the oldest anonymous one or the longest idle one is closed for a new
            one; while all are at work, new ones wait in the listener's backlog.
        anonymous: anonymous connections. Beyond it the oldest of the address that has the most is closed.
        anonymous_per_address: anonymous connections of one address, or of one IPv6 network of 64 bits.
        pipelined: requests of one connection that may wait for the answers to those before.
        headers: headers of a request.
        head_bytes: bytes of a request besides its body; for framing, as many again as its body has.
        head_seconds: time for the headers of a request, from its first byte or from the start of the connection.
        anonymous_seconds: time for a whole request of an anonymous connection, and until its next request.
        idle_seconds: time between the requests of a connection with a credential.
        reading_seconds: time in which a client takes some bytes of its answer.
        drain_seconds: time for the rest of the body of a request that is refused.
        stopping_seconds: time for bodies that are still coming when the server stops.
        grace_seconds: time for requests to end when the server stops, before they are cancelled.
        stop_seconds: time after which a stopping process ends whatever its threads do.
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
        """Return these limits, lowered to what the process may open; raises its soft limit first where that helps."""
        connections = min(self.connections, max(_allow_files(_SHARE * self.connections) // _SHARE, 1))
        anonymous = min(self.anonymous, max(connections // 2, 1))
        return replace(
            self,
            connections=connections,
            anonymous=anonymous,
            anonymous_per_address=min(self.anonymous_per_address, max(anonymous // 2, 1)),
        )


def _allow_files(wanted: int) -> int:
    """Raise the number of files that the process may open up to a number, and return the limit then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    except (OSError, ValueError):
        # Some systems have a limit below the hard one.
        return soft
    return raised
