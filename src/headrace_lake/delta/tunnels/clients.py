"""Clients that share the channels of a tunnel of a Delta table.

Every call replaces the state of the tunnel, so that clients in all processes see one order of events.
`headrace.model.tunnels.assignment` has the rules.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from headrace.errors import ClientGoneError, NotFoundError, OptionError, SequenceNumberError, TunnelTakenError
from headrace.model.tunnels.assignment import Assignment, ClientLife, leases_of, rebalance
from headrace.model.tunnels.leases import Lease, LeaseStatus, Saved
from headrace.model.tunnels.values import ChannelState, Position
from headrace.ports import TunnelClient
from headrace_lake.delta.tunnels.records import CLIENTS, Progress, TunnelRecords


class Holder(NamedTuple):
    """The live client that has a channel, and the status of its lease."""

    client: str
    tag: str
    status: LeaseStatus


class Channels(NamedTuple):
    """What clients need of the channels of a tunnel.

    Attributes:
        states: the states of the channels, for a state of the tunnel.
        start: the first position of a channel.
        move: commits the position of a channel.
    """

    states: Callable[[Progress], Mapping[str, ChannelState]]
    start: Callable[[str], Position]
    move: Callable[[Progress, str, Position], None]


def connect(records: TunnelRecords, channels: Channels, tag: str, timeout: float) -> DeltaTunnelClient:
    """Connect a new client.

    Raises:
        OptionError: the timeout is not a positive number.
    """
    if not (math.isfinite(timeout) and timeout > 0):
        raise OptionError("the timeout of a client must be a positive number of seconds", received=timeout)
    client = str(uuid.uuid4())

    def add(progress: Progress) -> None:
        progress.reader = CLIENTS
        progress.clients[client] = (tag, timeout, time.time(), None)

    records.change(add)
    return DeltaTunnelClient(records, channels, client, timeout)


def find(records: TunnelRecords, channels: Channels, client: str) -> DeltaTunnelClient:
    """Return a connected client.

    Raises:
        ClientGoneError: the client does not exist, or has timed out.
    """
    progress = records.progress()
    _check(progress, records.tunnel, client)
    return DeltaTunnelClient(records, channels, client, progress.clients[client][1])


def holders(progress: Progress) -> dict[str, Holder]:
    """Return the live clients that have channels, by channel."""
    now = time.time()
    return {
        channel: Holder(client, progress.clients[client][0], LeaseStatus(status))
        for channel, (status, _, client, _) in progress.leases.items()
        if client in progress.clients and not _life(progress, client).timed_out(now)
    }


class DeltaTunnelClient(TunnelClient):
    """A connected client."""

    def __init__(self, records: TunnelRecords, channels: Channels, id: str, timeout: float) -> None:
        self._records = records
        self._channels = channels
        self.id = id
        self.timeout = timeout

    def __repr__(self) -> str:
        return f"DeltaTunnelClient({self.id} of tunnel {self._records.tunnel})"

    def heartbeat(self, leases: Sequence[Lease]) -> list[Lease]:
        def beat(progress: Progress) -> list[Lease]:
            now = time.time()
            _check(progress, self._records.tunnel, self.id)
            for client, (tag, timeout, connected, seen) in progress.clients.items():
                # If the clock was set back, dead clients would otherwise live until it has caught up.
                if client == self.id or (seen is not None and seen > now):
                    progress.clients[client] = (tag, timeout, connected, now)
            # The others would not read the channels that they get.
            lives = {
                client: _life(progress, client) for client, each in progress.clients.items() if each[3] is not None
            }
            before = {channel: Assignment(LeaseStatus(each[0]), *each[1:]) for channel, each in progress.leases.items()}
            after = rebalance(self._channels.states(progress), before, lives, self.id, leases, now)
            progress.leases = {
                channel: (each.status.value, each.version, each.client, each.since) for channel, each in after.items()
            }
            for client in [client for client in progress.clients if _life(progress, client).timed_out(now)]:
                del progress.clients[client]
            return leases_of(after, self.id)

        return self._records.change(beat)

    def saved(self, channel: str) -> Saved:
        progress = self._records.progress()
        _check(progress, self._records.tunnel, self.id)
        position = progress.position(channel, self._channels.start(channel))
        return Saved(position, progress.sequences.get(channel, 0))

    def save(self, channel: str, position: Position, sequence: int) -> None:
        def write(progress: Progress) -> None:
            _check(progress, self._records.tunnel, self.id)
            last = progress.sequences.get(channel, 0)
            if not last < sequence < 1 << 63:
                raise SequenceNumberError(
                    f"channel {channel} is already saved with this number or a higher one",
                    received=f"sequence number {sequence}",
                    valid=f"above {last}",
                    remedy="another client may read the channel: fetch the saved position and use its number",
                )
            progress.sequences[channel] = sequence
            self._channels.move(progress, channel, position)

        self._records.change(write)

    def close(self) -> None:
        def end(progress: Progress) -> None:
            progress.clients.pop(self.id, None)
            for channel, (_, version, client, _) in progress.leases.items():
                if client == self.id:
                    progress.leases[channel] = (LeaseStatus.CLOSE.value, version + 1, None, time.time())

        # A tunnel that was dropped has no clients.
        with suppress(NotFoundError):
            self._records.change(end)


def _life(progress: Progress, client: str) -> ClientLife:
    _, timeout, connected, seen = progress.clients[client]
    return ClientLife(connected if seen is None else seen, timeout)


def _check(progress: Progress, tunnel: str, client: str) -> None:
    """Raise an error if a client is dead, or a query has taken the tunnel."""
    if client not in progress.clients or _life(progress, client).timed_out(time.time()):
        raise ClientGoneError(
            "the client was closed, or sent no heartbeat within its timeout",
            received=client,
            remedy="connect again, and read from the saved positions",
        )
    if progress.reader != CLIENTS:
        raise TunnelTakenError(
            "a streaming query has started to read this tunnel",
            received=f"tunnel {tunnel}",
            remedy="create a tunnel for the query, and another one for its clients",
        )
