"""How the clients of a tunnel share its channels: what a lease is. `headrace.tunnels.assignment` has the rules."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from headrace.tunnels.values import Position


class LeaseStatus(enum.StrEnum):
    """Where a channel stands between the tunnel and its clients; the words of Tablestore's tunnel service."""

    WAIT = "WAIT"
    """Not yet to be read: a parent has not been read to its end."""
    OPEN = "OPEN"
    """To be read, by the client that has it, if one has."""
    CLOSING = "CLOSING"
    """The tunnel wants it back from its client."""
    CLOSE = "CLOSE"
    """Its client has given it back; any other may have it."""
    TERMINATED = "TERMINATED"
    """Read to its end, and that end is saved."""


@dataclass(frozen=True)
class Lease:
    """A channel as one side sees it. Of two views, the one with the higher version is newer."""

    channel: str
    version: int
    status: LeaseStatus


@dataclass(frozen=True)
class Saved:
    """The committed position of a channel, and the sequence number of the save that set it; 0 if no save has."""

    position: Position
    sequence: int
