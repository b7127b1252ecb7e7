"""Tunnels in the service: creating, finding and dropping them."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.model.tunnels.validation import Named, check_new, find, microseconds
from headrace.model.tunnels.values import Start, StartKind, TunnelKind
from headrace_tablestore.store.connection import TablestoreConnection
from headrace_tablestore.store.meta_table import MetaTable
from headrace_tablestore.store.tunnels.batches import TablestoreBatches
from headrace_tablestore.store.tunnels.service import TunnelService
from headrace_tablestore.wire import tunnel_pb2 as pb


def create_tunnel(
    connection: TablestoreConnection,
    table: str,
    name: str,
    kind: TunnelKind,
    start: Start,
    base_channels: int | None = None,
) -> str:
    """Create a tunnel and return its id; see `headrace.ports.Store.create_tunnel`.

    Args:
        base_channels: ignored; the service divides base data itself.

    Raises:
        AlreadyExistsError: the table has a tunnel of this name.
        NotFoundError: the table does not exist.
        OptionError: the name is invalid, or this kind of tunnel cannot have this start.
    """
    check_new(name, kind, start, base_channels)
    config = None
    if start.timestamp is not None:
        config = pb.StreamTunnelConfig(start_offset=microseconds(start.timestamp) * 1000)
    elif kind is TunnelKind.STREAM:
        config = pb.StreamTunnelConfig(flag=pb.EARLIEST if start.kind is StartKind.EARLIEST else pb.LATEST)
    return TunnelService(connection).create(table, name, kind, start=config)


def list_tunnels(connection: TablestoreConnection, table: str | None = None) -> list[pb.TunnelInfo]:
    """Return the tunnels of one or all tables, the oldest first."""
    infos: Sequence[pb.TunnelInfo] = TunnelService(connection).tunnels(table)
    return sorted(infos, key=lambda info: (info.create_time, info.tunnel_id))


def find_tunnel(connection: TablestoreConnection, id_or_name: str, table: str | None = None) -> pb.TunnelInfo:
    """Return a tunnel by its id, or by its name if that is unique.

    Raises:
        NotFoundError: the tunnel does not exist.
        OptionError: several tables have a tunnel of this name.
    """
    tunnels = list_tunnels(connection, table)
    return find(tunnels, lambda info: Named(info.tunnel_id, info.tunnel_name, info.table_name), id_or_name, table)


def drop_tunnel(connection: TablestoreConnection, meta: MetaTable, info: pb.TunnelInfo) -> None:
    """Remove a tunnel, and its rows in the meta table."""
    TunnelService(connection).delete(info.table_name, info.tunnel_name)
    TablestoreBatches(meta, info.tunnel_id).forget_all()
