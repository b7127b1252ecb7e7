"""Sharing a batch's limits over its channels. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.model import Backlog, Limits


def row_budget(backlogs: Mapping[str, Backlog], limits: Limits) -> int | None:
    """Return how many rows a batch may have in all, from its row and byte limits; None is no limit.

    The byte limit becomes rows by the average size of what is waiting; it always allows one row.
    """
    budget = limits.rows_per_batch
    if limits.bytes_per_batch is not None:
        sized = [(b.rows, b.bytes) for b in backlogs.values() if b.rows and b.bytes]
        rows, size = sum(rows for rows, _ in sized), sum(size for _, size in sized)
        if size:
            by_bytes = max(1, rows * limits.bytes_per_batch // size)
            budget = by_bytes if budget is None else min(budget, by_bytes)
    return budget


def share_rows(backlogs: Mapping[str, Backlog], limits: Limits) -> dict[str, int | None]:
    """Return for each channel how many rows it may give to a batch; None is no limit, 0 leaves it out.

    Every channel that has rows gets a share in proportion to them, never more than it has; where there is
    less than a row for each, those with the oldest rows come first. A channel of unknown size counts as the
    largest known one.
    """
    budget = row_budget(backlogs, limits)
    waiting = {channel: backlog for channel, backlog in backlogs.items() if not backlog.empty}
    shares: dict[str, int | None] = {channel: 0 for channel in backlogs if channel not in waiting}
    if budget is None:
        shares.update(dict.fromkeys(waiting, limits.rows_per_channel))
        return shares
    largest = max((b.rows for b in waiting.values() if b.rows is not None), default=budget)
    wanted = {channel: b.rows if b.rows is not None else largest for channel, b in waiting.items()}
    if limits.rows_per_channel is not None:
        wanted = {channel: min(rows, limits.rows_per_channel) for channel, rows in wanted.items()}
    total = sum(wanted.values())
    if total <= budget:
        shares.update(wanted)
        return shares
    granted = {channel: rows * budget // total for channel, rows in wanted.items()}
    spare = budget - sum(granted.values())
    oldest_first = sorted(wanted, key=lambda channel: (granted[channel] > 0, -(waiting[channel].seconds or 0.0)))
    for channel in oldest_first:
        if spare == 0:
            break
        if granted[channel] < wanted[channel]:
            granted[channel] += 1
            spare -= 1
    shares.update(granted)
    return shares


def enough_rows(backlogs: Mapping[str, Backlog], limits: Limits) -> bool:
    """Tell whether a batch is due: the minimum of rows is there, or the oldest has waited long enough.

    A channel that cannot tell its rows or their age counts as due.
    """
    waiting = [backlog for backlog in backlogs.values() if not backlog.empty]
    if sum(backlog.rows or limits.min_rows for backlog in waiting) >= limits.min_rows:
        return True
    return any(backlog.seconds is None or backlog.seconds >= limits.max_delay for backlog in waiting)
