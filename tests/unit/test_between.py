"""The keys between two values are those of all values that compare in another way with one than with the other."""

from __future__ import annotations

import math
import random
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from headrace.derived.gathering.between import can_be_between, keys_between
from headrace.derived.gathering.row_keys import row_keys

TYPES = [pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.decimal128(12, 2), pa.decimal128(38, 10)]


def value_of(kind: pa.DataType, rng: random.Random) -> Any:
    size = rng.choice((3, 1_000, 2**31 - 1))
    if pa.types.is_integer(kind):
        return rng.randint(-size, size)
    if pa.types.is_floating(kind):
        return pa.scalar(rng.uniform(-size, size), kind).as_py()
    return Decimal(rng.randint(-size, size)).scaleb(-kind.scale).quantize(Decimal(1).scaleb(-kind.scale))


@pytest.mark.parametrize("of", TYPES, ids=str)
@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_numbers_between_two_have_keys_between(kind: pa.DataType, of: pa.DataType) -> None:
    rng = random.Random(str((kind, of)))
    for _ in range(50):
        old, new = value_of(of, rng), value_of(of, rng)
        keys = keys_between(pa.scalar(old, of), pa.scalar(new, of), kind)
        assert keys is not None
        values = [value_of(kind, rng) for _ in range(20)]
        for value, key in zip(
            values, row_keys(pa.table({"v": pa.array(values, kind)}), ["v"]).to_pylist(), strict=True
        ):
            # Spark compares exactly, or as doubles.
            exact = (Decimal(value) > Decimal(old)) != (Decimal(value) > Decimal(new))
            doubles = (float(value) > float(old)) != (float(value) > float(new))
            if exact or doubles or value in (old, new):
                assert keys[0] <= key <= keys[1], (value, old, new)


def test_days_between_two_have_keys_between() -> None:
    days = pa.array([date(1960, 1, 1), date(1999, 12, 31), date(2000, 1, 1), date(2000, 1, 3), date(2000, 1, 4)])
    keys = row_keys(pa.table({"v": days}), ["v"]).to_pylist()
    low, high = keys_between(days[3], days[1], pa.date32()) or (b"", b"")
    assert [low <= key <= high for key in keys] == [False, True, True, True, False]


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_a_comparison_with_no_number_has_no_keys(value: float | None) -> None:
    assert keys_between(pa.scalar(1.0), pa.scalar(value, pa.float64()), pa.int64()) is None


@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [
        ("integer", "double", True),
        ("decimal 2", "decimal 6", True),
        ("date32[day]", "date32[day]", True),
        ("timestamp", "timestamp", True),
        ("timestamp", "timestamp_ntz", False),
        ("string", "string", False),
        ("bool", "bool", False),
        ("integer", "string", False),
        ("double", None, False),
    ],
)
def test_kinds_of_values_between_others(column: str, value: str | None, expected: bool) -> None:
    assert can_be_between(column, value) is expected
