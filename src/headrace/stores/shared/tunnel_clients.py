"""Clients that share a tunnel's channels: table ``tunnel_client``, and the leases and saves in table ``channel``.

Every call is one transaction that locks the tunnel, so clients in all processes see one order of events.
`headrace.model.tunnels.assignment` has the rules. A client is dead after its timeout, even if no other client has
noticed it.
"""

from __future__ import annotations

import math
import time
import uuid
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Generic, NamedTuple

from headrace.errors import ClientGoneError, OptionError, SequenceNumberError, TunnelTakenError
from headrace.model.tunnels import assignment
from headrace.model.tunnels.assignment import Assignment, ClientLife
from headrace.model.tunnels.leases import Lease, LeaseStatus, Saved
from headrace.model.tunnels.values import Channel, Position
from headrace.ports import Tunnel, TunnelClient
from headrace.stores.shared.tunnel_records import Records, S, TunnelStatements, lock_tunnel

# The value of column ``reader`` of a tunnel while clients read it. A query writes the id of its first batch.
_CLIENTS = "clients"


class Holder(NamedTuple):
    """The live client that has a channel, and the status of its lease."""

    client: str
    tag: str
    status: LeaseStatus


class SharedTunnel(Tunnel, Generic[S]):
    """A tunnel that clients share. The methods with ``statements`` are parts of the caller's transaction."""

    records: Records[S]

    def connect(self, *, tag: str = "", timeout: float = 300.0) -> TunnelClient:
        if not (math.isfinite(timeout) and timeout > 0):
            raise OptionError("the timeout of a client must be a positive number of seconds", received=timeout)
        client_id = str(uuid.uuid4())

        def add(statements: S) -> None:
            lock_tunnel(statements, self.id)
            statements.execute("UPDATE headrace.tunnel SET reader = %s WHERE id = %s", (_CLIENTS, self.id))
            statements.execute(
                "INSERT INTO headrace.tunnel_client (id, tunnel, tag, timeout, connected) VALUES (%s, %s, %s, %s, %s)"
                " ON CONFLICT (id) DO NOTHING",
                (client_id, self.id, tag, timeout, time.time()),
            )

        self.records.run(add)
        return SharingClient(self, client_id, timeout)

    def client(self, client_id: str) -> TunnelClient:
        def find(statements: S) -> TunnelClient:
            row = statements.execute(
                "SELECT timeout FROM headrace.tunnel_client WHERE id = %s", (client_id,)
            ).fetchone()
            client = SharingClient(self, client_id, 0.0 if row is None else row[0])
            client._check(statements, time.time())
            return client

        return self.records.read(find)

    @abstractmethod
    def channels_in(self, statements: S) -> list[Channel]:
        """Return the channels like `channels`."""

    def suspended(self, statements: S) -> frozenset[str]:
        """Return the channels that no client gets."""
        return frozenset()

    @abstractmethod
    def committed(self, statements: S, channel: str) -> Position:
        """Return the committed position of a channel."""

    @abstractmethod
    def save_position(self, statements: S, channel: str, position: Position) -> None:
        """Save a client's position in a channel."""

    def after_save(self) -> None:
        """Release what is not needed after the transaction of `save_position`."""


class SharingClient(TunnelClient, Generic[S]):
    """A client of a tunnel, created by `SharedTunnel.connect` and `SharedTunnel.client`."""

    def __init__(self, tunnel: SharedTunnel[S], id: str, timeout: float) -> None:
        self._tunnel = tunnel
        self.id = id
        self.timeout = timeout

    def __repr__(self) -> str:
        return f"SharingClient({self.id} of tunnel {self._tunnel.name!r})"

    def heartbeat(self, leases: Sequence[Lease]) -> list[Lease]:
        self._tunnel.take_in_tables()

        def beat(statements: S) -> dict[str, Assignment]:
            now = time.time()
            self._check(statements, now)
            # If the clock was set back, dead clients would otherwise live until it has caught up.
            statements.execute(
                "UPDATE headrace.tunnel_client SET seen = %s WHERE tunnel = %s AND (id = %s OR seen > %s)",
                (now, self._tunnel.id, self.id, now),
            )
            before = _assignments(statements, self._tunnel.id)
            after = assignment.rebalance(
                {channel.id: channel.state for channel in self._tunnel.channels_in(statements)},
                before,
                _lives(statements, self._tunnel.id),
                self.id,
                leases,
                now,
                self._tunnel.suspended(statements),
            )
            _store(statements, self._tunnel.id, before, after)
            statements.execute(
                "DELETE FROM headrace.tunnel_client WHERE tunnel = %s AND %s - coalesce(seen, connected) > timeout",
                (self._tunnel.id, now),
            )
            return after

        return assignment.leases_of(self._tunnel.records.run(beat), self.id)

    def saved(self, channel: str) -> Saved:
        def read(statements: S) -> Saved:
            self._check(statements, time.time())
            return self._saved(statements, channel)

        return self._tunnel.records.read(read)

    def save(self, channel: str, position: Position, sequence: int) -> None:
        def write(statements: S) -> None:
            self._check(statements, time.time())
            last = self._saved(statements, channel).sequence
            if not last < sequence < 1 << 63:
                raise SequenceNumberError(
                    f"channel {channel} is already saved with this number or a higher one",
                    received=f"sequence number {sequence}",
                    valid=f"above {last}",
                    remedy="another client may read the channel: fetch the saved position and use its number",
                )
            statements.execute(
                "UPDATE headrace.channel SET sequence = %s WHERE tunnel = %s AND id = %s",
                (sequence, self._tunnel.id, channel),
            )
            self._tunnel.save_position(statements, channel, position)

        # The second time, the sequence number would be used.
        self._tunnel.records.run(write, repeatable=False)
        self._tunnel.after_save()

    def close(self) -> None:
        def end(statements: S) -> None:
            statements.execute("DELETE FROM headrace.tunnel_client WHERE id = %s", (self.id,))
            statements.execute(
                "UPDATE headrace.channel SET client = NULL, lease = %s, version = version + 1, since = %s"
                " WHERE tunnel = %s AND client = %s",
                (LeaseStatus.CLOSE.value, time.time(), self._tunnel.id, self.id),
            )

        self._tunnel.records.run(end)

    def _saved(self, statements: S, channel: str) -> Saved:
        position = self._tunnel.committed(statements, channel)
        row = statements.execute(
            "SELECT sequence FROM headrace.channel WHERE tunnel = %s AND id = %s", (self._tunnel.id, channel)
        ).fetchone()
        return Saved(position, 0 if row is None else row[0])

    def _check(self, statements: S, now: float) -> None:
        """Lock the tunnel. Raise an error if this client is dead, or a query has taken the tunnel."""
        reader = lock_tunnel(statements, self._tunnel.id)
        life = statements.execute(
            "SELECT coalesce(seen, connected), timeout FROM headrace.tunnel_client WHERE id = %s AND tunnel = %s",
            (self.id, self._tunnel.id),
        ).fetchone()
        if life is None or ClientLife(*life).timed_out(now):
            raise ClientGoneError(
                "the client was closed, or sent no heartbeat within its timeout",
                received=self.id,
                remedy="connect again, and read from the saved positions",
            )
        if reader != _CLIENTS:
            raise TunnelTakenError(
                "a streaming query has started to read this tunnel",
                received=f"tunnel {self._tunnel.id}",
                remedy="create a tunnel for the query, and another one for its clients",
            )


def holders(statements: TunnelStatements, tunnel_id: str) -> dict[str, Holder]:
    """Return the live clients that have channels of a tunnel, by channel."""
    rows = statements.execute(
        "SELECT h.id, c.id, c.tag, h.lease FROM headrace.channel h JOIN headrace.tunnel_client c ON c.id = h.client"
        " WHERE h.tunnel = %s AND c.tunnel = h.tunnel AND %s - coalesce(c.seen, c.connected) <= c.timeout",
        (tunnel_id, time.time()),
    )
    return {channel: Holder(client, tag, LeaseStatus(status)) for channel, client, tag, status in rows}


def _lives(statements: TunnelStatements, tunnel_id: str) -> dict[str, ClientLife]:
    """Return the clients that have sent a heartbeat; the others would not read the channels that they get."""
    rows = statements.execute(
        "SELECT id, seen, timeout FROM headrace.tunnel_client WHERE tunnel = %s AND seen IS NOT NULL", (tunnel_id,)
    )
    return {client: ClientLife(seen, timeout) for client, seen, timeout in rows}


def _assignments(statements: TunnelStatements, tunnel_id: str) -> dict[str, Assignment]:
    rows = statements.execute(
        "SELECT id, lease, version, client, since FROM headrace.channel WHERE tunnel = %s ORDER BY seq", (tunnel_id,)
    )
    return {channel: Assignment(LeaseStatus(status), *rest) for channel, status, *rest in rows}


def _store(
    statements: TunnelStatements, tunnel_id: str, before: Mapping[str, Assignment], after: Mapping[str, Assignment]
) -> None:
    for channel, held in after.items():
        if held != before[channel]:
            statements.execute(
                "UPDATE headrace.channel SET lease = %s, version = %s, client = %s, since = %s"
                " WHERE tunnel = %s AND id = %s",
                (held.status.value, held.version, held.client, held.since, tunnel_id, channel),
            )
