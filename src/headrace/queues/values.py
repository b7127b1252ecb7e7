"""Queues and consumers as pure values, and the rules about them: partitions of keys, trimming, lag."""

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
    """When a queue removes rows by itself.

    Attributes:
        auto_trim: remove rows that all vital consumers have read. Without a vital consumer nothing is removed.
        retained_rows: keep at least so many rows of each partition …
        retained_seconds: … and every row that is younger than this.
    """

    auto_trim: bool = False
    retained_rows: int | None = None
    retained_seconds: float | None = None


@dataclass(frozen=True)
class Bounds:
    """The rows of a partition: the index of the first that is kept, that behind the last, and their size in bytes."""

    lower: int
    upper: int
    bytes: int = 0

    @property
    def rows(self) -> int:
        return self.upper - self.lower


@dataclass(frozen=True)
class RowRange:
    """Rows of one partition: the index of the first, and that behind the last."""

    partition: int
    first: int
    next: int


@dataclass(frozen=True)
class QueuePage:
    """Consecutive rows of a partition: ``rows`` has the queue's columns, its first row has index ``first``."""

    partition: int
    first: int
    rows: pa.RecordBatch

    @property
    def next(self) -> int:
        """The index behind the last row."""
        return self.first + int(self.rows.num_rows)


class Disposition(enum.StrEnum):
    """Where a consumer stands in a partition."""

    AHEAD = "ahead"
    UP_TO_DATE = "up_to_date"
    PENDING_CONSUMPTION = "pending_consumption"
    EXPIRED = "expired"
    """The next row is trimmed already."""

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
    """How far a consumer is in one partition.

    Attributes:
        offset: the index of the first unread row.
        unread_rows: rows from there to the end, trimmed ones included; below 0 if the offset lies behind the end.
        unread_weight: their data weight; None without `$cumulative_data_weight`, and before the first row is read.
        lag_seconds: age of the first unread row that is there; 0.0 if there is none.
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
    """A producer's session on a queue: whoever has the newest epoch may push above the sequence number."""

    producer: str
    queue: str
    session: str
    epoch: int
    sequence_number: int
    user_meta: Any = None


@dataclass(frozen=True)
class Pushed:
    """What a push did: the session's last sequence number now, and how many rows were there already."""

    last_sequence_number: int
    skipped_rows: int


def trim_target(
    bounds: Bounds, vital_offsets: Iterable[int], retained_rows: int | None, oldest_kept: int | None
) -> int:
    """Return below which row index automatic trimming removes rows; ``bounds.lower`` if it removes none.

    Args:
        vital_offsets: the offsets of the vital consumers, 0 for one that has none; without any nothing goes.
        retained_rows: how many rows stay in any case.
        oldest_kept: index of the first row that is too young to go.
    """
    target = min(vital_offsets, default=bounds.lower)
    if retained_rows is not None:
        target = min(target, bounds.upper - retained_rows)
    if oldest_kept is not None:
        target = min(target, oldest_kept)
    return max(bounds.lower, min(target, bounds.upper))


def partition_of_keys(rows: pa.RecordBatch | pa.Table, key: Sequence[str], partitions: int) -> npt.NDArray[np.int64]:
    """Return the partition number of each row by its key columns: the same values give the same number everywhere.

    Whole numbers count by value, whatever their width; -0.0 as 0.0; null as a value of its own.

    Raises:
        SchemaError: a key column is not there, or its values are composite.
    """
    hashes = np.zeros(rows.num_rows, dtype=np.uint64)
    for name in key:
        if name not in rows.schema.names:
            raise SchemaError("the rows have no key column of this name", received=repr(name), valid=rows.schema.names)
        column = rows.column(name)
        array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
        hashes = _mixed(hashes * _ODD + _hashes(array, name))
    return (hashes % np.uint64(partitions)).astype(np.int64)


# Steps of the hash function splitmix64; partitions of rows that are stored depend on these numbers.
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
        # Adding 0.0 makes 0.0 of -0.0.
        values = array.cast(pa.float64()).fill_null(0.0).to_numpy() + 0.0
        hashes = _mixed(np.where(np.isnan(values), np.nan, values).view(np.uint64))
    elif pa.types.is_string(kind) or pa.types.is_binary(kind):
        hashes = _text_hashes(array)
    elif pa.types.is_decimal(kind):
        words = np.frombuffer(array.buffers()[1], dtype=np.uint64).reshape(-1, 2)
        words = words[array.offset : array.offset + len(array)]
        hashes = _mixed(_mixed(words[:, 0]) + words[:, 1])
    elif pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_date32(kind):
        # By way of 32 bits, because Arrow casts a date to no other width.
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
    """Return a polynomial of the bytes of each text, by differences of one running sum over all of them."""
    wide = array.cast(pa.large_binary())
    _, offsets_buffer, data = wide.buffers()
    offsets = np.frombuffer(offsets_buffer, dtype=np.int64)[wide.offset : wide.offset + len(wide) + 1]
    starts, lengths = offsets[:-1] - offsets[0], np.diff(offsets)
    raw = np.frombuffer(data or b"", dtype=np.uint8)[offsets[0] : offsets[-1]]
    powers = np.cumprod(np.full(int(lengths.max(initial=0)), _ODD))
    sums = np.zeros(len(raw) + 1, dtype=np.uint64)
    np.cumsum(raw * powers[np.arange(len(raw)) - np.repeat(starts, lengths)], out=sums[1:])
    return _mixed(sums[starts + lengths] - sums[starts] + lengths.view(np.uint64))
