"""A channel that is leased to a worker: the positions read, processed and saved. No threads, no I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from headrace.errors import HeadraceError
from headrace.model.tunnels.leases import Lease, LeaseStatus, Saved
from headrace.model.tunnels.values import FINISHED, Page, Position
from headrace.support.retries import jitter

READ_AHEAD_PAGES = 2
FIRST_PAUSE, LONGEST_PAUSE = 0.010, 2.0
# The shortest time between a read and another one after a commit to the store, in seconds. It grows with each such read
# that finds no rows, because a store can have many commits to other tables.
FIRST_INTERVAL, LONGEST_INTERVAL = 0.002, 0.020
_OWNED = (LeaseStatus.OPEN, LeaseStatus.CLOSING)


class LeasedChannel:
    """The state of a channel in a worker.

    Pages are read from position ``read`` on and wait in ``pages``. They are delivered one at a time, and count as
    ``processed`` when their batch is done. ``saved`` is the last position that the tunnel has stored. All times are of
    `time.monotonic`.

    Args:
        lease: the lease from the tunnel.
        saved: the position that the tunnel has.
        start: the position at which reading starts, if it is another one.
    """

    def __init__(self, lease: Lease, saved: Saved, start: Position | None = None) -> None:
        self.lease = lease
        self.saved = saved.position
        self.read = self.processed = saved.position if start is None else start
        self.sequence = saved.sequence
        self.pages: deque[Page] = deque()
        self.in_hand: Position | None = None
        self.reading = False
        self.error: HeadraceError | None = None
        self.due = 0.0
        self._found_nothing = False
        self._last_read = 0.0
        self._pause = 0.0
        self._interval = FIRST_INTERVAL
        self._commit_before_read = self._commit_since = False

    @property
    def id(self) -> str:
        return self.lease.channel

    @property
    def may_be_read(self) -> bool:
        """Whether a reader can read the next page, now or after a pause."""
        return (
            self.lease.status is LeaseStatus.OPEN
            and self.read != FINISHED
            and not self.reading
            and self.error is None
            and len(self.pages) < READ_AHEAD_PAGES
        )

    @property
    def has_news(self) -> bool:
        """Whether the tunnel should learn soon that the channel is read to its end, or can be released."""
        if self.lease.status not in _OWNED:
            return False
        return self.processed == FINISHED or (self.lease.status is LeaseStatus.CLOSING and self.in_hand is None)

    @property
    def at_rest(self) -> bool:
        """Whether all pages that were read are delivered, processed and saved."""
        return not self.pages and self.in_hand is None and self.processed == self.saved

    @property
    def caught_up(self) -> bool:
        """Whether the last read has found no rows, or no read will follow."""
        return not self.reading and (self._found_nothing or not self.may_be_read)

    @property
    def has_ended(self) -> bool:
        """Whether the last read has found no rows at the saved position."""
        return self._found_nothing and not self.reading and self.read == self.saved and self.read != FINISHED

    def begin_read(self) -> None:
        """Count the channel as being read, until `arrived` or `failed`."""
        self.reading = True
        self._commit_before_read, self._commit_since = self._commit_since, False

    def arrived(self, start: Position, pages: Sequence[Page], end: Position, now: float, full: int) -> bool:
        """Add the result of a read; return False if the channel was released or moved in the meantime.

        Args:
            start: the position of the read.
            pages: the pages with rows.
            end: the position after the read.
            full: the number of rows from which on a read counts as full. The next read follows at once after a full
                read, otherwise after a pause.
        """
        self.reading = False
        if self.lease.status is not LeaseStatus.OPEN or start != self.read:
            return False
        self.read = end
        self.pages.extend(pages)
        self._settle()
        rows = sum(page.changes.num_rows for page in pages)
        self._found_nothing = not rows
        if rows:
            self._interval = FIRST_INTERVAL
        elif self._commit_before_read:
            self._interval = min(2 * self._interval, LONGEST_INTERVAL)
        if rows >= full:
            self._pause, self.due = 0.0, now
        elif rows:
            # The interval of reads approaches the interval at which rows arrive.
            self._wait(now, self._pause / 2)
        else:
            self._wait(now, self._pause * 2)
        if self._commit_since:
            # The read may have begun before the commit.
            self.due = min(self.due, now + self._interval)
        return True

    def failed(self, error: HeadraceError, now: float) -> None:
        """Record a failed read: after a temporary error the channel is read again later, otherwise never."""
        self.reading = self._found_nothing = False
        if error.retryable:
            self._interval = LONGEST_INTERVAL
            self._wait(now, self._pause * 2)
        else:
            self.error = error

    def may_have_more(self) -> None:
        """Shorten the current pause, or that after the current read, because the store has new commits."""
        self._commit_since = True
        self.due = min(self.due, self._last_read + self._interval)

    def deliver(self) -> Page:
        """Return the next page. It is in hand until `done`."""
        page = self.pages.popleft()
        self.in_hand = page.next
        return page

    def done(self) -> None:
        """Count the page in hand as processed."""
        if self.in_hand is not None:
            self.processed, self.in_hand = self.in_hand, None
            self._settle()

    def update(self, lease: Lease) -> None:
        """Apply a lease from the tunnel, unless it is older. A channel in state CLOSING is not read any further."""
        if lease.version < self.lease.version:
            return
        self.lease = lease
        if lease.status is LeaseStatus.CLOSING:
            self.pages.clear()
            self._found_nothing = False
            self.read = self.processed if self.in_hand is None else self.in_hand

    def report(self) -> Lease:
        """Return the lease that the next heartbeat reports."""
        if self.has_news and self.saved == self.processed:
            ended = self.saved == FINISHED
            status = LeaseStatus.TERMINATED if ended else LeaseStatus.CLOSE
            self.lease = Lease(self.id, self.lease.version + 1, status)
        return self.lease

    def _settle(self) -> None:
        # A page without rows also moves the position, for example to the end of the channel.
        if self.in_hand is None and not self.pages:
            self.processed = self.read

    def _wait(self, now: float, pause: float) -> None:
        self._last_read = now
        self._pause = min(max(pause, FIRST_PAUSE), LONGEST_PAUSE)
        self.due = now + self._pause * jitter(0.75, 1.25)
