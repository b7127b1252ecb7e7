"""Canonical values and digests, compared with a plain Python implementation and with fixed numbers."""

from __future__ import annotations

import datetime
import decimal
import math
import struct
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.inspect.comparing.canonical import canonical, comparable
from headrace.inspect.comparing.digests import checksum, digests, row_digests
from headrace.model.types import is_text, parse_type
from headrace.testing.effort import thorough
from tests.unit.type_strategies import TYPE_NAMES, cells_of

MASK = 2**64 - 1
EPOCH = datetime.datetime(1970, 1, 1)


def mix(number: int) -> int:
    number = (number + 0x9E3779B97F4A7C15) & MASK
    number = ((number ^ number >> 30) * 0xBF58476D1CE4E5B9) & MASK
    number = ((number ^ number >> 27) * 0x94D049BB133111EB) & MASK
    return number ^ number >> 31


def of_words(words: list[int], length: int) -> int:
    return mix(sum(mix(word ^ mix(index + 1)) for index, word in enumerate(words)) + mix(length + 1) & MASK)


def of_bytes(data: bytes) -> int:
    words = [int.from_bytes(data[start : start + 8], "little") for start in range(0, len(data), 8)]
    return of_words(words, len(data))


def of_integer(number: int) -> int:
    return mix(number + 1 & MASK)


def of_fields(fields: dict[str, int]) -> int:
    """Return the digest of a struct or row with the digests of its fields; 0 is a null."""
    return mix(sum(mix(each ^ of_bytes(name.encode())) for name, each in fields.items() if each) + 1 & MASK)


def digest_of(value: Any, data_type: pa.DataType) -> int:
    """Return the digest of a value as the head of `headrace.inspect.comparing.digests` describes it."""
    types = pa.types
    if value is None:
        return 0
    if types.is_map(data_type):
        entries = [(digest_of(key, data_type.key_type), digest_of(item, data_type.item_type)) for key, item in value]
        words = [of_fields({"key": key, "value": item}) for key, item in sorted(entries)]
        return of_words(words, len(words))
    if types.is_list(data_type):
        words = [digest_of(item, data_type.value_type) for item in value]
        return of_words(words, len(words))
    if types.is_struct(data_type):
        return of_fields({field.name: digest_of(value[field.name], field.type) for field in data_type})
    if types.is_decimal(data_type):
        number = int(decimal.Decimal(value).scaleb(38, decimal.Context(prec=77))) & 2**256 - 1
        return of_words([number >> 64 * index & MASK for index in range(4)], 32)
    if types.is_floating(data_type):
        bits = struct.pack("<d", math.nan if math.isnan(value) else value + 0.0)
        return of_integer(int.from_bytes(bits, "little"))
    if isinstance(value, str | bytes):
        return of_bytes(value.encode() if isinstance(value, str) else value)
    if isinstance(value, datetime.timedelta):
        return of_integer(value // datetime.timedelta(microseconds=1))
    if isinstance(value, datetime.datetime):
        return of_integer((value.replace(tzinfo=None) - EPOCH) // datetime.timedelta(microseconds=1))
    if isinstance(value, datetime.date):
        return of_integer((value - EPOCH.date()).days)
    return of_integer(int(value))


@settings(max_examples=thorough(150), deadline=None)
@given(data=st.data())
def test_digests_are_those_of_the_plain_implementation(data: st.DataObject) -> None:
    data_type = parse_type(data.draw(TYPE_NAMES))
    values = data.draw(st.lists(cells_of(pa.field("c", data_type)), max_size=8))
    start = data.draw(st.integers(0, len(values)))
    sliced = pa.array(values, data_type).slice(start)
    assert digests(canonical(sliced)).tolist() == [digest_of(value, data_type) for value in values[start:]]


@settings(max_examples=thorough(100), deadline=None)
@given(data=st.data())
def test_canonical_values_are_equal_if_their_digests_are(data: st.DataObject) -> None:
    data_type = parse_type(data.draw(TYPE_NAMES))
    cells = cells_of(pa.field("c", data_type))
    a = data.draw(st.lists(cells, max_size=5))
    b = [data.draw(st.just(value) | cells) for value in a]
    left, right = canonical(pa.array(a, data_type)), canonical(pa.array(b, data_type))
    assert left.equals(right) == (digests(left).tolist() == digests(right).tolist())


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (0, "long", 0x910A2DEC89025CC1),
        (-1, "byte", 0xE220A8397B1DCDAF),
        (True, "boolean", 0x975835DE1C9756CE),
        (1.5, "double", 0x30CEB68281804A0E),
        ("", "string", 0x5E41AB087439611E),
        ("headrace", "string", 0xD83534133AB709B5),
        ("headrace streams", "binary", 0xAD88A633225109D2),
        ("mañana", "string", 0x4C94A4C17CB6D74B),
        (decimal.Decimal("-12.50"), "decimal(10,2)", 0x1B4284BA684F35B1),
        (datetime.date(2026, 1, 1), "date", 0x91EED16D69CEFB4E),
        ([1, None, 2], "array<int>", 0xE21155006C332824),
        ([("b", 2), ("a", 1)], "map<string,long>", 0xF7AE4990044697C8),
        ({"x": 1, "y": None}, "struct<x:int,y:string>", 0x3384B1AA03537BA6),
    ],
)
def test_digests_never_change(value: Any, kind: str, expected: int) -> None:
    # Figures that users have kept must stay comparable.
    (found,) = digests(canonical(pa.array([value], parse_type(kind)))).tolist()
    assert f"{found:016x}" == f"{expected:016x}"


def test_the_checksum_of_rows_never_changes_and_has_no_order() -> None:
    names = ("id", "price")
    columns = [canonical(pa.array(["a", "b"])), canonical(pa.array([1.5, None]))]
    expected = 0xDCF549FF57076117
    assert checksum(row_digests(columns, names)) == expected
    assert checksum(row_digests([column.take([1, 0]) for column in columns], names)) == expected
    assert checksum(row_digests(columns[::-1], names[::-1])) == expected
    later = pa.nulls(2, pa.int64())
    assert checksum(row_digests([*columns, later], (*names, "later"))) == expected
    # The digest of a row contains the names of its columns.
    assert checksum(row_digests(columns, ("id", "cost"))) != expected


@pytest.mark.parametrize(
    ("a", "a_kind", "b", "b_kind"),
    [
        (5, "byte", 5, "long"),
        ("é", "string", "é".encode(), "binary"),
        (0.5, "float", 0.5, "double"),
        (math.nan, "float", -math.nan, "double"),
        (-0.0, "double", 0.0, "double"),
        (decimal.Decimal("1.5"), "decimal(2,1)", decimal.Decimal("1.500"), "decimal(38,3)"),
        ([1, 2], "array<int>", [1, 2], "array<long>"),
        ([("a", 1), ("b", 2)], "map<string,int>", [("b", 2), ("a", 1)], "map<binary,long>"),
        ({"x": 1, "y": "t"}, "struct<x:int,y:string>", {"y": "t", "x": 1}, "struct<y:string,x:long>"),
    ],
)
def test_equal_values_of_comparable_types_are_equal(a: Any, a_kind: str, b: Any, b_kind: str) -> None:
    types = parse_type(a_kind), parse_type(b_kind)
    assert comparable(*types)
    left, right = (canonical(pa.array([value], kind)) for value, kind in zip((a, b), types, strict=True))
    assert left.equals(right)
    assert digests(left).tolist() == digests(right).tolist()


@pytest.mark.parametrize(
    ("a", "a_kind", "b", "b_kind"),
    [
        (None, "string", "", "string"),
        ("a", "string", "a\0", "string"),
        (0.1, "float", 0.1, "double"),
        ([], "array<int>", None, "array<int>"),
        ([None], "array<int>", [], "array<int>"),
        ([1, 2], "array<int>", [2, 1], "array<int>"),
        ({"x": None}, "struct<x:int>", None, "struct<x:int>"),
        ({"x": 1, "y": None}, "struct<x:int,y:int>", {"x": None, "y": 1}, "struct<x:int,y:int>"),
    ],
)
def test_different_values_differ(a: Any, a_kind: str, b: Any, b_kind: str) -> None:
    left, right = (canonical(pa.array([value], parse_type(kind))) for value, kind in ((a, a_kind), (b, b_kind)))
    assert not left.equals(right)
    assert digests(left).tolist() != digests(right).tolist()


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("long", "double"),
        ("long", "boolean"),
        ("long", "timestamp"),
        ("long", "decimal(10,0)"),
        ("long", "string"),
        ("timestamp", "timestamp_ntz"),
        ("date", "timestamp"),
        ("array<int>", "array<string>"),
        ("array<int>", "int"),
        ("struct<x:int>", "struct<x:int,y:int>"),
        ("map<string,int>", "map<int,int>"),
    ],
)
def test_types_without_common_values_are_not_comparable(a: str, b: str) -> None:
    assert not comparable(parse_type(a), parse_type(b))
    assert not comparable(parse_type(b), parse_type(a))
    assert comparable(parse_type(a), parse_type(a))


def test_a_long_text_costs_no_step_for_each_word() -> None:
    # One text of 8 MB among short ones: a loop over word positions would run a million times.
    values = pa.array(["short"] * 1000 + ["x" * (8 << 20)])
    assert is_text(values.type)
    found = digests(canonical(values)).tolist()
    assert found[0] == of_bytes(b"short")
    assert len(set(found)) == 2
