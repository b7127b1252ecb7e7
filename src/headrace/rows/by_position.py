"""Sorting, grouping and comparing rows, for columns of any name.

Arrow's sorting, grouping and joining parse a name that starts with a dot as the path of a nested field: `.v` is then
the column `v`. The functions of this module call Arrow with other column names. No other module calls it directly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.rows.fields import with_fields

Columns: TypeAlias = "Sequence[pa.Array | pa.ChunkedArray]"


def sort_indices(rows: pa.RecordBatch | pa.Table, names: Sequence[str]) -> pa.UInt64Array:
    """Return the indices that sort the rows by some columns, ascending and stable."""
    table = _renamed([rows.column(name) for name in names])
    return pc.sort_indices(table, sort_keys=[(name, "ascending") for name in table.column_names])


def are_sorted(rows: pa.RecordBatch | pa.Table, names: Sequence[str]) -> bool:
    """Return whether each row is greater than the one before by some columns, which costs less than sorting them."""
    greater: Any = None
    for column in reversed([rows.column(name) for name in names]):
        before, after = column.slice(0, max(len(column) - 1, 0)), column.slice(1)
        first = pc.less(before, after)
        greater = first if greater is None else pc.or_(first, pc.and_(pc.equal(before, after), greater))
    return bool(pc.all(pc.fill_null(greater, False), min_count=0).as_py())


def aggregated(keys: Columns, calls: Sequence[tuple[str, pa.Array | pa.ChunkedArray | None]]) -> tuple[Any, Any]:
    """Group rows.

    Args:
        keys: the columns to group by, at least one.
        calls: Arrow's aggregate functions, each with its column, or None for a function that counts rows.

    Returns:
        The keys of the groups, and the results: two lists of chunked arrays, in the order of the arguments.
    """
    taken = [column for _, column in calls if column is not None]
    table = _renamed([*keys, *taken])
    names = table.column_names[: len(keys)]
    rest = iter(table.column_names[len(keys) :])
    wanted = [([] if column is None else next(rest), function) for function, column in calls]
    # The results are in the order of the calls.
    found = table.group_by(names, use_threads=False).aggregate(wanted)
    columns = dict(zip(found.column_names, found.columns, strict=True))
    results = [columns[function if not name else f"{name}_{function}"] for name, function in wanted]
    return [columns[name] for name in names], results


def last_rows(rows: pa.RecordBatch | pa.Table, names: Sequence[str]) -> npt.NDArray[np.int64]:
    """Return the index of the last row of each key, in ascending order."""
    _, (indices,) = aggregated([rows.column(name) for name in names], [("max", pa.array(np.arange(rows.num_rows)))])
    return np.sort(indices.to_numpy())


def repeats(rows: pa.RecordBatch | pa.Table, names: Sequence[str]) -> bool:
    """Return whether two rows have the same key."""
    (groups, *_), _ = aggregated([rows.column(name) for name in names], [])
    return bool(len(groups) < rows.num_rows)


@dataclass(frozen=True)
class Compared:
    """The comparison of two tables by key: row indices for Arrow's `take`, in no order.

    Attributes:
        only_left: rows of the left table whose keys are missing in the right table.
        only_right: rows of the right table whose keys are missing in the left table.
        left: rows of the left table whose keys are in both tables.
        right: the rows of the right table with the keys of ``left``, in the same order.
    """

    only_left: pa.ChunkedArray
    only_right: pa.ChunkedArray
    left: pa.ChunkedArray
    right: pa.ChunkedArray


def compared(left: pa.Table, right: pa.Table, names: Sequence[str]) -> Compared:
    """Compare the keys of two tables, which have no duplicate keys."""
    mine, theirs = (
        _renamed(rows.select(list(names)).combine_chunks().columns).append_column(
            side, pa.array(np.arange(rows.num_rows))
        )
        for rows, side in ((left, "left"), (right, "right"))
    )
    both = mine.join(theirs, mine.column_names[:-1], join_type="full outer")
    lefts, rights = both.column("left"), both.column("right")
    kept = pc.and_(lefts.is_valid(), rights.is_valid())
    return Compared(
        lefts.filter(rights.is_null()), rights.filter(lefts.is_null()), lefts.filter(kept), rights.filter(kept)
    )


def aligned(keys: pa.Table, rows: pa.Table, names: Sequence[str], fields: pa.Schema) -> pa.Table:
    """Return a row for each key, in the order of the keys; where no row has the key, all columns are null.

    Args:
        keys: the keys, in columns ``names``.
        rows: the rows, with the columns ``names`` and those of the result. No key occurs twice.
        fields: the columns of the result.
    """
    codes = _codes(keys, rows, names)
    places = np.full(len(codes), -1, np.int64)
    places[codes[keys.num_rows :]] = np.arange(rows.num_rows)
    found = places[codes[: keys.num_rows]]
    return with_fields(rows.take(pa.array(found, mask=found < 0)), fields)


def contained(rows: pa.Table, keys: pa.Table, names: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Return which rows have one of some keys. For a few thousand rows this takes less time than `compared`."""
    codes = _codes(rows, keys, names)
    return np.isin(codes[: rows.num_rows], codes[rows.num_rows :])


def _codes(left: pa.Table, right: pa.Table, names: Sequence[str]) -> npt.NDArray[np.int64]:
    """Return a number for each row of both tables, which is the same for the same key only."""
    codes = np.zeros(left.num_rows + right.num_rows, np.int64)
    for name in names:
        both = pa.concat_arrays([*left.column(name).chunks, *right.column(name).cast(left.column(name).type).chunks])
        encoded = both.dictionary_encode()
        codes = codes * len(encoded.dictionary) + encoded.indices.to_numpy()
        # Without gaps, products of several columns fit into 64 bits.
        codes = np.unique(codes, return_inverse=True)[1]
    return codes


def _renamed(columns: Columns) -> pa.Table:
    return pa.table(list(columns), names=[f"c{index}" for index in range(len(columns))])
