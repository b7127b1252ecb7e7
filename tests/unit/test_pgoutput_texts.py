"""Values in text format: dates and times of all years, and values that do not fit their type in headrace."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.wire.pgoutput import types
from headrace.wire.pgoutput.errors import PgOutputError, UnfitValueError, fitting
from headrace.wire.pgoutput.text_values import LAST_TIME, from_texts

NTZ, UTC = pa.timestamp("us"), pa.timestamp("us", tz="UTC")
FIRST_TIME = -210_866_803_200_000_000


def iso(moment: np.datetime64) -> str:
    """Return a date or timestamp as PostgreSQL writes it."""
    text = str(moment).replace("T", " ")
    year, sign = int(text[: text.index("-", 1)]), text.startswith("-")
    rest = text[text.index("-", 1) :]
    rest = rest.rstrip("0").rstrip(".") if "." in rest else rest
    return f"{1 - year:04}{rest} BC" if year < 1 or sign else f"{year:04}{rest}"


@given(st.lists(st.integers(FIRST_TIME, LAST_TIME - 1), min_size=1, max_size=5))
def test_timestamps_of_all_years(numbers: list[int]) -> None:
    texts = [iso(np.datetime64(number, "us")) for number in numbers]
    values = from_texts(pa.array([*texts, None]), types.TIMESTAMP, NTZ, "c")
    assert values.cast(pa.int64()).to_pylist() == [*numbers, None]
    zoned = [f"{text[:-3]}+00 BC" if text.endswith("BC") else f"{text}+00" for text in texts]
    assert from_texts(pa.array(zoned), types.TIMESTAMPTZ, UTC, "c").cast(pa.int64()).to_pylist() == numbers


@given(st.lists(st.integers(-2_440_588, 2_145_042_905), min_size=1, max_size=5))
def test_dates_of_all_years(numbers: list[int]) -> None:
    texts = [iso(np.datetime64(number, "D")) for number in numbers]
    assert from_texts(pa.array(texts), types.DATE, pa.date32(), "c").cast(pa.int32()).to_pylist() == numbers


DATE_ARRAYS, ARRAYS = (pa.list_(pa.field("element", kind)) for kind in (pa.date32(), pa.int32()))


@pytest.mark.parametrize(
    ("oid", "data_type", "texts", "kept"),
    [
        (types.TIMESTAMPTZ, UTC, ["2024-01-01 00:00:00+00", "infinity", "294247-01-01 00:00:00+00", "-infinity"], 1),
        (types.DATE, pa.date32(), ["0044-03-15 BC", "infinity"], 1),
        (types.NUMERIC, pa.decimal128(4, 1), ["1.5", "NaN", "Infinity"], 1),
        (1007, ARRAYS, ["{1}", "{}", "{{1},{2}}", "[0:1][1:1]={{1},{2}}"], 2),
        (1182, DATE_ARRAYS, ["{}", "{2024-01-01,NULL}", "{NULL,infinity}", "{-infinity}", "{{2024-01-01}}"], 2),
    ],
)
def test_values_that_do_not_fit_are_an_error_or_counted_nulls(
    oid: int, data_type: pa.DataType, texts: list[str], kept: int
) -> None:
    def decode(unfit: np.ndarray[Any, np.dtype[np.bool_]]) -> pa.Array:
        values = [None if wrong else text for text, wrong in zip([*texts, None], unfit, strict=True)]
        return from_texts(pa.array(values, pa.string()), oid, data_type, "until")

    with pytest.raises(UnfitValueError, match=r"column 'until'.*option unrepresentable='until=null'"):
        fitting(decode, len(texts) + 1, None)
    counts: list[int] = []
    values = fitting(decode, len(texts) + 1, counts.append)
    assert counts == [len(texts) - kept]
    assert values.is_valid().to_pylist() == [True] * kept + [False] * (len(texts) - kept + 1)
    assert values[:kept] == from_texts(pa.array(texts[:kept]), oid, data_type, "until")


def test_a_text_that_is_no_date_is_an_error() -> None:
    with pytest.raises(PgOutputError, match="column 'c' is not a date"):
        from_texts(pa.array(["15.03.2024"]), types.DATE, pa.date32(), "c")
