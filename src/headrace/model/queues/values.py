"""Values of queues and consumers, and their rules: partitions of keys, trimming, lag. No I/O."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.errors import SchemaError


@dataclass(frozen=True)
class QueueOptions:
    """The options of a queue's automatic trimming.

    Attributes:
        auto_trim: remove rows that all vital consumers have read. Without a vital consumer no row is removed.
        retained_rows: the minimum number of rows to keep in each partition.
        retained_seconds: the minimum age of removed rows.
    """

    auto_trim: bool = False
    retained_rows: int | None = None
    retained_seconds: float | None = None


@dataclass(frozen=True)
class Bounds:
    """The rows of a partition: the index of the first row, the index after the last row, and their size in bytes."""

    lower: int
    upper: int
    bytes: int = 0

    @property
    def rows(self) -> int:
        return self.upper - self.lower


@dataclass(frozen=True)
class RowRange:
    """Rows of one partition: the index of the first row, and the index after the last row."""

    partition: int
    first: int
    next: int


@dataclass(frozen=True)
class QueuePage:
    """Consecutive rows of a partition. ``rows`` has the queue's columns; ``first`` is the index of its first row."""

    partition: int
    first: int
    rows: pa.RecordBatch

    @property
    def next(self) -> int:
        """The index after the last row."""
        return self.first + int(self.rows.num_rows)


class Disposition(enum.StrEnum):
    """The state of a consumer in a partition."""

    AHEAD = "ahead"
    UP_TO_DATE = "up_to_date"
    PENDING_CONSUMPTION = "pending_consumption"
    EXPIRED = "expired"
    """The next row has been trimmed."""

    @classmethod
    def of(cls, bounds: Bounds, offset: int) -> Disposition:
        """Return the disposition of a consumer whose first unread row is ``offset``."""
        if offset > bounds.upper:
            return cls.AHEAD
        if offset == bounds.upper:
            return cls.UP_TO_DATE
        return cls.EXPIRED if offset < bounds.lower else cls.PENDING_CONSUMPTION


@dataclass(frozen=True)
class ConsumerPartition:
    """The progress of a consumer in one partition.

    Attributes:
        offset: the index of the first unread row.
        unread_rows: the number of rows from the offset to the end, including trimmed rows; negative if the offset is
            after the end.
        unread_weight: their data weight; None without `$cumulative_data_weight`, and before the first row is read.
        lag_seconds: the age of the first existing unread row; 0.0 if there is none.
        last_consumed: when the offset was last set, in seconds since 1970; None if never.
    """

    partition: int
    offset: int
    bounds: Bounds
    disposition: Disposition
    unread_rows: int
    unread_weight: int | None
    lag_seconds: float
    last_consumed: float | None


@dataclass(frozen=True)
class ProducerSession:
    """A session of a producer on a queue. Only the latest epoch can push, with numbers after ``sequence_number``."""

    producer: str
    queue: str
    session: str
    epoch: int
    sequence_number: int
    user_meta: Any = None


@dataclass(frozen=True)
class Pushed:
    """The result of a push: the session's new last sequence number, and the number of rows pushed before."""

    last_sequence_number: int
    skipped_rows: int


def trim_target(
    bounds: Bounds, vital_offsets: Iterable[int], retained_rows: int | None, oldest_kept: int | None
) -> int:
    """Return the row index up to which automatic trimming removes rows; ``bounds.lower`` if it removes none.

    Args:
        vital_offsets: the offsets of the vital consumers, 0 for a consumer without an offset. If empty, no row is
            removed.
        retained_rows: the minimum number of rows to keep.
        oldest_kept: the index of the first row that is too young to be removed.
    """
    target = min(vital_offsets, default=bounds.lower)
    if retained_rows is not None:
        target = min(target, bounds.upper - retained_rows)
    if oldest_kept is not None:
        target = min(target, oldest_kept)
    return max(bounds.lower, min(target, bounds.upper))


def partition_of_keys(rows: pa.RecordBatch | pa.Table, key: Sequence[str], partitions: int) -> npt.NDArray[np.int64]:
    """Return the partition number of each row by its key columns. Equal values have equal numbers in all processes.

    Integers of all widths are equal by value, -0.0 equals 0.0, and null is a value.

    Raises:
        SchemaError: a key column does not exist, or its values are composite.
    """
    hashes = np.zeros(rows.num_rows, dtype=np.uint64)
    for name in key:
        if name not in rows.schema.names:
            raise SchemaError("the rows do not have this key column", received=repr(name), valid=rows.schema.names)
        column = rows.column(name)
        array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        hashes = _mixed(hashes * _ODD + _hashes(array, name))
    return (hashes % np.uint64(partitions)).astype(np.int64)


# Constants of the hash function splitmix64. The partitions of stored rows depend on them.
_ODD = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_OF_NULL = np.uint64(0x2545F4914F6CDD1D)


def _mixed(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    numbers = (numbers ^ (numbers >> np.uint64(30))) * _FIRST
    numbers = (numbers ^ (numbers >> np.uint64(27))) * _SECOND
    return numbers ^ (numbers >> np.uint64(31))


def _hashes(array: pa.Array, name: str) -> npt.NDArray[np.uint64]:
    kind = array.type
    if pa.types.is_floating(kind):
        # Adding 0.0 converts -0.0 to 0.0.
        values = array.cast(pa.float64()).fill_null(0.0).to_numpy() + 0.0
        hashes = _mixed(np.where(np.isnan(values), np.nan, values).view(np.uint64))
    elif pa.types.is_string(kind) or pa.types.is_binary(kind):
        hashes = _text_hashes(array)
    elif pa.types.is_decimal(kind):
        words = np.frombuffer(array.buffers()[1], dtype=np.uint64).reshape(-1, 2)
        words = words[array.offset : array.offset + len(array)]
        hashes = _mixed(_mixed(words[:, 0]) + words[:, 1])
    elif pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_date32(kind):
        # Arrow casts a date only to 32 bits.
        narrow = array if pa.types.is_int64(kind) else array.cast(pa.int32())
        hashes = _mixed(narrow.cast(pa.int64()).fill_null(0).to_numpy().view(np.uint64))
    elif pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        hashes = _mixed(array.cast(pa.int64()).fill_null(0).to_numpy().view(np.uint64))
    else:
        raise SchemaError(
            f"column {name!r} cannot choose a partition", received=kind, valid="a column that is not composite"
        )
    if array.null_count:
        hashes[array.is_null().to_numpy(zero_copy_only=False)] = _OF_NULL
    return hashes


def _text_hashes(array: pa.Array) -> npt.NDArray[np.uint64]:
    """Return a polynomial hash of the bytes of each text, by differences of one running sum over all texts."""
    wide = array.cast(pa.large_binary())
    _, offsets_buffer, data = wide.buffers()
    offsets = np.frombuffer(offsets_buffer, dtype=np.int64)[wide.offset : wide.offset + len(wide) + 1]
    starts, lengths = offsets[:-1] - offsets[0], np.diff(offsets)
    raw = np.frombuffer(data or b"", dtype=np.uint8)[offsets[0] : offsets[-1]]
    powers = np.cumprod(np.full(int(lengths.max(initial=0)), _ODD))
    sums = np.zeros(len(raw) + 1, dtype=np.uint64)
    np.cumsum(raw * powers[np.arange(len(raw)) - np.repeat(starts, lengths)], out=sums[1:])
    return _mixed(sums[starts + lengths] - sums[starts] + lengths.view(np.uint64))
