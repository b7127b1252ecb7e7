"""Leases: the channels of a tunnel's clients. `headrace.model.tunnels.assignment` has the rules."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from headrace.model.tunnels.values import Position


class LeaseStatus(enum.StrEnum):
    """The status of a channel between the tunnel and its clients, in the words of Tablestore's tunnel service."""

    WAIT = "WAIT"
    """A parent is not finished."""
    OPEN = "OPEN"
    """The channel can be read by its client, if it has one."""
    CLOSING = "CLOSING"
    """The tunnel has requested the channel from its client."""
    CLOSE = "CLOSE"
    """The client has released the channel; another client can get it."""
    TERMINATED = "TERMINATED"
    """The channel is finished, and its end is saved."""


@dataclass(frozen=True)
class Lease:
    """The view of a channel by the tunnel or by a client. The view with the higher version is newer."""

    channel: str
    version: int
    status: LeaseStatus


@dataclass(frozen=True)
class Saved:
    """The committed position of a channel, and the sequence number of the save that set it; 0 if no save has."""

    position: Position
    sequence: int
