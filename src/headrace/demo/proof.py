"""The proof: the statistics computed again from the whole change log, and the totals from the orders, without Spark.

Each put and update of an order is one event, counted in the window of its timestamp. A deletion is a change without a
timestamp (its attributes are null), and belongs to no window, as in Spark.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa

from headrace.model.tables.changes import DELETES, ChangeOp, Changes
from headrace.model.tunnels.values import FINISHED, ChannelState
from headrace.ports import Table, Tunnel
from headrace.rows.by_position import aggregated

WINDOW_MS = 30_000
_PAGE_ROWS = 50_000
Statistic: TypeAlias = tuple[int, float]
"""The number of events in a window, and the sum of their prices."""
WindowKey: TypeAlias = tuple[str, str]
"""The begin and end of a window in the form of the sink: ``2026-01-31 12:00:30``, in UTC."""
Total: TypeAlias = tuple[int, float, float]
"""The number of orders of a user, the sum of their prices, and the highest price."""
Key = TypeVar("Key", str, WindowKey)
Value = TypeVar("Value")


@dataclass(frozen=True)
class Difference(Generic[Key, Value]):
    """A window or user with different values in sink and recomputation. None means that there is no row."""

    key: Key
    in_sink: Value | None
    recomputed: Value | None


@dataclass(frozen=True)
class Recomputation:
    """The statistics by window, and the numbers of events and deletions in the change log."""

    windows: Mapping[WindowKey, Statistic]
    events: int
    deletions: int


def recompute(changes: Iterable[Changes]) -> Recomputation:
    """Compute the statistics over all changes."""
    counts: dict[int, int] = {}
    sums: dict[int, float] = {}
    events = deletions = 0
    for run in changes:
        ops = run.ops.to_numpy(zero_copy_only=False)
        deletions += int(np.count_nonzero(np.isin(ops, DELETES)))
        is_event = ~np.isin(ops, (*DELETES, ChangeOp.PREIMAGE))
        rows = run.rows.filter(pa.array(is_event))
        events += rows.num_rows
        starts = rows.column("timestamp").to_numpy(zero_copy_only=False) // WINDOW_MS * WINDOW_MS
        prices = rows.column("price").to_numpy(zero_copy_only=False)
        windows, which = np.unique(starts, return_inverse=True)
        totals = zip(
            windows.tolist(),
            np.bincount(which, minlength=len(windows)).tolist(),
            np.bincount(which, prices, minlength=len(windows)).tolist(),
            strict=True,
        )
        for start, count, total in totals:
            counts[start] = counts.get(start, 0) + count
            sums[start] = sums.get(start, 0.0) + total
    return Recomputation({window_key(start): (counts[start], sums[start]) for start in counts}, events, deletions)


def window_key(start_ms: int) -> WindowKey:
    """Return the key of the window that begins at ``start_ms``, in milliseconds since 1970."""
    return _text(start_ms), _text(start_ms + WINDOW_MS)


def _text(milliseconds: int) -> str:
    return datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")


def read_all(tunnel: Tunnel) -> Iterator[Changes]:
    """Yield all existing changes of a tunnel, and commit them channel by channel."""
    while True:
        moved = False
        for channel in tunnel.channels():
            if channel.state != ChannelState.OPEN:
                continue
            position = channel.committed
            while position != FINISHED:
                page = tunnel.read(channel.id, position, _PAGE_ROWS)
                if page.next == position:
                    break
                moved, position = True, page.next
                yield page.changes
            tunnel.commit({channel.id: position})
        if not moved:
            return


def sink_content(sink: Table) -> dict[WindowKey, Statistic]:
    """Return the statistics in the table of the sink."""
    rows = sink.scan(columns=["begin", "end", "count", "totalPrice"]).read_all().to_pydict()
    return {
        (begin, end): (count, total)
        for begin, end, count, total in zip(rows["begin"], rows["end"], rows["count"], rows["totalPrice"], strict=True)
    }


def current_totals(orders: Table) -> dict[str, Total]:
    """Compute the totals over the rows that the table of orders has now."""
    rows = orders.scan(columns=["UserId", "price"]).read_all()
    price = rows.column("price")
    (users,), totals = aggregated([rows.column("UserId")], [("count", price), ("sum", price), ("max", price)])
    return _by_user(pa.table([users, *totals], names=["UserId", "orders", "spent", "highest"]))


def totals_content(sink: Table) -> dict[str, Total]:
    """Return the totals in their table."""
    return _by_user(sink.scan(columns=["UserId", "orders", "spent", "highest"]).read_all())


def _by_user(rows: pa.Table) -> dict[str, Total]:
    users, *values = (column.to_pylist() for column in rows.columns)
    return dict(zip(users, zip(*values, strict=True), strict=True))


def compare(in_sink: Mapping[Key, Value], recomputed: Mapping[Key, Value]) -> list[Difference[Key, Value]]:
    """Return the keys for which two results differ, in order. Sums are compared exactly."""
    return [
        Difference(key, in_sink.get(key), recomputed.get(key))
        for key in sorted(in_sink.keys() | recomputed.keys())
        if in_sink.get(key) != recomputed.get(key)
    ]
