"""Counts and sums that are kept for a group, in columns of its row in the table of groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.derived.state import exact_sums
from headrace.derived.state.aggregates import Aggregate
from headrace.derived.state.exact_sums import ExactSums
from headrace.derived.state.signed_rows import SignedRows, column_of
from headrace.errors import StateMismatchError
from headrace.rows.nested import Mask, Numbers, is_valid

State: TypeAlias = "Mapping[str, pa.Array]"
"""The columns of state, one value for each group; of a group without state they are null."""

_SPECIALS = 3
_NAN, _PLUS, _MINUS = range(_SPECIALS)


class KeptCount:
    """The number of rows without null among some arguments.

    Args:
        number: makes the names of its columns unique.
        arguments: the columns of the rows; without any, all rows count.
    """

    def __init__(self, number: int, arguments: tuple[str, ...]) -> None:
        self.name = f"n{number}"
        self.arguments = arguments
        self.columns = {self.name: pa.int64()}

    def merged(self, old: State, rows: SignedRows) -> dict[str, pa.Array]:
        """Return the state after the rows."""
        signs = rows.signs * present(rows, self.arguments)
        counts = numbers(old[self.name]) + added(rows.groups, signs, rows.count)
        check_counts(counts)
        return {self.name: pa.array(counts)}

    def counts(self, state: State) -> Numbers:
        return numbers(state[self.name])


class KeptSum:
    """The exact sum of an argument.

    Of floating-point numbers, it is the sum of the finite ones, and the numbers of NaN, inf and -inf: a binary of
    three little-endian integers, null without any.
    """

    def __init__(self, number: int, argument: str, data_type: pa.DataType) -> None:
        self.name, self._special = f"s{number}", f"x{number}"
        self._argument = argument
        self._type = data_type
        self._floating = bool(pa.types.is_floating(data_type))
        self.columns = {self.name: pa.binary()}
        if self._floating:
            self.columns[self._special] = pa.binary()

    def merged(self, old: State, rows: SignedRows) -> dict[str, pa.Array]:
        """Return the state after the rows."""
        column = column_of(rows, self._argument)
        used = is_valid(column)
        result: dict[str, pa.Array] = {}
        if self._floating:
            column = column.cast(pa.float64())
            result[self._special], finite = self._special_counts(old, rows, column)
            used &= finite
        groups, signs = rows.groups, rows.signs
        if not used.all():
            column, groups, signs = column.filter(pa.array(used)), groups[used], signs[used]
        sums = exact_sums.sums_of(column, groups, signs, rows.count)
        result[self.name] = exact_sums.encoded(exact_sums.decoded(old[self.name]).plus(sums))
        return result

    def _special_counts(self, old: State, rows: SignedRows, column: pa.Array) -> tuple[pa.Array, Mask]:
        """Return the numbers of values that are not finite, and a mask of the finite values of the rows."""
        values = column.fill_null(0.0).to_numpy(zero_copy_only=False)
        finite = np.isfinite(values)
        if finite.all():
            return old[self._special], finite
        kinds = np.select([np.isnan(values), values == np.inf], [_NAN, _PLUS], _MINUS)
        places = rows.groups * _SPECIALS + kinds
        counts = _specials(old[self._special]) + added(
            places[~finite], rows.signs[~finite], rows.count * _SPECIALS
        ).reshape(-1, _SPECIALS)
        check_counts(counts)
        return _special_binaries(counts), finite

    def is_zero(self, state: State) -> Mask:
        """Return a mask of the groups whose values are all removed."""
        zero = pc.equal(pc.binary_length(state[self.name].fill_null(b"")), 0).to_numpy(zero_copy_only=False)
        if self._floating:
            zero &= ~is_valid(state[self._special])
        return np.asarray(zero)

    def exact(self, state: State) -> ExactSums:
        """Return the exact sum of each group, for the two functions below."""
        return exact_sums.decoded(state[self.name])

    def sums(self, sums: ExactSums, state: State, counts: Numbers, aggregate: Aggregate) -> pa.Array:
        """Return the sum of each group; null if no value counts."""
        if self._floating:
            return self._doubles(exact_sums.to_doubles(sums, exact_sums.DOUBLE_UNIT), state, counts, aggregate)
        return _exact_result(sums, counts == 0, aggregate)

    def averages(self, sums: ExactSums, state: State, counts: Numbers, aggregate: Aggregate) -> pa.Array:
        """Return the average of each group, rounded once; null if no value counts."""
        divisors = np.maximum(counts, 1)
        if pa.types.is_floating(aggregate.result):
            unit = exact_sums.DOUBLE_UNIT if self._floating else 0
            return self._doubles(exact_sums.to_doubles(sums, unit, divisors), state, counts, aggregate)
        places = aggregate.result.scale - self._type.scale if pa.types.is_decimal(aggregate.result) else 0
        return _exact_result(exact_sums.divided(sums, divisors, places), counts == 0, aggregate)

    def _doubles(self, values: np.ndarray, state: State, counts: Numbers, aggregate: Aggregate) -> pa.Array:
        if self._floating and state[self._special].null_count < len(values):
            special = _specials(state[self._special])
            values = np.where(special[:, _PLUS] > 0, np.inf, values)
            values = np.where(special[:, _MINUS] > 0, -np.inf, values)
            both = (special[:, _PLUS] > 0) & (special[:, _MINUS] > 0)
            values = np.where(both | (special[:, _NAN] > 0), np.nan, values)
        return pa.array(values, pa.float64(), mask=counts == 0).cast(aggregate.result)


def _exact_result(sums: ExactSums, empty: Mask, aggregate: Aggregate) -> pa.Array:
    if pa.types.is_decimal(aggregate.result):
        values, overflows = exact_sums.to_decimals(sums, aggregate.result)
        values = pc.if_else(pa.array(empty), pa.scalar(None, aggregate.result), values)
    else:
        integers, overflows = exact_sums.to_integers(sums)
        values = pa.array(integers, mask=empty).cast(aggregate.result)
    aggregate.check_fits(overflows & ~empty)
    return values


def _specials(binaries: pa.BinaryArray) -> Numbers:
    counts = np.zeros((len(binaries), _SPECIALS), np.int64)
    valid = is_valid(binaries)
    if valid.any():
        counts[valid] = np.frombuffer(b"".join(binaries.drop_null().to_pylist()), "<i8").reshape(-1, _SPECIALS)
    return counts


def _special_binaries(counts: Numbers) -> pa.BinaryArray:
    some = counts.any(axis=1)
    fixed = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(8 * _SPECIALS), len(counts), [None, pa.py_buffer(np.ascontiguousarray(counts.astype("<i8")))]
    )
    return pc.if_else(pa.array(some), fixed.cast(pa.binary()), pa.scalar(None, pa.binary()))


def present(rows: SignedRows, arguments: tuple[str, ...]) -> Mask:
    """Return a mask of the rows without null among some arguments."""
    mask = np.ones(len(rows.signs), np.bool_)
    for name in arguments:
        column = rows.columns.column(name)
        if column.null_count:
            mask &= column.is_valid().to_numpy()
    return mask


def added(places: Numbers, values: Numbers, count: int) -> Numbers:
    """Return the sums of small integers by place. They are exact, because a task has fewer than 2**53 rows."""
    return np.bincount(places, values.astype(np.float64), count).astype(np.int64)


def numbers(column: pa.Array) -> Numbers:
    """Return integers, with 0 for null."""
    return np.asarray(column.fill_null(0).to_numpy(zero_copy_only=False))


def check_counts(counts: Numbers) -> None:
    """Raise `StateMismatchError` if a count is negative."""
    if (counts < 0).any():
        raise mismatch("a row or value left a group that it had not entered", int((counts < 0).sum()))


def mismatch(problem: str, count: int) -> StateMismatchError:
    """Return the error for changes that do not fit the kept state."""
    return StateMismatchError(
        f"the changes do not fit the kept state: {problem}",
        received=f"{count} groups or values",
        remedy="the state, or the changes since, are incomplete: drop the stream with its state and create it again",
    )
