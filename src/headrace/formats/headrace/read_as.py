"""Option ``readAs``: whether a tunnel's rows are changes for their own sake, or have to add up to the table.

With ``table``, the inserts and post-images of all batches, minus the pre-images and deletes, are the rows of the table.
So every update and delete needs its old row, and the query reads the tunnel from its first row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from headrace.errors import OptionError
from headrace.formats.old_rows import check_old_rows
from headrace.model.tunnels.values import Start, StartKind, TunnelKind
from headrace.options.settings import Settings

if TYPE_CHECKING:
    from headrace.ports import Table, Tunnel

CHANGES, TABLE = "changes", "table"
READ_AS = (CHANGES, TABLE)
_FROM_THE_BEGINNING = (StartKind.COMMITTED, StartKind.EARLIEST)


def reads_table(settings: Settings) -> bool:
    """Return whether the options ask for the rows of ``readAs=table``."""
    return bool(settings.get("readAs") == TABLE)


def asks_for_table(options: Mapping[str, str]) -> bool:
    """Return whether options, as the user wrote them, have ``readAs=table``."""
    return any(name.lower() == "readas" and value.strip().lower() == TABLE for name, value in options.items())


def check_options(settings: Settings) -> None:
    """Check the other options of a read with ``readAs=table``.

    Raises:
        OptionError: an option hides rows, or skips rows.
    """
    if not settings.get("tunnel"):
        raise OptionError(
            "option readAs=table needs a tunnel", remedy="set option tunnel to a tunnel of kind BaseAndStream"
        )
    again = "; after a loss, start with a new tunnel, a new target and a new checkpoint location"
    for name, why, otherwise in (
        ("preImages", "hides the old rows", ""),
        ("failOnDataLoss", "skips lost changes", again),
    ):
        if not settings.get(name):
            raise OptionError(
                f"option readAs=table needs all rows, and {name}=false {why}",
                received=f"readAs=table, {name}=false",
                remedy=f"leave out option {name}{otherwise}",
            )
    start = settings.get("startingPosition")
    if not isinstance(start, Start) or start.kind not in _FROM_THE_BEGINNING:
        raise OptionError(
            "option readAs=table reads a tunnel from its beginning, and startingPosition skips rows",
            remedy="leave out option startingPosition",
        )


def check_tunnel(tunnel: Tunnel, tables: Sequence[Table]) -> None:
    """Check that the rows of a tunnel add up to its tables.

    Raises:
        OptionError: the tunnel has no base data, or a table does not keep pre-images.
    """
    table = tunnel.table.name
    for each in tables:
        check_old_rows(each)
    if tunnel.kind is TunnelKind.STREAM:
        raise OptionError(
            f"option readAs=table needs the rows that existed before tunnel {tunnel.name!r}",
            received=f"a tunnel of kind {tunnel.kind}",
            valid=[TunnelKind.BASE_AND_STREAM, TunnelKind.BASE_DATA],
            remedy=f"create another tunnel of table {table!r}, of kind {TunnelKind.BASE_AND_STREAM}",
        )
