"""Limits of a batch, divided among its channels or among the partitions of its queues. Pure functions."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from headrace.model.tunnels.values import Backlog

Channel = TypeVar("Channel", bound=Hashable)


@dataclass(frozen=True)
class Limits:
    """The limits of one batch; None is no limit.

    Attributes:
        rows_per_channel: the maximum number of rows of each channel.
        rows_per_batch: the maximum number of rows in total, divided among the channels in proportion to their backlogs.
        bytes_per_batch: a soft maximum, in estimated bytes; a batch has at least one row.
        min_rows: the number of unread rows at which a batch is planned …
        max_delay: … unless the oldest unread row is older than this, in seconds.
        copied_rows: the approximate maximum number of rows of which the store keeps a copy, see `Backlog.copied`.
    """

    rows_per_channel: int | None = None
    rows_per_batch: int | None = None
    bytes_per_batch: int | None = None
    min_rows: int = 0
    max_delay: float = 900.0
    copied_rows: int | None = 10_000_000


def row_budget(backlogs: Mapping[Channel, Backlog], limits: Limits) -> int | None:
    """Return the maximum number of rows of a batch by its row and byte limits; None is no limit.

    The average size of the unread rows converts the byte limit into rows, at least one.
    """
    budget = limits.rows_per_batch
    if limits.bytes_per_batch is not None:
        sized = [(b.known or b.copied, b.bytes) for b in backlogs.values() if (b.known or b.copied) and b.bytes]
        rows, size = sum(rows for rows, _ in sized), sum(size for _, size in sized)
        if size:
            by_bytes = max(1, rows * limits.bytes_per_batch // size)
            budget = by_bytes if budget is None else min(budget, by_bytes)
    return budget


def share_rows(backlogs: Mapping[Channel, Backlog], limits: Limits) -> dict[Channel, int | None]:
    """Return for each channel the maximum number of its rows in a batch; None is no limit, 0 excludes the channel.

    Each channel with unread rows gets one row, and a share of the rest in proportion to its unread rows, but not more
    than it has. If there are more channels than rows, channels with the oldest rows get them. The share of a channel
    with an unknown number of rows is computed as if it could fill the batch. Channels that the store would have to copy
    are read one after the other: as many as fill the batch.
    """
    budget = row_budget(backlogs, limits)
    waiting = _without_most_copies(backlogs, budget, limits.copied_rows)
    shares: dict[Channel, int | None] = {channel: 0 for channel in backlogs if channel not in waiting}
    if budget is None:
        shares.update(dict.fromkeys(waiting, limits.rows_per_channel))
        return shares
    requests = {channel: budget if b.rows is None else b.rows for channel, b in waiting.items()}
    if limits.rows_per_channel is not None:
        requests = {channel: min(rows, limits.rows_per_channel) for channel, rows in requests.items()}
    total = sum(requests.values())
    if total <= budget:
        shares.update(requests)
        return shares
    first = 1 if budget >= len(requests) else 0
    # Both are larger than 0, because the budget is smaller than the total.
    rest, further = budget - first * len(requests), total - first * len(requests)
    granted = {channel: first + (rows - first) * rest // further for channel, rows in requests.items()}
    spare = budget - sum(granted.values())
    for channel in sorted(requests, key=lambda channel: -(waiting[channel].seconds or 0.0)):
        if spare == 0:
            break
        if granted[channel] < requests[channel]:
            granted[channel] += 1
            spare -= 1
    shares.update(granted)
    return shares


def _without_most_copies(
    backlogs: Mapping[Channel, Backlog], budget: int | None, copied_rows: int | None
) -> dict[Channel, Backlog]:
    """Return the backlogs that are not empty; of unopened channels, only as many as the batch needs.

    Args:
        budget: the maximum number of rows of the batch; None is no limit.
        copied_rows: see `Limits`.
    """
    waiting = {channel: backlog for channel, backlog in backlogs.items() if not backlog.empty}
    chosen = {channel: backlog for channel, backlog in waiting.items() if not backlog.unopened}
    rows, copied = sum(each.known or 1 for each in chosen.values()), sum(each.copied for each in chosen.values())
    for channel, backlog in waiting.items():
        if backlog.unopened:
            if (budget is not None and rows >= budget) or (copied_rows is not None and copied >= copied_rows):
                break
            # Its share is not computed as if it could fill the batch.
            chosen[channel] = replace(backlog, rows=backlog.copied)
            rows += backlog.copied
            copied += backlog.copied
    return chosen


def enough_rows(backlogs: Mapping[Channel, Backlog], limits: Limits) -> bool:
    """Return whether a batch is due: there are enough unread rows, or the oldest one has reached the maximum delay.

    A channel with an unknown number of rows, or rows of unknown age, makes a batch due.
    """
    waiting = [backlog for backlog in backlogs.values() if not backlog.empty]
    if sum(backlog.rows or limits.min_rows for backlog in waiting) >= limits.min_rows:
        return True
    return any(backlog.seconds is None or backlog.seconds >= limits.max_delay for backlog in waiting)


def ages_matter(backlogs: Mapping[Channel, Backlog], limits: Limits) -> bool:
    """Return whether the result of `share_rows` or `enough_rows` depends on the ages of backlogs of known size."""
    rows = [backlog.rows or 0 for backlog in backlogs.values() if not backlog.empty]
    budget = row_budget(backlogs, limits)
    return bool(rows) and (sum(rows) < limits.min_rows or (budget is not None and budget < len(rows)))
