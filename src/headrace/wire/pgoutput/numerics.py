"""Numerics of PostgreSQL: groups of four decimal digits, to and from decimals of Arrow.

A value is the sum of ``digit[i] * 10000 ** (weight - i)``. Its header has four 16-bit numbers: the number of groups,
the weight, the sign and the display scale.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.wire.pgoutput.cells import Cells, Mask, big_endian, validity
from headrace.wire.pgoutput.errors import PgOutputError, value_error

Words: TypeAlias = npt.NDArray[np.uint64]

_POSITIVE, _NEGATIVE = 0x0000, 0x4000
SPECIAL: Final = {0xC000: "NaN", 0xD000: "Infinity", 0xF000: "-Infinity"}
FINITE_DECIMALS: Final = "finite decimals"
_TENS: Final = 10 ** np.arange(5, dtype=np.int64)
# Arrow writes smaller numbers with an exponent.
_PLAIN_SCALE: Final = 6
_MAX_DIGITS: Final = 38


def decode_numerics(cells: Cells, data_type: pa.Decimal128Type) -> pa.Array:
    """Return cells in the binary format of ``numeric`` as decimals.

    Raises:
        PgOutputError: a cell has another format.
        SchemaError: a value is NaN or infinite, or has more digits than the type.
    """
    count, weight, sign = _headers(cells)
    _check_special(cells, sign)
    precision, scale = data_type.precision, data_type.scale
    # The exponent of ten of the last group, in units of the last digit of the type.
    exponent = np.where(count > 0, 4 * (weight - count + 1) + scale, 0)
    fits = (count == 0) | ((4 * weight + 1 + scale <= precision) & (exponent > -4))
    if not fits.all():
        raise _too_long(cells, data_type, ~fits)
    # Four words of 32 bits, the lowest first.
    words: list[Words] = [np.zeros(len(cells), np.uint64) for _ in range(4)]
    for number in range(int(count.max(initial=0))):
        active = number < count
        digit = big_endian(cells.data, np.where(active, cells.starts + 8 + 2 * number, 0), "u2").astype(np.int64)
        if (active & (digit > 9999)).any():
            raise PgOutputError(f"a value of column {cells.column!r} has an invalid digit")
        # The digits of the last group that are behind the last digit of the type.
        behind = np.where(number == count - 1, np.maximum(-exponent, 0), 0)
        wrong = active & (digit % _TENS[behind] != 0)
        if wrong.any():
            raise _too_long(cells, data_type, wrong)
        _multiply(words, np.where(active, _TENS[4 - behind], 1), np.where(active, digit // _TENS[behind], 0))
    left = np.maximum(exponent, 0)
    while left.any():
        step = np.minimum(left, 4)
        _multiply(words, _TENS[step], np.zeros(len(cells), np.int64))
        left = left - step
    found = _assembled(words, sign == _NEGATIVE, cells, data_type)
    try:
        found.validate(full=True)
    except pa.ArrowInvalid as error:
        raise value_error(cells.column, str(error)[:200], str(data_type)) from None
    return found


def numeric_texts(cells: Cells) -> pa.StringArray:
    """Return cells in the binary format of ``numeric`` as texts, with the digits that PostgreSQL shows."""
    _, weight, sign = _headers(cells)
    shown = cells.numbers("u2", 6).astype(np.int64)
    plain = np.isin(sign, (_POSITIVE, _NEGATIVE)) & (shown <= _PLAIN_SCALE)
    plain &= 4 * (np.maximum(weight, 0) + 1) + shown <= _MAX_DIGITS
    texts, places = [], []
    for scale in np.unique(shown[plain]).tolist():
        mask = plain & (shown == scale)
        texts.append(decode_numerics(cells.filter(mask), pa.decimal128(_MAX_DIGITS, scale)).cast(pa.string()))
        places.append(np.flatnonzero(mask))
    rare = np.flatnonzero(~plain)
    texts.append(pa.array([_text(cells, row) for row in rare.tolist()], pa.string()))
    places.append(rare)
    order = np.argsort(np.concatenate(places), kind="stable")
    return pa.concat_arrays(texts).take(pa.array(order))


def _headers(cells: Cells) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.uint16]]:
    """Return the number of groups, the weight and the sign of each value; a null is 0."""
    if (cells.valid & (cells.lengths < 8)).any():
        raise PgOutputError(f"a value of column {cells.column!r} has an invalid length", valid="at least 8 bytes")
    count = cells.numbers("u2").astype(np.int64)
    if (cells.valid & (cells.lengths != 8 + 2 * count)).any():
        raise PgOutputError(f"a value of column {cells.column!r} has an invalid number of digits")
    sign = cells.numbers("u2", 4)
    if not np.isin(sign, (_POSITIVE, _NEGATIVE, *SPECIAL)).all():
        raise PgOutputError(f"a value of column {cells.column!r} has an invalid sign")
    return count, cells.numbers("i2", 2).astype(np.int64), sign


def _check_special(cells: Cells, sign: npt.NDArray[np.uint16]) -> None:
    special = ~np.isin(sign, (_POSITIVE, _NEGATIVE))
    if special.any():
        raise value_error(cells.column, SPECIAL[int(sign[np.argmax(special)])], FINITE_DECIMALS, special)


def _multiply(words: list[Words], factor: npt.NDArray[np.int64], addend: npt.NDArray[np.int64]) -> None:
    """Multiply 128-bit numbers in place, and add. The caller keeps them below 2 ** 128."""
    by, carry = factor.astype(np.uint64), addend.astype(np.uint64)
    for index, word in enumerate(words):
        product = word * by + carry
        words[index] = product & np.uint64(0xFFFFFFFF)
        carry = product >> np.uint64(32)


def _assembled(
    words: list[Words], negative: npt.NDArray[np.bool_], cells: Cells, data_type: pa.Decimal128Type
) -> pa.Array:
    low, high = words[0] | words[1] << np.uint64(32), words[2] | words[3] << np.uint64(32)
    # The two's complement.
    flipped = ~low + np.uint64(1)
    high = np.where(negative, ~high + (low == 0), high)
    low = np.where(negative, flipped, low)
    both = np.ascontiguousarray(np.stack([low, high], axis=1))
    return pa.Array.from_buffers(data_type, len(cells), [validity(cells.valid), pa.py_buffer(both)])


def _text(cells: Cells, row: int) -> str | None:
    """Return one value as text; the slow way, for the rare values with many digits."""
    if not cells.valid[row]:
        return None
    start = int(cells.starts[row])
    data = cells.data[start : start + int(cells.lengths[row])].tobytes()
    count, weight, sign, shown = (int.from_bytes(data[at : at + 2], "big") for at in (0, 2, 4, 6))
    if sign in SPECIAL:
        return SPECIAL[sign]
    weight -= (weight & 0x8000) << 1
    number = 0
    for at in range(8, 8 + 2 * count, 2):
        digit = int.from_bytes(data[at : at + 2], "big")
        if digit > 9999:
            raise PgOutputError(f"a value of column {cells.column!r} has an invalid digit")
        number = number * 10_000 + digit
    return format(_scaled(number, 4 * (weight - count + 1), shown, negative=sign == _NEGATIVE), "f")


def _scaled(number: int, exponent: int, shown: int, *, negative: bool) -> Decimal:
    """Return ``number * 10 ** exponent`` with a number of digits after the point, which PostgreSQL never rounds."""
    shift = exponent + shown
    scaled = number * 10**shift if shift >= 0 else number // 10**-shift
    # Python converts an integer of more than 4,300 digits to a Decimal, but not to a text.
    return Decimal((int(negative), Decimal(scaled).as_tuple().digits, -shown))


def _too_long(cells: Cells, data_type: pa.DataType, wrong: Mask) -> Exception:
    return value_error(cells.column, _text(cells, int(np.argmax(wrong))), str(data_type), wrong)
