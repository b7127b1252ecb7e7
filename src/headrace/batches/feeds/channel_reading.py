"""Reading one channel of a batch in a task. A repeated task reads the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow.compute as pc

from headrace.errors import DataLossError, LostRaceError
from headrace.model.tables.changes import ChangeOp, Changes
from headrace.model.tunnels.losses import read_on
from headrace.model.tunnels.records import ChannelEnd, ChannelPlan
from headrace.model.tunnels.values import FINISHED, Page, Position
from headrace.ports import Tunnel
from headrace.support import failpoints

PAGE_ROWS = 65536


@dataclass(frozen=True)
class ChannelTask:
    """The task that reads one channel of a batch."""

    batch: str
    plan: ChannelPlan


def read_channel(tunnel: Tunnel, batch: str, plan: ChannelPlan, *, fail_on_data_loss: bool = True) -> Iterator[Changes]:
    """Yield the changes of one channel in a batch, and record the end of the channel after the last change.

    The limit of rows ends a batch, or the transaction at the limit if the tunnel has whole transactions.

    The first reader that reaches the end records it. Every other reader (a retried or speculative task, a second action
    on the batch, a restarted driver) reads up to the recorded end. A reader that stops early records nothing.

    Raises:
        LostRaceError: another reader has recorded a different end in the meantime. The yielded rows are invalid.
        DataLossError: rows of the batch no longer exist, and ``fail_on_data_loss`` is set.
    """
    recorded = tunnel.batches.end(batch, plan.channel)
    if recorded is not None:
        yield from _replay(tunnel, batch, plan, recorded, fail_on_data_loss)
        return
    position, rows = plan.start, 0
    # The version of the last row, if the batch needs its whole transaction.
    version: int | None = None
    while position != FINISHED:
        room = None if plan.max_rows is None else max(0, plan.max_rows - rows)
        if room == 0 and version is None:
            break
        # The next row shows whether the transaction ends.
        total = None if room is None else max(1, room)
        most = PAGE_ROWS if total is None else min(PAGE_ROWS, total)
        start, page = _read_page(tunnel, plan.channel, position, most, plan.until, total, fail_on_data_loss)
        if rows and page.changes.begin_with_truncation:
            # A TRUNCATE is the first change of its batch: a mirror replaces it by deletes of the rows before the batch.
            break
        changes, position = page.changes, page.next
        if changes.num_rows == 0:
            break
        if room is not None and changes.num_rows > room:
            whole = _batch_rows(changes, room, version, whole_transactions=tunnel.whole_transactions)
            if whole < changes.num_rows:
                if whole:
                    rows += whole
                    yield changes.slice(0, whole)
                position = tunnel.advance(plan.channel, start, whole)
                break
        if tunnel.whole_transactions and changes.ops[-1].as_py() != ChangeOp.BASE:
            version = changes.versions[-1].as_py()
        rows += changes.num_rows
        yield changes
        if page.last:
            break
    ours = ChannelEnd(position, rows)
    failpoints.reach("rows-read")
    theirs = tunnel.batches.record_end(batch, plan.channel, ours)
    failpoints.reach("end-recorded")
    # The same number of rows at another position are other rows: one reader may have skipped lost rows.
    if theirs != ours:
        raise LostRaceError(
            f"another task ended batch {batch} of channel {plan.channel} first",
            received=f"{ours.rows} rows read, {theirs.rows} recorded",
            remedy="Spark retries the task, which then reads the recorded rows; a local master retries tasks only with "
            "a setting such as master='local[*,4]'",
        )


def _batch_rows(changes: Changes, room: int, version: int | None, *, whole_transactions: bool) -> int:
    """Return the number of rows of a page that a batch takes that has room for fewer.

    Args:
        room: the number of rows up to the limit of the batch, not more than the page has.
        version: the version of the last row before the page; None if the batch does not need all its rows.
        whole_transactions: the batch takes all rows of a transaction.
    """
    if not whole_transactions or changes.ops[0].as_py() == ChangeOp.BASE:
        return changes.whole_pairs(room)
    if room:
        version = changes.versions[room - 1].as_py()
    return int(pc.sum(pc.less_equal(changes.versions, version), min_count=0).as_py())


def _replay(
    tunnel: Tunnel, batch: str, plan: ChannelPlan, recorded: ChannelEnd, fail_on_data_loss: bool
) -> Iterator[Changes]:
    position, missing = plan.start, recorded.rows
    until = None if recorded.position == FINISHED else recorded.position
    while missing > 0:
        most = min(PAGE_ROWS, missing)
        _, page = _read_page(tunnel, plan.channel, position, most, until, missing, fail_on_data_loss)
        if page.changes.num_rows == 0:
            break
        changes = page.changes.slice(0, missing)
        position, missing = page.next, missing - changes.num_rows
        yield changes
        if position == FINISHED:
            break
    if missing and fail_on_data_loss:
        raise DataLossError(
            f"batch {batch} cannot be read again: channel {plan.channel} has fewer rows than at the first read",
            received=f"{recorded.rows - missing} of {recorded.rows} rows",
            remedy="set option failOnDataLoss=false to continue without them",
        )


def _read_page(
    tunnel: Tunnel,
    channel: str,
    position: Position,
    rows: int,
    until: Position | None,
    total: int | None,
    fail_on_data_loss: bool,
) -> tuple[Position, Page]:
    """Read a page. Also return the position where it starts, which is later than ``position`` after a loss."""

    def read(start: Position) -> Page:
        return tunnel.read(channel, start, rows, until, total=total)

    return (position, read(position)) if fail_on_data_loss else read_on(tunnel, channel, position, read)
