"""The choice of a partition for each row of a queue. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import OptionError
from headrace.model.queues.columns import TABLET_INDEX
from headrace.model.queues.validation import Route, check_partition
from headrace.model.queues.values import partition_of_keys


def routed(rows: pa.Table, route: Route, ends: Sequence[int]) -> pa.Table:
    """Return rows with their partition in `$tablet_index`, the last of their columns.

    Args:
        rows: with that column; null if a row does not choose a partition.
        ends: for each partition the index of its next row; other rows go to the lowest.

    Raises:
        OptionError: a partition does not exist, or two options choose the partition.
    """
    numbers = _numbers(rows, route, ends)
    return rows.set_column(rows.num_columns - 1, pa.field(TABLET_INDEX, pa.int64()), pa.array(numbers))


def _numbers(rows: pa.Table, route: Route, ends: Sequence[int]) -> npt.NDArray[np.int64]:
    given = rows.column(TABLET_INDEX).combine_chunks()
    fewest = min(range(len(ends)), key=ends.__getitem__)
    if given.null_count < len(given):
        if route != Route():
            raise OptionError(
                f"the rows choose their partitions by {TABLET_INDEX}", remedy="give no partition and no key"
            )
        numbers: npt.NDArray[np.int64] = given.fill_null(fewest).to_numpy()
        for number in (int(numbers.min()), int(numbers.max())):
            check_partition(number, len(ends))
        return numbers
    if route.key is not None:
        return partition_of_keys(rows, route.key, len(ends))
    if route.partition is not None:
        check_partition(route.partition, len(ends))
    return np.full(rows.num_rows, fewest if route.partition is None else route.partition, dtype=np.int64)


def in_partitions(rows: pa.Table) -> dict[int, npt.NDArray[np.int64]]:
    """Return for each partition the indexes of its rows, in order."""
    numbers = rows.column(TABLET_INDEX).to_numpy()
    return {int(number): np.flatnonzero(numbers == number) for number in np.unique(numbers)}
