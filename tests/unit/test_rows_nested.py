"""Composite values, times and NOT NULL in rows of every form, at every level."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import SchemaError
from headrace.model.queues.columns import QueueSchema
from headrace.model.tables.schema import RowSchema, TableSchema, parse_columns
from headrace.model.types import parse_type
from headrace.rows import check_not_null, to_arrow, to_column
from tests.unit.type_strategies import TYPE_NAMES, cells_of

NESTED = {
    "tags": "array<string>",
    "counts": "map<string,int>",
    "point": "struct<x:double not null,label:string>",
    "deep": "array<struct<n:byte,m:map<string,array<int not null>>>>",
    "wait": "interval day to second",
    "local": "timestamp_ntz",
}
SCHEMA = TableSchema.of({"id": "long"} | NESTED, "id")
NOON = datetime.datetime(2026, 1, 31, 12)


def stored(column: str, value: Any) -> Any:
    return to_arrow({"id": 1, column: value}, SCHEMA, columns="all").column(column)[0].as_py()


@st.composite
def columns(draw: st.DrawFn) -> pa.Array:
    data_type = parse_type(draw(TYPE_NAMES))
    return pa.array(draw(st.lists(cells_of(pa.field("", data_type)), max_size=5)), data_type)


@settings(deadline=None)
@given(columns())
def test_python_values_of_every_type_are_unchanged(array: pa.Array) -> None:
    (column,) = parse_columns({"x": array.type})
    found = to_column(array.to_pylist(), column).combine_chunks()
    found.validate(full=True)
    assert found.type.equals(column.type, check_metadata=True)
    assert found.equals(array)


@settings(deadline=None)
@given(columns(), st.integers(0, 4))
def test_arrow_values_of_every_type_are_unchanged(array: pa.Array, start: int) -> None:
    (column,) = parse_columns({"x": array.type})
    part = array.slice(start)
    found = to_column(part, column).combine_chunks()
    found.validate(full=True)
    assert found.type.equals(column.type, check_metadata=True)
    assert found.to_pylist() == part.to_pylist()


@pytest.mark.parametrize(
    ("column", "given", "expected"),
    [
        ("tags", ("a", None), ["a", None]),
        ("tags", np.array(["a", "b"]), ["a", "b"]),
        ("tags", np.array([]), []),
        ("counts", {"a": 1, "b": None}, [("a", 1), ("b", None)]),
        ("counts", [("a", 1.0)], [("a", 1)]),
        ("point", {"x": 1}, {"x": 1.0, "label": None}),
        ("deep", [{"m": {"a": np.array([1, 2])}}], [{"n": None, "m": [("a", [1, 2])]}]),
        ("deep", [None, {}], [None, {"n": None, "m": None}]),
        ("wait", datetime.timedelta(days=-1, microseconds=1), datetime.timedelta(days=-1, microseconds=1)),
        ("wait", pd.Timedelta(5, "s"), datetime.timedelta(seconds=5)),
        ("local", NOON, NOON),
        ("local", datetime.date(2026, 1, 31), NOON.replace(hour=0)),
    ],
)
def test_values_of_a_column_type_are_unchanged(column: str, given: Any, expected: Any) -> None:
    assert stored(column, given) == expected


@pytest.mark.parametrize(
    ("column", "given", "message"),
    [
        ("tags", "ab", "wrong type"),
        ("tags", {"a"}, "wrong type"),
        ("tags", np.array(1), "wrong type"),
        ("tags", ["a", 1], r"at tags\[\] \(wrong type"),
        ("counts", {"a": 2**31}, r"at counts\.value \(out of range"),
        ("counts", {1: 1}, r"at counts\.key \(wrong type"),
        ("counts", {None: 1}, r"at counts\.key \(null"),
        ("counts", [("a", 1, 2)], "wrong type"),
        ("point", {}, r"at point\.x \(null"),
        ("point", {"x": None}, r"at point\.x \(null"),
        ("point", {"x": 1.0, "z": 1}, r"at point\.z \(a field that the type does not have"),
        ("point", (1.0, "a"), "wrong type"),
        ("deep", [{"n": 1}, {"n": 128}], r"at deep\[\]\.n \(out of range"),
        ("deep", [{"m": {"a": [1, None]}}], r"at deep\[\]\.m\.value\[\] \(null"),
        ("wait", 5, "wrong type"),
        ("wait", pd.Timedelta(1, "ns"), "out of range"),
        ("local", NOON.replace(tzinfo=datetime.UTC), "wrong type"),
    ],
)
def test_errors_for_composite_values_name_the_path_inside(column: str, given: Any, message: str) -> None:
    rows = [{"id": number, column: None} for number in range(7)]
    rows[5][column] = given
    with pytest.raises(SchemaError, match=rf"column '{column}'.* row 5\b.*{message}"):
        to_arrow(rows, SCHEMA, columns="all")


def view(values: list[Any], kind: pa.DataType) -> pa.Array:
    return pa.array(values, pa.list_view(kind))


@pytest.mark.parametrize(
    ("column", "array", "expected"),
    [
        ("tags", pa.array([["a"], None, []], pa.large_list(pa.large_string())), [["a"], None, []]),
        ("tags", pa.array([None, ["a", "b"]], pa.list_(pa.string(), 2)), [None, ["a", "b"]]),
        ("tags", view([["a"], None, ["b", None]], pa.string()).take(pa.array([2, 0, 1])), [["b", None], ["a"], None]),
        ("tags", pa.array([["x"], ["a", "a"]], pa.list_(pa.string())).slice(1), [["a", "a"]]),
        ("tags", pa.array([[], None], pa.list_(pa.null())), [[], None]),
        ("counts", pa.array([[("a", 1)], [("b", None)]], pa.map_(pa.string(), pa.int64())).slice(1), [[("b", None)]]),
        ("point", pa.array([{"label": "a", "x": 1}, None]), [{"x": 1.0, "label": "a"}, None]),
        ("deep", pa.array([[{"n": 1, "m": [("k", [5])]}]], pa.list_(
            pa.struct({"n": pa.int64(), "m": pa.map_(pa.string(), pa.list_(pa.int64()))})
        )), [[{"n": 1, "m": [("k", [5])]}]]),
        ("wait", pa.array([1, None], pa.duration("s")), [datetime.timedelta(seconds=1), None]),
        ("local", pa.array([0], pa.timestamp("ns")), [datetime.datetime(1970, 1, 1)]),
    ],
)  # fmt: skip
def test_arrow_values_are_converted_without_loss(column: str, array: pa.Array, expected: list[Any]) -> None:
    rows = pa.table({"id": pa.array(range(len(array))), column: array})
    found = to_arrow(rows, SCHEMA, columns="given").column(column)
    found.validate(full=True)
    assert found.to_pylist() == expected


@pytest.mark.parametrize(
    ("column", "array", "message"),
    [
        ("tags", pa.array([["a"], [b"a"]], pa.list_(pa.binary())), r"row 0 at tags\[\] \(wrong type"),
        ("tags", pa.array(["a"]), "row 0 .wrong type string"),
        ("counts", pa.array([[("a", 1)], [("b", 2**40)]], pa.map_(pa.string(), pa.int64())), r"row 1 at counts\.value"),
        ("point", pa.array([{"x": 1.0}, {"x": None}]), r"row 1 at point\.x \(null"),
        ("point", pa.array([{"label": "a"}]), r"row 0 at point\.x \(null"),
        ("point", pa.array([{"x": 1.0, "z": 1}]), r"row 0 at point\.z"),
        ("deep", pa.array([[], [{"n": 1}, {"n": 300}]]), r"row 1 at deep\[\]\.n \(out of range"),
        ("wait", pa.array([0, 1], pa.duration("ns")), "row 1 .out of range"),
        ("local", pa.array([0], pa.timestamp("us", "UTC")), "row 0 .wrong type"),
    ],
)
def test_errors_for_composite_arrow_values_name_the_path_inside(column: str, array: pa.Array, message: str) -> None:
    rows = pa.table({"id": pa.array(range(len(array))), column: array})
    with pytest.raises(SchemaError, match=f"column '{column}'.*{message}"):
        to_arrow(rows, SCHEMA, columns="given")


def test_pandas_holds_composite_values_as_objects() -> None:
    frame = pd.DataFrame(
        {
            "id": [1, 2],
            "tags": [["a", None], None],
            "counts": [{"a": 1}, {}],
            "deep": [np.array([{"n": 1}]), None],
            "wait": pd.to_timedelta([1, None], unit="s"),
            "local": pd.to_datetime([NOON, None]),
        }
    )
    first, second = to_arrow(frame, SCHEMA, columns="given").to_pylist()
    assert first["deep"] == [{"n": 1, "m": None}]
    assert (first["wait"], first["local"]) == (datetime.timedelta(seconds=1), NOON)
    assert second == {"id": 2, "tags": None, "counts": [], "deep": None, "wait": None, "local": None}


STRICT = TableSchema.of({"id": "long", "n": "int not null", "note": "string"}, "id")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"id": 1, "n": 1}, {"id": 2, "n": None}], "'n' is NOT NULL and has no value in row 1"),
        ([{"id": 1}], "'n' is NOT NULL and has no value in row 0"),
        (pa.table({"id": [1, 2], "n": [1, None]}), "in row 1"),
        (pd.DataFrame({"id": [1], "note": ["x"]}), "in row 0"),
    ],
)
def test_whole_rows_need_every_column_that_is_not_null(rows: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        to_arrow(rows, STRICT, columns="all")


def test_an_update_without_keep_nulls_leaves_cells_with_null_unchanged() -> None:
    rows = to_arrow([{"id": 1, "n": None}], STRICT, columns="given")
    assert rows.schema.field("n").nullable
    with pytest.raises(SchemaError, match="'n' is NOT NULL and has no value in row 0"):
        check_not_null(rows, STRICT)
    assert to_arrow({"id": 1}, STRICT, columns="keys").column_names == ["id"]


@pytest.mark.parametrize("kind", [QueueSchema, RowSchema])
def test_rows_of_a_queue_need_no_key(kind: type[RowSchema]) -> None:
    schema = kind(parse_columns({"n": "int", "price": "decimal(5,2)"}))
    rows: list[Any] = [[{"n": 1}, {}], pa.table({"n": [1, None]}), pd.DataFrame({"n": [1, None]})]
    for form in rows:
        assert to_arrow(form, schema, columns="all").to_pylist() == [
            {"n": 1, "price": None},
            {"n": None, "price": None},
        ]
    assert to_arrow([], schema, columns="all").num_rows == 0
    assert to_arrow({"price": decimal.Decimal("1.5")}, schema, columns="given").column_names == ["price"]
    with pytest.raises(SchemaError, match="the queue does not have a column of the rows"):
        to_arrow({"x": 1}, schema, columns="all")
