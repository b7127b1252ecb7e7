"""Queues and consumers as pure values, and the rules about them: system columns, weights, partitions, trimming, lag."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import SchemaError
from headrace.model import RowSchema, parse_columns
from headrace.types import type_name

TABLET_INDEX, ROW_INDEX = "$tablet_index", "$row_index"
TIMESTAMP, CUMULATIVE_DATA_WEIGHT = "$timestamp", "$cumulative_data_weight"
SEQUENCE_NUMBER = "$sequence_number"
# What the store gives or takes beside a queue's own columns.
_ADDRESS = (TABLET_INDEX, ROW_INDEX, SEQUENCE_NUMBER)
_SYSTEM_TYPES: Mapping[str, tuple[pa.DataType, ...]] = {
    TIMESTAMP: (pa.timestamp("us", tz="UTC"), pa.int64()),
    CUMULATIVE_DATA_WEIGHT: (pa.int64(),),
}


@dataclass(frozen=True)
class QueueSchema(RowSchema):
    """The columns of a queue, in order; system columns among them are filled by the store."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.written.columns:
            raise SchemaError("a queue needs a column of its own", received=list(self.names))
        for column in self.columns:
            if column.name in _ADDRESS:
                raise SchemaError(
                    f"a queue cannot have a column {column.name!r}: it is part of a row's address or push",
                    remedy="leave it out",
                )
            if column.name in _SYSTEM_TYPES and column.type not in _SYSTEM_TYPES[column.name]:
                raise SchemaError(
                    f"system column {column.name!r} has another type",
                    received=type_name(column.type),
                    valid=[type_name(valid) for valid in _SYSTEM_TYPES[column.name]],
                )

    @classmethod
    def of(cls, columns: Mapping[str, str | pa.DataType] | pa.Schema) -> QueueSchema:
        """Build a schema from ``{name: type name}`` or an Arrow schema."""
        return cls(parse_columns(columns))

    @property
    def primary_key(self) -> tuple[str, ...]:
        """Empty: a queue's rows have an address instead of a key."""
        return ()

    @property
    def written(self) -> RowSchema:
        """The columns that writers give: all but the system columns."""
        return RowSchema(tuple(column for column in self.columns if column.name not in _SYSTEM_TYPES))


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


def data_weights(rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Return each row's data weight: 1, plus 8 for a number, 1 for a boolean, the bytes of a text, 0 for null.

    A time counts as a number, a decimal 16, a composite value the sum of its parts. Source: YTsaurus' queues. A
    decimal(20,0) counts as the number that it stands for: stores without unsigned numbers carry 64 bits so.
    """
    return sum((_weights(column) for column in rows.columns), start=np.ones(rows.num_rows, dtype=np.int64))


_WEIGHT_OF_NUMBER, _WEIGHT_OF_DECIMAL = 8, 16
_UNSIGNED = pa.decimal128(20, 0)


def _weights(array: pa.Array) -> npt.NDArray[np.int64]:
    kind = array.type
    weights: npt.NDArray[np.int64]
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        weights = pc.binary_length(array).fill_null(0).to_numpy().astype(np.int64)
    elif pa.types.is_struct(kind):
        parts = (_weights(part) for part in array.flatten())
        weights = sum(parts, start=np.zeros(len(array), dtype=np.int64))
    elif pa.types.is_map(kind):
        weights = _summed(_weights(array.keys) + _weights(array.items), array)
    elif pa.types.is_list(kind):
        weights = _summed(_weights(array.values), array)
    elif pa.types.is_boolean(kind):
        weights = np.ones(len(array), dtype=np.int64)
    elif pa.types.is_decimal(kind) and kind != _UNSIGNED:
        weights = np.full(len(array), _WEIGHT_OF_DECIMAL)
    else:
        weights = np.full(len(array), _WEIGHT_OF_NUMBER)
    if array.null_count:
        weights[array.is_null().to_numpy(zero_copy_only=False)] = 0
    return weights


def _summed(parts: npt.NDArray[np.int64], array: pa.ListArray | pa.MapArray) -> npt.NDArray[np.int64]:
    """Return the sum of the elements' weights for each list."""
    offsets = array.offsets.to_numpy()
    sums = np.concatenate([[0], np.cumsum(parts)])
    return np.asarray(sums[offsets[1:]] - sums[offsets[:-1]], dtype=np.int64)
