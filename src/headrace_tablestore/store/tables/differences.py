"""The changes that replace the content of a table by other rows. No I/O."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.tables.changes import RowChange
from headrace.model.tables.schema import TableSchema
from headrace.rows.by_position import compared
from headrace_tablestore.store.tables.writing import turns


def differences(
    stored: pa.Table, others: pa.ChunkedArray, wanted: pa.Table, schema: TableSchema
) -> tuple[pa.Table, pa.Table]:
    """Return the rows to put and the keys to delete.

    Args:
        stored: the rows of the table.
        others: for each of these rows, whether it has cells of other columns, which must be removed.
        wanted: the new rows of the table; of several rows with one key, the last one counts.
        schema: the columns of both.
    """
    key = list(schema.primary_key)
    stored, wanted = _one_chunk(stored), _one_chunk(wanted)
    if wanted.num_rows:
        (batch,) = wanted.to_batches()
        (last,) = turns(batch, schema, RowChange.PUT, np.arange(wanted.num_rows))
        wanted = wanted.take(pa.array(last))
    keys = compared(stored, wanted, key)
    old_rows, new_rows = stored.take(keys.left), wanted.take(keys.right)
    changed: np.ndarray = others.take(keys.left).to_numpy()
    for column in schema.attributes:
        changed = changed | ~_same(old_rows.column(column.name), new_rows.column(column.name))
    put = pa.concat_tables([wanted.take(keys.only_right), new_rows.filter(pa.array(changed))])
    return put, stored.select(key).take(keys.only_left)


def _one_chunk(rows: pa.Table) -> pa.Table:
    return rows.combine_chunks()


def _same(left: pa.ChunkedArray, right: pa.ChunkedArray) -> np.ndarray:
    """Return a mask of the rows in which two values are both null or have equal bits."""
    first, second = left.combine_chunks(), right.combine_chunks()
    if pa.types.is_floating(first.type):
        bits = pa.int32() if first.type == pa.float32() else pa.int64()
        first, second = first.view(bits), second.view(bits)
    equal = pc.equal(first, second).fill_null(False).to_numpy(zero_copy_only=False)
    neither = pc.and_(first.is_null(), second.is_null()).to_numpy(zero_copy_only=False)
    result: np.ndarray = equal | neither
    return result
