"""Joining record batches of any size into tables of about the same size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa


def rebatched(rows: Iterable[pa.RecordBatch], most: int, *, by_bytes: bool = False) -> Iterator[pa.Table]:
    """Yield rows in tables of about ``most`` rows or bytes. The batches of one table have the same schema."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in rows:
        if not batch.num_rows:
            continue
        if waiting and batch.schema != waiting[0].schema:
            yield pa.Table.from_batches(waiting)
            waiting, size = [], 0
        waiting.append(batch)
        size += batch.nbytes if by_bytes else batch.num_rows
        if size >= most:
            yield pa.Table.from_batches(waiting)
            waiting, size = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting)
