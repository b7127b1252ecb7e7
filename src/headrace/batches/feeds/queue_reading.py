"""The rows of a batch: existing ranges, their division into tasks, and reading by row index."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from headrace.errors import DataLossError
from headrace.model.queues.values import Bounds, QueuePage
from headrace.model.tables.conditions import Predicate
from headrace.ports import Queue
from headrace.support import failpoints

PAGE_ROWS = 65536
# A task with fewer rows costs more than reading its rows.
TASK_ROWS = 4096
NARROWING = ("=", "<", "<=", ">", ">=", "is not null")
"""The operators of `narrowed`."""
_log = logging.getLogger("headrace")


@dataclass(frozen=True)
class QueueRange:
    """Rows of one partition of a queue: the index of the first row, and the index after the last row."""

    queue: str
    partition: int
    first: int
    next: int

    @property
    def rows(self) -> int:
        return self.next - self.first


def rows_left(wanted: QueueRange, bounds: Bounds | None, *, fail_on_data_loss: bool) -> QueueRange:
    """Return the existing part of a range, and log the missing rows.

    Args:
        bounds: the bounds of the partition; None if the partition does not exist.

    Raises:
        DataLossError: rows are missing, and ``fail_on_data_loss`` is set.
    """
    lower, upper = (bounds.lower, bounds.upper) if bounds is not None else (0, 0)
    first, end = wanted.first, wanted.next
    if first < lower and first < end:
        _lose(wanted, first, min(lower, end), "trimmed", fail_on_data_loss)
        first = min(lower, end)
    if end > upper:
        _lose(wanted, max(first, upper), end, "missing: the queue was created again", fail_on_data_loss)
        end = max(first, upper)
    return QueueRange(wanted.queue, wanted.partition, first, end)


def plan_tasks(ranges: Iterable[QueueRange], min_tasks: int | None = None) -> list[tuple[QueueRange, ...]]:
    """Return the ranges of each task, in the order of the ranges and without empty ranges.

    Args:
        min_tasks: the minimum number of tasks. Large ranges are split, and each task has one range; there are fewer
            tasks if there are fewer rows. Without a minimum, small ranges are combined into one task.
    """
    filled = [each for each in ranges if each.rows > 0]
    if min_tasks is not None:
        return [(piece,) for piece in _split(filled, min_tasks)]
    tasks: list[tuple[QueueRange, ...]] = []
    group: list[QueueRange] = []
    rows = 0
    for each in filled:
        group.append(each)
        rows += each.rows
        if rows >= TASK_ROWS:
            tasks.append(tuple(group))
            group, rows = [], 0
    if group:
        tasks.append(tuple(group))
    return tasks


def narrowed(rows: QueueRange, predicate: Predicate, *, of_partition: bool) -> QueueRange:
    """Return the rows of a range that satisfy a condition on their partition, or otherwise on their row index."""
    if predicate.operator == "is not null":
        return rows
    low, high = _interval(predicate)
    if of_partition:
        inside = (low is None or rows.partition >= low) and (high is None or rows.partition <= high)
        return rows if inside else replace(rows, next=rows.first)
    first = rows.first if low is None else min(max(rows.first, low), rows.next)
    end = rows.next if high is None else max(min(rows.next, high + 1), first)
    return replace(rows, first=first, next=end)


def _interval(predicate: Predicate) -> tuple[int | None, int | None]:
    """Return the smallest and the largest integer that satisfy a comparison; None is no bound."""
    value = int(predicate.value)
    match predicate.operator:
        case "=":
            return value, value
        case "<":
            return None, value - 1
        case "<=":
            return None, value
        case ">":
            return value + 1, None
        case _:
            return value, None


def _split(ranges: Sequence[QueueRange], count: int) -> Iterator[QueueRange]:
    largest = max(1, sum(each.rows for each in ranges) // count)
    for each in ranges:
        pieces = -(-each.rows // largest)
        edges = [each.first + each.rows * step // pieces for step in range(pieces + 1)]
        for first, end in pairwise(edges):
            yield QueueRange(each.queue, each.partition, first, end)


def read_rows(queue: Queue, wanted: QueueRange, *, fail_on_data_loss: bool = True) -> Iterator[QueuePage]:
    """Yield the rows of a range as pages, in order.

    Raises:
        DataLossError: rows were removed after the range was planned, and ``fail_on_data_loss`` is set.
    """
    position = wanted.first
    while position < wanted.next:
        rest = QueueRange(wanted.queue, wanted.partition, position, wanted.next)
        try:
            page = queue.read(wanted.partition, position, min(PAGE_ROWS, rest.rows), until=wanted.next)
        except DataLossError:
            page = None
        if page is None or page.rows.num_rows == 0:
            # The bounds show why the page is empty.
            left = rows_left(rest, queue.bounds().get(wanted.partition), fail_on_data_loss=fail_on_data_loss)
            if left == rest:
                raise DataLossError(_described(rest, position, wanted.next) + " cannot be read")
            wanted, position = left, left.first
            continue
        if page.first != position:
            _lose(rest, position, min(page.first, wanted.next), "trimmed", fail_on_data_loss)
        position = page.next
        yield page
    failpoints.reach("rows-read")


def _lose(wanted: QueueRange, first: int, end: int, reason: str, fail: bool) -> None:
    """Raise an error for missing rows, or log them."""
    rows = _described(wanted, first, end)
    if fail:
        raise DataLossError(
            f"{rows} are {reason}",
            received=f"a read of {end - first} missing rows",
            remedy="set option failOnDataLoss=false to continue without them",
        )
    _log.warning("failOnDataLoss=false: %s are %s; %d rows are skipped", rows, reason, end - first)


def _described(wanted: QueueRange, first: int, end: int) -> str:
    return f"rows {first} to {end - 1} of partition {wanted.partition} of queue {wanted.queue!r}"
