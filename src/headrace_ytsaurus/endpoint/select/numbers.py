"""Computations with whole numbers that fail where processors and Arrow return arbitrary results.

``needed`` is an array or a scalar of booleans: the rows whose results are needed; None for all. In the other rows, such
as those of a branch of IF that is not taken, nothing fails, and the result is null.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from headrace_ytsaurus.endpoint.select.nodes import query_error
from headrace_ytsaurus.endpoint.select.types import Array

_BITS = 64
# About 4000 years before and after 1970: Arrow's calendar overflows for larger numbers.
_MAX_SECONDS = 1 << 37


def quotient(dividend: Array, divisor: Array, needed: Array | None) -> Array:
    """Divide numbers of one type; whole numbers are rounded towards zero."""
    return pc.divide(dividend, _checked_divisor(dividend, divisor, needed))


def remainder(dividend: Array, divisor: Array, needed: Array | None) -> Array:
    """Return the remainder of a division of whole numbers; it has the sign of the dividend."""
    divisor = _checked_divisor(dividend, divisor, needed)
    return pc.subtract(dividend, pc.multiply(pc.divide(dividend, divisor), divisor))


def shifted(function: Callable[..., Array], number: Array, bits: Array, needed: Array | None) -> Array:
    """Shift whole numbers; ``function`` is Arrow's ``shift_left`` or ``shift_right``."""
    outside = pc.or_(pc.less(bits, pa.scalar(0, bits.type)), pc.greater_equal(bits, pa.scalar(_BITS, bits.type)))
    _refuse(outside, number, needed, f"A number can be shifted by 0 to {_BITS - 1} bits")
    bits = pc.if_else(outside, pa.scalar(None, bits.type), bits)
    # Arrow returns signed numbers unchanged for a shift by 63 bits, so there are two shifts.
    first = pc.min_element_wise(bits, pa.scalar(_BITS - 2, bits.type))
    return function(function(number, first), pc.subtract(bits, first))


def negative(number: Array) -> Array:
    """Change the sign; the result wraps around for unsigned numbers and for the least signed number."""
    if pa.types.is_unsigned_integer(number.type):
        return pc.subtract(pa.scalar(0, number.type), number)
    return pc.negate(number)


def whole(number: Array, wanted: pa.DataType, needed: Array | None) -> Array:
    """Return doubles as whole numbers of a type, rounded towards zero."""
    cut = pc.trunc(number)
    least, end = (-(2.0**63), 2.0**63) if pa.types.is_signed_integer(wanted) else (0.0, 2.0**64)
    inside = pc.and_(pc.greater_equal(cut, pa.scalar(least)), pc.less(cut, pa.scalar(end)))
    _refuse(pc.invert(inside), number, needed, "A double is outside the range of whole numbers")
    return pc.if_else(inside, cut, pa.scalar(None, cut.type)).cast(wanted)


def times(seconds: Array, needed: Array | None) -> Array:
    """Return seconds since 1970 as timestamps."""
    seconds = seconds.cast(pa.int64(), safe=False)
    most = pa.scalar(_MAX_SECONDS, pa.int64())
    inside = pc.and_(pc.less(seconds, most), pc.greater(seconds, pa.scalar(-_MAX_SECONDS, pa.int64())))
    _refuse(pc.invert(inside), seconds, needed, "A number of seconds since 1970 is outside the range of times")
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


def _refuse(condition: Array, number: Array, needed: Array | None, problem: str) -> None:
    """Raise an error if a condition is true in a row whose result is needed and whose number is not null."""
    found = pc.and_(condition, pc.is_valid(number))
    found = found if needed is None else pc.and_(found, needed)
    if found.as_py() if isinstance(found, pa.Scalar) else pc.any(found).as_py():
        raise query_error(f"Error while evaluating query: {problem}")
