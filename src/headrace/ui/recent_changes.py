"""The last changes of a table, as a tunnel of it reads them. Nothing is committed."""

from __future__ import annotations

import datetime
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from headrace.errors import DataLossError, HeadraceError
from headrace.model.tables.change_columns import ChangeShape
from headrace.model.tables.changes import Changes as ChangedRows
from headrace.model.tunnels.values import FINISHED, Channel, ChannelKind, ChannelState, Position, Start, StartKind
from headrace.ports import Tunnel
from headrace.rows.shown_values import shown_values

CHANGE_ROWS = 50
_MAX_CHANNELS = 256
# In seconds: where the oldest changes have been removed, a page looks back as far as it can.
_AGES = (86400, 3600, 60)


@dataclass(frozen=True)
class Changes:
    """Changes, newest first: the names of the columns, and rows of values."""

    columns: list[str]
    rows: list[tuple[Any, ...]]


def recent_changes(tunnel: Tunnel, *, rewinds: bool) -> Changes:
    """Return the last changes of the channels of a tunnel.

    Args:
        rewinds: the store can read changes that were committed; otherwise only the others are found.
    """
    tunnel = tunnel.with_truncations()
    ends, channels = tunnel.latest_positions(), tunnel.channels()
    starts = {each.id: each.committed for each in channels}
    if rewinds:
        starts.update(_oldest_positions(tunnel))
    parents = {parent for each in channels for parent in each.parents}
    readable = [
        each
        for each in channels
        if each.kind is not ChannelKind.BASE_DATA and starts.get(each.id, FINISHED) != FINISHED
    ]
    shape = ChangeShape(tunnel.table.schema)
    names = list(shape.schema.names)
    found: list[tuple[Any, ...]] = []
    # Channels without children have the newest changes.
    for channel in sorted(readable, key=lambda each: each.id in parents)[:_MAX_CHANNELS]:
        for changes in _read(tunnel, channel, starts[channel.id], ends.get(channel.id)):
            found += zip(*map(shown_values, shape.rows(changes).columns), strict=True)
    version = names.index("_commit_version")
    found.reverse()
    found.sort(key=lambda row: row[version] or 0, reverse=True)
    order = [names.index(name) for name in ("_change_type", "_commit_timestamp")]
    order += [place for place, name in enumerate(names) if not name.startswith("_c")]
    return Changes([names[at] for at in order], [tuple(row[at] for at in order) for row in found[:CHANGE_ROWS]])


def _oldest_positions(tunnel: Tunnel) -> dict[str, Position]:
    """Return positions in the past from which all channels can be read; none if even new changes are removed."""
    now = time.time()
    for instant in (0.0, *(now - age for age in _AGES)):
        with suppress(DataLossError):
            when = datetime.datetime.fromtimestamp(instant, datetime.UTC)
            return tunnel.start_positions(Start(StartKind.TIMESTAMP, when))
    return {}


def _read(tunnel: Tunnel, channel: Channel, start: Position, end: Position | None) -> list[ChangedRows]:
    """Return the last changes of a channel between two positions, in pages."""
    try:
        try:
            return _newest(tunnel, channel.id, start, end)
        except DataLossError:
            return _newest(tunnel, channel.id, tunnel.skip_lost(channel.id, start)[0], end)
    except HeadraceError:
        if channel.state == ChannelState.OPEN:
            raise
        # A service may refuse to read a channel that waits for its parents.
        return []


def _newest(tunnel: Tunnel, channel: str, start: Position, end: Position | None) -> list[ChangedRows]:
    behind = tunnel.backlog(channel, start, end)
    if behind.known > CHANGE_ROWS:
        start = tunnel.advance(channel, start, behind.known - CHANGE_ROWS)
    pages, missing = list[ChangedRows](), 0 if behind.rows == 0 else CHANGE_ROWS
    # A page ends before a TRUNCATE.
    while missing > 0 and start != FINISHED:
        page = tunnel.read(channel, start, missing, end)
        if not page.changes.num_rows:
            break
        pages.append(page.changes)
        start, missing = page.next, missing - page.changes.num_rows
    return pages
