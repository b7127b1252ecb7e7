"""Whole numbers in the query language, where processors and Arrow would make something up: an error says so instead.

``needed`` tells which results count: true or false for every row, or for all of them, and None if all do. Where one
does not count, as in the branch of an IF that is not taken, nothing is wrong, and the result is null.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from headrace.endpoints.ytsaurus.select.grammar import wrong
from headrace.endpoints.ytsaurus.select.types import Array

_BITS = 64
# Seconds since 1970, for some thousand years in both directions: with more, calendars overflow.
_MOST_SECONDS = 1 << 37


def quotient(dividend: Array, divisor: Array, needed: Array | None) -> Array:
    """Divide numbers of one type; whole ones are rounded towards zero."""
    return pc.divide(dividend, _checked_divisor(dividend, divisor, needed))


def remainder(dividend: Array, divisor: Array, needed: Array | None) -> Array:
    """Return what is left of a division of whole numbers; it has the sign of the dividend."""
    divisor = _checked_divisor(dividend, divisor, needed)
    return pc.subtract(dividend, pc.multiply(pc.divide(dividend, divisor), divisor))


def shifted(function: str, number: Array, bits: Array, needed: Array | None) -> Array:
    """Shift whole numbers; ``function`` is ``shift_left`` or ``shift_right``."""
    outside = pc.or_(pc.less(bits, pa.scalar(0, bits.type)), pc.greater_equal(bits, pa.scalar(_BITS, bits.type)))
    _refuse(outside, number, needed, f"A number can be shifted by 0 to {_BITS - 1} bits")
    bits = pc.if_else(outside, pa.scalar(None, bits.type), bits)
    # Arrow does nothing where a number with a sign is to be shifted by one bit less than it has: so in two steps.
    some = pc.min_element_wise(bits, pa.scalar(_BITS - 2, bits.type))
    return pc.call_function(function, [pc.call_function(function, [number, some]), pc.subtract(bits, some)])


def negative(number: Array) -> Array:
    """Change the sign; of an unsigned number, or the least signed one, the result wraps around."""
    if pa.types.is_unsigned_integer(number.type):
        return pc.subtract(pa.scalar(0, number.type), number)
    return pc.negate(number)


def whole(number: Array, wanted: pa.DataType, needed: Array | None) -> Array:
    """Return doubles as whole numbers of a type, without what stands behind the point."""
    cut = pc.trunc(number)
    least, end = (-(2.0**63), 2.0**63) if pa.types.is_signed_integer(wanted) else (0.0, 2.0**64)
    inside = pc.and_(pc.greater_equal(cut, pa.scalar(least)), pc.less(cut, pa.scalar(end)))
    _refuse(pc.invert(inside), number, needed, "A double is outside the range of whole numbers")
    return pc.if_else(inside, cut, pa.scalar(None, cut.type)).cast(wanted)


def times(seconds: Array, needed: Array | None) -> Array:
    """Return seconds since 1970 as timestamps."""
    seconds = seconds.cast(pa.int64(), safe=False)
    most = pa.scalar(_MOST_SECONDS, pa.int64())
    inside = pc.and_(pc.less(seconds, most), pc.greater(seconds, pa.scalar(-_MOST_SECONDS, pa.int64())))
    _refuse(pc.invert(inside), seconds, needed, "A number is no time in seconds since 1970")
    return pc.if_else(inside, seconds, pa.scalar(None, pa.int64())).cast(pa.timestamp("s"))


def _checked_divisor(dividend: Array, divisor: Array, needed: Array | None) -> Array:
    if pa.types.is_floating(divisor.type):
        return divisor
    zero = pc.equal(divisor, pa.scalar(0, divisor.type))
    _refuse(zero, dividend, needed, "Division by zero")
    if pa.types.is_signed_integer(divisor.type):
        least = pc.equal(dividend, pa.scalar(-(1 << (_BITS - 1)), dividend.type))
        overflowing = pc.and_(pc.equal(divisor, pa.scalar(-1, divisor.type)), least)
        _refuse(overflowing, dividend, needed, "Division of INT_MIN by -1")
    return pc.if_else(zero, pa.scalar(None, divisor.type), divisor)


def _refuse(where: Array, number: Array, needed: Array | None, problem: str) -> None:
    """Raise an error if something holds in a row that counts, and whose number is not null."""
    found = pc.and_(where, pc.is_valid(number))
    found = found if needed is None else pc.and_(found, needed)
    if found.as_py() if isinstance(found, pa.Scalar) else pc.any(found).as_py():
        raise wrong(f"Error while evaluating query: {problem}")
