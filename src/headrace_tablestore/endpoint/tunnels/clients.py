"""Operations of a tunnel's clients: connect, heartbeat, shut down, read records, read and save checkpoints.

Clients and their leases are those of the embedded store. Their ids are UUIDs. A caller with another id has not
connected: the vendor's Spark connector never connects. Such a caller may read, and save with sequence number 0. It must
not be used beside clients of the same tunnel.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
import uuid

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import ClientGoneError, DataLossError
from headrace.model.tables.schema import TableSchema, columns_of
from headrace.model.tunnels.leases import Lease, LeaseStatus, Saved
from headrace.model.tunnels.values import FINISHED, ChannelKind, Page, Position, TunnelKind
from headrace.ports import Tunnel
from headrace.stores.embedded.for_servers import row_of, row_position
from headrace_tablestore.endpoint.errors import invalid
from headrace_tablestore.endpoint.instances import Instance
from headrace_tablestore.endpoint.rows.layout import layout_of
from headrace_tablestore.endpoint.tunnels.channels import kind_of, position_of, store_id, token_of, wire_id
from headrace_tablestore.endpoint.tunnels.errors import client_gone, expired, missing, translated, trimmed
from headrace_tablestore.endpoint.tunnels.records import record_page
from headrace_tablestore.endpoint.tunnels.tunnel_operations import is_expired, tunnel_of
from headrace_tablestore.wire import tunnel_pb2 as pb
from headrace_tablestore.wire.limits import HEARTBEAT_TIMEOUT, MAX_PAGE_ROWS

_MAX_TAG = 1024


# -- clients ----------------------------------------------------------------------------------------------


@translated()
def connect(instance: Instance, request: pb.ConnectRequest) -> pb.ConnectResponse:
    """Connect a client. Its first heartbeat returns its channels."""
    tunnel = tunnel_of(instance, request.tunnel_id)
    config = request.client_config
    if len(config.client_tag) > _MAX_TAG:
        raise invalid("a client's tag is too long", valid=f"at most {_MAX_TAG} characters")
    _check_expired(tunnel)
    timeout = float(config.timeout) if config.HasField("timeout") else HEARTBEAT_TIMEOUT
    return pb.ConnectResponse(client_id=tunnel.connect(tag=config.client_tag, timeout=timeout).id)


@translated()
def heartbeat(instance: Instance, request: pb.HeartbeatRequest) -> pb.HeartbeatResponse:
    """Record a client's report of its channels, and return its current channels."""
    tunnel = tunnel_of(instance, request.tunnel_id)
    client = tunnel.client(request.client_id)
    _check_expired(tunnel)
    leases = [
        Lease(store_id(channel.channel_id), channel.version, LeaseStatus(pb.ChannelStatus.Name(channel.status)))
        for channel in request.channels
    ]
    return pb.HeartbeatResponse(
        channels=[
            pb.Channel(channel_id=wire_id(lease.channel), version=lease.version, status=lease.status.value)
            for lease in client.heartbeat(leases)
        ]
    )


@translated()
def shutdown(instance: Instance, request: pb.ShutdownRequest) -> pb.ShutdownResponse:
    """End a client. A repeated request succeeds, because the first response may have been lost."""
    tunnel = tunnel_of(instance, request.tunnel_id)
    with contextlib.suppress(ClientGoneError):
        tunnel.client(request.client_id).close()
    return pb.ShutdownResponse()


def _check_expired(tunnel: Tunnel) -> None:
    if is_expired(tunnel, tunnel.channels()):
        raise expired()


# -- checkpoints ------------------------------------------------------------------------------------------


@translated()
def get_checkpoint(instance: Instance, request: pb.GetCheckpointRequest) -> pb.GetCheckpointResponse:
    """Return the position from which a channel must be read."""
    tunnel = tunnel_of(instance, request.tunnel_id)
    channel, schema = store_id(request.channel_id), tunnel.table.schema
    if _may_be_client(request.client_id):
        saved = tunnel.client(request.client_id).saved(channel)
    else:
        saved = Saved(_committed(tunnel, channel), 0)
    return pb.GetCheckpointResponse(
        checkpoint=token_of(request.channel_id, saved.position, schema), sequence_number=saved.sequence
    )


@translated()
def checkpoint(instance: Instance, request: pb.CheckpointRequest) -> pb.CheckpointResponse:
    """Save the position of a channel. A position before the saved one changes only the sequence number."""
    tunnel = tunnel_of(instance, request.tunnel_id)
    channel, number = store_id(request.channel_id), request.sequence_number
    if number < 0:
        raise invalid("a sequence number cannot be negative", received=number)
    position = position_of(request.channel_id, request.checkpoint, tunnel.table.schema)
    _check_not_ahead(tunnel, channel, position)
    if _may_be_client(request.client_id):
        tunnel.client(request.client_id).save(channel, position, number)
    elif number == 0:
        tunnel.commit({channel: position})
    else:
        raise client_gone()
    return pb.CheckpointResponse()


def _may_be_client(client_id: str) -> bool:
    """Return whether the store may have issued a client's id."""
    try:
        return str(uuid.UUID(client_id)) == client_id
    except ValueError:
        return False


def _committed(tunnel: Tunnel, channel_id: str) -> Position:
    for channel in tunnel.channels():
        if channel.id == channel_id:
            return channel.committed
    raise missing("channel")


def _check_not_ahead(tunnel: Tunnel, channel: str, position: Position) -> None:
    """Raise `ServiceError` for a position after the end of a change log: the changes before it would be skipped."""
    if position != FINISHED and kind_of(wire_id(channel)) is ChannelKind.STREAM:
        end = tunnel.backlog(channel, row_position(0)).rows
        if end is not None and end < row_of(position):
            raise invalid("a token is ahead of its channel")


# -- records ----------------------------------------------------------------------------------------------


@translated()
def read_records(instance: Instance, request: pb.ReadRecordsRequest) -> pb.ReadRecordsPage:
    """Return changes from a token on. Any caller may read. The same token always returns the same first record."""
    tunnel = tunnel_of(instance, request.tunnel_id)
    channel, schema = store_id(request.channel_id), tunnel.table.schema
    position = position_of(request.channel_id, request.token, schema)
    page = _page(instance, tunnel, channel, position)
    count = page.changes.num_rows
    if count == 0:
        _check_not_ahead(tunnel, channel, position)
        return pb.ReadRecordsPage(
            next_token=token_of(request.channel_id, page.next, schema),
            may_more_record=_has_more(tunnel, channel, page.next),
        )
    # Columns may have been added since the schema was read.
    layout = layout_of(TableSchema(columns_of(page.changes.rows.schema), schema.primary_key))
    stream = instance.settings.get(tunnel.table.name).stream
    is_stream = kind_of(request.channel_id) is ChannelKind.STREAM
    first = row_of(position) if is_stream else 0
    sent = record_page(page.changes, layout, first, () if stream is None else stream.columns)
    cut = sent.changes < count
    following = tunnel.advance(channel, position, sent.changes) if cut else page.next
    response = pb.ReadRecordsPage(
        next_token=token_of(request.channel_id, following, schema),
        may_more_record=cut or _has_more(tunnel, channel, following),
    )
    response.MergeFromString(sent.message)
    return response


def _page(instance: Instance, tunnel: Tunnel, channel: str, position: Position) -> Page:
    """Read changes up to the end of the tunnel, if it has an end."""
    page = _read(tunnel, channel, position)
    if tunnel.kind is not TunnelKind.STREAM or page.next == FINISHED == position:
        return page
    bounds = instance.stream_bounds.get(tunnel.id)
    if not bounds.end:
        return page
    if not bounds.over and time.time_ns() >= bounds.end:
        # This commit comes after all commits before the end, so their changes can be read now.
        instance.stream_bounds.save(tunnel.id, dataclasses.replace(bounds, over=True))
        page, bounds = _read(tunnel, channel, position), dataclasses.replace(bounds, over=True)
    inside = pc.less(page.changes.timestamps.view(pa.int64()), -(-bounds.end // 1000))
    count = int(pc.sum(inside, min_count=0).as_py())
    if count < page.changes.num_rows or (bounds.over and count == 0):
        return Page(page.changes.slice(0, count), FINISHED)
    return page


def _read(tunnel: Tunnel, channel: str, position: Position) -> Page:
    try:
        return tunnel.read(channel, position, MAX_PAGE_ROWS)
    except DataLossError:
        is_stream = kind_of(wire_id(channel)) is ChannelKind.STREAM
        if is_stream and tunnel.skip_lost(channel, _committed(tunnel, channel))[1] != 0:
            raise expired() from None
        raise trimmed() from None


def _has_more(tunnel: Tunnel, channel: str, position: Position) -> bool:
    """Return whether more changes can be read now."""
    return position != FINISHED and not tunnel.backlog(channel, position).empty
