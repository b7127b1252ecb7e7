"""Rows of any values, from Python, Arrow and pandas: columns take them, or an error names the row and the column."""

from __future__ import annotations

import decimal
import uuid
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from headrace.errors import HeadraceError, SchemaError
from headrace.model.tables.conditions import parse_where
from headrace.model.tables.schema import TableSchema
from headrace.rows import to_arrow
from headrace.rows.conditions import operands
from tests.unit.hostile_values import VALUES

KINDS = [
    *("boolean", "byte", "long", "float", "string", "binary", "date", "timestamp", "decimal(5,2)"),
    *("interval day to second", "array<struct<a:decimal(3,1)>>", "map<string,long>", "struct<a:long,b:string>"),
]
MORE: list[Any] = [
    *(1j, uuid.UUID(int=1), decimal.Decimal("1e999999"), pd.NaT, pd.NA, pd.Timestamp.max, np.datetime64("NaT", "us")),
    *(np.array("x"), np.array([[1, 2]]), np.str_("\ud800"), memoryview(b"abc")[::2]),
    memoryview(b"abcd").cast("B", (2, 2)),
    *([("a", 1), ("a", 2)], [("a",)], [(None, 1)], {"a": 2**70}, {"a": "\ud800"}, {"\ud800": 1}, [[[]]]),
]
ARROW: list[pa.Array] = [
    *(pa.array([None]), pa.array([2**64 - 1], pa.uint64()), pa.array([b"\xff"]), pa.array([1], pa.time64("ns"))),
    *(pa.array([2**62], pa.timestamp("s")), pa.array([1], pa.timestamp("us", "Nowhere/Bad")), pa.array([{}])),
    *(pa.array([2**62], pa.duration("s")), pa.array([(1, 2, 3)], pa.month_day_nano_interval())),
    pa.array([decimal.Decimal("1e70")], pa.decimal256(76, 3)),
    pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(np.array([0, 1], np.int32)), pa.py_buffer(b"\xff")]),
    pa.RunEndEncodedArray.from_arrays(pa.array([1], pa.int32()), pa.array([5])),
    pa.UnionArray.from_dense(pa.array([0], pa.int8()), pa.array([0], pa.int32()), [pa.array([1])]),
    pa.DictionaryArray.from_arrays(pa.array([5]), pa.array(["x"]), safe=False),
    pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"]),
]
PANDAS: list[Any] = [
    *(pd.Categorical([1]), pd.period_range("2020", periods=1), pd.interval_range(0, 1), pd.arrays.SparseArray([1])),
    *(np.array([1j]), np.zeros(1, dtype="V4"), np.array([2**64 - 1], np.uint64), pd.array([None], dtype="Int64")),
]


def schema(kind: str) -> TableSchema:
    return TableSchema.of({"id": "string", "v": kind}, "id")


def fits_or_is_refused(rows: Any, kind: str) -> None:
    try:
        found = to_arrow(rows, schema(kind), columns="all")
    except SchemaError as error:
        str(error).encode()
    else:
        found.validate(full=True)


@pytest.mark.parametrize("kind", KINDS)
def test_values_of_any_type_fit_their_column_or_are_refused(kind: str) -> None:
    for value in [*VALUES, *MORE]:
        fits_or_is_refused([{"id": "a", "v": None}, {"id": "b", "v": value}], kind)
        fits_or_is_refused([{"id": value, "v": None}], kind)
    for array in ARROW:
        fits_or_is_refused(pa.table([pa.array(["a"]), array], names=["id", "v"]), kind)
    for values in PANDAS:
        fits_or_is_refused(pd.DataFrame({"id": ["a"], "v": values}), kind)


def test_anything_is_rows_or_is_refused() -> None:
    for rows in [*VALUES, *MORE, pd.Series([1]), np.zeros(3), pa.table({"id": ["a"]}).to_reader()]:
        fits_or_is_refused(rows, "long")
        fits_or_is_refused([rows], "long")
    for name in ["\ud800", 10**5_000, None, b"v", "", ("v",), float("nan")]:
        fits_or_is_refused([{"id": "a", name: 1}], "long")
        fits_or_is_refused(pd.DataFrame([["a", 1]], columns=pd.Index(["id", name], dtype=object)), "long")
    not_utf8 = pa.table(
        [pa.array(["a"]), pa.array([1])], schema=pa.schema([("id", pa.string()), (b"\xff", pa.int64())])
    )
    with pytest.raises(SchemaError, match="UTF-8"):
        to_arrow(not_utf8, schema("long"), columns="all")


@pytest.mark.parametrize("operator", ["=", "<", "in", "starts with"])
def test_conditions_with_any_value_fit_their_column_or_are_refused(operator: str) -> None:
    for kind in KINDS:
        column = schema(kind).column("v")
        for value in [*VALUES, *MORE]:
            try:
                (predicate,) = parse_where([("v", operator, value)])
                operands(column, predicate).validate(full=True)
            except HeadraceError as error:
                str(error).encode()
