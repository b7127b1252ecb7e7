"""One channel that a worker has: how far it is read, handed out, processed and saved. No threads, no I/O."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence

from headrace.errors import HeadraceError
from headrace.tunnels.leases import Lease, LeaseStatus, Saved
from headrace.tunnels.values import FINISHED, Page, Position

READ_AHEAD_PAGES = 2
FIRST_PAUSE, LONGEST_PAUSE = 0.010, 2.0
# After a commit to the store, a channel that had nothing is looked at again at most so soon, in seconds.
_SOONEST = 0.050
_OWNED = (LeaseStatus.OPEN, LeaseStatus.CLOSING)


class LeasedChannel:
    """What a worker knows of a channel that it has.

    Pages are read from ``read`` on, wait in ``pages``, are handed out one at a time, and count as ``processed`` when
    their batch is done; ``saved`` follows. Times are those of `time.monotonic`.

    Args:
        lease: as the tunnel gave it.
        saved: where reading goes on.
    """

    def __init__(self, lease: Lease, saved: Saved) -> None:
        self.lease = lease
        self.read = self.processed = self.saved = saved.position
        self.sequence = saved.sequence
        self.pages: deque[Page] = deque()
        self.in_hand: Position | None = None
        self.reading = False
        self.error: HeadraceError | None = None
        self.due = 0.0
        self._looked = 0.0
        self._pause = 0.0

    @property
    def id(self) -> str:
        return self.lease.channel

    @property
    def may_be_read(self) -> bool:
        """Whether a next page is wanted, now or after a pause."""
        return (
            self.lease.status is LeaseStatus.OPEN
            and self.read != FINISHED
            and not self.reading
            and self.error is None
            and len(self.pages) < READ_AHEAD_PAGES
        )

    @property
    def has_news(self) -> bool:
        """Whether the tunnel is waiting to hear that the channel is read to its end, or given back."""
        if self.lease.status not in _OWNED:
            return False
        return self.processed == FINISHED or (self.lease.status is LeaseStatus.CLOSING and self.in_hand is None)

    @property
    def at_rest(self) -> bool:
        """Whether nothing that was read remains to be handed out, processed or saved."""
        return not self.pages and self.in_hand is None and self.processed == self.saved

    def arrived(self, start: Position, pages: Sequence[Page], behind: Position, now: float, full: int) -> bool:
        """Take what was read from ``start`` up to ``behind``, in pages with rows; tell whether it was wanted.

        Where there were ``full`` rows or more there are others behind them; after fewer there is a pause.
        """
        self.reading = False
        if self.lease.status is not LeaseStatus.OPEN or start != self.read:
            return False
        self.read = behind
        self.pages.extend(pages)
        self._settle()
        rows = sum(page.changes.num_rows for page in pages)
        if rows >= full:
            self._pause, self.due = 0.0, now
        elif rows:
            # What comes a few rows at a time is read about as often as it comes.
            self._wait(now, self._pause / 2)
        else:
            self._wait(now, self._pause * 2)
        return True

    def failed(self, error: HeadraceError, now: float) -> None:
        """Take note that a page could not be read: look again later, or never."""
        self.reading = False
        if error.retryable:
            self._wait(now, self._pause * 2)
        else:
            self.error = error

    def may_have_more(self) -> None:
        """Cut a pause short."""
        self.due = min(self.due, self._looked + _SOONEST)

    def hand_out(self) -> Page:
        """Return the next page; it is in hand until `done`."""
        page = self.pages.popleft()
        self.in_hand = page.next
        return page

    def done(self) -> None:
        """Count what is in hand as processed."""
        if self.in_hand is not None:
            self.processed, self.in_hand = self.in_hand, None
            self._settle()

    def told(self, lease: Lease) -> None:
        """Take the tunnel's view, if it is not older. A channel that is wanted back is not read any further."""
        if lease.version < self.lease.version:
            return
        self.lease = lease
        if lease.status is LeaseStatus.CLOSING:
            self.pages.clear()
            self.read = self.processed if self.in_hand is None else self.in_hand

    def report(self) -> Lease:
        """Return how the worker sees the channel, for a heartbeat."""
        if self.has_news and self.saved == self.processed:
            ended = self.saved == FINISHED
            status = LeaseStatus.TERMINATED if ended else LeaseStatus.CLOSE
            self.lease = Lease(self.id, self.lease.version + 1, status)
        return self.lease

    def _settle(self) -> None:
        # Empty pages move the position too: to the end of the channel, or along a log that has nothing for it.
        if self.in_hand is None and not self.pages:
            self.processed = self.read

    def _wait(self, now: float, pause: float) -> None:
        self._looked = now
        self._pause = min(max(pause, FIRST_PAUSE), LONGEST_PAUSE)
        self.due = now + self._pause * random.uniform(0.75, 1.25)
