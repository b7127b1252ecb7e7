"""The rows of a batch: which ranges are still there, how they become tasks, and reading them by row index."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from headrace import failpoints
from headrace.errors import DataLossError
from headrace.ports import Queue
from headrace.queues.values import Bounds, QueuePage

PAGE_ROWS = 65536
# Below this a task costs more than its rows.
TASK_ROWS = 4096
_log = logging.getLogger("headrace")


@dataclass(frozen=True)
class QueueRange:
    """Rows of one partition of a queue: the index of the first, and that behind the last."""

    queue: str
    partition: int
    first: int
    next: int

    @property
    def rows(self) -> int:
        return self.next - self.first


def rows_left(wanted: QueueRange, bounds: Bounds | None, *, fail_on_data_loss: bool) -> QueueRange:
    """Return the part of a range that is still there, after telling what is not.

    Args:
        bounds: of the partition; None if it is not there.

    Raises:
        DataLossError: rows are gone, and ``fail_on_data_loss`` is set.
    """
    lower, upper = (bounds.lower, bounds.upper) if bounds is not None else (0, 0)
    first, end = wanted.first, wanted.next
    if first < lower and first < end:
        _lose(wanted, first, min(lower, end), "trimmed", fail_on_data_loss)
        first = min(lower, end)
    if end > upper:
        _lose(wanted, max(first, upper), end, "not there: the queue was made anew", fail_on_data_loss)
        end = max(first, upper)
    return QueueRange(wanted.queue, wanted.partition, first, end)


def plan_tasks(ranges: Iterable[QueueRange], min_tasks: int | None = None) -> list[tuple[QueueRange, ...]]:
    """Return what each task reads, in the order of the ranges; empty ranges are left out.

    Small ranges share a task. With ``min_tasks`` none do, and ranges are cut until there are so many tasks, as far
    as there are rows.
    """
    waiting = [part for part in ranges if part.rows > 0]
    if min_tasks is not None:
        return [(piece,) for piece in _cut(waiting, min_tasks)]
    tasks: list[tuple[QueueRange, ...]] = []
    group: list[QueueRange] = []
    rows = 0
    for part in waiting:
        group.append(part)
        rows += part.rows
        if rows >= TASK_ROWS:
            tasks.append(tuple(group))
            group, rows = [], 0
    if group:
        tasks.append(tuple(group))
    return tasks


def _cut(ranges: Sequence[QueueRange], count: int) -> Iterator[QueueRange]:
    largest = max(1, sum(part.rows for part in ranges) // count)
    for part in ranges:
        pieces = -(-part.rows // largest)
        marks = [part.first + part.rows * step // pieces for step in range(pieces + 1)]
        for first, end in pairwise(marks):
            yield QueueRange(part.queue, part.partition, first, end)


def read_rows(queue: Queue, part: QueueRange, *, fail_on_data_loss: bool = True) -> Iterator[QueuePage]:
    """Yield the rows of a range, in order, each with its own row index and none beyond the range.

    Raises:
        DataLossError: rows were removed since the range was planned, and ``fail_on_data_loss`` is set.
    """
    position = part.first
    while position < part.next:
        rest = QueueRange(part.queue, part.partition, position, part.next)
        try:
            page = queue.read(part.partition, position, min(PAGE_ROWS, rest.rows), until=part.next)
        except DataLossError:
            page = None
        if page is None or page.rows.num_rows == 0:
            # Asked again, because a page says nothing about why it is empty.
            left = rows_left(rest, queue.bounds().get(part.partition), fail_on_data_loss=fail_on_data_loss)
            if left == rest:
                raise DataLossError(_place(rest, position, part.next) + " cannot be read")
            part, position = left, left.first
            continue
        if page.first != position:
            _lose(rest, position, min(page.first, part.next), "trimmed", fail_on_data_loss)
        position = page.next
        yield page
    failpoints.reach("rows-read")


def _lose(part: QueueRange, first: int, end: int, reason: str, fail: bool) -> None:
    place = _place(part, first, end)
    if fail:
        raise DataLossError(
            f"{place} are {reason}",
            received=f"{end - first} rows asked for",
            remedy="set option failOnDataLoss=false to go on without them",
        )
    _log.warning("failOnDataLoss=false: %s are %s; %d rows are skipped", place, reason, end - first)


def _place(part: QueueRange, first: int, end: int) -> str:
    return f"rows {first} to {end - 1} of partition {part.partition} of queue {part.queue!r}"
