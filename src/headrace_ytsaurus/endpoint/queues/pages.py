"""Rows of queues in the form for clients: with their address, and with YTsaurus' timestamps."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headrace.errors import DataLossError
from headrace.model.queues.columns import ROW_INDEX, TABLET_INDEX, TIMESTAMP, data_weights
from headrace.model.queues.values import QueuePage
from headrace.stores.embedded.for_servers import EmbeddedQueue
from headrace_ytsaurus.endpoint.tables.state import Table
from headrace_ytsaurus.wire.types import YtColumn

ADDRESS = (
    YtColumn.of(TABLET_INDEX, "int64", required=True),
    YtColumn.of(ROW_INDEX, "int64", required=True),
)
_SECOND = 1_000_000


def columns_of_queue(table: Table) -> tuple[YtColumn, ...]:
    """Return the columns of a queue's rows, after the columns of the address."""
    return (*ADDRESS, *table.schema.columns)


def read_page(queue: EmbeddedQueue, partition: int, first: int, rows: int, weight: int | None = None) -> QueuePage:
    """Read rows from an index, or from the first row that is not trimmed.

    Args:
        weight: the approximate maximum of data, but at least one row is returned.
    """
    while True:
        try:
            page = queue.read(partition, first, rows)
            break
        except DataLossError:
            # The rows have been trimmed, possibly at the same time.
            first = max(first, queue.bounds()[partition].lower)
    if weight is None or page.rows.num_rows < 2:
        return page
    total = np.cumsum(data_weights(page.rows))
    if total[-1] <= weight:
        return page
    fits = max(1, int(np.searchsorted(total, weight, side="right")))
    return QueuePage(partition, page.first, page.rows.slice(0, fits))


def addressed(page: QueuePage, table: Table) -> pa.RecordBatch:
    """Return the rows of a page with the columns of `columns_of_queue`."""
    count = page.rows.num_rows
    arrays = [
        pa.repeat(pa.scalar(page.partition, pa.int64()), count),
        pa.array(np.arange(page.first, page.first + count, dtype=np.int64)),
        *(
            _timestamps(array) if name == TIMESTAMP else array
            for name, array in zip(page.rows.schema.names, page.rows.columns, strict=True)
        ),
    ]
    schema = pa.schema([pa.field(column.name, column.type) for column in columns_of_queue(table)])
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _timestamps(times: pa.Array) -> pa.Array:
    """Return commit times (timestamp[us]) as timestamps of YTsaurus: uint64 in Arrow decimals."""
    microseconds = times.cast(pa.int64()).to_numpy()
    seconds, rest = np.divmod(microseconds, _SECOND)
    # The form of `headrace_ytsaurus.endpoint.clock`. The upper half of the decimals is 0.
    numbers = np.zeros((len(microseconds), 2), dtype=np.uint64)
    numbers[:, 0] = (seconds << 30) + rest * 1000
    return pa.Array.from_buffers(pa.decimal128(20, 0), len(times), [None, pa.py_buffer(numbers)])
