"""A client of the tunnel service: one of several readers that share a tunnel's channels."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from headrace.errors import ClientGoneError, NotFoundError
from headrace.model.tunnels.leases import Lease, Saved
from headrace.model.tunnels.values import Position
from headrace.ports import TunnelClient
from headrace_tablestore.store.tunnels.batches import TablestoreBatches
from headrace_tablestore.store.tunnels.service import TunnelService


class TablestoreTunnelClient(TunnelClient):
    """A connected client.

    Args:
        service: the calls of the tunnel service.
        batches: the records of the tunnel in the meta table.
        tunnel: the id of the tunnel.
        id: the id of the client.
        timeout: seconds without a heartbeat after which the service removes the client.
    """

    def __init__(
        self, service: TunnelService, batches: TablestoreBatches, tunnel: str, id: str, timeout: float
    ) -> None:
        self._service = service
        self._batches = batches
        self._tunnel = tunnel
        self.id = id
        self.timeout = timeout

    def __repr__(self) -> str:
        return f"TablestoreTunnelClient({self.id!r} of tunnel {self._tunnel})"

    def heartbeat(self, leases: Sequence[Lease]) -> list[Lease]:
        return self._service.heartbeat(self._tunnel, self.id, leases)

    def saved(self, channel: str) -> Saved:
        token, sequence = self._service.get_checkpoint(self._tunnel, self.id, channel)
        inside = self._batches.committed_in(channel)
        return Saved(inside if inside is not None and inside.token == token else Position(token), sequence)

    def save(self, channel: str, position: Position, sequence: int) -> None:
        """Save a committed position: the service saves its page, the meta table a position inside the page.

        The service rejects a client that has lost the channel. If the client is killed before the second write, the
        page is read again.
        """
        self._service.checkpoint(self._tunnel, self.id, channel, position.token, sequence)
        if position.skip:
            self._batches.save_committed({channel: position})

    def close(self) -> None:
        with contextlib.suppress(ClientGoneError, NotFoundError):
            self._service.shutdown(self._tunnel, self.id)
