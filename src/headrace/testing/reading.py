"""Helpers that read tables and tunnels as Python values."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from headrace.batches.feeds.channel_reading import read_channel
from headrace.batches.feeds.tunnel_feed import TunnelFeed
from headrace.model.tables.changes import DELETES, ChangeOp, Changes
from headrace.model.tables.conditions import Where
from headrace.model.tunnels.records import INITIAL_BATCH, BatchPlan
from headrace.model.tunnels.values import FINISHED, ChannelState, Position
from headrace.ports import Table, Tunnel

Row = dict[str, Any]
State = dict[tuple[Any, ...], Row]
"""The content of a table: key → whole row."""

SETS_CELLS = (ChangeOp.UPDATE, ChangeOp.UPSERT)
TELLS_ROWS = True
"""Whether changes of the tested store distinguish inserts from replacements; see `headrace.ports.Capabilities`."""


class Change(NamedTuple):
    """One change. ``written`` contains the attributes that an update set; it is empty for other changes."""

    op: ChangeOp
    key: tuple[Any, ...]
    row: Row
    version: int
    time: datetime.datetime
    written: frozenset[str] = frozenset()


def put(table: Table, *keys: str, price: int = 0) -> int:
    """Put a row for each key into `orders`."""
    return table.put([{"id": key, "price": price} for key in keys])


def rows_of(table: Table, columns: Sequence[str] | None = None, where: Where | None = None) -> list[Row]:
    """Return the rows of a table in the order of the table."""
    rows: list[Row] = table.scan(columns, where).read_all().to_pylist()
    return rows


def state_of(table: Table) -> State:
    """Return the content of a table."""
    key = table.schema.primary_key
    return {tuple(row[name] for name in key): row for row in rows_of(table)}


def unpack(changes: Changes, key: Sequence[str]) -> list[Change]:
    """Return a list with each change."""
    attributes = [name for name in changes.rows.schema.names if name not in key]
    cells = {name: column.to_pylist() for name, column in (changes.written or {}).items()}
    found = []
    for index, (row, code, version, time) in enumerate(
        zip(
            changes.rows.to_pylist(),
            changes.ops.to_pylist(),
            changes.versions.to_pylist(),
            changes.timestamps.to_pylist(),
            strict=True,
        )
    ):
        op = ChangeOp(code)
        written = [
            name for name in attributes if op in SETS_CELLS and (name not in cells or cells[name][index] is not False)
        ]
        found.append(Change(op, tuple(row[name] for name in key), row, version, time, frozenset(written)))
    return found


def read_from(
    tunnel: Tunnel, channel: str, position: Position, *, until: Position | None = None, page_rows: int = 1000
) -> tuple[list[Change], Position]:
    """Read a channel to its current end. Return the changes and the position after them."""
    found: list[Change] = []
    key = tunnel.table.schema.primary_key
    while position != FINISHED:
        page = tunnel.read(channel, position, page_rows, until)
        found += unpack(page.changes, key)
        position = page.next
        if page.changes.num_rows == 0:
            break
    return found, position


def drain(tunnel: Tunnel, *, page_rows: int = 1000) -> list[Change]:
    """Read each channel from its committed position to its current end, parents first, and commit."""
    found: list[Change] = []
    progressed = True
    while progressed:
        progressed = False
        for channel in tunnel.channels():
            if channel.state is ChannelState.OPEN:
                changes, position = read_from(tunnel, channel.id, channel.committed, page_rows=page_rows)
                found += changes
                tunnel.commit({channel.id: position})
                progressed = progressed or bool(changes) or position == FINISHED
    return found


def only_channel(tunnel: Tunnel) -> str:
    """Return the id of the tunnel's only open channel."""
    (channel,) = [each.id for each in tunnel.channels() if each.state is ChannelState.OPEN]
    return channel


def filled(state: Mapping[tuple[Any, ...], Row]) -> State:
    """Return rows without nulls, so that a row is equal to itself after a column was added."""
    return {key: {name: value for name, value in row.items() if value is not None} for key, row in state.items()}


def replay(
    changes: Iterable[Change], state: Mapping[tuple[Any, ...], Row] | None = None, *, whole_rows: bool = False
) -> State:
    """Return the content of a table after some changes. Assert that each change fits the content before it.

    Args:
        whole_rows: assert also that updates hold the whole new row.
    """
    rows: State = dict(state or {})
    for change in changes:
        before = rows.get(change.key)
        if change.op is ChangeOp.PREIMAGE:
            assert before is not None
            assert filled({change.key: before}) == filled({change.key: change.row})
            continue
        there = change.op not in (ChangeOp.BASE, ChangeOp.INSERT, ChangeOp.UPSERT)
        assert (before is not None) == there or not (TELLS_ROWS or change.op in (ChangeOp.BASE, *DELETES)), change
        if change.op in DELETES:
            if change.op is ChangeOp.DELETE_WITH_ROW:
                assert filled({(): rows[change.key]}) == filled({(): change.row})
            del rows[change.key]
        elif change.op in SETS_CELLS:
            kept = {name: value for name, value in (before or {}).items() if name not in change.written}
            rows[change.key] = {**change.row, **kept}
            assert not whole_rows or filled({(): change.row}) == filled({(): rows[change.key]})
        else:
            rows[change.key] = change.row
    return rows


def read_batch(tunnel: Tunnel, plan: BatchPlan, *, fail_on_data_loss: bool = True) -> list[Change]:
    """Read a whole batch, one channel after another, as its tasks would."""
    key = tunnel.table.schema.primary_key
    return [
        change
        for part in plan
        for changes in read_channel(tunnel, plan.batch, part, fail_on_data_loss=fail_on_data_loss)
        for change in unpack(changes, key)
    ]


def run_to_the_end(
    feed: TunnelFeed, previous: str = INITIAL_BATCH, *, most: int = 1000
) -> list[tuple[str, list[Change]]]:
    """Run batches until all rows are read. Return their ids and changes."""
    batches: list[tuple[str, list[Change]]] = []
    for _ in range(most):
        batch = feed.latest(previous)
        if batch == previous:
            return batches
        batches.append((batch, read_batch(feed.tunnel, feed.plan(batch))))
        previous = batch
    raise AssertionError(f"the feed has not come to its end after {most} batches")


def keys_of(changes: list[Change]) -> list[str]:
    return [change.key[0] for change in changes]


def next_batch(feed: TunnelFeed, previous: str) -> tuple[str, list[Change]]:
    """Plan and read the batch after another one. It must have rows."""
    batch = feed.latest(previous)
    assert batch != previous
    return batch, read_batch(feed.tunnel, feed.plan(batch))
