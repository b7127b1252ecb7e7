"""Checks of new tunnels and lookups of tunnels, the same for all stores. No I/O."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from headrace.errors import NotFoundError, OptionError
from headrace.model.tunnels.values import Start, StartKind, TunnelKind

_EPOCH = datetime.datetime.fromtimestamp(0, datetime.UTC)
_T = TypeVar("_T")


class Named(NamedTuple):
    """The id of a tunnel, its name, which is unique in its table, and the table."""

    id: str
    name: str
    table: str


def check_new(name: str, kind: TunnelKind, start: Start, base_channels: int | None) -> None:
    """Check the arguments of `headrace.ports.Store.create_tunnel`.

    Raises:
        OptionError: an argument is invalid.
    """
    if not name:
        raise OptionError("the name of a tunnel is empty", received=repr(name))
    if start.kind is StartKind.COMMITTED:
        raise OptionError(
            "a new tunnel has no committed positions",
            received="start=committed",
            valid="latest, earliest or a timestamp",
        )
    if start.kind is StartKind.BATCH:
        raise OptionError(
            "a new tunnel has no batches", received="start=batch", valid="latest, earliest or a timestamp"
        )
    if start.kind is not StartKind.LATEST and kind is not TunnelKind.STREAM:
        raise OptionError(
            f"a tunnel of kind {kind} starts with the current rows of the table",
            received=f"start={start.kind}",
            valid="latest",
            remedy="use kind=Stream to start at another position of the change log",
        )
    if base_channels is not None and base_channels < 1:
        raise OptionError("base_channels must be at least 1", received=base_channels)


def check_start_of_several(start: Start) -> None:
    """Raise `OptionError` if a new tunnel of several tables cannot start at a position."""
    if start.kind is not StartKind.LATEST:
        raise OptionError(
            "a tunnel of several tables starts at the latest changes",
            received=f"start={start.timestamp or start.kind}",
            valid="latest",
            remedy="create it with kind BaseAndStream, which begins with the rows of the tables",
        )


def find(known: Sequence[_T], named: Callable[[_T], Named], id_or_name: str, table: str | None) -> _T:
    """Return the tunnel with an id, or else with a name; of a table alone, before one of several tables.

    Args:
        known: the tunnels to search; only those that follow ``table`` if it is set.
        named: a function that returns id, name and table of a tunnel.

    Raises:
        NotFoundError: there is no such tunnel.
        OptionError: several tables have a tunnel with this name.
    """
    found = [tunnel for tunnel in known if named(tunnel).id == id_or_name]
    found = found or [tunnel for tunnel in known if named(tunnel).name == id_or_name]
    if not found:
        where = "" if table is None else f" of table {table!r}"
        raise NotFoundError(
            f"no such tunnel{where}",
            received=repr(id_or_name),
            valid=sorted({named(tunnel).name for tunnel in known}),
            # Store.create_tunnel has the table first.
            remedy="use the id or the name of an existing tunnel"
            if table is None
            else f"the name comes first: if {table!r} is the tunnel, write tunnel({table!r}, table={id_or_name!r})",
        )
    if len(found) > 1 and table is not None:
        found = [tunnel for tunnel in found if named(tunnel).table == table] or found
    if len(found) > 1:
        raise OptionError(
            "several tables have a tunnel with this name",
            received=repr(id_or_name),
            valid=[f"{named(tunnel).id} of table {named(tunnel).table!r}" for tunnel in found],
            remedy="use the id, or also pass the table",
        )
    return found[0]


def microseconds(instant: datetime.datetime) -> int:
    """Return a time as microseconds since 1970. A time without a zone is in UTC."""
    aware = instant if instant.tzinfo is not None else instant.replace(tzinfo=datetime.UTC)
    return (aware - _EPOCH) // datetime.timedelta(microseconds=1)
