"""The life of a tunnel of the service: creating, finding, dropping it."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from headrace.errors import NotFoundError, OptionError
from headrace.model import Start, StartKind, TunnelKind
from headrace.stores.tablestore.connection import Connection
from headrace.stores.tablestore.meta import BatchRecords
from headrace.stores.tablestore.meta_table import MetaTable
from headrace.stores.tablestore.tunnel_service import TunnelService
from headrace.wire.tablestore import tunnel_pb2 as pb

_EPOCH = datetime.datetime.fromtimestamp(0, datetime.UTC)


def create_tunnel(
    connection: Connection,
    table: str,
    name: str,
    kind: TunnelKind,
    start: Start,
    base_channels: int | None = None,
) -> str:
    """Create a tunnel and return its id; see `headrace.ports.Store.create_tunnel`.

    Args:
        base_channels: a wish that the service does not know of; it cuts base data itself.

    Raises:
        AlreadyExistsError: the table has a tunnel of this name.
        NotFoundError: there is no such table.
        OptionError: no such name, or a start that this kind of tunnel cannot have.
    """
    _check_request(name, kind, start, base_channels)
    config = None
    if start.timestamp is not None:
        config = pb.StreamTunnelConfig(start_offset=microseconds(start.timestamp) * 1000)
    elif kind is TunnelKind.STREAM:
        config = pb.StreamTunnelConfig(flag=pb.EARLIEST if start.kind is StartKind.EARLIEST else pb.LATEST)
    return TunnelService(connection).create(table, name, kind, start=config)


def list_tunnels(connection: Connection, table: str | None = None) -> list[pb.TunnelInfo]:
    """Return the tunnels of a table, or of all, the oldest first."""
    found: Sequence[pb.TunnelInfo] = TunnelService(connection).tunnels(table)
    return sorted(found, key=lambda info: (info.create_time, info.tunnel_id))


def find_tunnel(connection: Connection, id_or_name: str, table: str | None = None) -> pb.TunnelInfo:
    """Return a tunnel by its id, or by its name where that is unique.

    Raises:
        NotFoundError: there is none.
        OptionError: several tables have a tunnel of this name.
    """
    known = list_tunnels(connection, table)
    found = [info for info in known if info.tunnel_id == id_or_name]
    found = found or [info for info in known if info.tunnel_name == id_or_name]
    if not found:
        where = "" if table is None else f" of table {table!r}"
        raise NotFoundError(
            f"no such tunnel{where}",
            received=repr(id_or_name),
            valid=sorted({info.tunnel_name for info in known}),
            remedy="give its id or its name",
        )
    if len(found) > 1:
        raise OptionError(
            "several tables have a tunnel of this name",
            received=repr(id_or_name),
            valid=[f"{info.tunnel_id} of table {info.table_name!r}" for info in found],
            remedy="give the id, or name the table too",
        )
    return found[0]


def drop_tunnel(connection: Connection, meta: MetaTable, info: pb.TunnelInfo) -> None:
    """Remove a tunnel, and what the meta table has of it."""
    TunnelService(connection).delete(info.table_name, info.tunnel_name)
    BatchRecords(meta, info.tunnel_id).forget_all()


def microseconds(instant: datetime.datetime) -> int:
    """Return an instant as µs since 1970; without a time zone it is in UTC."""
    aware = instant if instant.tzinfo is not None else instant.replace(tzinfo=datetime.UTC)
    return (aware - _EPOCH) // datetime.timedelta(microseconds=1)


def _check_request(name: str, kind: TunnelKind, start: Start, base_channels: int | None) -> None:
    if not name:
        raise OptionError("a tunnel needs a name that is not empty", received=repr(name))
    if start.kind in (StartKind.COMMITTED, StartKind.BATCH):
        raise OptionError(
            "a new tunnel has nothing committed",
            received=f"start={start.kind}",
            valid="latest, earliest or a timestamp",
        )
    if start.kind is not StartKind.LATEST and kind is not TunnelKind.STREAM:
        raise OptionError(
            f"a tunnel of kind {kind} begins with the table as it is now",
            received=f"start={start.kind}",
            valid="latest",
            remedy="use kind=Stream to begin elsewhere in the change log",
        )
    if base_channels is not None and base_channels < 1:
        raise OptionError("base_channels must be at least 1", received=base_channels)
