"""Sorting, grouping and comparing rows by columns that Arrow gets by position.

Arrow's sorting, grouping and joining take a name that begins with a dot for the path of a nested field: `.v` is then
the column `v`. Columns may have any name, so these calls are made here alone, over columns with names of our own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Columns: TypeAlias = "Sequence[pa.Array | pa.ChunkedArray]"


def sort_indices(rows: pa.RecordBatch | pa.Table, names: Sequence[str]) -> pa.UInt64Array:
    """Return the order of the rows by some columns, ascending; equal rows keep their order."""
    table = _renamed([rows.column(name) for name in names])
    return pc.sort_indices(table, sort_keys=[(name, "ascending") for name in table.column_names])


def aggregated(keys: Columns, calls: Sequence[tuple[str, pa.Array | pa.ChunkedArray | None]]) -> tuple[Any, Any]:
    """Group rows.

    Args:
        keys: the columns to group by, at least one.
        calls: Arrow's aggregate functions, each with the column that it takes; None for one that counts rows.

    Returns:
        The keys of the groups, and the results: each a list of chunked arrays, in the order of the arguments.
    """
    taken = [column for _, column in calls if column is not None]
    table = _renamed([*keys, *taken])
    names = table.column_names[: len(keys)]
    rest = iter(table.column_names[len(keys) :])
    wanted = [([] if column is None else next(rest), function) for function, column in calls]
    # The order of the results is that of the calls, whatever they are named.
    found = table.group_by(names, use_threads=False).aggregate(wanted)
    columns = dict(zip(found.column_names, found.columns, strict=True))
    results = [columns[function if not name else f"{name}_{function}"] for name, function in wanted]
    return [columns[name] for name in names], results


def last_places(rows: pa.RecordBatch | pa.Table, names: Sequence[str]) -> npt.NDArray[np.int64]:
    """Return the places of the last rows of each key, rising."""
    _, (places,) = aggregated([rows.column(name) for name in names], [("max", pa.array(np.arange(rows.num_rows)))])
    return np.sort(places.to_numpy())


def repeats(rows: pa.RecordBatch | pa.Table, names: Sequence[str]) -> bool:
    """Tell whether two of the rows have the same key."""
    (groups, *_), _ = aggregated([rows.column(name) for name in names], [])
    return bool(len(groups) < rows.num_rows)


@dataclass(frozen=True)
class Compared:
    """Which rows two tables have by their keys: places of rows, in no order, as Arrow's `take` wants them.

    Attributes:
        only_left: places of rows of the left table whose keys the right one does not have.
        only_right: the same the other way around.
        left: places in the left table of the rows whose keys both have …
        right: … and in the right table, in the same order.
    """

    only_left: pa.ChunkedArray
    only_right: pa.ChunkedArray
    left: pa.ChunkedArray
    right: pa.ChunkedArray


def compared(left: pa.Table, right: pa.Table, names: Sequence[str]) -> Compared:
    """Compare the keys of two tables; neither has a key twice."""
    mine, theirs = (
        _renamed(rows.select(list(names)).combine_chunks().columns).append_column(
            place, pa.array(np.arange(rows.num_rows))
        )
        for rows, place in ((left, "left"), (right, "right"))
    )
    both = mine.join(theirs, mine.column_names[:-1], join_type="full outer")
    lefts, rights = both.column("left"), both.column("right")
    kept = pc.and_(lefts.is_valid(), rights.is_valid())
    return Compared(
        lefts.filter(rights.is_null()), rights.filter(lefts.is_null()), lefts.filter(kept), rights.filter(kept)
    )


def _renamed(columns: Columns) -> pa.Table:
    return pa.table(list(columns), names=[f"c{index}" for index in range(len(columns))])
