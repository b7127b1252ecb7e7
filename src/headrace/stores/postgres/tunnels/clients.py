"""Clients that share a tunnel's channels: table ``tunnel_client``, and the leases and saves in table ``channel``.

Every call is one transaction that locks the tunnel, so clients in all processes see one order of events.
`headrace.model.tunnels.assignment` has the rules. A client is dead after its timeout, even if no other client has
noticed it.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from headrace.errors import ClientGoneError, OptionError, SequenceNumberError, TunnelTakenError
from headrace.model.tunnels import assignment
from headrace.model.tunnels.assignment import Assignment, ClientLife
from headrace.model.tunnels.leases import Lease, LeaseStatus, Saved
from headrace.model.tunnels.values import Channel, Position
from headrace.ports import TunnelClient
from headrace.stores.postgres.tunnels.batches import lock_tunnel
from headrace.stores.postgres.tunnels.meta_tables import Database, Statements

# The value of column ``reader`` of a tunnel while clients read it. A query writes the id of its first batch.
_CLIENTS = "clients"


class Holder(NamedTuple):
    """The live client that has a channel, and the status of its lease."""

    client: str
    tag: str
    status: LeaseStatus


class SharedTunnel(Protocol):
    """The methods of a tunnel that its clients call, see `headrace.stores.postgres.tunnels.tunnel`."""

    id: str
    name: str

    def channels(self) -> list[Channel]: ...

    def committed(self, statements: Statements, channel: str) -> Position: ...

    def save_positions(self, statements: Statements, positions: Mapping[str, Position]) -> None: ...

    def release_log(self) -> None: ...


class PostgresTunnelClient(TunnelClient):
    """A client of a tunnel, created by `connect` and `find`."""

    def __init__(self, database: Database, tunnel: SharedTunnel, id: str, timeout: float) -> None:
        self._database = database
        self._tunnel = tunnel
        self.id = id
        self.timeout = timeout

    def __repr__(self) -> str:
        return f"PostgresTunnelClient({self.id} of tunnel {self._tunnel.name!r})"

    def heartbeat(self, leases: Sequence[Lease]) -> list[Lease]:
        channels = {channel.id: channel.state for channel in self._tunnel.channels()}

        def beat(statements: Statements) -> dict[str, Assignment]:
            now = time.time()
            self._check(statements, now)
            # If the clock was set back, dead clients would otherwise live until it has caught up.
            statements.execute(
                "UPDATE headrace.tunnel_client SET seen = %(now)s"
                " WHERE tunnel = %(tunnel)s AND (id = %(id)s OR seen > %(now)s)",
                {"now": now, "tunnel": self._tunnel.id, "id": self.id},
            )
            before = _assignments(statements, self._tunnel.id)
            lives = _lives(statements, self._tunnel.id)
            after = assignment.rebalance(channels, before, lives, self.id, leases, now, frozenset())
            _store(statements, self._tunnel.id, before, after)
            statements.execute(
                "DELETE FROM headrace.tunnel_client WHERE tunnel = %s AND %s - coalesce(seen, connected) > timeout",
                (self._tunnel.id, now),
            )
            return after

        return assignment.leases_of(self._database.run(beat), self.id)

    def saved(self, channel: str) -> Saved:
        def read(statements: Statements) -> Saved:
            self._check(statements, time.time())
            return self._saved(statements, channel)

        return self._database.run(read)

    def save(self, channel: str, position: Position, sequence: int) -> None:
        def write(statements: Statements) -> None:
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
            self._tunnel.save_positions(statements, {channel: position})

        # The second time, the sequence number would be used.
        self._database.run(write, repeatable=False)
        self._tunnel.release_log()

    def close(self) -> None:
        def end(statements: Statements) -> None:
            statements.execute("DELETE FROM headrace.tunnel_client WHERE id = %s", (self.id,))
            statements.execute(
                "UPDATE headrace.channel SET client = NULL, lease = %s, version = version + 1, since = %s"
                " WHERE tunnel = %s AND client = %s",
                (LeaseStatus.CLOSE.value, time.time(), self._tunnel.id, self.id),
            )

        self._database.run(end)

    def _saved(self, statements: Statements, channel: str) -> Saved:
        position = self._tunnel.committed(statements, channel)
        found = statements.execute(
            "SELECT sequence FROM headrace.channel WHERE tunnel = %s AND id = %s", (self._tunnel.id, channel)
        ).fetchone()
        return Saved(position, 0 if found is None else found[0])

    def _check(self, statements: Statements, now: float) -> None:
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


def connect(database: Database, tunnel: SharedTunnel, tag: str, timeout: float) -> PostgresTunnelClient:
    """Add a client to a tunnel; it gets channels with its first heartbeat. A query that reads the tunnel fails."""
    if not (math.isfinite(timeout) and timeout > 0):
        raise OptionError("the timeout of a client must be a positive number of seconds", received=timeout)
    client_id = str(uuid.uuid4())

    def add(statements: Statements) -> None:
        lock_tunnel(statements, tunnel.id)
        statements.execute("UPDATE headrace.tunnel SET reader = %s WHERE id = %s", (_CLIENTS, tunnel.id))
        statements.execute(
            "INSERT INTO headrace.tunnel_client (id, tunnel, tag, timeout, connected) VALUES (%s, %s, %s, %s, %s)"
            " ON CONFLICT (id) DO NOTHING",
            (client_id, tunnel.id, tag, timeout, time.time()),
        )

    database.run(add)
    return PostgresTunnelClient(database, tunnel, client_id, timeout)


def find(database: Database, tunnel: SharedTunnel, client_id: str) -> PostgresTunnelClient:
    """Return a connected client; see `headrace.ports.Tunnel.client`."""

    def read(statements: Statements) -> PostgresTunnelClient:
        found = statements.first("SELECT timeout FROM headrace.tunnel_client WHERE id = %s", (client_id,))
        client = PostgresTunnelClient(database, tunnel, client_id, 0.0 if found is None else found[0])
        client._check(statements, time.time())
        return client

    return database.run(read)


def holders(statements: Statements, tunnel_id: str) -> dict[str, Holder]:
    """Return the live clients that have channels of a tunnel, by channel."""
    found = statements.execute(
        "SELECT h.id, c.id, c.tag, h.lease FROM headrace.channel h JOIN headrace.tunnel_client c ON c.id = h.client"
        " WHERE h.tunnel = %(tunnel)s AND c.tunnel = %(tunnel)s"
        " AND %(now)s - coalesce(c.seen, c.connected) <= c.timeout",
        {"tunnel": tunnel_id, "now": time.time()},
    )
    return {channel: Holder(client, tag, LeaseStatus(status)) for channel, client, tag, status in found}


def _lives(statements: Statements, tunnel_id: str) -> dict[str, ClientLife]:
    """Return the clients that have sent a heartbeat; the others would not read the channels that they get."""
    found = statements.execute(
        "SELECT id, seen, timeout FROM headrace.tunnel_client WHERE tunnel = %s AND seen IS NOT NULL", (tunnel_id,)
    )
    return {client: ClientLife(seen, timeout) for client, seen, timeout in found}


def _assignments(statements: Statements, tunnel_id: str) -> dict[str, Assignment]:
    found = statements.execute(
        "SELECT id, lease, version, client, since FROM headrace.channel WHERE tunnel = %s ORDER BY seq", (tunnel_id,)
    )
    return {channel: Assignment(LeaseStatus(status), *rest) for channel, status, *rest in found}


def _store(
    statements: Statements, tunnel_id: str, before: Mapping[str, Assignment], after: Mapping[str, Assignment]
) -> None:
    for channel, held in after.items():
        if held != before[channel]:
            statements.execute(
                "UPDATE headrace.channel SET lease = %s, version = %s, client = %s, since = %s"
                " WHERE tunnel = %s AND id = %s",
                (held.status.value, held.version, held.client, held.since, tunnel_id, channel),
            )
