"""`Feed`: a tunnel or queues as a sequence of batches; and `FeedPlanner`, which serves a feed to an engine.

`headrace.batches.feeds.tunnel_feed` has the feed of a tunnel, `headrace.batches.feeds.queue_feed` the feed of queues.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeAlias, TypeVar

from headrace.ports import Store

Offset: TypeAlias = dict[str, Any]
"""A position as JSON, the form in which Spark saves it in the checkpoint."""
PAST_START = "pastStart"
"""An entry of offsets with Spark 4.0 and 4.1: the batch has rows that did not exist when the query started."""
FeedPosition = TypeVar("FeedPosition")
Task = TypeVar("Task")

# Spark asks for the latest offset up to 100 times a second while there is nothing to read.
_IDLE_WAIT_SECONDS = 0.1
# A pause between two calls that is longer than this means that the query is busy with another source.
_POLLING_SECONDS = 0.05
# A store can be busy with other tables. After some looks without a result, they take at most this share of the time.
_QUICK_LOOKS = 5
_LOOKING_SHARE = 0.1
_LONGEST_PAUSE = 0.5


class Feed(ABC, Generic[FeedPosition, Task]):
    """A tunnel or queues as a sequence of batches. A position is the end of a batch, and the start of the next one.

    A query calls `initial` once, when it has no checkpoint. Then for each batch it calls `latest` with the end of the
    batch before, saves the result, and reads what `tasks` returns for the two positions. A repeated batch has the same
    two positions, and therefore the same rows.
    """

    @abstractmethod
    def initial(self) -> FeedPosition:
        """Return the position before the first batch."""

    @abstractmethod
    def latest(self, previous: FeedPosition, *, unlimited: bool = False, with_start: bool = False) -> FeedPosition:
        """Plan the batch that starts at ``previous`` and return its end; ``previous`` if there is nothing to read.

        A call means that all batches up to ``previous`` are complete, so the feed commits ``previous``. Spark's own
        commit comes one batch later.

        Args:
            unlimited: read all existing rows, regardless of the limits.
            with_start: the first batch of a queue has rows, and its end has the start, as if ``unlimited``.
        """

    @abstractmethod
    def tasks(self, start: FeedPosition, end: FeedPosition) -> Sequence[Task]:
        """Return the parts of a batch, one for each task of the engine; the same for each call.

        Raises:
            DataLossError: rows of the batch no longer exist.
        """

    @abstractmethod
    def commit(self, end: FeedPosition) -> None:
        """Save in the store that all batches up to a position are complete."""

    @abstractmethod
    def fix_end(self) -> None:
        """Limit all following batches to the rows that exist now (Trigger.AvailableNow)."""

    @abstractmethod
    def lift_end(self) -> None:
        """Let the following batches have all rows again, after `fix_end`."""

    @abstractmethod
    def rows_behind(self) -> dict[str, int]:
        """Return for each channel or partition the number of rows after the batch that was planned last."""

    @abstractmethod
    def position_of(self, offset: Offset) -> FeedPosition:
        """Return the position of an offset; raise `OptionError` if it is the offset of another source."""

    @abstractmethod
    def offset_of(self, position: FeedPosition) -> Offset:
        """Return a position as JSON."""

    def report(self) -> Offset:
        """Return the lag for Spark's progress reports; `headrace.spark.listener` reads it.

        ``rowsBehindLatest`` has the known number of unread rows for each channel or partition, ``rowsUnknown`` the
        channels that have more, ``baseRanges`` the number of key ranges of base data and how many are read, and
        ``secondsBehindLatest`` and ``bytesBehindLatest`` the age of the oldest unread change and their size, as far as
        they are known. ``slot`` has the log that a server keeps for the tunnel, if it does.
        """
        return {"rowsBehindLatest": self.rows_behind()}


class FeedPlanner(Generic[FeedPosition, Task]):
    """A feed with offsets instead of positions. While there is nothing to read, it waits for commits to the store.

    Args:
        store: the store of the feed.
    """

    def __init__(self, feed: Feed[FeedPosition, Task], store: Store) -> None:
        self.feed = feed
        self._store = store
        self._idle = False
        self._returned = 0.0
        self._looks_in_vain = 0
        self._next_look = 0.0

    def initial(self) -> Offset:
        """Return the offset before the first batch."""
        return self.feed.offset_of(self.feed.initial())

    def latest(self, start: Offset, *, unlimited: bool = False, with_start: bool = False) -> Offset:
        """Return the end of the batch that starts at an offset; see `Feed.latest`."""
        previous = self.feed.position_of(start)
        end = previous
        if not (self._idle and self._nothing_new()):
            begin = time.monotonic()
            end = self.feed.latest(previous, unlimited=unlimited, with_start=with_start)
            self._idle = end == previous
            self._looks_in_vain = self._looks_in_vain + 1 if self._idle else 0
            if self._looks_in_vain > _QUICK_LOOKS:
                now = time.monotonic()
                self._next_look = now + min(_LONGEST_PAUSE, (now - begin) / _LOOKING_SHARE)
        self._returned = time.monotonic()
        # Spark compares offsets as texts, and `start` can have more entries than the feed's.
        return start if end == previous else self.feed.offset_of(end)

    def lift_end(self) -> None:
        """Let the following batches have all rows again; see `Feed.lift_end`."""
        self.feed.lift_end()
        # Rows beyond the end may have been committed before the last look.
        self._idle = False

    def tasks(self, start: Offset, end: Offset) -> Sequence[Task]:
        """Return the tasks of the batch between two offsets; see `Feed.tasks`."""
        return self.feed.tasks(self.feed.position_of(start), self.feed.position_of(end))

    def commit(self, end: Offset) -> None:
        """Save in the store that all batches up to an offset are complete."""
        self.feed.commit(self.feed.position_of(end))

    def _nothing_new(self) -> bool:
        """Wait briefly for a commit to the store; return whether `Feed.latest` would certainly find nothing."""
        if time.monotonic() - self._returned > _POLLING_SECONDS:
            return False
        time.sleep(max(0.0, self._next_look - time.monotonic()))
        changed = self._store.wait_for_change(_IDLE_WAIT_SECONDS)
        if not changed:
            self._looks_in_vain = 0
        # Rows that wait for a minimum number of rows also become due after a time, without a commit.
        return not changed and not any(self.feed.rows_behind().values())
