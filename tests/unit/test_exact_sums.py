"""Exact sums against Python's exact numbers, and keys of groups and values."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import timedelta
from decimal import ROUND_HALF_UP, Context, Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.derived.state.exact_sums import (
    DOUBLE_UNIT,
    ExactSums,
    decoded,
    divided,
    encoded,
    sums_of,
    to_decimals,
    to_doubles,
    to_integers,
)
from headrace.derived.state.keys import (
    MAX_KEY_BYTES,
    group_keys,
    normalized,
    ordered_values,
    plain,
    restored_values,
)
from headrace.errors import UnsupportedError

GROUPS = 3
doubles = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from(
    [5e-324, -5e-324, 2.2250738585072014e-308, 1.7976931348623157e308, -1.7976931348623157e308, 1.0, 2.0**53, 0.1, -0.0]
)
wholes = st.integers(-(2**63), 2**63 - 1)
decimals = st.decimals(-(10**37), 10**37, places=0).map(lambda value: value.scaleb(-2))
divisors = st.lists(st.integers(1, 9) | st.integers(1, 2**47), min_size=GROUPS, max_size=GROUPS)


def entries(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[tuple[Any, int, int]]]:
    """Return lists of (value, group, sign)."""
    return st.lists(st.tuples(values, st.integers(0, GROUPS - 1), st.sampled_from([-1, 1])), max_size=30)


def sums(given_entries: Sequence[tuple[Any, int, int]], data_type: pa.DataType) -> tuple[ExactSums, list[Fraction]]:
    """Return the sums of entries, and the same sums by fractions."""
    values, groups, signs = zip(*given_entries, strict=True) if given_entries else ((), (), ())
    total = sums_of(pa.array(list(values), data_type), np.array(groups, np.int64), np.array(signs, np.int64), GROUPS)
    exact = [
        sum((Fraction(value) * sign for value, group, sign in given_entries if group == number), Fraction(0))
        for number in range(GROUPS)
    ]
    return total, exact


def rounded(value: Fraction) -> float:
    """Return the nearest double; Python rounds fractions correctly."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


@given(added=entries(doubles), by=divisors)
def test_sums_and_averages_of_doubles_are_rounded_once(added: Any, by: list[int]) -> None:
    total, exact = sums(added, pa.float64())
    assert to_doubles(total, DOUBLE_UNIT).tolist() == [rounded(value) for value in exact]
    averages = to_doubles(total, DOUBLE_UNIT, np.array(by))
    assert averages.tolist() == [rounded(value / divisor) for value, divisor in zip(exact, by, strict=True)]
    assert not np.signbit(to_doubles(total, DOUBLE_UNIT)[[value == 0 for value in exact]]).any()


def test_the_sum_of_many_doubles_is_that_of_fsum() -> None:
    values = np.random.default_rng(1).normal(size=300_000) * 10.0 ** np.arange(300_000).astype(np.float64).__mod__(40)
    groups = np.arange(len(values)) % GROUPS
    total = sums_of(pa.array(values), groups, np.ones(len(values), np.int64), GROUPS)
    assert to_doubles(total, DOUBLE_UNIT).tolist() == [math.fsum(values[groups == number]) for number in range(GROUPS)]


@given(added=entries(wholes), by=divisors)
def test_sums_of_integers_are_exact_over_overflows(added: Any, by: list[int]) -> None:
    total, exact = sums(added, pa.int64())
    found, overflows = to_integers(total)
    fit = [-(2**63) <= value < 2**63 for value in exact]
    assert (~overflows).tolist() == fit
    assert [int(value) for value in found[fit]] == [value for value, fits in zip(exact, fit, strict=True) if fits]
    averages = to_doubles(total, 0, np.array(by))
    assert averages.tolist() == [rounded(value / divisor) for value, divisor in zip(exact, by, strict=True)]


@given(added=entries(decimals), by=divisors, precision=st.integers(6, 38))
def test_averages_of_decimals_are_rounded_half_up(added: Any, by: list[int], precision: int) -> None:
    total, exact = sums(added, pa.decimal128(38, 2))
    result = pa.decimal128(precision, 6)
    found, overflows = to_decimals(divided(total, np.array(by), 4), result)
    for value, divisor, average, overflow in zip(exact, by, found.to_pylist(), overflows, strict=True):
        quotient = value * 10**6 / divisor
        away = abs(quotient) + Fraction(1, 2)
        wanted = (away.numerator // away.denominator) * (-1 if quotient < 0 else 1)
        assert bool(overflow) == (abs(wanted) >= 10**precision)
        if not overflow:
            assert average == Decimal(wanted).scaleb(-6, Context(100, ROUND_HALF_UP))


@given(first=entries(doubles), second=entries(doubles))
def test_binaries_of_sums_are_the_same_for_equal_sums(first: Any, second: Any) -> None:
    both, _ = sums([*first, *second], pa.float64())
    left, _ = sums(first, pa.float64())
    right, _ = sums(second, pa.float64())
    assert encoded(decoded(encoded(left)).plus(decoded(encoded(right)))) == encoded(both)
    back, _ = sums([(value, group, -sign) for value, group, sign in first], pa.float64())
    assert encoded(left.plus(back)).to_pylist() == [b""] * GROUPS
    assert decoded(pa.nulls(GROUPS, pa.binary())).nonzero.any() == np.False_


# -- keys ---------------------------------------------------------------------------------------------------

WINDOW = pa.struct([("start", pa.timestamp("us", tz="UTC")), ("end", pa.timestamp("us", tz="UTC"))])
group_values: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.string(): st.text(max_size=4) | st.sampled_from(["x" * 600, "x" * 601]),
    pa.binary(): st.binary(max_size=4),
    pa.int32(): st.integers(-3, 3),
    pa.bool_(): st.booleans(),
    pa.float32(): st.sampled_from([0.0, -0.0, 1.5, math.nan]),
    pa.decimal128(5, 2): st.decimals(-99, 99, places=2),
    pa.date32(): st.dates(),
    pa.duration("us"): st.timedeltas(timedelta(days=-9), timedelta(days=9)),
    pa.list_(pa.float64()): st.lists(st.sampled_from([None, 0.0, -0.0, math.nan]), max_size=3),
    pa.struct([("a", pa.float64()), ("b", pa.string())]): st.fixed_dictionaries(
        {"a": st.sampled_from([0.0, -0.0, None, math.nan]), "b": st.none() | st.text("ab", max_size=2)}
    ),
    pa.map_(pa.string(), pa.float64()): st.dictionaries(
        st.sampled_from("abc"), st.sampled_from([None, 0.0, -0.0, math.nan])
    ).flatmap(lambda entries: st.permutations(list(entries.items()))),
    pa.null(): st.none(),
}


def same(value: Any) -> Any:
    """Return a value that is equal for values that Spark groups together."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    if isinstance(value, list):
        # The entries of a map are pairs.
        values = [same(each) for each in value]
        return tuple(sorted(values, key=repr) if value and isinstance(value[0], tuple) else values)
    if isinstance(value, tuple):
        return tuple(same(each) for each in value)
    if isinstance(value, dict):
        return tuple((name, same(each)) for name, each in sorted(value.items()))
    return value


@given(data=st.data(), types=st.lists(st.sampled_from(list(group_values)), max_size=3))
def test_keys_of_groups_are_equal_exactly_for_equal_values(data: st.DataObject, types: list[pa.DataType]) -> None:
    row = st.tuples(*(st.none() | group_values[each] for each in types))
    rows = data.draw(st.lists(row, min_size=1, max_size=8))
    columns = [normalized(plain(pa.array([row[index] for row in rows], each))) for index, each in enumerate(types)]
    keys = group_keys(columns, len(rows)).to_pylist()
    assert all(0 < len(key) <= MAX_KEY_BYTES for key in keys)
    for left, left_key in zip(rows, keys, strict=True):
        for right, right_key in zip(rows, keys, strict=True):
            assert (left_key == right_key) == (same(list(left)) == same(list(right)))


def plain_order(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


def float_order(value: float) -> Any:
    return (1, 0.0, 0.0) if math.isnan(value) else (0, value, math.copysign(1, value))


ordered: list[tuple[pa.DataType, st.SearchStrategy[Any], Callable[[Any], Any]]] = [
    (pa.int8(), st.integers(-128, 127), plain_order),
    (pa.int64(), wholes, plain_order),
    (pa.float64(), st.floats(), float_order),
    (pa.float32(), st.floats(width=32), float_order),
    (pa.string(), st.text("a\x00\x01é🙂", max_size=4), plain_order),
    (pa.binary(), st.binary(max_size=4), plain_order),
    (pa.bool_(), st.booleans(), plain_order),
    (pa.date32(), st.dates(), plain_order),
    (pa.timestamp("us"), st.datetimes(), plain_order),
    (pa.decimal128(38, 2), decimals, plain_order),
]


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize(("data_type", "values", "order"), ordered, ids=[str(each[0]) for each in ordered])
@given(data=st.data())
def test_binaries_of_values_sort_as_the_values(
    data_type: pa.DataType, values: Any, order: Any, descending: bool, data: st.DataObject
) -> None:
    drawn = data.draw(st.lists(values, min_size=1, max_size=8))
    array = pa.array([None, *drawn], data_type).slice(1)
    binaries = ordered_values(array, descending=descending)
    back = restored_values(binaries, data_type, descending=descending)
    assert [repr(value) for value in back.to_pylist()] == [repr(value) for value in array.to_pylist()]
    ranks = sorted(zip(binaries.to_pylist(), map(order, array.to_pylist()), strict=True), reverse=descending)
    assert [rank for _, rank in ranks] == sorted(rank for _, rank in ranks)


def test_arrays_have_no_order_to_keep() -> None:
    with pytest.raises(UnsupportedError, match="min and max of arrays"):
        ordered_values(pa.array([[1]]))
