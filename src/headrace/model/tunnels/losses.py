"""Changes that a reader does not get: released or lost ones, after which it may read on, and those of a TRUNCATE."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Protocol

import pyarrow.compute as pc

from headrace.errors import DataLossError, own_message
from headrace.model.tables.change_columns import CHANGE_TYPE, TRUNCATE
from headrace.model.tables.several_tables import TABLE
from headrace.model.tunnels.values import Page, Position

if TYPE_CHECKING:
    import pyarrow as pa

_TRUNCATED = "a followed table was truncated, and its removed rows are not among the changes"
_log = logging.getLogger("headrace")


class Skipping(Protocol):
    """A tunnel; see `headrace.ports.Tunnel`."""

    @property
    def name(self) -> str: ...

    def accept_lost(self, channel: str, position: Position) -> bool: ...

    def skip_lost(self, channel: str, position: Position) -> tuple[Position, int | None]: ...


def already_read(channel: str) -> DataLossError:
    """Return the error for a second read of released base data."""
    return DataLossError(
        "the base data was read and released", received=channel, remedy="create a new tunnel to read it again"
    )


def read_on(
    tunnel: Skipping, channel: str, position: Position, read: Callable[[Position], Page]
) -> tuple[Position, Page]:
    """Read a page at a position, or behind changes that are lost. Also return the position where the page begins."""
    while True:
        try:
            return position, read(position)
        except DataLossError:
            found, lost = (
                (position, None) if tunnel.accept_lost(channel, position) else tunnel.skip_lost(channel, position)
            )
            if found == position and lost == 0:
                raise
            _log.warning(
                "failOnDataLoss=false: %s changes of tunnel %s, channel %s are lost and skipped",
                "an unknown number of" if lost is None else lost,
                tunnel.name,
                channel,
            )
            position = found


def refuse_truncations(
    rows: Iterator[pa.RecordBatch], tunnel: str, tables: Collection[str] | None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a tunnel; raise `DataLossError` at a row for a TRUNCATE. Such rows begin a batch.

    Args:
        tables: the tables whose TRUNCATE is an error, "" for that of a tunnel of one table; None for all.
    """
    for part in rows:
        if part.num_rows and CHANGE_TYPE in part.schema.names and part.column(CHANGE_TYPE)[0].as_py() == TRUNCATE:
            truncations = part.filter(pc.equal(part.column(CHANGE_TYPE), TRUNCATE))
            names = truncations.column(TABLE).to_pylist() if TABLE in part.schema.names else [""]
            for name in names:
                if tables is None or name in tables:
                    raise DataLossError(
                        _TRUNCATED,
                        received=f"tunnel {tunnel!r}{f', table {name}' if name else ''}",
                        remedy="headrace.follow and INSERT INTO follow a TRUNCATE; start another reader with a new "
                        "tunnel, a new target and a new checkpoint location",
                    )
        yield part


def is_truncation(error: BaseException) -> bool:
    """Return whether the error of a job is that of `refuse_truncations`."""
    return (own_message(str(error)) or "").startswith(_TRUNCATED)
