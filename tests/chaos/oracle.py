"""The expected content of the tables of the driver's queries, computed from the change log in plain Python."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import UTC, datetime
from typing import Any, TypeAlias

from headrace.batches.feeds.channel_reading import read_channel
from headrace.batches.feeds.tunnel_feed import TunnelFeed
from headrace.model.tables.changes import DELETES, ChangeOp
from headrace.model.tunnels.records import INITIAL_BATCH
from headrace.ports import Store

Change: TypeAlias = tuple[dict[str, Any], ChangeOp, int]
"""A row, what happened to it, and the version."""


def read_changes(store: Store, tunnel: str) -> list[Change]:
    """Read a tunnel to its end in plain Python."""
    feed = TunnelFeed(store.tunnel(tunnel))
    found: list[Change] = []
    batch = INITIAL_BATCH
    while (following := feed.latest(batch)) != batch:
        batch = following
        for part in feed.plan(batch):
            if part.max_rows != 0:
                for changes in read_channel(feed.tunnel, batch, part):
                    entries = zip(changes.rows.to_pylist(), changes.ops, changes.versions, strict=True)
                    found += [(row, ChangeOp(op.as_py()), version.as_py()) for row, op, version in entries]
    return found


def check_tables(store: Store, context: str) -> list[Change]:
    """Compare the tables with their expected content; return the changes from which it was computed."""
    changes = read_changes(store, "oracle")
    live = [row for row, op, _ in changes if op not in DELETES]
    assert len(changes) > 1000, context

    windows: dict[str, list[float]] = {}
    for row in live:
        start = datetime.fromtimestamp(row["timestamp"] // 30_000 * 30, UTC)
        cell = windows.setdefault(f"{start:%Y-%m-%d %H:%M:%S}", [0, 0.0])
        cell[0] += 1
        cell[1] += row["price"]
    kept = {row["begin"]: [row["count"], row["totalPrice"]] for row in _rows(store, "windows")}
    assert kept == windows, context

    keys = {(row["UserId"], row["OrderId"]) for row in live}
    assert {(row["UserId"], row["OrderId"]) for row in _rows(store, "first_seen")} == keys, context
    expected = Counter((version, row["UserId"], row["OrderId"]) for row, _, version in changes)
    copies = {(row["version"], row["UserId"], row["OrderId"]) for row in _rows(store, "copy")}
    assert copies == set(expected), context
    return changes


def queue_rows(store: Store, queue: str, partition: int) -> list[dict[str, Any]]:
    """Return the rows of a partition, in their order."""
    bounds, rows = store.queue(queue).bounds()[partition], []
    position = bounds.lower
    while position < bounds.upper:
        page = store.queue(queue).read(partition, position, 65_536)
        rows += page.rows.to_pylist()
        position = page.next
    return rows


def total_by_user(orders: list[dict[str, Any]]) -> dict[str, tuple[Any, ...]]:
    """Return the result of the followed query ``totals`` over orders."""
    prices: dict[str, list[float]] = defaultdict(list)
    for row in orders:
        prices[row["UserId"]].append(row["price"])
    # Prices are quarters, so their sums are exact in any order.
    return {
        user: (len(each), sum(each), sum(each) / len(each), min(each), max(each), len(set(each)))
        for user, each in prices.items()
        if len(each) > 2
    }


def _rows(store: Store, table: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = store.table(table).scan().read_all().to_pylist()
    return rows
