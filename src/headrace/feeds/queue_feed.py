"""Queues as a sequence of batches: a batch is the rows between two offsets, the same whenever it is read.

An offset holds the index of the first unread row of every partition of every queue. The offset of a query that has
not begun holds no queue at all; a queue that an offset does not have is *fixed* by the next batch, which reads
nothing of it, because Spark records where batches end and never where they start. (Where Spark asks for one batch
only, with everything, that batch's offset also says where it starts: `QueueOffset.since`.)

Where a consumer is named, it follows the offsets. The checkpoint wins: a consumer that stands elsewhere at a
reader's first look is moved to the checkpoint's offset and the difference is logged. From then on every advance is
a compare-and-set, so that a second reader of the consumer is found out instead of losing rows for both.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from headrace import failpoints
from headrace.errors import DataLossError, NotFoundError, OptionError, SchemaError
from headrace.feeds.limits import Limits, ages_matter, enough_rows, share_rows
from headrace.feeds.queue_positions import QueueStart, check_positions, resolve_position
from headrace.feeds.queue_reading import QueueRange, rows_left
from headrace.ports import Consumer, Queue, Store
from headrace.queues.columns import QueueSchema
from headrace.queues.values import Bounds
from headrace.tunnels.values import Backlog, Start
from headrace.types import type_name

NO_LIMITS = Limits()
COMMITTED = Start()
_log = logging.getLogger("headrace")


@dataclass(frozen=True)
class QueueOffset:
    """Where a query stands: in ``queues``, per queue and partition number, the index of the first unread row.

    ``store`` is the `Store.id` that the queues belong to, ``consumer`` the name of the consumer that follows.
    ``since`` is where the batch that ends here starts in queues that the offset before it does not have. ``ids`` has
    the `Queue.id` of each queue: one that was dropped and made anew begins at row 0 again.
    """

    store: str
    consumer: str | None
    queues: Mapping[str, Mapping[int, int]]
    since: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    ids: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the offset as values that JSON can hold; ``since`` and ``ids`` only if they have something."""
        value: dict[str, Any] = {
            "store": self.store,
            "consumer": self.consumer,
            "queues": _with_text_keys(self.queues),
        }
        if self.since:
            value["since"] = _with_text_keys(self.since)
        if self.ids:
            value["ids"] = dict(self.ids)
        return value

    @classmethod
    def of_json(cls, value: Any) -> QueueOffset:
        """Return the offset that `to_json` made these values of.

        Raises:
            OptionError: it is the offset of another kind of source.
        """
        try:
            if not is_queue_offset(value):
                raise ValueError
            queues, since = (
                {name: {int(number): int(row) for number, row in rows.items()} for name, rows in part.items()}
                for part in (value["queues"], value.get("since", {}))
            )
            ids = {name: str(queue_id) for name, queue_id in value.get("ids", {}).items()}
        except (ValueError, TypeError, AttributeError):
            raise OptionError(
                "the checkpoint's offset is not one of a queue",
                received=str(value)[:200],
                valid='{"store": "<id>", "consumer": null, "queues": {"<queue>": {"0": 5}}}',
                remedy="the checkpoint location was used by another source; choose a new one",
            ) from None
        return cls(value["store"], value["consumer"], queues, since, ids)


def _with_text_keys(queues: Mapping[str, Mapping[int, int]]) -> dict[str, dict[str, int]]:
    return {name: {str(number): row for number, row in rows.items()} for name, rows in queues.items()}


def is_queue_offset(value: Any) -> bool:
    """Tell whether parsed JSON is what `QueueOffset.to_json` returns."""
    return (
        isinstance(value, dict)
        and value.keys() - {"since", "ids"} == {"store", "consumer", "queues"}
        and isinstance(value["store"], str)
        and isinstance(value["consumer"], str | None)
        and isinstance(value["queues"], dict)
    )


def common_schema(queues: Sequence[Queue]) -> QueueSchema:
    """Return the columns of queues that are read together, or raise `SchemaError` where they differ."""
    schema = queues[0].schema
    for queue in queues[1:]:
        if queue.schema.columns != schema.columns:
            raise SchemaError(
                f"queues {queues[0].name!r} and {queue.name!r} have different columns",
                received=_described(queue.schema),
                valid=_described(schema),
                remedy="read them as two streams and union the columns that you need",
            )
    return schema


def _described(schema: QueueSchema) -> list[str]:
    return [
        f"{column.name} {type_name(column.type)}{'' if column.nullable else ' not null'}" for column in schema.columns
    ]


class QueueFeed:
    """The driver's side of queues that are read as one stream.

    Args:
        store: where the queues are.
        queues: what to read; all have the same columns.
        consumer: what follows the offsets; it must be registered for every queue.
        start: where a queue without a checkpoint begins.
        limits: how much a batch may hold.
        fail_on_data_loss: refuse to go on where rows were removed unread; otherwise skip them and log which.

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
    ) -> None:
        self.schema = common_schema(queues)
        self.start = start
        self.limits = limits
        self.fail_on_data_loss = fail_on_data_loss
        self._store = store.id
        self._queues = {queue.name: queue for queue in queues}
        self._consumer = consumer
        check_positions(start, list(self._queues))
        if consumer is not None:
            check_registered(consumer, list(self._queues))
        self._pinned: dict[str, dict[int, Bounds]] | None = None
        # Where the consumer stood when this feed last saw or set it.
        self._consumed: dict[str, dict[int, int]] = {}
        self._ends: dict[str, dict[int, int]] = {}
        self._behind: dict[str, int] = {}

    def initial(self) -> QueueOffset:
        """Return the offset before the first batch."""
        return QueueOffset(self._store, None if self._consumer is None else self._consumer.name, {})

    def latest(self, previous: QueueOffset, *, unlimited: bool = False) -> QueueOffset:
        """Return the end of the batch that begins at ``previous``, or ``previous`` if there is nothing to read.

        Spark asks for this when all up to ``previous`` is done, so the consumer is advanced to it here; Spark's own
        commit comes one batch later.

        Args:
            unlimited: read all that is there, whatever the limits.

        Raises:
            OffsetConflictError: somebody else moved the consumer.
            DataLossError: rows from ``previous`` on are gone.
        """
        self._check_store(previous)
        previous = self._without_dropped(previous, {name: queue.id for name, queue in self._queues.items()})
        bounds = {name: queue.bounds() for name, queue in self._queues.items()}
        previous = self._with_partitions_left(previous, bounds)
        self._meet_consumer(previous)
        self.commit(previous)
        self._ends = {name: {number: rows.upper for number, rows in part.items()} for name, part in bounds.items()}
        since = {
            name: resolve_position(self.start, self._queues[name], part, self._consumer)
            for name, part in bounds.items()
            if name not in previous.queues
        }
        starts = dict(previous.queues) | (since if unlimited else {})
        ends = self._next_ends(starts, bounds, NO_LIMITS if unlimited else self.limits) | ({} if unlimited else since)
        self._behind = {
            _place(name, number): max(0, rows.upper - ends[name].get(number, 0))
            for name, part in bounds.items()
            for number, rows in part.items()
        }
        if ends.keys() == previous.queues.keys() and all(_agree(previous.queues[name], ends[name]) for name in ends):
            return previous
        ids = {name: self._queues[name].id for name in ends}
        return replace(self.initial(), queues=ends, since=since if unlimited else {}, ids=ids)

    def ranges(self, start: QueueOffset, end: QueueOffset) -> list[QueueRange]:
        """Return what the batch between two offsets reads, by queue and partition; the same each time.

        Raises:
            DataLossError: rows of the batch are gone.
        """
        self._check_store(end)
        end = self._without_dropped(end, {name: queue.id for name, queue in self._queues.items()})
        start = self._without_dropped(start, end.ids)
        self._meet_consumer(start, end)
        found: list[QueueRange] = []
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
            found += [
                rows_left(part, bounds.get(part.partition), fail_on_data_loss=self.fail_on_data_loss) for part in wanted
            ]
        return found

    def commit(self, end: QueueOffset) -> None:
        """Advance the consumer to the end of a batch that is done.

        Raises:
            OffsetConflictError: the consumer is neither there nor where this feed left it.
        """
        if self._consumer is None:
            return
        for name in end.queues.keys() & self._consumed.keys():
            target, left = end.queues[name], self._consumed[name]
            if _agree(left, target):
                continue
            moved = {number: row for number, row in target.items() if left.get(number, 0) != row}
            before = {number: left.get(number, 0) for number in moved}
            # A publication may have made the advance already, together with the batch's rows.
            failpoints.reach("progress-unsaved")
            self._consumer.advance(name, moved, before, or_published=True)
            failpoints.reach("progress-saved")
            self._consumed[name] = dict(target)

    def pin(self) -> None:
        """Take what is there now as all that the following batches may read (Trigger.AvailableNow)."""
        self._pinned = {name: queue.bounds() for name, queue in self._queues.items()}

    def behind(self) -> dict[str, int]:
        """Return per partition, as ``<queue>[<number>]``, how many rows waited behind the batch planned last."""
        return dict(self._behind)

    def ends(self) -> QueueOffset:
        """Return where the queues ended when `latest` last looked."""
        return replace(self.initial(), queues=self._ends)

    def _next_ends(
        self, starts: Mapping[str, Mapping[int, int]], bounds: Mapping[str, Mapping[int, Bounds]], limits: Limits
    ) -> dict[str, dict[int, int]]:
        """Return where the next batch ends in the queues that have a start."""
        waiting = {
            (name, number): self._waiting(name, number, begun.get(number, 0), bounds[name][number])
            for name, begun in starts.items()
            for number in bounds[name]
        }
        backlogs = {
            place: Backlog(part.rows, _size(bounds[place[0]][place[1]], part.rows)) for place, part in waiting.items()
        }
        if ages_matter(backlogs, limits):
            backlogs = {
                place: replace(backlog, seconds=0.0 if backlog.empty else self._age(waiting[place]))
                for place, backlog in backlogs.items()
            }
        due = self._pinned is not None or enough_rows(backlogs, limits)
        shares = share_rows(backlogs, limits) if due else dict.fromkeys(backlogs, 0)
        ends: dict[str, dict[int, int]] = {name: {} for name in starts}
        for (name, number), part in waiting.items():
            share = shares[name, number]
            # Where a batch has nothing of a partition, its offset stays, lost rows or not.
            stays = part.rows > 0 and share == 0
            taken = part.rows if share is None else min(part.rows, share)
            ends[name][number] = starts[name].get(number, 0) if stays else part.first + taken
        return ends

    def _waiting(self, name: str, number: int, first: int, bounds: Bounds) -> QueueRange:
        """Return the rows of a partition that follow a row index and may be read."""
        if first > bounds.upper:
            rows_left(QueueRange(name, number, bounds.upper, first), bounds, fail_on_data_loss=self.fail_on_data_loss)
            first = 0
        upper = bounds.upper
        if self._pinned is not None:
            upper = self._pinned.get(name, {}).get(number, Bounds(0, 0)).upper
        if first >= upper:
            return QueueRange(name, number, first, first)
        if first < bounds.lower and self.fail_on_data_loss:
            rows_left(QueueRange(name, number, first, upper), bounds, fail_on_data_loss=True)
        return QueueRange(name, number, max(first, min(bounds.lower, upper)), upper)

    def _age(self, waiting: QueueRange) -> float | None:
        committed = self._queues[waiting.queue].commit_time(waiting.partition, waiting.first)
        return None if committed is None else max(0.0, time.time() - committed)

    def _check_store(self, offset: QueueOffset) -> None:
        if offset.store != self._store:
            raise OptionError(
                "the checkpoint belongs to a query that read another store",
                received=f"store id {offset.store}",
                valid=f"store id {self._store}",
                remedy="use a new checkpoint location, or the store that the query began with",
            )
        for name in offset.queues:
            if name not in self._queues:
                raise OptionError(
                    "the checkpoint has a queue that the query does not read",
                    received=repr(name),
                    valid=list(self._queues),
                    remedy="name the queue again, or start with a new checkpoint location",
                )

    def _with_partitions_left(self, offset: QueueOffset, bounds: Mapping[str, Mapping[int, Bounds]]) -> QueueOffset:
        """Return an offset without the partitions that queues no longer have.

        Raises:
            DataLossError: there are some, and rows that are lost are not accepted.
        """
        gone = {name: sorted(rows.keys() - bounds[name].keys()) for name, rows in offset.queues.items()}
        for name in [name for name, numbers in gone.items() if numbers]:
            if self.fail_on_data_loss:
                raise DataLossError(
                    f"queue {name!r} has fewer partitions than the query has read",
                    received=f"{len(bounds[name])} partitions, and an offset in partition {gone[name][-1]}",
                    remedy="give it as many partitions as before, set option failOnDataLoss=false to go on with those "
                    "that are there, or start with a new checkpoint location",
                )
            _log.warning("failOnDataLoss=false: partitions %s of queue %r are gone and passed over", gone[name], name)
        left = {
            name: {number: row for number, row in rows.items() if number in bounds[name]}
            for name, rows in offset.queues.items()
        }
        return offset if left == offset.queues else replace(offset, queues=left)

    def _without_dropped(self, offset: QueueOffset, ids: Mapping[str, str]) -> QueueOffset:
        """Return an offset that begins at row 0 in queues with other ids: they were dropped and made anew since.

        Raises:
            DataLossError: there is one, and rows that are lost are not accepted.
        """
        anew = [name for name, queue_id in offset.ids.items() if ids.get(name, queue_id) != queue_id]
        if not anew:
            return offset
        for name in anew:
            if self.fail_on_data_loss:
                raise DataLossError(
                    f"queue {name!r} was dropped and made anew since the query has read it",
                    received=f"offsets {dict(offset.queues[name])} in the one that is gone",
                    remedy="set option failOnDataLoss=false to begin at row 0 of the new one, or start with a new "
                    "checkpoint location",
                )
            # What was consumed of the old one went with it.
            self._consumed.pop(name, None)
            _log.warning("failOnDataLoss=false: queue %r was made anew; its rows are read from the first on", name)
        renewed: dict[str, Mapping[int, int]] = {name: {} for name in anew}
        return replace(offset, queues={**offset.queues, **renewed}, ids={**offset.ids, **{n: ids[n] for n in anew}})

    def _meet_consumer(self, start: QueueOffset, end: QueueOffset | None = None) -> None:
        """At the first look at each queue, bring the consumer to where the checkpoint says that its reader is."""
        if self._consumer is None:
            return
        for name in self._queues.keys() - self._consumed.keys():
            found = self._consumer.offsets(name)
            ends = None if end is None else end.queues.get(name)
            expected = start.queues.get(name)
            # Before the last batch is committed, or after its publication committed it.
            accepted = [expected, start.since.get(name), ends]
            if expected is not None and not any(_agree(found, place) for place in accepted if place is not None):
                moved = {number: row for number, row in expected.items() if found.get(number, 0) != row}
                before = {number: found.get(number, 0) for number in moved}
                self._consumer.advance(name, moved, before)
                _log.warning(
                    "consumer %s of queue %s was not where the checkpoint is and was moved, by partition from %s to %s",
                    *(self._consumer.name, name, before, moved),
                )
                found = {**found, **moved}
            self._consumed[name] = found


def check_registered(consumer: Consumer, queues: Sequence[str]) -> None:
    """Raise `NotFoundError` unless a consumer is registered for all of these queues."""
    registered = {registration.queue for registration in consumer.registrations()}
    for name in queues:
        if name not in registered:
            raise NotFoundError(
                f"consumer {consumer.name!r} is not registered for queue {name!r}",
                valid=sorted(registered),
                remedy=f"store.register_consumer({name!r}, {consumer.name!r})",
            )


def _agree(offsets: Mapping[int, int], target: Mapping[int, int]) -> bool:
    """Tell whether offsets are at a target; a partition that was never consumed is at row 0."""
    return all(offsets.get(number, 0) == row for number, row in target.items())


def _between(name: str, number: int, first: int, end: int) -> QueueRange:
    # An end before the start: the store is an older copy, and loss is accepted; everything in it counts as new.
    return QueueRange(name, number, first if first <= end else 0, end)


def _size(bounds: Bounds, rows: int) -> int:
    return bounds.bytes * rows // bounds.rows if bounds.rows else 0


def _place(name: str, number: int) -> str:
    return f"{name}[{number}]"
