"""Clients that share a tunnel's channels: table ``tunnel_client``, and the leases and saves in table ``channel``.

Every call is one transaction, so clients in all processes see one order of events. The rules are in
`headrace.model.tunnels.assignment`. A client is dead after its timeout, even if no other client has noticed it.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import apsw

from headrace.errors import ClientGoneError, NotFoundError, OptionError, SequenceNumberError, TunnelTakenError
from headrace.model.tunnels import assignment
from headrace.model.tunnels.assignment import Assignment, ClientLife
from headrace.model.tunnels.leases import Lease, LeaseStatus, Saved
from headrace.model.tunnels.values import FINISHED, Channel, Position
from headrace.ports import TunnelClient
from headrace.stores.embedded.connection import Database

# The value of column ``reader`` of a tunnel while clients read it. A query writes the id of its first batch.
_CLIENTS = "clients"
# The number of finished channels that are kept for descriptions of the tunnel.
_FINISHED_KEPT = 64


class Holder(NamedTuple):
    """The live client that has a channel, and the status of its lease."""

    client: str
    tag: str
    status: LeaseStatus


class SharedTunnel(Protocol):
    """The methods of an embedded tunnel that its clients call, see `headrace.stores.embedded.tunnels.tunnel`."""

    id: str
    name: str

    def channels(self) -> list[Channel]: ...

    def committed(self, connection: apsw.Connection, channel: str) -> Position: ...

    def save_positions(self, connection: apsw.Connection, positions: Mapping[str, Position]) -> None: ...

    def forget_finished(self, connection: apsw.Connection, *, keep: int = 0) -> None: ...


class EmbeddedTunnelClient(TunnelClient):
    """A client of a tunnel of the embedded store, created by `connect` and `find`."""

    def __init__(self, database: Database, tunnel: SharedTunnel, id: str, timeout: float) -> None:
        self._database = database
        self._tunnel = tunnel
        self.id = id
        self.timeout = timeout

    def __repr__(self) -> str:
        return f"EmbeddedTunnelClient({self.id} of tunnel {self._tunnel.name!r})"

    def heartbeat(self, leases: Sequence[Lease]) -> list[Lease]:
        with self._database.write() as connection:
            now = time.time()
            self._check(connection, now)
            connection.execute("UPDATE tunnel_client SET seen = ? WHERE id = ?", (now, self.id))
            # If the clock was set back, dead clients would otherwise live until it has caught up.
            connection.execute(
                "UPDATE tunnel_client SET seen = ?1 WHERE tunnel = ?2 AND seen > ?1", (now, self._tunnel.id)
            )
            before = _assignments(connection, self._tunnel.id)
            after = assignment.rebalance(
                {channel.id: channel.state for channel in self._tunnel.channels()},
                before,
                _lives(connection, self._tunnel.id),
                self.id,
                leases,
                now,
                suspended(connection, self._tunnel.id),
            )
            _store(connection, self._tunnel.id, before, after)
            connection.execute(
                "DELETE FROM tunnel_client WHERE tunnel = ? AND ? - ifnull(seen, connected) > timeout",
                (self._tunnel.id, now),
            )
        return assignment.leases_of(after, self.id)

    def saved(self, channel: str) -> Saved:
        with self._database.read() as connection:
            self._check(connection, time.time())
            return self._saved(connection, channel)

    def save(self, channel: str, position: Position, sequence: int) -> None:
        with self._database.write() as connection:
            self._check(connection, time.time())
            last = self._saved(connection, channel).sequence
            if not last < sequence < 1 << 63:
                raise SequenceNumberError(
                    f"channel {channel} is already saved with this number or a higher one",
                    received=f"sequence number {sequence}",
                    valid=f"above {last}",
                    remedy="another client may read the channel: fetch the saved position and use its number",
                )
            connection.execute(
                "UPDATE channel SET sequence = ? WHERE tunnel = ? AND id = ?", (sequence, self._tunnel.id, channel)
            )
            self._tunnel.save_positions(connection, {channel: position})
            if position == FINISHED:
                self._tunnel.forget_finished(connection, keep=_FINISHED_KEPT)

    def close(self) -> None:
        with self._database.write() as connection:
            connection.execute("DELETE FROM tunnel_client WHERE id = ?", (self.id,))
            connection.execute(
                "UPDATE channel SET client = NULL, lease = ?, version = version + 1, since = ?"
                " WHERE tunnel = ? AND client = ?",
                (LeaseStatus.CLOSE.value, time.time(), self._tunnel.id, self.id),
            )

    def _saved(self, connection: apsw.Connection, channel: str) -> Saved:
        position = self._tunnel.committed(connection, channel)
        ((sequence,),) = connection.execute(
            "SELECT sequence FROM channel WHERE tunnel = ? AND id = ?", (self._tunnel.id, channel)
        )
        return Saved(position, sequence)

    def _check(self, connection: apsw.Connection, now: float) -> None:
        """Raise an error if this client is dead, or a query has taken the tunnel."""
        reader = connection.execute("SELECT reader FROM tunnel WHERE id = ?", (self._tunnel.id,)).fetchone()
        if reader is None:
            raise NotFoundError("the tunnel was dropped", received=self._tunnel.id, remedy="create a new tunnel")
        life = connection.execute(
            "SELECT ifnull(seen, connected), timeout FROM tunnel_client WHERE id = ? AND tunnel = ?",
            (self.id, self._tunnel.id),
        ).fetchone()
        if life is None or ClientLife(*life).timed_out(now):
            raise ClientGoneError(
                "the client was closed, or sent no heartbeat within its timeout",
                received=self.id,
                remedy="connect again, and read from the saved positions",
            )
        if reader[0] != _CLIENTS:
            raise TunnelTakenError(
                "a streaming query has started to read this tunnel",
                received=f"tunnel {self._tunnel.id}",
                remedy="create a tunnel for the query, and another one for its clients",
            )


def connect(database: Database, tunnel: SharedTunnel, tag: str, timeout: float) -> EmbeddedTunnelClient:
    """Add a client to a tunnel; it gets channels with its first heartbeat. A query that reads the tunnel fails."""
    if not (math.isfinite(timeout) and timeout > 0):
        raise OptionError("the timeout of a client must be a positive number of seconds", received=timeout)
    client_id = str(uuid.uuid4())
    with database.write() as connection:
        connection.execute("UPDATE tunnel SET reader = ? WHERE id = ?", (_CLIENTS, tunnel.id))
        if not connection.changes():
            raise NotFoundError("the tunnel was dropped", received=tunnel.id, remedy="create a new tunnel")
        connection.execute(
            "INSERT INTO tunnel_client (id, tunnel, tag, timeout, connected) VALUES (?, ?, ?, ?, ?)",
            (client_id, tunnel.id, tag, timeout, time.time()),
        )
    return EmbeddedTunnelClient(database, tunnel, client_id, timeout)


def find(database: Database, tunnel: SharedTunnel, client_id: str) -> EmbeddedTunnelClient:
    """Return a connected client; see `headrace.ports.Tunnel.client`."""
    with database.read() as connection:
        found = connection.execute("SELECT timeout FROM tunnel_client WHERE id = ?", (client_id,)).fetchone()
        client = EmbeddedTunnelClient(database, tunnel, client_id, 0.0 if found is None else found[0])
        client._check(connection, time.time())
    return client


def holders(connection: apsw.Connection, tunnel_id: str) -> dict[str, Holder]:
    """Return the live clients that have channels of a tunnel, by channel."""
    found = connection.execute(
        "SELECT channel.id, c.id, c.tag, channel.lease FROM channel JOIN tunnel_client c ON c.id = channel.client"
        " WHERE channel.tunnel = ?1 AND c.tunnel = ?1 AND ?2 - ifnull(c.seen, c.connected) <= c.timeout",
        (tunnel_id, time.time()),
    )
    return {channel: Holder(client, tag, LeaseStatus(status)) for channel, client, tag, status in found}


def suspended(connection: apsw.Connection, tunnel_id: str) -> frozenset[str]:
    """Return the channels of a tunnel that are suspended: no client gets them."""
    found = connection.execute("SELECT id FROM channel WHERE tunnel = ? AND suspended", (tunnel_id,))
    return frozenset(row[0] for row in found)


def _lives(connection: apsw.Connection, tunnel_id: str) -> dict[str, ClientLife]:
    """Return the clients that have sent a heartbeat; the others would not read the channels that they get."""
    found = connection.execute(
        "SELECT id, seen, timeout FROM tunnel_client WHERE tunnel = ? AND seen IS NOT NULL", (tunnel_id,)
    )
    return {client: ClientLife(seen, timeout) for client, seen, timeout in found}


def _assignments(connection: apsw.Connection, tunnel_id: str) -> dict[str, Assignment]:
    found = connection.execute("SELECT id, lease, version, client, since FROM channel WHERE tunnel = ?", (tunnel_id,))
    return {channel: Assignment(LeaseStatus(status), *rest) for channel, status, *rest in found}


def _store(
    connection: apsw.Connection, tunnel_id: str, before: Mapping[str, Assignment], after: Mapping[str, Assignment]
) -> None:
    connection.executemany(
        "UPDATE channel SET lease = ?, version = ?, client = ?, since = ? WHERE tunnel = ? AND id = ?",
        [
            (held.status.value, held.version, held.client, held.since, tunnel_id, channel)
            for channel, held in after.items()
            if held != before[channel]
        ],
    )
