"""Rows in every form become the table's types exactly, or an error that names the column and the row."""

from __future__ import annotations

import datetime
import decimal
import uuid
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from headrace.errors import SchemaError
from headrace.model.tables.schema import TableSchema
from headrace.rows import to_arrow

D = decimal.Decimal
UTC = datetime.UTC
KINDS = {
    "boolean": "boolean",
    "byte": "byte",
    "int": "int",
    "long": "long",
    "float": "float",
    "double": "double",
    "string": "string",
    "binary": "binary",
    "date": "date",
    "timestamp": "timestamp",
    "decimal": "decimal(5,2)",
    "exact": "decimal(38,30)",
}
SCHEMA = TableSchema.of({"id": "long"} | KINDS, "id")
NOON = datetime.datetime(2026, 1, 31, 12, tzinfo=UTC)


def stored(column: str, value: Any) -> Any:
    return to_arrow({"id": 1, column: value}, SCHEMA, columns="all").column(column)[0].as_py()


def stored_arrow(column: str, array: pa.Array) -> list[Any]:
    rows = pa.table({"id": pa.array(range(len(array))), column: array})
    values: list[Any] = to_arrow(rows, SCHEMA, columns="given").column(column).to_pylist()
    return values


@pytest.mark.parametrize(
    ("column", "given", "expected"),
    [
        ("int", np.int64(5), 5),
        ("int", 5.0, 5),
        ("long", 2**63 - 1, 2**63 - 1),
        ("double", 3, 3.0),
        ("double", np.float32(1.5), 1.5),
        ("float", 0.1, float(np.float32(0.1))),
        ("string", "a\0\U0001d11e", "a\0\U0001d11e"),
        ("string", "", ""),
        ("binary", bytearray(b"\0"), b"\0"),
        ("boolean", np.bool_(True), True),
        ("date", datetime.date(2026, 1, 31), datetime.date(2026, 1, 31)),
        ("timestamp", datetime.datetime(2026, 1, 31, 12), NOON),
        ("timestamp", NOON.astimezone(datetime.timezone(datetime.timedelta(hours=5))), NOON),
        ("timestamp", datetime.date(2026, 1, 31), NOON.replace(hour=0)),
        ("timestamp", pd.Timestamp(NOON), NOON),
        ("timestamp", pd.NaT, None),
        ("decimal", D("1.5"), D("1.50")),
        ("decimal", 12, D("12.00")),
        ("int", None, None),
    ],
)
def test_values_of_a_column_type_are_unchanged(column: str, given: Any, expected: Any) -> None:
    assert stored(column, given) == expected


@pytest.mark.parametrize(
    ("column", "given"),
    [
        ("byte", 128),
        ("long", 2**63),
        ("int", 2.5),
        ("int", float("nan")),
        ("int", True),
        ("int", "1"),
        ("int", D(1)),
        ("double", 2**53 + 1),
        ("double", 10**400),
        ("double", True),
        ("float", 1e300),
        ("float", 2**24 + 1),
        ("boolean", 1),
        ("string", b"a"),
        ("string", 1),
        ("string", "\ud800"),
        ("binary", "a"),
        ("date", NOON),
        ("date", 5),
        ("timestamp", 5),
        ("timestamp", pd.Timestamp("2026-01-31 00:00:00.000000123")),
        ("decimal", D("1.555")),
        ("decimal", D("1000")),
        ("decimal", D("NaN")),
        ("decimal", 1.5),
        ("exact", 2**62),
        ("string", uuid.UUID(int=0)),
    ],
)
def test_errors_for_invalid_values_name_column_and_row(column: str, given: Any) -> None:
    rows = [{"id": number, column: None} for number in range(7)]
    rows[5][column] = given
    with pytest.raises(SchemaError, match=rf"column '{column}'.* row 5\b"):
        to_arrow(rows, SCHEMA, columns="all")


@pytest.mark.parametrize(
    ("column", "array", "expected"),
    [
        ("int", pa.array([1, None], pa.uint64()), [1, None]),
        ("long", pa.array([2.0]), [2]),
        ("double", pa.array([1.5], pa.float32()), [1.5]),
        ("string", pa.array(["a", None], pa.large_string()), ["a", None]),
        ("string", pa.array(["a"], pa.string_view()), ["a"]),
        ("string", pa.array(["a", "b", "a"]).dictionary_encode(), ["a", "b", "a"]),
        ("binary", pa.array([b"ab"], pa.binary(2)), [b"ab"]),
        ("timestamp", pa.array([NOON], pa.timestamp("ns", "Europe/Paris")), [NOON]),
        ("timestamp", pa.array([datetime.datetime(2026, 1, 31, 12)], pa.timestamp("s")), [NOON]),
        ("date", pa.array([datetime.date(2026, 1, 31)], pa.date64()), [datetime.date(2026, 1, 31)]),
        ("decimal", pa.array([D("1.5")], pa.decimal256(60, 10)), [D("1.50")]),
        ("decimal", pa.array([3], pa.uint64()), [D("3.00")]),
        ("string", pa.nulls(2), [None, None]),
        ("string", pa.nulls(1, pa.int32()), [None]),
    ],
)
def test_arrow_values_are_widened_without_loss(column: str, array: pa.Array, expected: list[Any]) -> None:
    assert stored_arrow(column, array) == expected


INVALID_UTF8 = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")])


@pytest.mark.parametrize(
    ("column", "array"),
    [
        ("int", pa.array([0, 2**40])),
        ("int", pa.array([0.0, 2.5])),
        ("double", pa.array([0, 2**53 + 1])),
        ("float", pa.array([0.0, 1e300])),
        ("timestamp", pa.array([0, 1001], pa.timestamp("ns"))),
        ("timestamp", pa.array([0, 2**60], pa.timestamp("s"))),
        ("decimal", pa.array([D("0.000"), D("1.555")])),
        ("exact", pa.array([0, 2**62])),
        ("string", pa.array([b"a", b"b"])),
        ("string", pa.concat_arrays([pa.array(["a"]), INVALID_UTF8])),
        ("boolean", pa.array([1, 0])),
        ("date", pa.array([NOON, NOON])),
    ],
)
def test_arrow_values_that_do_not_fit_are_an_error(column: str, array: pa.Array) -> None:
    with pytest.raises(SchemaError, match=rf"column '{column}'.* row [01]\b"):
        stored_arrow(column, array)


def test_rows_are_counted_over_chunks() -> None:
    rows = pa.table({"id": pa.chunked_array([[1, 2], [3]]), "int": pa.chunked_array([[1, 2], [2**40]])})
    with pytest.raises(SchemaError, match="row 2"):
        to_arrow(rows, SCHEMA, columns="given")


def test_pandas_nan_is_null_and_other_nan_is_a_number() -> None:
    frame = pd.DataFrame({"id": [1, 2], "double": [1.5, np.nan], "int": [1.0, np.nan], "string": ["a", None]})
    rows = to_arrow(frame, SCHEMA, columns="given").to_pylist()
    assert rows[1] == {"id": 2, "double": None, "int": None, "string": None}
    assert np.isnan(stored("double", float("nan")))
    assert np.isnan(stored_arrow("double", pa.array([float("nan")]))[0])


def test_pandas_columns_of_every_kind_are_accepted() -> None:
    frame = pd.DataFrame(
        {
            "id": pd.array([1, 2], dtype="Int64"),
            "timestamp": pd.to_datetime(["2026-01-31 12:00", None]),
            "date": pd.Series([datetime.date(2026, 1, 31), None], dtype=object),
            "decimal": [D("1.5"), None],
            "binary": pd.Series([b"x", None], dtype=object),
            "string": pd.Categorical(["a", None]),
            "boolean": [True, None],
        }
    )
    first, second = to_arrow(frame, SCHEMA, columns="given").to_pylist()
    assert first["timestamp"] == NOON
    assert first["string"] == "a"
    assert [value for name, value in second.items() if name != "id"] == [None] * 6


def test_a_datetime_in_a_pandas_date_column_is_an_error() -> None:
    with pytest.raises(SchemaError, match="row 0"):
        to_arrow(
            pd.DataFrame({"id": [1], "date": pd.Series([NOON.replace(tzinfo=None)], dtype=object)}),
            SCHEMA,
            columns="given",
        )


def test_missing_columns_are_null_in_whole_rows_and_absent_in_updates() -> None:
    assert to_arrow({"int": 1, "id": 2}, SCHEMA, columns="all").schema == SCHEMA.arrow
    assert to_arrow({"int": 1, "id": 2}, SCHEMA, columns="given").column_names == ["id", "int"]
    assert to_arrow({"int": 1, "id": 2, "other": object()}, SCHEMA, columns="keys").column_names == ["id"]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"id": 1, "nope": 1}, "the table does not have a column of the rows"),
        ({"int": 1}, "no key column 'id'"),
        ([{"id": 1}, {"int": 1}], "row 1 has no key column 'id'"),
        ([{"id": 1}, {"id": None}], "key column 'id' is null in row 1"),
        (pa.table({"int": [1]}), "no key column 'id'"),
        (pa.table([[1], [2]], names=["id", "id"]), "same name"),
        (pd.DataFrame([[1, 2]], columns=["id", "id"]), "same name"),
        ([1], "row 0 is not a dict"),
        ("rows", "unsupported type"),
        (7, "unsupported type"),
    ],
)
def test_rows_with_invalid_columns_are_an_error(rows: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        to_arrow(rows, SCHEMA, columns="all")


def test_updates_of_different_columns_do_not_share_a_call() -> None:
    with pytest.raises(SchemaError, match="row 0 has no column 'byte'"):
        to_arrow([{"id": 1, "int": 1}, {"id": 2, "int": 1, "byte": 2}], SCHEMA, columns="given")


@pytest.mark.parametrize("rows", [[], pa.table({"id": pa.array([], pa.int64())}), pd.DataFrame({"id": []})])
def test_an_empty_input_has_no_rows(rows: Any) -> None:
    assert to_arrow(rows, SCHEMA, columns="all").num_rows == 0
