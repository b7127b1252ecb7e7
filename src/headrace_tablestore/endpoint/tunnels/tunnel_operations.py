"""Operations on tunnels: create, delete, list, describe, schedule, and their recovery point (RPO).

The operations of a tunnel's clients are in `clients`.
"""

from __future__ import annotations

import contextlib
import time

from headrace.errors import DataLossError, NotFoundError
from headrace.model.tunnels.values import FINISHED, Channel, ChannelKind, ChannelState, TunnelKind
from headrace.ports import Tunnel, TunnelDescription
from headrace.stores.embedded.for_servers import EmbeddedTunnel
from headrace_tablestore.endpoint.errors import invalid
from headrace_tablestore.endpoint.instances import Instance
from headrace_tablestore.endpoint.tables.table_operations import enable_stream
from headrace_tablestore.endpoint.tunnels.channels import (
    consumed_until,
    rpo_of_channels,
    rpo_of_kinds,
    stage_of,
    status_of,
    store_id,
    tunnel_consumed_until,
    wire_id,
)
from headrace_tablestore.endpoint.tunnels.errors import missing, translated
from headrace_tablestore.endpoint.tunnels.stream_bounds import StreamBounds
from headrace_tablestore.wire import tunnel_pb2 as pb

_MAX_NAME = 255


@translated()
def create_tunnel(instance: Instance, request: pb.CreateTunnelRequest) -> pb.CreateTunnelResponse:
    """Create a tunnel. Only tunnels of type Stream have a start and an end; other tunnels begin now."""
    asked = request.tunnel
    kind = TunnelKind(pb.TunnelType.Name(asked.tunnel_type))
    if not 0 < len(asked.tunnel_name) <= _MAX_NAME:
        raise invalid("a tunnel's name has 1 to 255 characters", received=f"{len(asked.tunnel_name)} characters")
    check_table(asked.table_name)
    table = instance.table(asked.table_name)
    bounds = StreamBounds.of(asked.stream_tunnel_config, table.describe().options.retention_seconds)
    if kind is not TunnelKind.STREAM:
        if bounds.start or bounds.end:
            raise invalid("only a tunnel of type Stream can have a start and an end", received=kind.value)
        bounds = StreamBounds()
    try:
        tunnel = instance.store.create_tunnel(table.name, asked.tunnel_name, kind, start=bounds.begin)
    except DataLossError as error:
        raise invalid(error.problem, received=error.received) from error
    if instance.settings.get(table.name).created:
        enable_stream(instance, table.name)
    if bounds != StreamBounds():
        instance.stream_bounds.save(tunnel.id, bounds)
    return pb.CreateTunnelResponse(tunnel_id=tunnel.id)


@translated()
def delete_tunnel(instance: Instance, request: pb.DeleteTunnelRequest) -> pb.DeleteTunnelResponse:
    tunnel = _named(instance, request)
    instance.store.drop_tunnel(tunnel.id)
    instance.stream_bounds.delete(tunnel.id)
    return pb.DeleteTunnelResponse()


@translated()
def list_tunnels(instance: Instance, request: pb.ListTunnelRequest) -> pb.ListTunnelResponse:
    """Return the tunnels of a table; without a name, of all tables."""
    if request.table_name:
        check_table(request.table_name)
    response = pb.ListTunnelResponse()
    for tunnel in instance.store.tunnels(request.table_name or None):
        # A tunnel that was dropped in the meantime is omitted.
        with contextlib.suppress(NotFoundError):
            response.tunnels.append(_info(instance, tunnel, tunnel.describe()))
    return response


@translated()
def describe_tunnel(instance: Instance, request: pb.DescribeTunnelRequest) -> pb.DescribeTunnelResponse:
    """Return a tunnel and its channels. Channels finished long ago may be missing."""
    tunnel = _named(instance, request)
    description, now = tunnel.describe(), time.time_ns()
    return pb.DescribeTunnelResponse(
        tunnel=_info(instance, tunnel, description),
        channels=[
            pb.ChannelInfo(
                channel_id=wire_id(each.channel.id),
                channel_type=each.channel.kind.value,
                channel_status=status_of(each).value,
                client_id=each.client or "",
                channel_rpo=consumed_until(each, now),
            )
            for each in description.channels
        ],
        tunnel_rpo=tunnel_consumed_until(description, now),
    )


@translated()
def get_rpo(instance: Instance, request: pb.GetRpoRequest) -> pb.GetRpoResponse:
    """Return the recovery points of channels: of the first ``limit`` channels, or of all."""
    if request.limit < 0:
        raise invalid("a limit cannot be negative", received=request.limit)
    tunnel = tunnel_of(instance, request.tunnel_id)
    description, now = tunnel.describe(), time.time_ns()
    return pb.GetRpoResponse(
        rpo_infos=rpo_of_channels(description, now, request.limit or None),
        tunnel_rpo_infos=rpo_of_kinds(description, now),
        tunnel_id=tunnel.id,
    )


@translated()
def schedule(instance: Instance, request: pb.ScheduleRequest) -> pb.ScheduleResponse:
    """Take channels from their clients (CLOSING), allow to read them again (OPEN), or finish them (TERMINATED).

    A waiting channel cannot be opened, because its changes would be read before the changes of its parents.
    """
    tunnel = tunnel_of(instance, request.tunnel_id)
    assert isinstance(tunnel, EmbeddedTunnel)
    states = {channel.id: channel.state for channel in tunnel.channels()}
    wanted = {store_id(channel.channel_id): channel.status for channel in request.channels}
    for channel, status in wanted.items():
        if channel not in states:
            raise missing("channel")
        if status == pb.CLOSE:
            raise invalid("a request cannot set a channel to CLOSE", valid="OPEN, CLOSING, TERMINATED")
        if status == pb.OPEN and states[channel] is ChannelState.WAITING:
            raise invalid("the channel waits for its parents", received=f"OPEN for {wire_id(channel)!r}")
    for channel, status in wanted.items():
        if status == pb.TERMINATED:
            tunnel.commit({channel: FINISHED})
        else:
            tunnel.suspend(channel, suspended=status == pb.CLOSING)
    return pb.ScheduleResponse()


def check_table(name: str) -> None:
    """Raise `ServiceError` for a table of the endpoint itself, which clients cannot see."""
    if name.startswith(":"):
        raise missing("table")


def tunnel_of(instance: Instance, tunnel_id: str) -> Tunnel:
    """Return a tunnel by its id.

    Raises:
        ServiceError: the tunnel does not exist.
    """
    with translated():
        tunnel = instance.store.tunnel(tunnel_id)
    # The store also finds tunnels by name.
    if tunnel.id != tunnel_id:
        raise missing("tunnel")
    return tunnel


def is_expired(tunnel: Tunnel, channels: list[Channel]) -> bool:
    """Return whether changes were deleted that an open channel has not read."""
    return any(
        channel.kind is ChannelKind.STREAM and channel.state is ChannelState.OPEN and _has_lost(tunnel, channel)
        for channel in channels
    )


def _has_lost(tunnel: Tunnel, channel: Channel) -> bool:
    try:
        return tunnel.skip_lost(channel.id, channel.committed)[1] != 0
    except NotFoundError:
        # In the meantime another client has finished the channel, and the store has deleted it.
        return False


def _named(instance: Instance, request: pb.DeleteTunnelRequest | pb.DescribeTunnelRequest) -> Tunnel:
    """Return the tunnel of a request, by its table and name, and by its id if there is one."""
    check_table(request.table_name)
    for tunnel in instance.store.tunnels(request.table_name):
        if tunnel.name == request.tunnel_name and request.tunnel_id in ("", tunnel.id):
            return tunnel
    raise missing("tunnel")


def _info(instance: Instance, tunnel: Tunnel, description: TunnelDescription) -> pb.TunnelInfo:
    channels = [each.channel for each in description.channels]
    stream = instance.settings.get(tunnel.table.name).stream
    bounds = instance.stream_bounds.get(tunnel.id) if tunnel.kind is TunnelKind.STREAM else StreamBounds()
    return pb.TunnelInfo(
        tunnel_id=tunnel.id,
        tunnel_type=tunnel.kind.value,
        table_name=tunnel.table.name,
        instance_name=instance.name,
        stream_id=tunnel.table.name if stream is None else stream.id,
        stage=stage_of(channels),
        expired=is_expired(tunnel, channels),
        tunnel_name=tunnel.name,
        stream_tunnel_config=bounds.config,
        create_time=round(description.created * 1_000_000) * 1000,
    )
