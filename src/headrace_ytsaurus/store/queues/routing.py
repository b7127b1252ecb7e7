"""The choice of a partition for each row of a queue. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.model.queues.columns import TABLET_INDEX
from headrace.model.queues.validation import Route, chosen_partitions


def routed(rows: pa.Table, route: Route, ends: Sequence[int]) -> pa.Table:
    """Return rows with their partition in `$tablet_index`, the last of their columns.

    Args:
        rows: with that column; null if a row does not choose a partition.
        ends: for each partition the index of its next row; other rows go to the lowest.

    Raises:
        OptionError: a partition does not exist, or two options choose the partition.
    """
    numbers = chosen_partitions(rows, route, ends)
    if not isinstance(numbers, np.ndarray):
        fewest = min(range(len(ends)), key=ends.__getitem__)
        numbers = np.full(rows.num_rows, fewest if numbers is None else numbers, dtype=np.int64)
    return rows.set_column(rows.num_columns - 1, pa.field(TABLET_INDEX, pa.int64()), pa.array(numbers))


def in_partitions(rows: pa.Table) -> dict[int, npt.NDArray[np.int64]]:
    """Return for each partition the indexes of its rows, in order."""
    numbers = rows.column(TABLET_INDEX).to_numpy()
    return {int(number): np.flatnonzero(numbers == number) for number in np.unique(numbers)}
