"""Conversion of column types between YTsaurus and headrace, and round trips of schemas."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import SchemaError, UnsupportedError
from headrace.model.tables.schema import Column
from headrace.model.types import parse_type, type_name
from headrace.testing.effort import thorough
from headrace_ytsaurus.wire.types import YtColumn, arrow_type, columns_of, schema_of, yt_columns, yt_type
from tests.unit.type_strategies import TYPE_NAMES
from tests.ytsaurus.unit.yson_samples import TYPES, optional


@pytest.mark.parametrize(
    ("yt", "carried"),
    [
        ("int8", "byte"),
        ("uint8", "short"),
        ("uint16", "int"),
        ("uint32", "long"),
        ("uint64", "decimal(20,0)"),
        ("float", "float"),
        ("bool", "boolean"),
        ("utf8", "string"),
        ("uuid", "binary"),
        ("date", "date"),
        ("date32", "date"),
        ("datetime", "timestamp"),
        ("timestamp64", "timestamp"),
        ("interval", "long"),
        ("void", "binary"),
        ({"type_name": "decimal", "precision": 35, "scale": 2}, "decimal(35,2)"),
        ({"type_name": "list", "item": optional("int64")}, "array<long>"),
        ({"type_name": "list", "item": "int64"}, "array<long not null>"),
        ({"type_name": "dict", "key": "utf8", "value": optional("double")}, "map<string,double>"),
        ({"type_name": "tuple", "elements": [{"type": "int8"}]}, "struct<_1:byte not null>"),
        ({"type_name": "variant", "elements": [{"type": "int8"}, {"type": "utf8"}]}, "struct<_v_1:byte,_v_2:string>"),
        ({"type_name": "variant", "members": [{"name": "a", "type": "int8"}]}, "struct<_va:byte>"),
        ({"type_name": "tagged", "tag": "color", "item": "utf8"}, "string"),
        # Types that Arrow cannot represent are YSON.
        (optional(optional("int8")), "binary"),
        ({"type_name": "list", "item": optional(optional("int8"))}, "binary"),
        ({"type_name": "struct", "members": []}, "binary"),
        ({"type_name": "variant", "elements": [{"type": optional("int8")}]}, "binary"),
        ({"type_name": "dict", "key": optional("int8"), "value": "int8"}, "binary"),
    ],
)
def test_types_convert_as_documented(yt: Any, carried: str) -> None:
    assert type_name(arrow_type(yt)) == carried


@given(st.lists(TYPES | TYPES.map(optional), min_size=1, max_size=4))
@settings(max_examples=thorough(60), deadline=None)
def test_schemas_round_trip(types: list[Any]) -> None:
    schema = [{"name": f"c{place}", "type_v3": yt, "group": "g"} for place, yt in enumerate(types)]
    schema[0]["sort_order"] = "ascending"
    columns = columns_of(schema)
    written = schema_of(columns)
    assert [column["type_v3"] for column in written] == types
    assert written[0]["sort_order"] == "ascending"
    assert columns_of(written) == columns
    assert len({hash(column) for column in columns}) == len(columns)
    for column in columns:
        assert type_name(column.type)
        assert column.column == Column(column.name, column.type, not column.required)


def test_older_schemas_are_parsed() -> None:
    schema: list[dict[str, Any]] = [
        {"name": "k", "type": "string", "required": True, "sort_order": "ascending", "expression": None},
        {"name": "a", "type": "any"},
        {"name": "b", "type": "boolean", "required": False},
        {"name": "n", "type": "uint64"},
    ]
    columns = columns_of(schema)
    assert [(column.yt, column.required) for column in columns] == [
        ("string", True),
        ("yson", False),
        ("bool", False),
        ("uint64", False),
    ]
    assert [(column["type"], column["type_v3"]) for column in schema_of(columns)] == [
        ("string", "string"),
        ("any", optional("yson")),
        ("boolean", optional("bool")),
        ("uint64", optional("uint64")),
    ]


@given(st.lists(TYPE_NAMES, min_size=1, max_size=4))
@settings(max_examples=thorough(60), deadline=None)
def test_types_of_headrace_round_trip(names: list[str]) -> None:
    columns = [Column(f"c{place}", parse_type(name), place % 2 == 0) for place, name in enumerate(names)]
    if "decimal(38,10)" in str(names):
        with pytest.raises(UnsupportedError, match="'c"):
            yt_columns(columns)
        return
    written = schema_of(yt_columns(columns))
    assert [column.column for column in columns_of(written)] == columns


def test_key_columns_come_first_in_the_order_of_the_key() -> None:
    columns = [Column("a", pa.string()), Column("b", pa.int64(), False), Column("c", pa.int64(), False)]
    found = yt_columns(columns, ["c", "b"], strings_as="utf8")
    assert [(column.name, column.sort_order, column.yt) for column in found] == [
        ("c", "ascending", "int64"),
        ("b", "ascending", "int64"),
        ("a", None, "utf8"),
    ]


def test_strings_can_be_read_as_bytes() -> None:
    assert YtColumn.of("a", "string").of_bytes.type == pa.binary()
    assert YtColumn.of("a", "int64").of_bytes == YtColumn.of("a", "int64")


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("x", "a schema cannot be read"),
        ([1], "a schema cannot be read"),
        ([{"type": "int64"}], "without a name"),
        ([{"name": "a", "type": "int65"}], "'a'.*int65"),
        ([{"name": "a", "type_v3": {"type_name": "maybe"}}], "'a'.*maybe"),
        ([{"name": "a", "type_v3": 5}], "'a'"),
        ([{"name": "a", "type_v3": {"type_name": "list"}}], "'a'"),
        ([{"name": "a", "type_v3": {"type_name": "struct", "members": [{"type": "int8"}]}}], "'a'"),
        ([{"name": "a", "type_v3": {"type_name": "tuple"}}], "'a'"),
        ([{"name": "a", "type_v3": {"type_name": "decimal", "precision": 36, "scale": 0}}], "'a'"),
        ([{"name": "a", "type_v3": {"type_name": "decimal", "precision": 3, "scale": 4}}], "'a'"),
        ([{"name": "a", "type_v3": "yson"}], "must be optional"),
        ([{"name": "a", "type": "any", "required": True}], "cannot be required"),
        ([{"name": "a", "type": "int8"}, {"name": "a", "type": "int8"}], "twice"),
        (
            [{"name": "a", "type": "int8"}, {"name": "b", "type": "int8", "sort_order": "ascending"}],
            "before the other columns",
        ),
        ([{"name": "a", "type": "int8", "sort_order": "up"}], "sort order"),
    ],
)
def test_invalid_schemas_are_errors(schema: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=f"(?s){message}"):
        columns_of(schema)


def test_types_nested_too_deep_are_errors() -> None:
    deep: Any = "int8"
    for _ in range(50_000):
        deep = {"type_name": "list", "item": deep}
    with pytest.raises(SchemaError, match="too deep"):
        columns_of([{"name": "a", "type_v3": deep}])


def test_an_unsupported_type_names_the_column() -> None:
    with pytest.raises(UnsupportedError, match=r"'money'.*decimal\(38,2\).*35"):
        yt_type(pa.decimal128(38, 2), "money")
