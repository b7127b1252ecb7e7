"""A task's side of a batch: reading one channel, the same rows each time."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from headrace import failpoints
from headrace.errors import DataLossError, LostRaceError
from headrace.ports import Tunnel
from headrace.tables.changes import ChangeOp, Changes
from headrace.tunnels.records import ChannelEnd, ChannelPlan
from headrace.tunnels.values import FINISHED, Page, Position

PAGE_ROWS = 65536
_log = logging.getLogger("headrace")


def read_channel(tunnel: Tunnel, batch: str, part: ChannelPlan, *, fail_on_data_loss: bool = True) -> Iterator[Changes]:
    """Yield one channel's changes of a batch, and record where they ended once all have been taken.

    The first reader that comes to the end records it; everybody else (a retried task, a speculative twin, a
    second action on the batch, a restarted driver) reads exactly as far. A reader that stops early records
    nothing.

    Raises:
        LostRaceError: another reader recorded a different end meanwhile; the rows given are not the batch's.
        DataLossError: rows of the batch are gone, and ``fail_on_data_loss`` is set.
    """
    recorded = tunnel.ends(batch).get(part.channel)
    if recorded is not None:
        yield from _replay(tunnel, batch, part, recorded, fail_on_data_loss)
        return
    position, rows, inside_pair = part.start, 0, False
    while position != FINISHED and (part.max_rows is None or rows < part.max_rows or inside_pair):
        room = None if part.max_rows is None else max(1, part.max_rows - rows)
        wanted = PAGE_ROWS if room is None else min(PAGE_ROWS, room)
        start, page = _read_page(tunnel, part.channel, position, wanted, part.until, fail_on_data_loss)
        changes, position = page.changes, page.next
        if room is not None and changes.num_rows > room:
            kept = changes.whole_pairs(room)
            changes, position = changes.slice(0, kept), tunnel.advance(part.channel, start, kept)
            rows += kept
            yield changes
            break
        if changes.num_rows == 0:
            break
        rows += changes.num_rows
        inside_pair = changes.ops[-1].as_py() == ChangeOp.PREIMAGE
        yield changes
    ours = ChannelEnd(position, rows)
    failpoints.reach("rows-read")
    theirs = tunnel.record_end(batch, part.channel, ours)
    failpoints.reach("end-recorded")
    # As many rows elsewhere are other rows too: one reader may have skipped lost ones.
    if theirs != ours:
        raise LostRaceError(
            f"another task ended batch {batch} of channel {part.channel} first",
            received=f"{ours.rows} rows read, {theirs.rows} recorded",
            remedy="the task is run again and reads the recorded rows; with a local master, allow that with "
            "master='local[*,4]'",
        )


def _replay(
    tunnel: Tunnel, batch: str, part: ChannelPlan, recorded: ChannelEnd, fail_on_data_loss: bool
) -> Iterator[Changes]:
    position, missing = part.start, recorded.rows
    until = None if recorded.position == FINISHED else recorded.position
    while missing > 0:
        _, page = _read_page(tunnel, part.channel, position, min(PAGE_ROWS, missing), until, fail_on_data_loss)
        if page.changes.num_rows == 0:
            break
        changes = page.changes.slice(0, missing)
        position, missing = page.next, missing - changes.num_rows
        yield changes
        if position == FINISHED:
            break
    if missing and fail_on_data_loss:
        raise DataLossError(
            f"batch {batch} cannot be read again: channel {part.channel} has fewer rows than when it was first read",
            received=f"{recorded.rows - missing} of {recorded.rows} rows",
            remedy="set option failOnDataLoss=false to go on without them",
        )


def _read_page(
    tunnel: Tunnel, channel: str, position: Position, rows: int, until: Position | None, fail_on_data_loss: bool
) -> tuple[Position, Page]:
    """Read a page; return also the position that it was read from, which lies further on after a loss."""
    try:
        return position, tunnel.read(channel, position, rows, until)
    except DataLossError:
        if fail_on_data_loss:
            raise
        found, lost = tunnel.skip_lost(channel, position)
        _log.warning(
            "failOnDataLoss=false: %s changes of tunnel %s, channel %s are lost and skipped",
            "an unknown number of" if lost is None else lost,
            tunnel.name,
            channel,
        )
        return found, tunnel.read(channel, found, rows, until)
