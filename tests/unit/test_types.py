"""Types and their names are those of Spark, and each determines the other."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings

from headrace.errors import SchemaError
from headrace.model.tables.schema import TableSchema, parse_columns
from headrace.model.types import can_hold, parse_type, type_name
from headrace.spark.versions import ELEMENTS, arrow_schema, spark_schema
from tests.spark_versions import needs
from tests.unit.type_strategies import TYPE_NAMES


@settings(deadline=None)
@given(TYPE_NAMES)
def test_every_type_has_a_name_that_parses_to_it(name: str) -> None:
    data_type = parse_type(name)
    again = parse_type(type_name(data_type))
    assert again.equals(data_type, check_metadata=True)
    assert type_name(again) == type_name(data_type)


@needs(ELEMENTS)
@settings(deadline=None)
@given(TYPE_NAMES)
def test_spark_has_exactly_the_same_arrow_type(name: str) -> None:
    schema = pa.schema([pa.field("x", parse_type(name))])
    assert arrow_schema(spark_schema(schema)).equals(schema, check_metadata=True)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("BIGINT", "long"),
        (" Timestamp_LTZ ", "timestamp"),
        ("decimal", "decimal(10,0)"),
        ("Numeric ( 5 )", "decimal(5,0)"),
        ("Array < Integer >", "array<int>"),
        ("map<string, array<dec(3,1)>>", "map<string,array<decimal(3,1)>>"),
        ("map<string not null,int NOT NULL>", "map<string,int not null>"),
        ("struct<Id: bigint NOT  NULL, note string>", "struct<Id:long not null,note:string>"),
        ("struct<`a b`:int,`x``y`:int,int:int,7up:int>", "struct<`a b`:int,`x``y`:int,int:int,`7up`:int>"),
        ("INTERVAL DAY", "interval day to second"),
        ("interval hour to minute", "interval day to second"),
        ("int64", "long"),
        ("Text", "string"),
        ("uuid", "string"),
        ("array<varchar not null>", "array<string not null>"),
        ("double precision", "double"),
        ("struct<at timestamp with time zone, day datetime>", "struct<at:timestamp,day:timestamp_ntz>"),
        ("timestamp WITHOUT time zone", "timestamp_ntz"),
    ],
)
def test_names_are_read_as_spark_and_other_systems_write_them(text: str, name: str) -> None:
    assert type_name(parse_type(text)) == name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "unknown column type"),
        ("txt", "unknown column type"),
        ("long long", "at 'long'"),
        ("array", "expected '<'"),
        ("array<txt>", "at 'txt'"),
        ("array<int", "expected '>'"),
        ("array<int>>", "at '>'"),
        ("array<int not>", "expected 'null'"),
        ("map<string>", "expected ','"),
        ("map<map<int,int>,int>", "key of a map"),
        ("map<struct<a:array<map<int,int>>>,int>", "key of a map"),
        ("struct<>", "unknown column type"),
        ("struct<a:int,a:int>", "have the same name"),
        ("struct<``:int>", "unknown column type"),
        ("decimal(39,0)", "unknown column type"),
        ("decimal(5,6)", "unknown column type"),
        ("decimal(x)", "at 'x'"),
        ("varchar(20)", "string has no length"),
        ("int8", "unknown column type"),
        ("timestamp with zone", "expected 'time'"),
        ("interval", "unknown column type"),
        ("interval second to day", "unknown column type"),
        ("interval year to month", "type of months"),
        ("array<interval month>", "type of months"),
    ],
)
def test_invalid_types_are_an_error_that_shows_the_position(text: str, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        parse_type(text)


@pytest.mark.parametrize(
    ("arrow", "name"),
    [
        (pa.large_string(), "string"),
        (pa.binary(4), "binary"),
        (pa.timestamp("ns", "Europe/Paris"), "timestamp"),
        (pa.timestamp("s"), "timestamp_ntz"),
        (pa.date64(), "date"),
        (pa.duration("ns"), "interval day to second"),
        (pa.decimal256(20, 3), "decimal(20,3)"),
        (pa.list_(pa.field("item", pa.large_string())), "array<string>"),
        (pa.large_list(pa.field("x", pa.int8(), nullable=False)), "array<byte not null>"),
        (pa.list_(pa.int32(), 3), "array<int>"),
        (pa.list_view(pa.int32()), "array<int>"),
        (pa.large_list_view(pa.dictionary(pa.int8(), pa.string())), "array<string>"),
        (pa.map_(pa.string_view(), pa.list_(pa.bool_())), "map<string,array<boolean>>"),
        (pa.struct([pa.field("a", pa.large_binary(), nullable=False)]), "struct<a:binary not null>"),
    ],
)
def test_other_arrow_forms_of_a_type_have_its_name(arrow: pa.DataType, name: str) -> None:
    assert type_name(arrow) == name
    assert parse_type(arrow).equals(parse_type(name), check_metadata=True)


VARIANT = pa.struct([("value", pa.binary()), pa.field("metadata", pa.binary(), metadata={"variant": "true"})])


@pytest.mark.parametrize(
    "arrow",
    [
        pa.null(),
        pa.uint64(),
        pa.time64("us"),
        pa.decimal256(40, 0),
        pa.decimal128(5, -2),
        pa.month_day_nano_interval(),
        pa.struct([]),
        pa.struct([("", pa.int32())]),
        pa.struct([("a", pa.int32()), ("a", pa.int32())]),
        pa.list_(pa.null()),
        VARIANT,
    ],
)
def test_types_that_a_column_cannot_have_are_an_error(arrow: pa.DataType) -> None:
    with pytest.raises(SchemaError):
        parse_type(arrow)


@pytest.mark.parametrize(
    ("wanted", "given"),
    [
        ("int", "long"),
        ("double", "int"),
        ("decimal(10,2)", "decimal(38,18)"),
        ("timestamp", "timestamp_ntz"),
        ("array<int>", "array<long>"),
        ("array<int not null>", "array<int>"),
        ("map<string,double>", "map<string,float>"),
        ("struct<a:int,b:string>", "struct<b:string>"),
        ("struct<a:int,b:string>", "struct<b:string,a:long>"),
        ("array<struct<a:map<string,int>>>", "array<struct<a:map<string,short>>>"),
    ],
)
def test_a_type_can_hold_narrower_types(wanted: str, given: str) -> None:
    assert can_hold(parse_type(wanted), parse_type(given))


@settings(deadline=None)
@given(TYPE_NAMES)
def test_a_type_can_hold_itself_and_null(name: str) -> None:
    assert can_hold(parse_type(name), parse_type(name))
    assert can_hold(parse_type(name), pa.null())
    assert can_hold(parse_type(f"array<{name}>"), pa.large_list(pa.null()))


@pytest.mark.parametrize(
    ("wanted", "given"),
    [
        ("int", "double"),
        ("string", "int"),
        ("timestamp_ntz", "timestamp"),
        ("timestamp", "date"),
        ("long", "interval day to second"),
        ("array<int>", "int"),
        ("array<int>", "array<string>"),
        ("array<int>", "map<int,int>"),
        ("map<string,int>", "map<int,int>"),
        ("struct<a:int>", "struct<a:int,b:int>"),
        ("struct<a:int,b:int not null>", "struct<a:int>"),
        ("struct<a:int>", "struct<A:int>"),
    ],
)
def test_a_type_cannot_hold_another_kind_of_type(wanted: str, given: str) -> None:
    assert not can_hold(parse_type(wanted), parse_type(given))


def test_columns_can_be_declared_not_null() -> None:
    columns = parse_columns({"a": "int NOT  NULL", "b": "struct<`x  not null`:int>", "c": "array<int not null>"})
    assert [column.nullable for column in columns] == [False, True, True]
    assert columns[1].type.field(0).name == "x  not null"
    schema = TableSchema.of(pa.schema([pa.field("id", pa.int64()), pa.field("x", pa.int32(), nullable=False)]), "id")
    assert [field.nullable for field in schema.arrow] == [False, False]
    assert [field.nullable for field in schema.changes] == [False, True]
