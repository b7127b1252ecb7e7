"""Net changes: of the signed rows of a key, only the row before a batch and the row after it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from headrace.rows.by_position import aggregated


def net_changes(parts: Iterable[pa.RecordBatch], key: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """Yield the row that leaves the table and the row that enters it, of each key. All rows are in memory.

    The result adds up to the same table as all rows. Its rows are in the table before the batch or after it, so a query
    that computes them computes nothing that a query over the table would not.

    Args:
        parts: signed rows, with the sign in the last column. All rows of a key are here, in their order.
        key: the positions of the key columns.
    """
    gathered = [part for part in parts if part.num_rows]
    if not gathered:
        return
    rows = pa.Table.from_batches(gathered)
    places = pa.array(np.arange(rows.num_rows))
    _, (first, last) = aggregated([rows.column(index) for index in key], [("min", places), ("max", places)])
    signs = rows.column(rows.num_columns - 1).to_numpy()
    before, after = first.to_numpy(), last.to_numpy()
    kept = np.concatenate([before[signs[before] < 0], after[signs[after] > 0]])
    yield from rows.take(pa.array(np.sort(kept))).to_batches()
