"""The lag of a source: its unread rows, and the time to read them. Pure values, the same for every command and page."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from headrace.model.queues.values import ConsumerPartition
    from headrace.model.tunnels.values import Backlog


def duration_text(seconds: float) -> str:
    """Return a duration for people, in two units: ``45 s``, ``3 min 20 s``, ``2 h 5 min``, ``3 d 4 h``."""
    whole = round(seconds)
    for size, unit, smaller, smaller_unit in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // smaller} {smaller_unit}"
    return f"{whole} s"


# PostgreSQL's values of ``wal_status``, the best first, and ours for a slot that does not exist.
_SLOT_STATUSES = ("reserved", "extended", "unreserved", "lost", "missing")


class Slot(NamedTuple):
    """The log that a server keeps for its readers.

    Attributes:
        status: ``wal_status`` of PostgreSQL's replication slot, or ``missing`` if there is none.
        bytes: the size of the log; None if the server does not know it.
    """

    status: str
    bytes: int | None = None

    @classmethod
    def worst(cls, slots: Iterable[Slot | None]) -> Slot | None:
        """Return the worst status of several slots with their size together; None without slots."""
        found = [each for each in slots if each is not None]
        if not found:
            return None
        sizes = [each.bytes for each in found if each.bytes is not None]
        # Another version of the server may have another status, which is worth a look.
        ranks = {status: rank for rank, status in enumerate(_SLOT_STATUSES)}
        status = max((each.status for each in found), key=lambda status: ranks.get(status, len(ranks)))
        return cls(status, sum(sizes) if sizes else None)


@dataclass(frozen=True)
class Lag:
    """The unread rows of one or several sources.

    Attributes:
        rows: the known number of unread rows; a minimum if ``unknown`` is not 0.
        unknown: the number of channels that have more rows than the store has counted.
        ranges: the number of key ranges of base data; 0 without base data.
        ranges_done: how many of them are read.
        seconds: the time since the commit of the oldest unread change; None if it is unknown.
        bytes: the known size of the unread changes; None if it is unknown.
        slot: the log that a server keeps for the sources; None if it keeps none for them.
    """

    rows: int
    unknown: int = 0
    ranges: int = 0
    ranges_done: int = 0
    seconds: float | None = None
    bytes: int | None = None
    slot: Slot | None = None

    @property
    def exact(self) -> bool:
        """Whether ``rows`` is the number of all unread rows."""
        return self.unknown == 0

    @classmethod
    def total(cls, lags: Iterable[Lag]) -> Lag:
        """Return the lag of several sources together."""
        found = list(lags)
        return cls(
            sum(lag.rows for lag in found),
            sum(lag.unknown for lag in found),
            sum(lag.ranges for lag in found),
            sum(lag.ranges_done for lag in found),
            _known(max, [lag.seconds for lag in found]),
            _known(sum, [lag.bytes for lag in found]),
            Slot.worst(lag.slot for lag in found),
        )

    @classmethod
    def of(cls, backlogs: Iterable[Backlog], ranges: int = 0, ranges_done: int = 0) -> Lag:
        """Return the lag of channels from their backlogs."""
        found = list(backlogs)
        unknown = sum(backlog.unread is None for backlog in found)
        seconds = _known(max, [0.0 if each.unread == 0 else each.seconds for each in found])
        size = _known(sum, [0 if each.unread == 0 else each.bytes for each in found])
        return cls(sum(backlog.known for backlog in found), unknown, ranges, ranges_done, seconds, size)

    @classmethod
    def of_consumer(cls, partitions: Iterable[ConsumerPartition]) -> Lag:
        """Return the lag of a consumer. A partition whose offset is ahead of its queue does not reduce it."""
        found = list(partitions)
        seconds = max((each.lag_seconds for each in found), default=0.0)
        return cls(sum(max(0, each.unread_rows) for each in found), seconds=seconds)

    def eta_seconds(self, rows_per_second: float | None) -> float | None:
        """Return the time until the known rows are read at a rate; None if no rows are known, or no rate.

        It is a minimum if the lag is one, and because rows arrive meanwhile.
        """
        if self.rows == 0:
            return 0.0 if self.exact else None
        if rows_per_second is None or not math.isfinite(rows_per_second) or rows_per_second <= 0:
            return None
        return self.rows / rows_per_second

    def __str__(self) -> str:
        """Return the lag for people: ``1200``, ``more than 1200``, ``unknown``; with the ranges of base data."""
        rows = str(self.rows) if self.exact else f"more than {self.rows}" if self.rows else "unknown"
        return f"{rows} ({self.ranges_done} of {self.ranges} ranges)" if self.ranges > self.ranges_done else rows


def _known(combined: Callable[[list[Any]], Any], values: Sequence[float | None]) -> Any:
    """Return what a function makes of values; None if one of them is unknown, or there are none."""
    known = [value for value in values if value is not None]
    return combined(known) if known and len(known) == len(values) else None
