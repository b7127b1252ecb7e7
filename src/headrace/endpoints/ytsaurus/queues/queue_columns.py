"""Adding columns to a queue, which only the endpoints for YTsaurus need: its rows are written anew."""

from __future__ import annotations

import apsw
import numpy as np
import pyarrow as pa

from headrace.errors import OptionError
from headrace.queues.columns import CUMULATIVE_DATA_WEIGHT, QueueSchema, data_weights
from headrace.stores.embedded import chunks
from headrace.stores.embedded.queues import stored_queues
from headrace.stores.embedded.queues.layout import SYSTEM_COLUMN_WEIGHT, Layout
from headrace.tables.column_limits import check_columns

MOST_BYTES = 1 << 30
"""A queue of more bytes would keep all writers of the store waiting for too long."""


def add(connection: apsw.Connection, queue: str, schema: QueueSchema) -> None:
    """Give a queue more columns, inside the caller's write transaction; rows keep their addresses and times.

    Rows that are there have null in new columns, and their weight in `$cumulative_data_weight`.

    Args:
        schema: all columns: those that the queue has as they are, and more that may be null.

    Raises:
        OptionError: the queue is too large, or a job is about to append to it.
        SchemaError: too many columns, or a type is nested too deep.
    """
    check_columns(schema)
    state = stored_queues.load(connection, queue)
    if connection.execute("SELECT 1 FROM stage WHERE queue = ? LIMIT 1", (state.id,)).fetchone():
        problem = f"queue {queue!r} gets no columns now, for a job is about to append to it"
        raise OptionError(problem, remedy="try again when its batch is published")
    found = list(
        connection.execute("SELECT id, first, next, weight, log_bytes FROM partition WHERE object = ?", (state.id,))
    )
    size = sum(row[-1] for row in found)
    if size > MOST_BYTES:
        raise OptionError(
            f"queue {queue!r} is too large to get columns", received=f"{size} bytes", valid=f"at most {MOST_BYTES}"
        )
    layout = Layout(schema)
    for partition_id, first, end, weight, _ in found:
        grown = 0
        while first < end:
            for chunk in chunks.page(connection, partition_id, first, end, 1):
                rows, weight = _widened(
                    chunks.decode_message(state.layout.stored, chunk.data), state.layout, layout, weight
                )
                grown += chunks.replace(connection, chunk, rows)
                first = chunk.first + chunk.n
        connection.execute(
            "UPDATE partition SET weight = ?, log_bytes = log_bytes + ? WHERE id = ?", (weight, grown, partition_id)
        )
    connection.execute(
        "UPDATE object_schema SET schema = ? WHERE object = ?", (schema.arrow.serialize().to_pybytes(), state.id)
    )


def _widened(rows: pa.RecordBatch, before: Layout, after: Layout, weight: int) -> tuple[pa.RecordBatch, int]:
    """Return stored rows with the columns of another layout, and the weight behind them; ``weight`` is that before."""
    columns = dict(zip(rows.schema.names, rows.columns, strict=True))
    if after.has_weight and not before.has_weight:
        system_columns = len(before.arrow) - len(before.written)
        weights = weight + np.cumsum(data_weights(rows) + SYSTEM_COLUMN_WEIGHT * system_columns)
        columns[CUMULATIVE_DATA_WEIGHT] = pa.array(weights, pa.int64())
        weight = int(weights[-1])
    arrays = [columns.get(field.name, pa.nulls(rows.num_rows, field.type)) for field in after.stored]
    return pa.RecordBatch.from_arrays(arrays, schema=after.stored), weight
