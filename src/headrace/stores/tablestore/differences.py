"""What has to be written to a table so that it holds exactly given rows. Pure."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.model import RowChange, TableSchema
from headrace.stores.tablestore.writing import turns

_HERE, _WANTED = "here ", "wanted "


def differences(
    here: pa.Table, others: pa.ChunkedArray, wanted: pa.Table, schema: TableSchema
) -> tuple[pa.Table, pa.Table]:
    """Return the rows to put and the keys to delete.

    Args:
        here: the rows of the table.
        others: for each of these, whether it has cells besides, which it is not to have.
        wanted: the rows that it is to hold; of one key twice, the last row counts.
        schema: the columns of both.
    """
    key = list(schema.primary_key)
    here, wanted = _one_chunk(here), _one_chunk(wanted)
    if wanted.num_rows:
        (batch,) = wanted.to_batches()
        (last,) = turns(batch, schema, RowChange.PUT, np.arange(wanted.num_rows))
        wanted = wanted.take(pa.array(last))
    # Names that no column of a key has: they end in a space.
    both = _numbered(here, key, _HERE).join(_numbered(wanted, key, _WANTED), key, join_type="full outer")
    gone = both.filter(pc.is_null(both.column(_WANTED))).column(_HERE)
    new = both.filter(pc.is_null(both.column(_HERE))).column(_WANTED)
    kept = both.filter(pc.and_(pc.is_valid(both.column(_HERE)), pc.is_valid(both.column(_WANTED))))
    old_rows, new_rows = here.take(kept.column(_HERE)), wanted.take(kept.column(_WANTED))
    changed: np.ndarray = others.take(kept.column(_HERE)).to_numpy()
    for column in schema.attributes:
        changed = changed | ~_same(old_rows.column(column.name), new_rows.column(column.name))
    put = pa.concat_tables([wanted.take(new), new_rows.filter(pa.array(changed))])
    return put, here.select(key).take(gone)


def _one_chunk(rows: pa.Table) -> pa.Table:
    return rows.combine_chunks()


def _numbered(rows: pa.Table, key: list[str], name: str) -> pa.Table:
    return rows.select(key).append_column(name, pa.array(np.arange(rows.num_rows)))


def _same(left: pa.ChunkedArray, right: pa.ChunkedArray) -> np.ndarray:
    """Tell for each row whether two values are the same: both null, or equal to the bit."""
    first, second = left.combine_chunks(), right.combine_chunks()
    if pa.types.is_floating(first.type):
        bits = pa.int32() if first.type == pa.float32() else pa.int64()
        first, second = first.view(bits), second.view(bits)
    equal = pc.equal(first, second).fill_null(False).to_numpy(zero_copy_only=False)
    neither = pc.and_(first.is_null(), second.is_null()).to_numpy(zero_copy_only=False)
    result: np.ndarray = equal | neither
    return result
