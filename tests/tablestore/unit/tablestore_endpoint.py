"""The tunnel service of the Tablestore endpoint for tests: its handlers with an embedded store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace_tablestore.endpoint.errors import service_error
from headrace_tablestore.endpoint.instances import Instance
from headrace_tablestore.endpoint.tunnels import clients
from headrace_tablestore.endpoint.tunnels import tunnel_operations as tunnels
from headrace_tablestore.wire import tunnel_pb2 as pb
from headrace_tablestore.wire.plainbuffer.rows import decode_row
from headrace_tablestore.wire.plainbuffer.values import Row

NOBODY = "spark-client"
COLUMNS = {"id": "long", "text": "string", "number": "double"}


class Service:
    """The handlers, with short signatures for tests."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.store = instance.store

    def table(self, name: str = "T", columns: dict[str, str] | None = None, key: Any = "id", **options: Any) -> Any:
        return self.store.create_table(name, columns or COLUMNS, key, **options)

    def create(self, kind: str = "BaseAndStream", name: str = "tunnel", table: str = "T", **config: Any) -> str:
        tunnel = pb.Tunnel(table_name=table, tunnel_name=name, tunnel_type=kind)
        if config:
            tunnel.stream_tunnel_config.CopyFrom(pb.StreamTunnelConfig(**config))
        return tunnels.create_tunnel(self.instance, pb.CreateTunnelRequest(tunnel=tunnel)).tunnel_id

    def describe(self, name: str = "tunnel", table: str = "T", id: str = "") -> pb.DescribeTunnelResponse:
        request = pb.DescribeTunnelRequest(table_name=table, tunnel_name=name, tunnel_id=id)
        return tunnels.describe_tunnel(self.instance, request)

    def statuses(self) -> dict[str, str]:
        return {channel.channel_id: channel.channel_status for channel in self.describe().channels}

    def list(self, table: str = "") -> list[str]:
        found = tunnels.list_tunnels(self.instance, pb.ListTunnelRequest(table_name=table)).tunnels
        return [tunnel.tunnel_name for tunnel in found]

    def delete(self, name: str = "tunnel", id: str = "") -> None:
        request = pb.DeleteTunnelRequest(table_name="T", tunnel_name=name, tunnel_id=id)
        tunnels.delete_tunnel(self.instance, request)

    def schedule(self, tunnel: str, **channels: pb.ChannelStatus | str) -> None:
        wanted = [
            pb.Channel(channel_id=channel.replace("_", "-"), version=0, status=status)
            for channel, status in channels.items()
        ]
        tunnels.schedule(self.instance, pb.ScheduleRequest(tunnel_id=tunnel, channels=wanted))

    def connect(self, tunnel: str, timeout: int = 300) -> str:
        config = pb.ClientConfig(timeout=timeout, client_tag="test")
        return clients.connect(self.instance, pb.ConnectRequest(tunnel_id=tunnel, client_config=config)).client_id

    def heartbeat(self, tunnel: str, client: str, *report: pb.Channel) -> dict[str, pb.Channel]:
        request = pb.HeartbeatRequest(tunnel_id=tunnel, client_id=client, channels=report)
        return {channel.channel_id: channel for channel in clients.heartbeat(self.instance, request).channels}

    def shutdown(self, tunnel: str, client: str) -> None:
        clients.shutdown(self.instance, pb.ShutdownRequest(tunnel_id=tunnel, client_id=client))

    def checkpoint(self, tunnel: str, channel: str, client: str = NOBODY) -> pb.GetCheckpointResponse:
        request = pb.GetCheckpointRequest(tunnel_id=tunnel, client_id=client, channel_id=channel)
        return clients.get_checkpoint(self.instance, request)

    def save(self, tunnel: str, channel: str, token: str, number: int = 0, client: str = NOBODY) -> None:
        request = pb.CheckpointRequest(
            tunnel_id=tunnel, client_id=client, channel_id=channel, checkpoint=token, sequence_number=number
        )
        clients.checkpoint(self.instance, request)

    def read(self, tunnel: str, channel: str, token: str | None = None) -> pb.ReadRecordsResponse:
        token = self.checkpoint(tunnel, channel).checkpoint if token is None else token
        request = pb.ReadRecordsRequest(tunnel_id=tunnel, client_id=NOBODY, channel_id=channel, token=token)
        return pb.ReadRecordsResponse.FromString(clients.read_records(self.instance, request).SerializeToString())


def refused(code: str, call: Callable[..., Any], *arguments: Any, **named: Any) -> str:
    """Assert that a call fails with a code; return the message."""
    with pytest.raises(Exception) as caught:
        call(*arguments, **named)
    told = service_error(caught.value)
    assert told is not None, caught.value
    assert told.code == code, told.message
    return told.message


def rows_of(page: pb.ReadRecordsResponse) -> list[Row]:
    return [decode_row(record.record) for record in page.records]


def values(row: Row) -> dict[str, Any]:
    return {cell.name: cell.op or cell.value for cell in row.cells}


def read_all(service: Service, tunnel: str, channel: str) -> tuple[list[Row], str]:
    """Read a channel until there are no more changes."""
    rows: list[Row] = []
    token = service.checkpoint(tunnel, channel).checkpoint
    while True:
        page = service.read(tunnel, channel, token)
        rows += rows_of(page)
        if not page.may_more_record:
            return rows, page.next_token
        token = page.next_token
