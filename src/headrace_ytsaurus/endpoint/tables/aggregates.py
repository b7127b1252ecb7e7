"""Aggregating columns: a written value is combined with the existing one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace_ytsaurus.endpoint.errors import refused
from headrace_ytsaurus.endpoint.tables.layout import SortedLayout
from headrace_ytsaurus.endpoint.tables.state import Schema


def _sum(old: pa.Array, new: pa.Array) -> pa.Array:
    both = pc.and_(old.is_valid(), new.is_valid())
    return pc.if_else(both, pc.add_checked(old, new).cast(old.type), pc.coalesce(old, new))


_FUNCTIONS: Mapping[str, Callable[[pa.Array, pa.Array], pa.Array]] = {
    "sum": _sum,
    "min": pc.min_element_wise,
    "max": pc.max_element_wise,
    "first": pc.coalesce,
}


def functions_of(schema: Schema) -> dict[str, str]:
    """Return name → function of the aggregating columns.

    Raises:
        YtError: the function of a column is unknown.
    """
    found = {column.name: str(column.more["aggregate"]) for column in schema.columns if "aggregate" in column.more}
    for name, function in found.items():
        if function not in _FUNCTIONS:
            raise refused(f"Column {name!r} has an unknown aggregate", received=function, valid=", ".join(_FUNCTIONS))
    return found


def with_unique_keys(rows: pa.Table, layout: SortedLayout) -> Iterator[pa.RecordBatch]:
    """Yield rows of the embedded table in groups: the first of each key, then the second, and so on."""
    for batch in rows.combine_chunks().to_batches():
        hashes = layout.hashes(batch)
        order = np.argsort(hashes, kind="stable")
        _, starts, counts = np.unique(hashes[order], return_index=True, return_counts=True)
        times = np.empty(len(hashes), dtype=np.int64)
        times[order] = np.arange(len(hashes)) - np.repeat(starts, counts)
        for time in range(int(times.max(initial=-1)) + 1):
            yield batch.filter(pa.array(times == time))


def combined(
    functions: Mapping[str, str], old: pa.RecordBatch, exist: npt.NDArray[np.bool_], new: pa.RecordBatch
) -> pa.RecordBatch:
    """Return new rows with the columns of the functions combined with old rows, as far as these exist."""
    arrays = []
    for name, column in zip(new.schema.names, new.columns, strict=True):
        if name in functions:
            # The values of rows that do not exist are undefined.
            known = pc.if_else(pa.array(exist), old.column(name), pa.scalar(None, column.type))
            column = _FUNCTIONS[functions[name]](known, column)
        arrays.append(column)
    return pa.RecordBatch.from_arrays(arrays, names=new.schema.names)
