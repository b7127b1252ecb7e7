"""The rows for which a comparison with one value changes: those between the old value and the new one."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any

import pyarrow as pa

from headrace.derived.gathering.row_keys import row_keys

_NUMBERS = ("integer", "double", "decimal")
_EXACT = Context(prec=400)
# Spark's types of comparisons keep at least this number of digits after the point, if the values have as many.
_LEAST_SCALE = 6


def can_be_between(column: str | None, value: str | None) -> bool:
    """Return whether the keys of a column can be between values of a kind; see `row_keys.key_kind`.

    The keys of texts and binaries do not sort as these do.
    """
    if column is None or value is None:
        return False
    numbers = all(each.split()[0] in _NUMBERS for each in (column, value))
    return numbers or (column == value and column.partition("[")[0] in ("date32", "timestamp", "timestamp_ntz"))


def keys_between(old: pa.Scalar, new: pa.Scalar, data_type: pa.DataType) -> tuple[bytes, bytes] | None:
    """Return the least and the greatest key of values that compare in another way with one value than with the other.

    Both are somewhat wider than the values, because Spark compares numbers of different types in a type of less digits.
    Returns None if such values can have any key: a comparison with null, NaN or an infinite number.

    Args:
        data_type: the type of the values that are compared.
    """
    values = [old.as_py(), new.as_py()]
    if any(each is None or (isinstance(each, float) and not math.isfinite(each)) for each in values):
        return None
    wide = _widest(data_type)
    least, greatest = _end(min(values), old.type, wide, -1), _end(max(values), old.type, wide, 1)
    try:
        ends = pa.array([least, greatest], wide)
    except (OverflowError, ValueError):
        return None
    low, high = row_keys(pa.table({"value": ends}), ["value"]).to_pylist()
    return low, high


def _widest(data_type: pa.DataType) -> pa.DataType:
    """Return the type with the most values of those whose keys are alike."""
    types = pa.types
    if types.is_decimal(data_type):
        return pa.decimal128(38, data_type.scale)
    if types.is_floating(data_type):
        return pa.float64()
    return pa.int64() if types.is_integer(data_type) else data_type


def _end(value: Any, of: pa.DataType, data_type: pa.DataType, sign: int) -> Any:
    """Return a value of a type that is less (-1) or greater (1) than another one, or equal to it."""
    if not isinstance(value, int | float | Decimal):
        return value
    infinite = sign * math.inf
    if pa.types.is_floating(data_type):
        return math.nextafter(math.nextafter(float(value), infinite), infinite)
    if isinstance(value, float):
        value = math.nextafter(value, infinite)
    places = data_type.scale if pa.types.is_decimal(data_type) else 0
    exact = Decimal(value)
    if pa.types.is_decimal(of) or places:
        scales = [each.scale for each in (of, data_type) if pa.types.is_decimal(each)]
        exact = _EXACT.add(exact, sign * Decimal(1).scaleb(-min(*scales, _LEAST_SCALE)))
    rounded = exact.quantize(
        Decimal(1).scaleb(-places), rounding=ROUND_FLOOR if sign < 0 else ROUND_CEILING, context=_EXACT
    )
    return rounded if pa.types.is_decimal(data_type) else int(rounded)
