"""Option ``readAs``: whether a tunnel's rows are changes for their own sake, or have to add up to the table.

With ``table``, the inserts and post-images of all batches, minus the pre-images and deletes, are the rows of the table.
So every update and delete needs its old row, and the query reads the tunnel from its first row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from headrace.errors import OptionError, UnsupportedError
from headrace.model.tables.changes import no_old_rows
from headrace.model.tunnels.values import Start, StartKind, TunnelKind
from headrace.options.settings import Settings

if TYPE_CHECKING:
    from headrace.ports import Capabilities, Table, Tunnel

CHANGES, TABLE = "changes", "table"
READ_AS = (CHANGES, TABLE)
_NEEDED = {
    "tunnels": "tunnels",
    "pre_images": "pre-images",
    "whole_rows": "the whole row of each change",
    "tells_rows": "whether the row of a change existed before",
}
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


def check_store(capabilities: Capabilities) -> None:
    """Raise `UnsupportedError` if a store's changes cannot add up to a table."""
    missing = [words for name, words in _NEEDED.items() if not getattr(capabilities, name)]
    if missing:
        raise UnsupportedError(
            "this store's changes do not have what readAs=table needs",
            received=f"a store without: {', '.join(missing)}",
            valid="an embedded store, a PostgreSQL database or Delta Lake",
            remedy="read the changes as they are (readAs=changes), or write them into a table of such a store",
        )


def check_tunnel(tunnel: Tunnel, tables: Sequence[Table]) -> None:
    """Check that the rows of a tunnel add up to its tables.

    Raises:
        OptionError: the tunnel has no base data, or a table does not keep pre-images.
    """
    table = tunnel.table.name
    for each in tables:
        if not each.describe().options.pre_images:
            raise no_old_rows(each.name)
    if tunnel.kind is TunnelKind.STREAM:
        raise OptionError(
            f"option readAs=table needs the rows that existed before tunnel {tunnel.name!r}",
            received=f"a tunnel of kind {tunnel.kind}",
            valid=[TunnelKind.BASE_AND_STREAM, TunnelKind.BASE_DATA],
            remedy=f"create another tunnel of table {table!r}, of kind {TunnelKind.BASE_AND_STREAM}",
        )
