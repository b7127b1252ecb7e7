"""Adding columns to a queue. All its rows are written again. Only the YTsaurus endpoint adds columns to queues."""

from __future__ import annotations

import apsw
import numpy as np
import pyarrow as pa

from headrace.errors import OptionError
from headrace.model.queues.columns import CUMULATIVE_DATA_WEIGHT, QueueSchema, data_weights
from headrace.model.tables.column_limits import check_columns
from headrace.stores.embedded.for_servers import SYSTEM_COLUMN_WEIGHT, Layout, chunks, stored_queues

MOST_BYTES = 1 << 30
"""The maximum size of a queue. A larger one would block all writers of the store for too long."""


def add(connection: apsw.Connection, queue: str, schema: QueueSchema) -> None:
    """Add columns to a queue, inside the caller's write transaction. Rows keep their row indexes and times.

    Existing rows get null in new columns, and their weight in a new `$cumulative_data_weight`.

    Args:
        schema: the queue's columns, unchanged, and new nullable columns.

    Raises:
        OptionError: the queue is too large, or a job has staged rows for it.
        SchemaError: there are too many columns, or a type is nested too deeply.
    """
    check_columns(schema)
    state = stored_queues.load(connection, queue)
    if connection.execute("SELECT 1 FROM stage WHERE queue = ? LIMIT 1", (state.id,)).fetchone():
        problem = f"columns cannot be added to queue {queue!r} now: a job has staged rows for it"
        raise OptionError(problem, remedy="try again after the job has published its batch")
    found = list(
        connection.execute("SELECT id, first, next, weight, log_bytes FROM partition WHERE object = ?", (state.id,))
    )
    size = sum(row[-1] for row in found)
    if size > MOST_BYTES:
        raise OptionError(
            f"queue {queue!r} is too large to add columns to", received=f"{size} bytes", valid=f"at most {MOST_BYTES}"
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
    """Return stored rows in another layout, and the cumulative weight after them; ``weight`` is the one before them."""
    columns = dict(zip(rows.schema.names, rows.columns, strict=True))
    if after.has_weight and not before.has_weight:
        system_columns = len(before.arrow) - len(before.written)
        weights = weight + np.cumsum(data_weights(rows) + SYSTEM_COLUMN_WEIGHT * system_columns)
        columns[CUMULATIVE_DATA_WEIGHT] = pa.array(weights, pa.int64())
        weight = int(weights[-1])
    arrays = [columns.get(field.name, pa.nulls(rows.num_rows, field.type)) for field in after.stored]
    return pa.RecordBatch.from_arrays(arrays, schema=after.stored), weight
