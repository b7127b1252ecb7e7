"""The replication slot of a PostgreSQL tunnel on the pages: its state, and a picture of the log that it keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.ui.pictures import Share, offset_place, shares
from headrace.ui.rendering import size


@dataclass(frozen=True)
class Mark:
    """A position of the log.

    Attributes:
        name: its name in ``pg_replication_slots``, or the name of a limit.
        place: its place on the bar, in percent.
        lsn: its LSN; empty for a limit.
        bytes: its distance from the beginning of the kept log.
    """

    name: str
    place: float
    lsn: str
    bytes: int


@dataclass(frozen=True)
class Slot:
    """The slot of a tunnel.

    Attributes:
        name: its name.
        state: ``wal_status`` of ``pg_replication_slots``, or ``missing`` if the slot does not exist.
        parts: the kept log and the rest up to the nearest limit, with names and sizes; empty if no log is kept.
        marks: the positions of the log in their order.
    """

    name: str
    state: str
    parts: list[tuple[Share, str, int]]
    marks: list[Mark]

    @property
    def needs_care(self) -> bool:
        """Whether the server keeps more log than usual for it, or no longer all of it."""
        return self.state != "reserved"

    @property
    def text(self) -> str:
        """The picture as a text."""
        parts = ", ".join(f"{name} {size(count)}" for _, name, count in self.parts)
        marks = ", ".join(f"{each.name} {each.lsn or size(each.bytes)}" for each in self.marks)
        return f"Log of the server for slot {self.name}, {self.state}: {parts}. Positions: {marks}."


def slot_of(details: Mapping[str, Any]) -> Slot | None:
    """Return the slot of a tunnel from the details of its description; None if it has none."""
    if "slot" not in details:
        return None
    return Slot(details["slot"], details.get("wal_status") or "missing", *_picture(details))


def _picture(details: Mapping[str, Any]) -> tuple[list[tuple[Share, str, int]], list[Mark]]:
    kept, unread = details.get("retained_bytes"), details.get("lag_bytes")
    if kept is None or unread is None:
        return [], []
    limits = {}
    # The server removes log by whole segments: safe_wal_size counts what it can still write.
    if (left := details.get("safe_wal_size")) is not None:
        limits["max_slot_wal_keep_size"] = kept + left
    if (own := details.get("max_slot_bytes")) is not None:
        limits["max_slot_bytes"] = own
    limit = min(limits, key=limits.__getitem__, default=None)
    end = max(kept, 0 if limit is None else limits[limit])
    sizes = (max(0, kept - unread), min(kept, unread), end - kept)
    names = ("read, and kept", "not read", "free up to the limit")
    positions = [
        ("restart_lsn", details["restart_lsn"], 0),
        ("confirmed_flush_lsn", details["confirmed_flush_lsn"], details["confirmed_bytes"]),
        ("current_lsn", details["current_lsn"], kept),
    ]
    if limit is not None:
        positions.append((limit, "", max(0, limits[limit])))
    marks = [Mark(name, offset_place(0, end, count), lsn, count) for name, lsn, count in positions]
    return list(zip(shares(sizes), names, sizes, strict=True)), sorted(marks, key=lambda mark: mark.bytes)
