"""The feed of queues: a batch is the rows between two offsets, so a repeated batch has the same rows.

An offset contains the index of the first unread row of each partition of each queue. The offset before the first batch
contains no queue. The first batch that contains a queue reads none of its rows and only fixes where reading starts,
because Spark saves the ends of batches and not their starts. If Spark asks for a single batch, the offset of that batch
also contains its start: `QueueOffset.since`.

A consumer, if the query has one, follows the offsets. When a feed starts, the checkpoint takes precedence: the feed
moves the consumer to the checkpoint's offset and logs the difference. After that, every advance is a compare-and-set,
so a second reader of the same consumer causes an error instead of lost rows.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from headrace.batches.feeds.feed import Feed, Offset
from headrace.batches.feeds.limits import Limits, ages_matter, enough_rows, share_rows
from headrace.batches.feeds.queue_columns import common_schema
from headrace.batches.feeds.queue_offset import QueueOffset
from headrace.batches.feeds.queue_positions import QueueStart, check_positions, resolve_position
from headrace.batches.feeds.queue_reading import QueueRange, plan_tasks, rows_left
from headrace.errors import DataLossError, NotFoundError, OptionError
from headrace.model.queues.values import Bounds
from headrace.model.tunnels.values import Backlog, Start
from headrace.ports import Consumer, Queue, Store
from headrace.support import failpoints

NO_LIMITS = Limits()
COMMITTED = Start()
_log = logging.getLogger("headrace")


class QueueFeed(Feed[QueueOffset, tuple[QueueRange, ...]]):
    """The feed of one or several queues with the same columns. A task of a batch is a tuple of row ranges.

    Args:
        store: the store of the queues.
        queues: the queues.
        consumer: a consumer that follows the offsets. It must be registered for each queue.
        start: where reading starts in a queue that has no offset in the checkpoint.
        limits: the limits of a batch.
        fail_on_data_loss: raise `DataLossError` if unread rows were removed; otherwise skip and log them.
        min_tasks: the minimum number of tasks of a batch, see `plan_tasks`.

    Raises:
        NotFoundError: the consumer is not registered for a queue.
        SchemaError: the queues have different columns.
    """

    def __init__(
        self,
        store: Store,
        queues: Sequence[Queue],
        consumer: Consumer | None = None,
        *,
        start: QueueStart = COMMITTED,
        limits: Limits = NO_LIMITS,
        fail_on_data_loss: bool = True,
        min_tasks: int | None = None,
    ) -> None:
        self.schema = common_schema(queues)
        self.start = start
        self.limits = limits
        self.fail_on_data_loss = fail_on_data_loss
        self.min_tasks = min_tasks
        self._store = store.id
        self._knows_times = store.capabilities.row_times
        # Rows by queue, partition and index with their commit times, which are known to be in the queues.
        self._same: set[tuple[str, int, int, int]] = set()
        self._copies: dict[str, int] = {}
        self._queues = {queue.name: queue for queue in queues}
        self._consumer = consumer
        check_positions(start, list(self._queues))
        if consumer is not None:
            check_registered(consumer, list(self._queues))
        self._fixed_end: dict[str, dict[int, Bounds]] | None = None
        # The consumer's offsets when this feed last read or set them.
        self._consumed: dict[str, dict[int, int]] = {}
        self._ends: dict[str, dict[int, int]] = {}
        self._rows_behind: dict[str, int] = {}

    def initial(self) -> QueueOffset:
        return QueueOffset(self._store, None if self._consumer is None else self._consumer.name, {})

    def latest(self, previous: QueueOffset, *, unlimited: bool = False, with_start: bool = False) -> QueueOffset:
        """Plan the next batch; see `Feed.latest`.

        Raises:
            OffsetConflictError: another reader has moved the consumer.
            DataLossError: rows from ``previous`` on no longer exist.
        """
        with_start = with_start or unlimited
        self._check_store(previous)
        previous = self._without_dropped(previous, {name: queue.id for name, queue in self._queues.items()})
        previous = self._with_same_rows(previous)
        bounds = {name: queue.bounds() for name, queue in self._queues.items()}
        previous = self._with_partitions_left(previous, bounds)
        self._align_consumer(previous)
        self.commit(previous)
        self._ends = {
            name: {number: rows.upper for number, rows in partitions.items()} for name, partitions in bounds.items()
        }
        since = {
            name: resolve_position(self.start, self._queues[name], partitions, self._consumer)
            for name, partitions in bounds.items()
            if name not in previous.queues
        }
        starts = dict(previous.queues) | (since if with_start else {})
        ends = self._next_ends(starts, bounds, NO_LIMITS if unlimited else self.limits) | ({} if with_start else since)
        self._rows_behind = {
            f"{name}[{number}]": max(0, rows.upper - ends[name].get(number, 0))
            for name, partitions in bounds.items()
            for number, rows in partitions.items()
        }
        if ends.keys() == previous.queues.keys() and all(_agree(previous.queues[name], ends[name]) for name in ends):
            return previous
        ids = {name: self._queues[name].id for name in ends}
        times = self._times(ends, previous) if self._knows_times else {}
        return replace(self.initial(), queues=ends, since=since if with_start else {}, ids=ids, times=times)

    def ranges(self, start: QueueOffset, end: QueueOffset) -> list[QueueRange]:
        """Return the row ranges of the batch between two offsets, by queue and partition.

        Raises:
            DataLossError: rows of the batch no longer exist.
        """
        self._check_store(end)
        end = self._without_dropped(end, {name: queue.id for name, queue in self._queues.items()})
        start = self._without_dropped(start, end.ids)
        start, end = self._with_same_rows(start), self._with_same_rows(end)
        self._align_consumer(start, end)
        ranges: list[QueueRange] = []
        for name in self._queues:
            starts = start.queues.get(name, end.since.get(name))
            if starts is None or name not in end.queues:
                continue
            wanted = [
                _between(name, number, starts.get(number, 0), row)
                for number, row in end.queues[name].items()
                if row != starts.get(number, 0)
            ]
            bounds = self._queues[name].bounds() if wanted else {}
            ranges += [
                rows_left(each, bounds.get(each.partition), fail_on_data_loss=self.fail_on_data_loss) for each in wanted
            ]
        return ranges

    def tasks(self, start: QueueOffset, end: QueueOffset) -> list[tuple[QueueRange, ...]]:
        return plan_tasks(self.ranges(start, end), self.min_tasks)

    def commit(self, end: QueueOffset) -> None:
        """Advance the consumer to the end of a complete batch.

        Raises:
            OffsetConflictError: another reader has moved the consumer.
        """
        if self._consumer is None:
            return
        for name in end.queues.keys() & self._consumed.keys():
            target, left = end.queues[name], self._consumed[name]
            if _agree(left, target):
                continue
            moved = {number: row for number, row in target.items() if left.get(number, 0) != row}
            before = {number: left.get(number, 0) for number in moved}
            # The publication of the batch may have advanced the consumer already.
            failpoints.reach("progress-unsaved")
            self._consumer.advance(name, moved, before, or_published=True)
            failpoints.reach("progress-saved")
            self._consumed[name] = dict(target)

    def fix_end(self) -> None:
        self._fixed_end = {name: queue.bounds() for name, queue in self._queues.items()}

    def lift_end(self) -> None:
        self._fixed_end = None

    def rows_behind(self) -> dict[str, int]:
        """Return for each partition, as ``<queue>[<number>]``, the number of rows after the batch planned last."""
        return dict(self._rows_behind)

    def position_of(self, offset: Offset) -> QueueOffset:
        return QueueOffset.of_json(offset)

    def offset_of(self, position: QueueOffset) -> Offset:
        return position.to_json()

    def report(self) -> Offset:
        """Return the ends of the queues as an offset, and the lag."""
        return self.offset_of(replace(self.initial(), queues=self._ends)) | super().report()

    def _next_ends(
        self, starts: Mapping[str, Mapping[int, int]], bounds: Mapping[str, Mapping[int, Bounds]], limits: Limits
    ) -> dict[str, dict[int, int]]:
        """Return the ends of the next batch for the queues that have a start."""
        unread = {
            (name, number): self._unread(name, number, rows.get(number, 0), bounds[name][number])
            for name, rows in starts.items()
            for number in bounds[name]
        }
        backlogs = {
            partition: Backlog(wanted.rows, _size(bounds[partition[0]][partition[1]], wanted.rows))
            for partition, wanted in unread.items()
        }
        if ages_matter(backlogs, limits):
            backlogs = {
                partition: replace(backlog, seconds=0.0 if backlog.empty else self._age(unread[partition]))
                for partition, backlog in backlogs.items()
            }
        due = self._fixed_end is not None or enough_rows(backlogs, limits)
        shares = share_rows(backlogs, limits) if due else dict.fromkeys(backlogs, 0)
        ends: dict[str, dict[int, int]] = {name: {} for name in starts}
        for (name, number), wanted in unread.items():
            share = shares[name, number]
            # If the batch reads no rows of a partition, the offset does not change, even if rows are lost.
            unchanged = wanted.rows > 0 and share == 0
            taken = wanted.rows if share is None else min(wanted.rows, share)
            ends[name][number] = starts[name].get(number, 0) if unchanged else wanted.first + taken
        return ends

    def _unread(self, name: str, number: int, first: int, bounds: Bounds) -> QueueRange:
        """Return the rows of a partition from a row index on that the next batch may read."""
        if first > bounds.upper:
            rows_left(QueueRange(name, number, bounds.upper, first), bounds, fail_on_data_loss=self.fail_on_data_loss)
            first = 0
        upper = bounds.upper
        if self._fixed_end is not None:
            upper = self._fixed_end.get(name, {}).get(number, Bounds(0, 0)).upper
        if first >= upper:
            return QueueRange(name, number, first, first)
        if first < bounds.lower and self.fail_on_data_loss:
            rows_left(QueueRange(name, number, first, upper), bounds, fail_on_data_loss=True)
        return QueueRange(name, number, max(first, min(bounds.lower, upper)), upper)

    def _age(self, unread: QueueRange) -> float | None:
        committed = self._queues[unread.queue].commit_time(unread.partition, unread.first)
        return None if committed is None else max(0.0, time.time() - committed)

    def _check_store(self, offset: QueueOffset) -> None:
        if offset.store != self._store:
            raise OptionError(
                "the checkpoint belongs to a query on another store",
                received=f"store id {offset.store}",
                valid=f"store id {self._store}",
                remedy="use the store of that query, or a new checkpoint location",
            )
        for name in offset.queues:
            if name not in self._queues:
                raise OptionError(
                    "the checkpoint has an offset of a queue that the query does not read",
                    received=repr(name),
                    valid=list(self._queues),
                    remedy="read that queue too, or start with a new checkpoint location",
                )

    def _with_partitions_left(self, offset: QueueOffset, bounds: Mapping[str, Mapping[int, Bounds]]) -> QueueOffset:
        """Return an offset without partitions that no longer exist.

        Raises:
            DataLossError: a partition no longer exists, and ``fail_on_data_loss`` is set.
        """
        missing = {name: sorted(rows.keys() - bounds[name].keys()) for name, rows in offset.queues.items()}
        for name in [name for name, numbers in missing.items() if numbers]:
            if self.fail_on_data_loss:
                raise DataLossError(
                    f"queue {name!r} has fewer partitions than the query has read",
                    received=f"{len(bounds[name])} partitions, and an offset in partition {missing[name][-1]}",
                    remedy="add the missing partitions, set option failOnDataLoss=false to read the remaining "
                    "partitions, or start with a new checkpoint location",
                )
            _log.warning(
                "failOnDataLoss=false: partitions %s of queue %r no longer exist, skipped", missing[name], name
            )
        left = {
            name: {number: row for number, row in rows.items() if number in bounds[name]}
            for name, rows in offset.queues.items()
        }
        return offset if left == offset.queues else replace(offset, queues=left)

    def _without_dropped(self, offset: QueueOffset, ids: Mapping[str, str]) -> QueueOffset:
        """Return an offset that starts at row 0 in queues that were dropped and created again, which have other ids.

        Raises:
            DataLossError: a queue was created again, and ``fail_on_data_loss`` is set.
        """
        recreated = [name for name, queue_id in offset.ids.items() if ids.get(name, queue_id) != queue_id]
        if not recreated:
            return offset
        for name in recreated:
            if self.fail_on_data_loss:
                raise DataLossError(
                    f"queue {name!r} was dropped and created again after the query read it",
                    received=f"offsets {dict(offset.queues[name])} in the dropped queue",
                    remedy="set option failOnDataLoss=false to start at row 0 of the new queue, or start with a new "
                    "checkpoint location",
                )
            # The store dropped the consumer's offsets with the queue.
            self._consumed.pop(name, None)
            _log.warning("failOnDataLoss=false: queue %r was created again; reading starts at its first row", name)
        empty: dict[str, Mapping[int, int]] = {name: {} for name in recreated}
        new_ids = {name: ids[name] for name in recreated}
        return replace(offset, queues={**offset.queues, **empty}, ids={**offset.ids, **new_ids})

    def _times(self, ends: Mapping[str, Mapping[int, int]], previous: QueueOffset) -> dict[str, dict[int, int]]:
        """Return the commit times of the last rows before an offset, by queue and partition."""
        times: dict[str, dict[int, int]] = {name: {} for name in ends}
        for name, rows in ends.items():
            for number, row in rows.items():
                moment = previous.times.get(name, {}).get(number)
                if moment is None or previous.queues[name].get(number) != row:
                    moment = self._time_before(name, number, row)
                if moment is not None:
                    times[name][number] = moment
        self._same = _last_rows(previous.queues, previous.times) | _last_rows(ends, times)
        return times

    def _time_before(self, name: str, number: int, row: int) -> int | None:
        """Return the commit time in µs of the row before a row index; None if it is not there."""
        seconds = self._queues[name].commit_time(number, row - 1) if row else None
        return None if seconds is None else round(seconds * 1e6)

    def _with_same_rows(self, offset: QueueOffset) -> QueueOffset:
        """Return an offset that starts at row 0 in queues that have other rows than the query has read.

        Raises:
            DataLossError: there is such a queue, and ``fail_on_data_loss`` is set.
        """
        copies = {name: queue.copies for name, queue in self._queues.items()}
        if copies != self._copies:
            self._same, self._copies = set(), copies
        unknown = _last_rows(offset.queues, offset.times) - self._same
        others = {
            name for name, number, row, moment in unknown if self._time_before(name, number, row) not in (moment, None)
        }
        self._same |= {each for each in unknown if each[0] not in others}
        for name in others:
            if self.fail_on_data_loss:
                raise DataLossError(
                    f"queue {name!r} has other rows than the query has read: its store is an older copy, "
                    "to which rows were appended",
                    received=f"offsets {dict(offset.queues[name])} in the newer store",
                    remedy="restore the newest copy of the store; set option failOnDataLoss=false to read all rows of "
                    "the queue again, or start with a new checkpoint location",
                )
            _log.warning("failOnDataLoss=false: queue %r is an older copy; reading starts at its first row", name)
        if not others:
            return offset
        empty: dict[str, Mapping[int, int]] = {name: {} for name in others}
        return replace(offset, queues={**offset.queues, **empty}, times={**offset.times, **empty})

    def _align_consumer(self, start: QueueOffset, end: QueueOffset | None = None) -> None:
        """Move the consumer to the checkpoint's offsets, once for each queue."""
        if self._consumer is None:
            return
        for name in self._queues.keys() - self._consumed.keys():
            found = self._consumer.offsets(name)
            ends = None if end is None else end.queues.get(name)
            expected = start.queues.get(name)
            # The last batch may be committed by its publication, or not yet committed.
            accepted = [expected, start.since.get(name), ends]
            if expected is not None and not any(_agree(found, offsets) for offsets in accepted if offsets is not None):
                moved = {number: row for number, row in expected.items() if found.get(number, 0) != row}
                before = {number: found.get(number, 0) for number in moved}
                self._consumer.advance(name, moved, before)
                _log.warning(
                    "consumer %s of queue %s differed from the checkpoint and was moved, by partition from %s to %s",
                    *(self._consumer.name, name, before, moved),
                )
                found = {**found, **moved}
            self._consumed[name] = found


def check_registered(consumer: Consumer, queues: Sequence[str]) -> None:
    """Raise `NotFoundError` unless a consumer is registered for each of the queues."""
    registered = {registration.queue for registration in consumer.registrations()}
    for name in queues:
        if name not in registered:
            raise NotFoundError(
                f"consumer {consumer.name!r} is not registered for queue {name!r}",
                valid=sorted(registered),
                remedy=f"store.register_consumer({name!r}, {consumer.name!r})",
            )


def _last_rows(
    queues: Mapping[str, Mapping[int, int]], times: Mapping[str, Mapping[int, int]]
) -> set[tuple[str, int, int, int]]:
    """Return the partitions of an offset with a known time: queue, partition, first unread row, and the time."""
    return {
        (name, number, queues[name][number], moment)
        for name, moments in times.items()
        for number, moment in moments.items()
        if number in queues.get(name, {})
    }


def _agree(offsets: Mapping[int, int], target: Mapping[int, int]) -> bool:
    """Return whether offsets equal a target; the offset of a partition that was never consumed is 0."""
    return all(offsets.get(number, 0) == row for number, row in target.items())


def _between(name: str, number: int, first: int, end: int) -> QueueRange:
    # An end before the start: the store is an older copy and the loss is accepted, so all its rows are new.
    return QueueRange(name, number, first if first <= end else 0, end)


def _size(bounds: Bounds, rows: int) -> int:
    return bounds.bytes * rows // bounds.rows if bounds.rows else 0
