"""The calls of the tunnel service, one for each of its paths."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from headrace.errors import SequenceNumberError
from headrace.model.tunnels.leases import Lease, LeaseStatus
from headrace.model.tunnels.values import TunnelKind
from headrace_tablestore.store.connection import TablestoreConnection
from headrace_tablestore.wire import tunnel_pb2 as pb


class TunnelService:
    """The calls of the tunnel service. Ids are texts of the service; every call is one request.

    Errors are those of `TablestoreConnection.call`: NotFoundError for a missing tunnel, ClientGoneError for a client
    past its time-out, DataLossError for removed changes.
    """

    def __init__(self, connection: TablestoreConnection) -> None:
        self._connection = connection

    # -- tunnels ------------------------------------------------------------------------------------

    def create(self, table: str, name: str, kind: TunnelKind, *, start: pb.StreamTunnelConfig | None = None) -> str:
        """Create a tunnel and return its id. The service enables the table's stream if it is not enabled.

        Args:
            start: for a Stream tunnel, where it begins and ends.

        Raises:
            AlreadyExistsError: the table has a tunnel of this name.
        """
        tunnel = pb.Tunnel(table_name=table, tunnel_name=name, tunnel_type=kind.value)
        if start is not None:
            tunnel.stream_tunnel_config.CopyFrom(start)
        request = pb.CreateTunnelRequest(tunnel=tunnel)
        return self._connection.call("/tunnel/create", request, pb.CreateTunnelResponse).tunnel_id

    def delete(self, table: str, name: str) -> None:
        """Remove a tunnel."""
        request = pb.DeleteTunnelRequest(table_name=table, tunnel_name=name)
        self._connection.call("/tunnel/delete", request, pb.DeleteTunnelResponse)

    def tunnels(self, table: str | None = None) -> Sequence[pb.TunnelInfo]:
        """Return the tunnels of a table, or of all."""
        request = pb.ListTunnelRequest(table_name=table)
        return self._connection.call("/tunnel/list", request, pb.ListTunnelResponse).tunnels

    def describe(self, table: str, name: str) -> pb.DescribeTunnelResponse:
        """Return a tunnel with its channels. ``*_rpo`` are nanoseconds since 1970."""
        request = pb.DescribeTunnelRequest(table_name=table, tunnel_name=name)
        return self._connection.call("/tunnel/describe", request, pb.DescribeTunnelResponse)

    def schedule(self, tunnel: str, channels: Iterable[tuple[str, LeaseStatus]]) -> None:
        """Set the status of channels: OPEN, CLOSING or TERMINATED."""
        leases = [Lease(channel, 0, status) for channel, status in channels]
        request = pb.ScheduleRequest(tunnel_id=tunnel, channels=_channels(leases))
        self._connection.call("/tunnel/schedule", request, pb.ScheduleResponse)

    # -- clients ------------------------------------------------------------------------------------

    def connect(self, tunnel: str, *, tag: str, timeout: float) -> str:
        """Connect a client and return its id.

        Args:
            timeout: seconds without a heartbeat after which the service removes the client; a whole number.
        """
        config = pb.ClientConfig(timeout=math.ceil(timeout), client_tag=tag)
        request = pb.ConnectRequest(tunnel_id=tunnel, client_config=config)
        return self._connection.call("/tunnel/connect", request, pb.ConnectResponse).client_id

    def heartbeat(self, tunnel: str, client: str, leases: Iterable[Lease]) -> list[Lease]:
        """Report a client's view of its channels; return its current channels."""
        request = pb.HeartbeatRequest(tunnel_id=tunnel, client_id=client, channels=_channels(leases))
        answer = self._connection.call("/tunnel/heartbeat", request, pb.HeartbeatResponse)
        return [
            Lease(channel.channel_id, channel.version, LeaseStatus(pb.ChannelStatus.Name(channel.status)))
            for channel in answer.channels
        ]

    def shutdown(self, tunnel: str, client: str) -> None:
        """Disconnect a client; other clients get its channels."""
        request = pb.ShutdownRequest(tunnel_id=tunnel, client_id=client)
        self._connection.call("/tunnel/shutdown", request, pb.ShutdownResponse)

    # -- channels -----------------------------------------------------------------------------------

    def get_checkpoint(self, tunnel: str, client: str, channel: str) -> tuple[str, int]:
        """Return the saved token of a channel, and the sequence number of its save."""
        request = pb.GetCheckpointRequest(tunnel_id=tunnel, client_id=client, channel_id=channel)
        answer = self._connection.call("/tunnel/getcheckpoint", request, pb.GetCheckpointResponse)
        return answer.checkpoint, answer.sequence_number

    def read_records(self, tunnel: str, client: str, channel: str, token: str) -> pb.ReadRecordsPage:
        """Return the records at a token. The first record of a token is always the same."""
        request = pb.ReadRecordsRequest(tunnel_id=tunnel, client_id=client, channel_id=channel, token=token)
        return self._connection.call("/tunnel/readrecords", request, pb.ReadRecordsPage)

    def checkpoint(self, tunnel: str, client: str, channel: str, token: str, sequence: int) -> None:
        """Save the token of a channel. Sequence number 0 is for callers without a client and always accepted.

        Raises:
            SequenceNumberError: the number is not above the saved one.
        """
        request = pb.CheckpointRequest(
            tunnel_id=tunnel, client_id=client, channel_id=channel, checkpoint=token, sequence_number=sequence
        )
        try:
            self._connection.call("/tunnel/checkpoint", request, pb.CheckpointResponse)
        except SequenceNumberError:
            # After a lost response, the retry finds its own sequence number.
            if self.get_checkpoint(tunnel, client, channel) != (token, sequence):
                raise


def _channels(leases: Iterable[Lease]) -> list[pb.Channel]:
    return [pb.Channel(channel_id=lease.channel, version=lease.version, status=lease.status.value) for lease in leases]
