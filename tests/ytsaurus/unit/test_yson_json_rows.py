"""Rows in YTsaurus' JSON: bytes as code points, exact numbers, errors that name the row."""

from __future__ import annotations

import json
import random
from typing import Any

import pyarrow as pa
import pytest
import yt.yson
from hypothesis import assume, given, settings

from headrace.errors import SchemaError
from headrace.testing.effort import thorough
from headrace_ytsaurus.wire.types import YtColumn, carried_as_yson
from headrace_ytsaurus.wire.yson.documents import YsonError, dumps, loads
from headrace_ytsaurus.wire.yson.json_rows import encode_json_rows, read_json_rows
from headrace_ytsaurus.wire.yson.json_values import JsonStyle, plain, restored
from headrace_ytsaurus.wire.yson.rows_decoding import decode_rows
from tests.ytsaurus.unit.yson_samples import LEAF_TYPES, TYPES, tables, written

PLAIN = [
    YtColumn.of("i", "int64", required=False),
    YtColumn.of("u", "uint64", required=False),
    YtColumn.of("d", "double", required=False),
    YtColumn.of("b", "bool", required=False),
    YtColumn.of("s", "string", required=False),
]


@given(tables(TYPES))
@settings(max_examples=thorough(40), deadline=None)
def test_every_type_round_trips_in_json(table: tuple[list[YtColumn], list[Any]]) -> None:
    columns, rows = table
    # JSON has no infinity, and no unsigned numbers.
    assume("inf" not in repr(rows) and not any(carried_as_yson(column.yt, column.type) for column in columns))
    batch = decode_rows(written(rows), columns)
    data = encode_json_rows(batch, columns)
    assert data.count(b"\n") == len(rows)
    assert read_json_rows(data, columns).rows.equals(batch)
    assert read_json_rows(data, columns).rows.equals(batch)


@given(tables(LEAF_TYPES))
@settings(max_examples=thorough(30), deadline=None)
def test_strings_can_be_written_in_utf8(table: tuple[list[YtColumn], list[Any]]) -> None:
    columns, rows = table
    columns = [column for column in columns if column.type == pa.string()]
    batch = decode_rows(written(rows), columns)
    data = encode_json_rows(batch, columns, encode_utf8=False)
    assert [json.loads(line) for line in data.splitlines()] == [
        {("$" + name if name.startswith("$") else name): row[name] for name in batch.schema.names} for row in rows
    ]
    assert read_json_rows(data, columns, JsonStyle(encode_utf8=False)).rows.equals(batch)


def test_each_byte_of_a_string_is_a_code_point() -> None:
    column = YtColumn.of("s", "string").of_bytes
    batch = pa.RecordBatch.from_arrays([pa.array(["bаr".encode(), b'\xff\n"', b"", b"plain"])], names=["s"])
    data = encode_json_rows(batch, [column])
    assert json.loads(data.splitlines()[0]) == {"s": "b\u00d0\u00b0r"}
    escaped = b"\n".join(json.dumps(json.loads(line)).encode() for line in data.splitlines())
    assert read_json_rows(data, [column]).rows.equals(batch)
    assert read_json_rows(escaped, [column]).rows.equals(batch)
    for wrong in ('{"s":"\u20ac"}', '{"s":"\\u0100"}'):
        with pytest.raises(YsonError, match="not a byte"):
            read_json_rows(wrong.encode(), [column])


def test_numbers_are_exact() -> None:
    row = {"i": -(2**63), "u": 2**64 - 1, "d": 0.1 + 0.2, "b": True, "s": "x"}
    data = json.dumps(row).encode() + b'\n{"i":9007199254740993,"u":18446744073709551614,"d":5}\n'
    found = read_json_rows(data, PLAIN).rows.to_pylist()
    assert [int(one["u"]) for one in found] == [2**64 - 1, 2**64 - 2]
    assert [(one["i"], one["d"]) for one in found] == [(-(2**63), 0.1 + 0.2), (9007199254740993, 5.0)]


def test_missing_values_and_unknown_columns_are_reported() -> None:
    data = b'{"i":1,"x":[{}]}{"i":null} null\n{"s":"a"}'
    found = read_json_rows(data, PLAIN[:1])
    assert found.rows.to_pylist() == [{"i": 1}, {"i": None}, {"i": None}, {"i": None}]
    assert found.written["i"].to_pylist() == [True, True, False, False]
    assert found.absent is not None
    assert found.absent.to_pylist() == [False, False, True, False]
    assert found.unknown == {"x", "s"}


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"i": 1.5}, "'i'.*a double"),
        ({"i": 2**63}, "'i'.*9223372036854775808"),
        ({"u": -1}, "'u'.*-1"),
        ({"d": "x"}, "'d'.*a string"),
        ({"b": 1}, "'b'.*a whole number"),
        ({"s": 5}, "'s'.*a whole number"),
        ({"s": "\u00ff"}, "'s'.*not UTF-8"),
        ({"i": True}, "'i'.*a boolean"),
    ],
)
def test_a_value_that_does_not_fit_is_named(row: dict[str, Any], told: str) -> None:
    data = b'{"i":1}\n' + json.dumps(row).encode()
    with pytest.raises(SchemaError, match=f"row 1 .*column {told}"):
        read_json_rows(data, PLAIN)


def test_values_that_json_cannot_represent_are_errors() -> None:
    for value in (float("nan"), float("inf")):
        batch = pa.RecordBatch.from_arrays([pa.array([1.0, value])], names=["d"])
        with pytest.raises(SchemaError, match=r"row 1 .*column 'd'.*JSON"):
            encode_json_rows(batch, PLAIN[2:3])
    batch = pa.RecordBatch.from_arrays([pa.array([b"\xff"])], names=["s"])
    with pytest.raises(SchemaError, match=r"row 0 .*'s'.*encode_utf8"):
        encode_json_rows(batch, [PLAIN[4].of_bytes], encode_utf8=False)


@pytest.mark.parametrize("data", [b"{", b"5", b"[]", b'{"i":}', b"\xff", b"{}x", b'{"i":' + b"[" * 100_000, b"{}\0"])
def test_values_other_than_rows_are_an_error(data: bytes) -> None:
    with pytest.raises(YsonError):
        read_json_rows(data, PLAIN)


def test_broken_json_raises_one_type_of_error() -> None:
    rng = random.Random(7)
    row = {"i": 1, "u": 2, "d": 1.5, "b": False, "s": "\u00d0\u00b0"}
    data = (json.dumps(row, ensure_ascii=False) + "\n").encode() * 3
    failed = 0
    for _ in range(600):
        mutated = bytearray(data)
        at = rng.randrange(len(data))
        if rng.random() < 0.5:
            mutated[at] = rng.randrange(256)
        else:
            mutated[at:at] = rng.choice([b"{", b"]", b'"', b"\\u0", b"\\", b"9" * 20, b"e5", b"\xff", b"\xc3"])
        try:
            read_json_rows(bytes(mutated), PLAIN)
        except (YsonError, SchemaError):
            failed += 1
    assert failed > 300


def test_attributes_are_written_next_to_their_values() -> None:
    value = yt.yson.to_yson_type({"$x": b"\xff", "y": [yt.yson.YsonUint64(5), None, True]}, attributes={"a": "é"})
    found = plain(value)
    assert found == {"$value": {"$$x": "\u00ff", "y": [5, None, True]}, "$attributes": {"a": "\u00c3\u00a9"}}
    json.dumps(found)
    back = loads(dumps(restored(found)))
    assert back.attributes == {"a": "é"}
    assert plain(back) == found
    with pytest.raises(YsonError):
        restored({"$value": 1, "$attributes": [1]})
