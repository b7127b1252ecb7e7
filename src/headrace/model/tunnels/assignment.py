"""The rules that assign the channels of a tunnel to its clients, the same for all stores that keep leases. No I/O.

A store keeps an `Assignment` for each channel and a `ClientLife` for each client. For each heartbeat it calls
`rebalance` with them in one transaction. The rules:

* A channel belongs to at most one client. To move it from a live client, the tunnel requests it (CLOSING) and waits for
  the client's release (CLOSE). A client that sends no heartbeat, or does not release the channel, before its timeout
  loses the channel.
* Open channels are spread evenly: after all requested releases, the numbers of channels of two clients differ by at
  most one.
* A channel is finished when its saved position is the end. A client's report does not finish a channel.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from headrace.model.tunnels.leases import Lease, LeaseStatus
from headrace.model.tunnels.values import ChannelState

# Versions have 64 bits on the wire. The limit keeps a client from exhausting them.
_MAX_VERSION = 1 << 62


@dataclass(frozen=True)
class ClientLife:
    """The time of a client's last heartbeat, and its timeout, in seconds."""

    seen: float
    timeout: float

    def timed_out(self, now: float) -> bool:
        """Return whether the client has sent no heartbeat for its timeout."""
        return now - self.seen > self.timeout


@dataclass(frozen=True)
class Assignment:
    """The tunnel's view of a channel: its status, its client, and when they changed.

    Each change of status or client increments ``version``. Only an OPEN or CLOSING channel has a client.
    """

    status: LeaseStatus = LeaseStatus.WAIT
    version: int = 0
    client: str | None = None
    since: float = 0.0

    def changed(self, status: LeaseStatus, client: str | None, now: float) -> Assignment:
        """Return the assignment with a new status and client."""
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
    """Return the assignments of all channels after a client's heartbeat.

    Args:
        channels: the tunnel's channels in creation order, with their states by the saved positions.
        assignments: the assignments before the heartbeat; channels that never had a client may be missing.
        clients: all clients, including this one. Clients that have timed out at ``now`` lose their channels.
        client: the client that sends the heartbeat.
        report: the client's view of its channels.
        suspended: channels that no client may have. Their clients are asked to release them.
    """
    reported = dict(assignments)
    for lease in report:
        current = reported.get(lease.channel)
        if current is not None and current.client == client and current.version < lease.version < _MAX_VERSION:
            reported[lease.channel] = _as_reported(current, lease, now)
    valid = {
        channel: _without_invalid_client(state, reported.get(channel, Assignment()), clients, now)
        for channel, state in channels.items()
    }
    live = sorted(name for name, life in clients.items() if not life.timed_out(now))
    for channel in suspended:
        if valid[channel].client is not None and valid[channel].status is LeaseStatus.OPEN:
            valid[channel] = valid[channel].changed(LeaseStatus.CLOSING, valid[channel].client, now)
    shared = [name for name, state in channels.items() if state is ChannelState.OPEN and name not in suspended]
    return _spread(valid, shared, live, now)


def leases_of(assignments: Mapping[str, Assignment], client: str) -> list[Lease]:
    """Return the leases of a client: the response to its heartbeat."""
    return [Lease(channel, each.version, each.status) for channel, each in assignments.items() if each.client == client]


def _as_reported(current: Assignment, lease: Lease, now: float) -> Assignment:
    if lease.status in (LeaseStatus.CLOSE, LeaseStatus.TERMINATED):
        # TERMINATED without a saved end counts as a release: another client reads the rest.
        return Assignment(LeaseStatus.CLOSE, lease.version, None, now)
    return replace(current, version=lease.version)


def _without_invalid_client(
    state: ChannelState, current: Assignment, clients: Mapping[str, ClientLife], now: float
) -> Assignment:
    """Return an assignment without its client, if the channel is finished or the client has lost it."""
    if state is ChannelState.FINISHED:
        done = current.status is LeaseStatus.TERMINATED
        return current if done else current.changed(LeaseStatus.TERMINATED, None, now)
    if current.client is None:
        return current
    life = clients.get(current.client)
    hangs = life is not None and current.status is LeaseStatus.CLOSING and now - current.since > life.timeout
    if life is None or life.timed_out(now) or hangs:
        return current.changed(LeaseStatus.CLOSE, None, now)
    return current


def _spread(
    assignments: dict[str, Assignment], channels: Sequence[str], clients: Sequence[str], now: float
) -> dict[str, Assignment]:
    """Assign free channels to clients, and request channels from clients with too many."""
    if not clients:
        return assignments
    kept: dict[str, list[str]] = {client: [] for client in clients}
    free: list[str] = []
    for channel in channels:
        current = assignments[channel]
        if current.client is None:
            free.append(channel)
        elif current.status is LeaseStatus.OPEN:
            kept[current.client].append(channel)
    # Channels that are being released count, too. The remainder goes to the clients with the most channels.
    quotient, remainder = divmod(len(channels), len(clients))
    most_first = sorted(clients, key=lambda client: -len(kept[client]))
    due = {client: quotient + (rank < remainder) for rank, client in enumerate(most_first)}
    spread = dict(assignments)
    for client in clients:
        for channel in kept[client][due[client] :]:
            spread[channel] = assignments[channel].changed(LeaseStatus.CLOSING, client, now)
    for channel in free:
        client = max(clients, key=lambda client: due[client] - len(kept[client]))
        kept[client].append(channel)
        spread[channel] = assignments[channel].changed(LeaseStatus.OPEN, client, now)
    return spread
