"""Checks of appended rows and of options of queues, the same for all stores. No I/O."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import OptionError, SequenceNumberError
from headrace.model.queues.columns import SEQUENCE_NUMBER, TABLET_INDEX
from headrace.model.queues.values import QueueOptions, partition_of_keys
from headrace.options.names import check_names

_BEFORE_THE_FIRST = -1
_LARGEST_NUMBER = 2**63 - 1


@dataclass(frozen=True)
class Route:
    """The choice of partitions in an append: one partition, key columns, or the column `$tablet_index` of the rows."""

    partition: int | None = None
    key: tuple[str, ...] | None = None

    @classmethod
    def of(cls, partition: int | None, key: str | Sequence[str] | None) -> Route:
        """Return the route for arguments of `Queue.append`.

        Raises:
            OptionError: both a partition and a key are set, or the key has no columns.
        """
        columns = (key,) if isinstance(key, str) else None if key is None else tuple(key)
        if columns is not None and partition is not None:
            raise OptionError("partition and key cannot be combined", received=f"{partition}, {key}")
        if columns == ():
            raise OptionError("the key has no columns", received=repr(key))
        return cls(partition, columns)


def check_partition(number: int, partitions: int) -> None:
    """Raise `OptionError` unless a queue with ``partitions`` partitions has the partition ``number``."""
    if not 0 <= number < partitions:
        raise no_partition(number, partitions)


def chosen_partitions(
    rows: pa.RecordBatch | pa.Table, route: Route, ends: Sequence[int]
) -> npt.NDArray[np.int64] | int | None:
    """Return the partition number of each row, one number for all rows, or None for the one with the fewest rows.

    Args:
        rows: with the column `$tablet_index`, null if a row does not choose a partition.
        ends: for each partition the index of its next row.

    Raises:
        OptionError: a partition does not exist, or two options choose the partition.
    """
    given = rows.column(TABLET_INDEX)
    if given.null_count < len(given):
        if route != Route():
            raise OptionError(
                f"the rows choose their partitions by {TABLET_INDEX}", remedy="give no partition and no key"
            )
        fewest = min(range(len(ends)), key=ends.__getitem__)
        numbers: npt.NDArray[np.int64] = given.fill_null(fewest).to_numpy()
        for number in (int(numbers.min()), int(numbers.max())):
            check_partition(number, len(ends))
        return numbers
    if route.key is not None:
        return partition_of_keys(rows, route.key, len(ends))
    if route.partition is not None:
        check_partition(route.partition, len(ends))
    return route.partition


def no_partition(number: int, partitions: int) -> OptionError:
    """Return the error for a partition that does not exist."""
    return OptionError("the queue has no such partition", received=number, valid=f"0 to {partitions - 1}")


def sequence_numbers(given: pa.ChunkedArray, first: int | None) -> npt.NDArray[np.int64]:
    """Return the sequence number of each row of a push.

    Args:
        given: the column `$sequence_number` of the rows; all null if the rows have no such column.
        first: the number of the first row, if the rows have no such column.

    Raises:
        SequenceNumberError: numbers are missing, set in both ways, or not increasing.
    """
    if len(given) == 0:
        return np.empty(0, dtype=np.int64)
    if first is None:
        return _rising(given)
    if given.null_count < len(given):
        raise SequenceNumberError(
            "the rows have sequence numbers from two sources",
            received=f"sequence_number={first} and a column {SEQUENCE_NUMBER}",
            remedy="pass only one of them",
        )
    if not 0 <= first <= _LARGEST_NUMBER - len(given) + 1:
        raise SequenceNumberError(
            "the sequence numbers are out of range",
            received=f"{first} for the first of {len(given)} rows",
            valid=f"0 to {_LARGEST_NUMBER}",
        )
    return first + np.arange(len(given), dtype=np.int64)


def _rising(given: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """Return the numbers of a column; raise an error unless they are complete, not negative, and increasing."""
    if given.null_count:
        row = pc.index(given.is_null(), True).as_py()
        raise SequenceNumberError(
            f"row {row} has no sequence number",
            remedy=f"pass sequence_number for the first row, or set column {SEQUENCE_NUMBER} in every row",
        )
    numbers: npt.NDArray[np.int64] = given.to_numpy()
    wrong = np.flatnonzero(numbers <= np.concatenate(([_BEFORE_THE_FIRST], numbers[:-1])))
    if len(wrong):
        row = int(wrong[0])
        before = f", after {numbers[row - 1]}" if row else ""
        raise SequenceNumberError(
            f"the sequence number of row {row} is not larger than the previous one",
            received=f"{numbers[row]}{before}",
            valid="increasing numbers from 0 on; gaps are allowed",
        )
    return numbers


def changed_options(options: QueueOptions, changes: Mapping[str, Any]) -> QueueOptions:
    """Return options with changes.

    Raises:
        OptionError: an option is unknown, or a value has the wrong type.
    """
    check_names("a queue", changes, [field.name for field in dataclasses.fields(QueueOptions)])
    for name, value in changes.items():
        if name == "auto_trim":
            if not isinstance(value, bool):
                raise OptionError("option auto_trim must be True or False", received=repr(value))
        elif value is not None:
            allowed = int if name == "retained_rows" else int | float
            is_number = isinstance(value, allowed) and not isinstance(value, bool)
            if not is_number or not 0 <= value <= _LARGEST_NUMBER:
                raise OptionError(f"option {name} must be a number, or None for no limit", received=repr(value))
    return dataclasses.replace(options, **changes)
