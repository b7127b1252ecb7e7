"""The rows of a queue with their addresses, as one table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from headrace.model.queues.columns import ROW_INDEX, TABLET_INDEX
from headrace.model.tables.conditions import Predicate
from headrace.ports import Queue

ADDRESS = (TABLET_INDEX, ROW_INDEX)
"""The columns before those of the queue: the partition and the row index, both of type long."""
_PAGE_ROWS = 4096
_END = 1 << 63


def queue_schema(queue: Queue) -> pa.Schema:
    """Return the columns of `queue_rows`."""
    address = [pa.field(name, pa.int64(), nullable=False) for name in ADDRESS]
    return pa.schema([*address, *queue.schema.arrow])


def queue_rows(queue: Queue, where: Sequence[Predicate] = (), *, page_rows: int = _PAGE_ROWS) -> pa.RecordBatchReader:
    """Read the existing rows, partition by partition, as they are requested.

    Args:
        where: conditions. Those on the address restrict the rows that are read; others are ignored.
        page_rows: the maximum number of rows in a batch.
    """
    return pa.RecordBatchReader.from_batches(queue_schema(queue), _pages(queue, where, page_rows))


def _pages(queue: Queue, where: Sequence[Predicate], page_rows: int) -> Iterator[pa.RecordBatch]:
    schema = queue_schema(queue)
    first_partition, last_partition = _range(where, TABLET_INDEX)
    first_row, last_row = _range(where, ROW_INDEX)
    for partition, bounds in queue.bounds().items():
        if not first_partition <= partition <= last_partition:
            continue
        row, end = max(first_row, bounds.lower), min(last_row + 1, bounds.upper)
        while row < end:
            page = queue.read(partition, row, page_rows, until=end)
            address = [pa.array(np.full(page.rows.num_rows, partition)), pa.array(np.arange(page.first, page.next))]
            yield pa.RecordBatch.from_arrays([*address, *page.rows.columns], schema=schema)
            row = page.next


def _range(where: Sequence[Predicate], column: str) -> tuple[int, int]:
    """Return the smallest and the largest number that conditions on a column allow."""
    first, last = 0, _END
    for predicate in where:
        if predicate.column != column:
            continue
        match predicate.operator, predicate.value:
            case "=", int(value):
                first, last = max(first, value), min(last, value)
            case ((">" | ">="), int(value)):
                first = max(first, value + (predicate.operator == ">"))
            case (("<" | "<="), int(value)):
                last = min(last, value - (predicate.operator == "<"))
            case "in", tuple(values):
                numbers = [value for value in values if isinstance(value, int)]
                first, last = max([first, min(numbers, default=_END)]), min([last, max(numbers, default=-1)])
    return first, last
