"""The rules by which clients share the channels of a tunnel. Pure, and the same for every store that keeps leases.

A store keeps an `Assignment` for each channel and a `ClientLife` for each client, and calls `rebalance` with them, in
one transaction, for each heartbeat. What comes of it:

* A channel belongs to one client or to none. It is taken from a live client only by asking (CLOSING) and hearing that
  it was given back (CLOSE). A client that is silent for its time-out, or does not answer for as long, loses it.
* Open channels are spread evenly: once all are given back that were asked for, no client has two more than another.
* Whether a channel is read to its end is for the tunnel to say, who knows what was saved; never for a client's report.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.tunnels.leases import Lease, LeaseStatus
from headrace.tunnels.values import ChannelState

# Versions are 64-bit numbers on the wire; a client must not be able to use them up.
_MAX_VERSION = 1 << 62


@dataclass(frozen=True)
class ClientLife:
    """When a client was last heard of, and for how long it may be silent, both in seconds."""

    seen: float
    timeout: float

    def gone(self, now: float) -> bool:
        return now - self.seen > self.timeout


@dataclass(frozen=True)
class Assignment:
    """What the tunnel knows of a channel: how it stands since when, and who has it.

    ``version`` rises whenever the status or the client changes. A channel has a client while OPEN or CLOSING only.
    """

    status: LeaseStatus = LeaseStatus.WAIT
    version: int = 0
    client: str | None = None
    since: float = 0.0

    def becomes(self, status: LeaseStatus, client: str | None, now: float) -> Assignment:
        """Return the assignment after a change."""
        return Assignment(status, self.version + 1, client, now)


def rebalance(
    channels: Mapping[str, ChannelState],
    assignments: Mapping[str, Assignment],
    clients: Mapping[str, ClientLife],
    client: str,
    report: Sequence[Lease],
    now: float,
    suspended: Collection[str] = (),
) -> dict[str, Assignment]:
    """Return how all channels stand after a client's heartbeat.

    Args:
        channels: the tunnel's channels in creation order, with their states after all that was saved.
        assignments: how they stood; a channel that nobody ever had may be missing.
        clients: all clients that take part, this one included; those that are gone at ``now`` lose their channels.
        report: how the client sees its channels.
        suspended: channels that nobody is to have; who has one is asked to give it back.
    """
    heard = dict(assignments)
    for lease in report:
        held = heard.get(lease.channel)
        if held is not None and held.client == client and held.version < lease.version < _MAX_VERSION:
            heard[lease.channel] = _as_reported(held, lease, now)
    settled = {
        channel: _settled(state, heard.get(channel, Assignment()), clients, now) for channel, state in channels.items()
    }
    live = sorted(name for name, life in clients.items() if not life.gone(now))
    for channel in suspended:
        if settled[channel].client is not None and settled[channel].status is LeaseStatus.OPEN:
            settled[channel] = settled[channel].becomes(LeaseStatus.CLOSING, settled[channel].client, now)
    shared = [name for name, state in channels.items() if state is ChannelState.OPEN and name not in suspended]
    return _spread(settled, shared, live, now)


def leases_of(assignments: Mapping[str, Assignment], client: str) -> list[Lease]:
    """Return the channels that a client has: the answer to its heartbeat."""
    return [Lease(channel, held.version, held.status) for channel, held in assignments.items() if held.client == client]


def _as_reported(held: Assignment, lease: Lease, now: float) -> Assignment:
    if lease.status in (LeaseStatus.CLOSE, LeaseStatus.TERMINATED):
        # If it says TERMINATED and has not saved the end, somebody has to read the rest: it is given back.
        return Assignment(LeaseStatus.CLOSE, lease.version, None, now)
    return replace(held, version=lease.version)


def _settled(state: ChannelState, held: Assignment, clients: Mapping[str, ClientLife], now: float) -> Assignment:
    """Return a channel without a client that has no right to it any more."""
    if state is ChannelState.FINISHED:
        done = held.status is LeaseStatus.TERMINATED
        return held if done else held.becomes(LeaseStatus.TERMINATED, None, now)
    if held.client is None:
        return held
    life = clients.get(held.client)
    hangs = life is not None and held.status is LeaseStatus.CLOSING and now - held.since > life.timeout
    if life is None or life.gone(now) or hangs:
        return held.becomes(LeaseStatus.CLOSE, None, now)
    return held


def _spread(
    assignments: dict[str, Assignment], channels: Sequence[str], clients: Sequence[str], now: float
) -> dict[str, Assignment]:
    """Give open channels that nobody has to clients, and ask those for some that have too many."""
    if not clients:
        return assignments
    kept: dict[str, list[str]] = {client: [] for client in clients}
    free: list[str] = []
    for channel in channels:
        held = assignments[channel]
        if held.client is None:
            free.append(channel)
        elif held.status is LeaseStatus.OPEN:
            kept[held.client].append(channel)
    # Channels that are being given back count too: they will be somebody's. Who has most keeps the odd ones.
    each, odd = divmod(len(channels), len(clients))
    most_first = sorted(clients, key=lambda client: -len(kept[client]))
    due = {client: each + (place < odd) for place, client in enumerate(most_first)}
    spread = dict(assignments)
    for client in clients:
        for channel in kept[client][due[client] :]:
            spread[channel] = assignments[channel].becomes(LeaseStatus.CLOSING, client, now)
    for channel in free:
        client = max(clients, key=lambda client: due[client] - len(kept[client]))
        kept[client].append(channel)
        spread[channel] = assignments[channel].becomes(LeaseStatus.OPEN, client, now)
    return spread
