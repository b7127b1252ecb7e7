"""What every store checks alike when it is asked for a tunnel. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from headrace.errors import NotFoundError, OptionError
from headrace.tunnels.values import Start, StartKind, TunnelKind

_EPOCH = datetime.datetime.fromtimestamp(0, datetime.UTC)
_T = TypeVar("_T")


class Named(NamedTuple):
    """What tells a tunnel from others: its id, and its name, of which each table has one."""

    id: str
    name: str
    table: str


def check_new(name: str, kind: TunnelKind, start: Start, base_channels: int | None) -> None:
    """Make sure that a tunnel can be created so; see `headrace.ports.Store.create_tunnel`.

    Raises:
        OptionError: it cannot.
    """
    if not name:
        raise OptionError("a tunnel needs a name that is not empty", received=repr(name))
    if start.kind is StartKind.COMMITTED:
        raise OptionError(
            "a new tunnel has nothing committed", received="start=committed", valid="latest, earliest or a timestamp"
        )
    if start.kind is StartKind.BATCH:
        raise OptionError(
            "a new tunnel has no batches", received="start=batch", valid="latest, earliest or a timestamp"
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


def find(known: Sequence[_T], named: Callable[[_T], Named], id_or_name: str, table: str | None) -> _T:
    """Return the tunnel of that id, or else of that name.

    Args:
        known: the tunnels to choose from: those of ``table`` if one is given.
        named: tells id, name and table of a tunnel.

    Raises:
        NotFoundError: there is none.
        OptionError: several tables have a tunnel of this name.
    """
    found = [tunnel for tunnel in known if named(tunnel).id == id_or_name]
    found = found or [tunnel for tunnel in known if named(tunnel).name == id_or_name]
    if not found:
        where = "" if table is None else f" of table {table!r}"
        raise NotFoundError(
            f"no such tunnel{where}",
            received=repr(id_or_name),
            valid=sorted({named(tunnel).name for tunnel in known}),
            remedy="give its id or its name",
        )
    if len(found) > 1:
        raise OptionError(
            "several tables have a tunnel of this name",
            received=repr(id_or_name),
            valid=[f"{named(tunnel).id} of table {named(tunnel).table!r}" for tunnel in found],
            remedy="give the id, or name the table too",
        )
    return found[0]


def microseconds(instant: datetime.datetime) -> int:
    """Return an instant as µs since 1970; without a time zone it is in UTC."""
    aware = instant if instant.tzinfo is not None else instant.replace(tzinfo=datetime.UTC)
    return (aware - _EPOCH) // datetime.timedelta(microseconds=1)
