"""Exact sums of numbers by group: an integer of any size for each group.

A number is an integer times a fixed *unit*: 1 for integers, the last decimal place for decimals, and 2**-1074, the
smallest double, for doubles. So each sum is exact, whatever was added and removed in whatever order. It is rounded
once, when it is read.

The integers are a matrix of digits in base 2**32, one row for each group, lowest digit first. The matrix has only the
digits that its numbers use, from digit ``first`` on: four for prices of usual size, 66 for doubles of all sizes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.rows.nested import Mask, Numbers

Digits: TypeAlias = npt.NDArray[np.int64]
DOUBLE_UNIT = -1074
"""The unit of doubles, as a power of two."""
_BITS = 32
_LOW = (1 << _BITS) - 1
# Sums of a digit are doubles in `np.bincount`, exact below 2**53: this number of rows times 2**32.
_ROWS_AT_ONCE = 1 << 20
# The carry out of a digit is below 2**31.
_CARRY_DIGITS = 2
_EMPTY = b""


@dataclass(frozen=True)
class ExactSums:
    """One integer for each group.

    Attributes:
        digits: groups × digits. Every digit is in [0, 2**32), but the last one, which is 0, or -1 of negative numbers.
        first: the weight of the first digit is 2**(32 * first).
    """

    digits: Digits
    first: int

    @classmethod
    def zeros(cls, count: int) -> ExactSums:
        return cls(np.zeros((count, 1), np.int64), 0)

    @property
    def negative(self) -> Mask:
        """A mask of the groups with a negative sum."""
        return np.asarray(self.digits[:, -1] < 0)

    @property
    def nonzero(self) -> Mask:
        """A mask of the groups whose sum is not zero."""
        return np.asarray(self.digits.any(axis=1))

    def plus(self, other: ExactSums) -> ExactSums:
        """Return the sums of both, group by group."""
        first = min(self.first, other.first)
        end = max(self.first + self.digits.shape[1], other.first + other.digits.shape[1])
        digits = np.zeros((len(self.digits), end - first), np.int64)
        for each in (self, other):
            start = each.first - first
            digits[:, start : start + each.digits.shape[1]] += each.digits
        return _carried(digits, first)

    def magnitudes(self) -> ExactSums:
        """Return the absolute values."""
        signs = np.where(self.negative, -1, 1)
        return _carried(self.digits * signs[:, None], self.first)


def sums_of(values: pa.Array, groups: Numbers, signs: Numbers, count: int) -> ExactSums:
    """Return the sums of signed numbers by group.

    Args:
        values: integers, durations, decimals, or finite doubles, without nulls.
        groups: the group of each value, from 0 to ``count``.
        signs: 1 to add a value, -1 to remove it.
    """
    if not len(values):
        return ExactSums.zeros(count)
    if pa.types.is_floating(values.type):
        first, width, parts = _digits_of_doubles(values.cast(pa.float64()).to_numpy())
    else:
        first, parts = 0, _digits_of_integers(values)
        width = len(parts)
    total = np.zeros(count * width, np.int64)
    for start in range(0, len(groups), _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        for places, digits in parts:
            weights = (digits[part] * signs[part]).astype(np.float64)
            place = places if isinstance(places, int) else places[part]
            total += np.bincount(groups[part] * width + place, weights, count * width).astype(np.int64)
    return _carried(total.reshape(count, width), first)


def _digits_of_integers(values: pa.Array) -> list[tuple[int | Numbers, Digits]]:
    """Return the place of each digit in a row of the matrix, and the digit of each value; the last one is signed."""
    if pa.types.is_decimal(values.type):
        data = np.frombuffer(values.buffers()[1], np.uint8)
        width = values.type.bit_width // 8
        words = data[values.offset * width : (values.offset + len(values)) * width].reshape(-1, width).view("<u4")
        digits = [words[:, place].astype(np.int64) for place in range(width // 4)]
        digits[-1] = words[:, -1].astype(np.int32).astype(np.int64)
    else:
        numbers = values.cast(pa.int64()).to_numpy()
        digits = [numbers & _LOW, numbers >> _BITS]
    return list(enumerate(digits))


def _digits_of_doubles(values: npt.NDArray[np.float64]) -> tuple[int, int, list[tuple[int | Numbers, Digits]]]:
    """Return the first digit and the number of digits of finite doubles, and their digits as in the function above."""
    bits = values.view(np.uint64)
    exponents = ((bits >> np.uint64(52)) & np.uint64(0x7FF)).astype(np.int64)
    mantissas = (bits & np.uint64((1 << 52) - 1)).astype(np.int64)
    mantissas += (exponents > 0).astype(np.int64) << 52
    places = np.maximum(exponents, 1) - 1
    # Zeros would widen the matrix down to the smallest doubles.
    zeros = mantissas == 0
    places[zeros] = places[~zeros].min(initial=places.max(initial=0))
    shifts = places % _BITS
    places //= _BITS
    # 64 bits hold half a mantissa shifted by up to 31 bits.
    low = (mantissas & _LOW).astype(np.uint64) << shifts.astype(np.uint64)
    middle = (low >> np.uint64(_BITS)).astype(np.int64) + ((mantissas >> _BITS) << shifts)
    signs = np.where(values < 0, -1, 1)
    digits = [(low & np.uint64(_LOW)).astype(np.int64), middle & _LOW, middle >> _BITS]
    first = int(places.min())
    places -= first
    return first, int(places.max()) + 3, [(places + index, digit * signs) for index, digit in enumerate(digits)]


def _carried(digits: Digits, first: int) -> ExactSums:
    """Return sums of digits that may have any value up to 2**62, as digits in their range."""
    count, width = digits.shape
    # By columns: each step below works on one digit of all groups.
    result = np.zeros((count, width + _CARRY_DIGITS + 1), np.int64, order="F")
    result[:, :width] = digits
    for place in range(width + _CARRY_DIGITS):
        result[:, place + 1] += result[:, place] >> _BITS
        result[:, place] &= _LOW
    # Digits that only repeat the sign, and zeros at the lower end, are cut off.
    fill = result[:, -1:] & _LOW
    used = (result[:, :-1] != fill).any(axis=0)
    end = len(used) - int(np.argmax(used[::-1])) if used.any() else 0
    start = min(int(np.argmax(result.any(axis=0))), end)
    return ExactSums(np.concatenate([result[:, start:end], result[:, -1:]], axis=1), first + start)


# -- as binaries --------------------------------------------------------------------------------------------


def encoded(sums: ExactSums) -> pa.BinaryArray:
    """Return each sum as a binary: empty for 0, else the place of the lowest digit (one byte) and the digits.

    The digits are little-endian; the last one has the sign. Equal sums have equal binaries.
    """
    digits = (sums.digits & _LOW).astype("<u4")
    count, width = digits.shape
    fill = digits[:, -1:]
    meaningful = digits != fill
    end = np.where(meaningful.any(axis=1), width - np.argmax(meaningful[:, ::-1], axis=1), 0)
    # A digit of the sign follows where the last digit would have another sign.
    last = digits[np.arange(count), np.maximum(end - 1, 0)]
    signs = np.where(end > 0, last >> (_BITS - 1), 0)
    end += signs != (fill[:, 0] >> (_BITS - 1))
    start = np.argmax(digits != 0, axis=1)
    places = np.arange(width)
    kept = (places >= start[:, None]) & (places < end[:, None])
    sizes = kept.sum(axis=1)
    data = np.zeros((count, 1 + 4 * width), np.uint8)
    data[:, 0] = np.where(sizes > 0, sums.first + start, 0)
    data[:, 1:] = np.ascontiguousarray(digits).view(np.uint8)
    mask = np.empty(data.shape, np.bool_)
    mask[:, 0] = sizes > 0
    mask[:, 1:] = np.repeat(kept, 4, axis=1)
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(np.where(sizes > 0, 1 + 4 * sizes, 0), out=offsets[1:])
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data[mask])])


def decoded(binaries: pa.BinaryArray) -> ExactSums:
    """Return sums from their binaries; null is 0. The inverse of `encoded`."""
    count = len(binaries)
    binaries = binaries.fill_null(_EMPTY)
    offsets = np.frombuffer(binaries.buffers()[1], np.int32)[binaries.offset : binaries.offset + count + 1]
    offsets = offsets.astype(np.int64)
    if not count or offsets[-1] == offsets[0]:
        return ExactSums.zeros(count)
    data = np.frombuffer(binaries.buffers()[2], np.uint8)[offsets[0] : offsets[-1]]
    starts = offsets[:-1] - offsets[0]
    rows = np.flatnonzero(np.diff(offsets))
    sizes = (np.diff(offsets)[rows] - 1) // 4
    firsts = data[starts[rows]].astype(np.int64)
    first = int(firsts.min())
    body = np.ones(len(data), np.bool_)
    body[starts[rows]] = False
    words = data[body].view("<u4").astype(np.int64)
    ends = np.cumsum(sizes)
    words[ends - 1] -= (words[ends - 1] >> (_BITS - 1)) << _BITS
    within = np.arange(len(words)) - np.repeat(ends - sizes, sizes)
    digits = np.zeros((count, int((firsts + sizes).max()) - first), np.int64)
    digits[np.repeat(rows, sizes), np.repeat(firsts - first, sizes) + within] = words
    return _carried(digits, first)


# -- as numbers ---------------------------------------------------------------------------------------------


def to_doubles(sums: ExactSums, unit: int, divisors: Numbers | None = None) -> npt.NDArray[np.float64]:
    """Return the sums, or their quotients, as doubles: each is the exact value, rounded once, half to even.

    Args:
        unit: the unit of the sums, as a power of two.
        divisors: one positive number below 2**48 for each group.
    """
    magnitudes = sums.magnitudes()
    digits, first = magnitudes.digits.astype(np.uint64), magnitudes.first
    inexact = np.zeros(len(digits), np.bool_)
    if divisors is not None:
        # Three more digits give a quotient of at least 64 bits.
        digits, first = _padded(digits, 3), first - 3
        digits, rest = _quotients(digits, divisors)
        inexact = rest > 0
    digits = _padded(digits, 2)
    exponent = unit + _BITS * (first - 2)
    count, width = digits.shape
    rows = np.arange(count)
    top = width - 1 - np.argmax(digits[:, ::-1] != 0, axis=1)
    # Numbers that are zero have no digit; their other values do not matter.
    top = np.maximum(np.where(digits.any(axis=1), top, 2), 2)
    high, middle, low = (digits[rows, top - back] for back in range(3))
    bits = np.frexp(high.astype(np.float64))[1].astype(np.uint64)
    mantissas = (high << (np.uint64(64) - np.maximum(bits, np.uint64(1)))) | (middle << (np.uint64(_BITS) - bits))
    mantissas |= low >> bits
    inexact |= (low & ((np.uint64(1) << bits) - np.uint64(1))) > 0
    inexact |= np.argmax(digits != 0, axis=1) < top - 2
    # The value is in [2**power, 2**(power + 1)).
    power = exponent + _BITS * top + bits.astype(np.int64) - 1
    # Fewer bits than 53 fit into numbers below 2**-1022.
    kept = np.clip(power - DOUBLE_UNIT + 1, -1, 53)
    rounded = _rounded(mantissas, 64 - kept, inexact)
    with np.errstate(over="ignore"):
        values = np.ldexp(rounded.astype(np.float64), power - kept + 1)
    values = np.where(magnitudes.nonzero, values, 0.0)
    return np.where(sums.negative, -values, values)


def _padded(digits: npt.NDArray[np.uint64], count: int) -> npt.NDArray[np.uint64]:
    return np.concatenate([np.zeros((len(digits), count), np.uint64), digits], axis=1)


def _quotients(
    digits: npt.NDArray[np.uint64], divisors: Numbers
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """Return the quotients of positive numbers and the remainders."""
    by = divisors.astype(np.uint64)
    result = np.zeros_like(digits)
    rest = np.zeros(len(digits), np.uint64)
    # A remainder and the bits that follow must fit into 64 bits.
    step = _BITS if int(divisors.max(initial=0)) <= _LOW else _BITS // 2
    for place in reversed(range(digits.shape[1])):
        for shift in range(_BITS - step, -1, -step):
            rest = (rest << np.uint64(step)) | ((digits[:, place] >> np.uint64(shift)) & np.uint64((1 << step) - 1))
            result[:, place] |= (rest // by) << np.uint64(shift)
            rest %= by
    return result, rest


def _rounded(mantissas: npt.NDArray[np.uint64], dropped: Numbers, inexact: Mask) -> npt.NDArray[np.uint64]:
    """Return mantissas of 64 bits without their last 11 to 65 bits, rounded half to even.

    Args:
        inexact: whether more bits follow, which are not all zero.
    """
    one = np.uint64(1)
    drop = np.minimum(dropped, 64).astype(np.uint64)
    half = one << (drop - one)
    # 64 bits cannot be shifted by 64.
    kept = np.where(drop < 64, mantissas >> np.minimum(drop, np.uint64(63)), np.uint64(0))
    rest = mantissas & (half | (half - one))
    up = (rest > half) | ((rest == half) & (inexact | (kept & one > 0)))
    return np.asarray(kept + (up & (dropped <= 64)))


def to_integers(sums: ExactSums) -> tuple[Numbers, Mask]:
    """Return the sums as 64-bit integers, and a mask of those that do not fit, which have any value."""
    words, fits = _words(sums, 2)
    return words.view(np.int64)[:, 0], ~fits


def to_decimals(sums: ExactSums, data_type: pa.DataType) -> tuple[pa.Array, Mask]:
    """Return the sums, in units of the last decimal place, as decimals, and a mask of those that do not fit."""
    words, fits = _words(sums, 4)
    bound = 10**data_type.precision
    limits = [(bound >> (_BITS * place)) & _LOW for place in range(4)]
    magnitudes, _ = _words(sums.magnitudes(), 4)
    below = np.zeros(len(words), np.bool_)
    # The highest digit that differs decides.
    for place, limit in enumerate(limits):
        below = np.where(magnitudes[:, place] == limit, below, magnitudes[:, place] < limit)
    fits &= below
    words[~fits] = 0
    return pa.Array.from_buffers(data_type, len(words), [None, pa.py_buffer(words)]), ~fits


def _words(sums: ExactSums, count: int) -> tuple[npt.NDArray[Any], Mask]:
    """Return the lowest digits of the sums as little-endian integers, and whether they are the whole numbers."""
    places = sums.first + np.arange(sums.digits.shape[1])
    words = np.repeat((sums.digits[:, -1:] & _LOW).astype("<u4"), count, axis=1)
    words[:, : max(0, min(sums.first, count))] = 0
    for index, place in enumerate(places[:-1]):
        if place < count:
            words[:, place] = sums.digits[:, index]
    fill = sums.digits[:, -1:]
    beyond = sums.digits[:, :-1][:, places[:-1] >= count]
    fits = (beyond == (fill & _LOW)).all(axis=1) & (words[:, -1].astype("<i4") >> (_BITS - 1) == fill[:, 0])
    return words, fits


def divided(sums: ExactSums, divisors: Numbers, power_of_ten: int = 0) -> ExactSums:
    """Return ``sums * 10**power_of_ten / divisors``, rounded half away from zero.

    Args:
        divisors: one positive number below 2**48 for each group.
    """
    magnitudes = sums.magnitudes()
    for _ in range(power_of_ten):
        magnitudes = _carried(magnitudes.digits * 10, magnitudes.first)
    digits = magnitudes.digits.astype(np.uint64)
    lower = np.zeros((len(digits), magnitudes.first), np.uint64)
    quotients, rest = _quotients(np.concatenate([lower, digits], axis=1), divisors)
    result = quotients.astype(np.int64)
    result[:, 0] += rest * np.uint64(2) >= divisors.astype(np.uint64)
    return _carried(result * np.where(sums.negative, -1, 1)[:, None], 0)
