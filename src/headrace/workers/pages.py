"""Cutting a page of changes into batches."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.model.tunnels.values import Page, Position
from headrace.workers.interfaces import ConsumedTunnel


def cut(tunnel: ConsumedTunnel, channel: str, start: Position, page: Page, most: int) -> Iterator[Page]:
    """Yield a page in pieces of at most ``most`` rows. A page without rows yields nothing.

    A pre-image stays with the change that follows it, so a piece can have one row more.

    Args:
        start: the position at which the page was read.
    """
    changes = page.changes
    while changes.num_rows > most:
        rows = changes.whole_pairs(most)
        if rows == changes.num_rows:
            break
        start = tunnel.advance(channel, start, rows)
        yield Page(changes.slice(0, rows), start)
        changes = changes.slice(rows)
    if changes.num_rows:
        yield Page(changes, page.next)
