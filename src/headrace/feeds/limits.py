"""Limits of a batch, shared over its channels or over the partitions of its queues. Pure functions."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from headrace.tunnels.values import Backlog

Channel = TypeVar("Channel", bound=Hashable)


@dataclass(frozen=True)
class Limits:
    """How much one batch may hold; None is no limit.

    Attributes:
        rows_per_channel: at most so many rows from each channel.
        rows_per_batch: at most so many rows in all, shared over the channels by what they have to give.
        bytes_per_batch: a soft maximum, in estimated bytes; at least one row per batch is read.
        min_rows: wait until so many rows are there …
        max_delay: … or until the oldest waiting row has waited so many seconds.
    """

    rows_per_channel: int | None = None
    rows_per_batch: int | None = None
    bytes_per_batch: int | None = None
    min_rows: int = 0
    max_delay: float = 900.0


def row_budget(backlogs: Mapping[Channel, Backlog], limits: Limits) -> int | None:
    """Return how many rows a batch may have in all, from its row and byte limits; None is no limit.

    The byte limit becomes rows by the average size of what is waiting; it always allows one row.
    """
    budget = limits.rows_per_batch
    if limits.bytes_per_batch is not None:
        sized = [(b.known, b.bytes) for b in backlogs.values() if b.known and b.bytes]
        rows, size = sum(rows for rows, _ in sized), sum(size for _, size in sized)
        if size:
            by_bytes = max(1, rows * limits.bytes_per_batch // size)
            budget = by_bytes if budget is None else min(budget, by_bytes)
    return budget


def share_rows(backlogs: Mapping[Channel, Backlog], limits: Limits) -> dict[Channel, int | None]:
    """Return for each channel how many rows it may give to a batch; None is no limit, 0 leaves it out.

    Every channel that has rows gets one, and then a share in proportion to them, never more than it has; where
    there is less than a row for each, those with the oldest rows come first. A channel of unknown size counts as one
    that could fill the batch.
    """
    budget = row_budget(backlogs, limits)
    waiting = {channel: backlog for channel, backlog in backlogs.items() if not backlog.empty}
    shares: dict[Channel, int | None] = {channel: 0 for channel in backlogs if channel not in waiting}
    if budget is None:
        shares.update(dict.fromkeys(waiting, limits.rows_per_channel))
        return shares
    wanted = {channel: budget if b.rows is None else b.rows for channel, b in waiting.items()}
    if limits.rows_per_channel is not None:
        wanted = {channel: min(rows, limits.rows_per_channel) for channel, rows in wanted.items()}
    total = sum(wanted.values())
    if total <= budget:
        shares.update(wanted)
        return shares
    first = 1 if budget >= len(wanted) else 0
    # Both are above 0: there are more rows wanted than the budget has.
    rest, further = budget - first * len(wanted), total - first * len(wanted)
    granted = {channel: first + (rows - first) * rest // further for channel, rows in wanted.items()}
    spare = budget - sum(granted.values())
    for channel in sorted(wanted, key=lambda channel: -(waiting[channel].seconds or 0.0)):
        if spare == 0:
            break
        if granted[channel] < wanted[channel]:
            granted[channel] += 1
            spare -= 1
    shares.update(granted)
    return shares


def enough_rows(backlogs: Mapping[Channel, Backlog], limits: Limits) -> bool:
    """Tell whether a batch is due: the minimum of rows is there, or the oldest has waited long enough.

    A channel that cannot tell its rows or their age counts as due.
    """
    waiting = [backlog for backlog in backlogs.values() if not backlog.empty]
    if sum(backlog.rows or limits.min_rows for backlog in waiting) >= limits.min_rows:
        return True
    return any(backlog.seconds is None or backlog.seconds >= limits.max_delay for backlog in waiting)


def ages_matter(backlogs: Mapping[Channel, Backlog], limits: Limits) -> bool:
    """Tell whether `share_rows` or `enough_rows` would look at the ages of these backlogs, all of known size."""
    rows = [backlog.rows or 0 for backlog in backlogs.values() if not backlog.empty]
    budget = row_budget(backlogs, limits)
    return bool(rows) and (sum(rows) < limits.min_rows or (budget is not None and budget < len(rows)))
