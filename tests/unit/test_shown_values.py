"""Values to show: Python values, and texts for dates and times that Python does not have."""

from __future__ import annotations

import datetime

import pyarrow as pa
import pytest

from headrace.rows.shown_values import shown_rows, shown_values

DATES = pa.array([50_000_000, None, 0], pa.int32()).cast(pa.date32())
TIMES = pa.array([2**62, None, 0], pa.int64()).cast(pa.timestamp("us", "UTC"))
LATE_DATE, LATE_TIME = "<value out of range: 50000000>", "17036-07-06 14:00:27.387904Z"
FIRST = datetime.date(1970, 1, 1)


def test_values_that_python_has_are_those_of_arrow() -> None:
    values = pa.array([[1, None], None], pa.list_(pa.int32()))
    assert shown_values(values) == values.to_pylist()
    assert shown_values(DATES[1:]) == [None, FIRST]


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        (DATES, [LATE_DATE, None, FIRST]),
        (TIMES, [LATE_TIME, None, datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)]),
        (pa.chunked_array([DATES[:1], DATES[2:]]), [LATE_DATE, FIRST]),
        (pa.ListArray.from_arrays([0, 2, 3], DATES), [[LATE_DATE, None], [FIRST]]),
        (pa.MapArray.from_arrays([0, 1], pa.array(["k"]), TIMES[:1]), [[("k", LATE_TIME)]]),
        (pa.StructArray.from_arrays([DATES[:1], pa.array([b"\xff"])], ["d", "b"]), [{"d": LATE_DATE, "b": b"\xff"}]),
        (pa.array([2**62], pa.int64()).cast(pa.duration("s")), [str(2**62)]),
        (pa.FixedSizeListArray.from_arrays(DATES[:1], 1), [f"[[{LATE_DATE}]]"]),
    ],
    ids=lambda each: str(getattr(each, "type", "")),
)
def test_values_that_python_does_not_have_are_texts(values: pa.Array, shown: object) -> None:
    assert shown_values(values) == shown


def test_rows_have_shown_values() -> None:
    assert shown_rows(pa.table({"id": [1, 2], "d": DATES[:2]})) == [{"id": 1, "d": LATE_DATE}, {"id": 2, "d": None}]
    assert shown_rows(pa.table({"id": pa.array([], pa.int32())})) == []
