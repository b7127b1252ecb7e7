"""When two answers are the same: as bags of rows, whose columns have a position and not a name.

Numbers are compared by value and not by type: DuckDB's sum of longs is a decimal without digits, its mean of decimals
is a double where Spark has a decimal. NaN is NaN, and -0.0 is 0.0: both are one group, of which an engine may show
either.

Integers and decimals are exact. A double is right within four units in the last place of the larger one, because an
answer may need several roundings of exact sums: one for each decimal that becomes a double and is scaled by a power of
ten, one for the division, and one for a factor. Sums of doubles would depend on the order of additions, so the doubles
of random tables are multiples of 1/8, whose sums are exact in any order (`grammar`). Where one side has a decimal and
the other a double, they may in addition differ by half of the decimal's last digit, to which its type rounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

_ULPS = 4
_SHOWN = 5


def difference(actual: pa.Table, expected: pa.Table) -> str | None:
    """Return how two answers differ, as text for a person; None if they are the same."""
    if actual.num_columns != expected.num_columns:
        return f"{actual.num_columns} columns ({actual.column_names}) instead of {expected.column_names}"
    inexact = [_inexact(one.type) or _inexact(other.type) for one, other in zip(actual, expected, strict=True)]
    here, there = _sorted(actual, inexact), _sorted(expected, inexact)
    if len(here) == len(there):
        digits = [min(_digits(one.type), _digits(other.type)) for one, other in zip(actual, expected, strict=True)]
        if all(_same_row(one, other, digits) for one, other in zip(here, there, strict=True)):
            return None
    more, fewer = _without(here, there), _without(there, here)
    return (
        f"{len(here)} rows instead of {len(there)}; columns {expected.column_names}\n"
        f"too many or wrong ({len(more)}): {more[:_SHOWN]}\nmissing ({len(fewer)}): {fewer[:_SHOWN]}"
    )


def _inexact(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind))


def _digits(kind: pa.DataType) -> float:
    """Return the digits after the point that a type keeps."""
    return kind.scale if pa.types.is_decimal(kind) else math.inf


def _plain(value: Any) -> Any:
    """Return one form of the values that are the same to SQL."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    return value


def _sorted(rows: pa.Table, inexact: Sequence[bool]) -> list[tuple[Any, ...]]:
    """Return rows in an order in which exact columns come first, so that the same rows get the same place."""
    places = sorted(range(len(inexact)), key=lambda place: inexact[place])
    columns = [[_plain(value) for value in column.to_pylist()] for column in rows]
    plain = list(zip(*columns, strict=True)) if columns else []
    return sorted(plain, key=lambda row: [_order(row[place]) for place in places])


def _order(value: Any) -> tuple[str, Any]:
    if value is None or value == "NaN":
        return ("", str(value))
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return (type(value).__name__, value)
    return ("number", value)


def _same_row(one: Sequence[Any], other: Sequence[Any], digits: Sequence[float]) -> bool:
    return all(_same(a, b, kept) for a, b, kept in zip(one, other, digits, strict=True))


def _same(one: Any, other: Any, digits: float) -> bool:
    if one == other:
        return True
    if not isinstance(one, float) and not isinstance(other, float):
        return False
    if not all(isinstance(value, int | float | Decimal) for value in (one, other)):
        return False
    a, b = float(one), float(other)
    if not (math.isfinite(a) and math.isfinite(b)):
        return False
    rounding = 0.0 if digits == math.inf else 0.5 * 10.0**-digits
    return abs(a - b) <= _ULPS * math.ulp(max(abs(a), abs(b))) + rounding


def _without(rows: Iterable[tuple[Any, ...]], others: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return the rows that others do not have, as often as they have them too rarely."""
    counts: dict[tuple[Any, ...], int] = {}
    for row in others:
        counts[row] = counts.get(row, 0) + 1
    left = []
    for row in rows:
        if counts.get(row, 0):
            counts[row] -= 1
        else:
            left.append(row)
    return left
