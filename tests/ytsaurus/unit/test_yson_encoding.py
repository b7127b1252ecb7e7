"""Encoding of rows from Arrow to YSON, read back with YTsaurus' client; values out of range are errors."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import yt.yson
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import SchemaError
from headrace.testing.effort import thorough
from headrace_ytsaurus.wire.types import YtColumn
from headrace_ytsaurus.wire.yson.documents import dumps, load_fragment, loads
from headrace_ytsaurus.wire.yson.message import signed, zigzag
from headrace_ytsaurus.wire.yson.pieces import Pieces, varints
from headrace_ytsaurus.wire.yson.rows_decoding import decode_rows, read_rows
from headrace_ytsaurus.wire.yson.rows_encoding import encode_rows
from tests.ytsaurus.unit.yson_samples import tables, written

UTC = datetime.UTC


def batch(column: YtColumn, values: list[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(values, type=column.type)], names=[column.name])


@given(tables())
@settings(max_examples=thorough(40), deadline=None)
def test_text_and_binary_are_equal(table: tuple[list[YtColumn], list[Any]]) -> None:
    columns, rows = table
    data = written(rows)
    batch = decode_rows(data, columns)
    text = encode_rows(batch, columns, text=True)
    assert text.count(b"\n") == len(rows)
    assert load_fragment(text) == load_fragment(data)
    assert encode_rows(decode_rows(text, columns), columns) == data


def test_several_blocks_with_numbers_of_every_length() -> None:
    numbers = np.concatenate([[2**63 - 1, -(2**63)], *(np.arange(-3, 4) + (1 << bits) for bits in range(3, 63))])
    columns = [YtColumn.of("n", "int64", required=False), YtColumn.of("s", "string", required=False)]
    values = np.resize(numbers, 40_000).tolist()
    texts = [None if place % 5 == 0 else "x" * (place % 200) for place in range(len(values))]
    rows = pa.RecordBatch.from_pydict({"n": values, "s": texts})
    data = encode_rows(rows, columns)
    assert data == written(rows.to_pylist())
    assert decode_rows(data, columns).equals(rows)
    # A slice starts inside of its buffers.
    assert encode_rows(rows.slice(777, 500), columns) == written(rows.slice(777, 500).to_pylist())


@given(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 63).map(lambda bits: 1 << bits), min_size=1, max_size=50))
@settings(max_examples=thorough(50), deadline=None)
def test_varints_equal_those_of_the_client(numbers: list[int]) -> None:
    data, lengths = varints(np.array(numbers, dtype=np.uint64))
    pieces = Pieces(len(numbers))
    pieces.varints(np.array(numbers, dtype=np.uint64))
    wanted = [dumps(yt.yson.YsonUint64(number), text=False)[1:] for number in numbers]
    assert [bytes(row[:length]) for row, length in zip(data, lengths, strict=True)] == wanted
    assert pieces.joined().to_pylist() == wanted
    ints = np.array(numbers, dtype=np.uint64).view(np.int64)
    assert (signed(zigzag(ints)) == ints).all()


def test_rows_that_are_null_are_read_as_absent() -> None:
    column = YtColumn.of("a", "int64", required=False)
    found = read_rows(b'{"a"=1;};#;{"a"=3;};', [column])
    assert found.rows.equals(batch(column, [1, None, 3]))
    assert found.absent == pa.array([False, True, False])


def test_no_rows_no_columns_and_columns_of_nulls_are_encoded() -> None:
    column = YtColumn.of("a", "string", required=False)
    assert encode_rows(batch(column, []), [column]) == b""
    assert encode_rows(batch(column, [None, None]), [column]) == b"{\x01\x02a=#;};" * 2
    assert encode_rows(batch(column, ["x", "y"]), []) == b"{};{};"


def test_unsigned_types_are_written_as_unsigned() -> None:
    column = YtColumn.of("u", "uint16")
    assert encode_rows(batch(column, [5]), [column], text=True) == b'{"u"=5u;};\n'
    wide = YtColumn.of("u", "uint64")
    assert (
        encode_rows(batch(wide, [decimal.Decimal(2**64 - 1)]), [wide], text=True) == b'{"u"=18446744073709551615u;};\n'
    )


def test_text_yson_marks_doubles_and_escapes_strings() -> None:
    columns = [YtColumn.of("d", "double"), YtColumn.of("s", "string").of_bytes]
    doubles = [1.0, -0.0, 1e300, 0.1, float("nan"), float("inf"), float("-inf")]
    texts = [b'"', b"\\", b"\n\r\t", b"\0\x001", b"\xff\xc3\xa9", b"", b"plain"]
    rows = pa.RecordBatch.from_arrays([pa.array(doubles), pa.array(texts)], names=["d", "s"])
    text = encode_rows(rows, columns, text=True)
    assert text.count(b"\n") == len(texts)
    for row, double, string in zip(load_fragment(text), doubles, texts, strict=True):
        assert isinstance(row[b"d"], float)
        assert str(row[b"d"]) == str(double)
        assert row[b"s"] == string


def test_yson_columns_are_written_unchanged_after_a_check() -> None:
    column = YtColumn.of("a", "any")
    values = [b"5", dumps([1, {"a": None}], text=False), None, b'"text"', b"[1; 2]"]
    data = encode_rows(batch(column, values), [column])
    assert [row[b"a"] for row in load_fragment(data)] == [5, [1, {b"a": None}], None, b"text", [1, 2]]
    for wrong in (b"", b"1;2", b"[1", b"}", b"\x01\xff", b"<a=1>5"):
        with pytest.raises(SchemaError, match=r"row 1 .*column 'a'"):
            encode_rows(batch(column, [b"#", wrong]), [column])


@pytest.mark.parametrize(
    ("yt_type", "value", "told"),
    [
        ("uint8", 256, "256.*from 0 to 255"),
        ("uint8", -1, "-1"),
        ("int64", None, None),
        ("uint64", decimal.Decimal(2**64), "18446744073709551616"),
        ("uint64", decimal.Decimal(-1), "-1"),
        ("date", datetime.date(1969, 12, 31), "-1.*from 0 to 49672"),
        ("date", datetime.date(2106, 1, 1), "49673"),
        ("datetime", datetime.datetime(2020, 1, 1, 0, 0, 0, 1, tzinfo=UTC), "fraction"),
        ("timestamp", datetime.datetime(1969, 12, 31, tzinfo=UTC), "-86400000000.*from 0"),
        ("uuid", b"x" * 15, "15 bytes"),
        ("void", b"", "void"),
        ({"type_name": "list", "item": "uint8"}, [1, 256], "256"),
        (
            {"type_name": "variant", "elements": [{"type": "int8"}, {"type": "int8"}]},
            {"_v_1": 1, "_v_2": 1},
            "2 values",
        ),
        ({"type_name": "list", "item": "datetime"}, [1_500_000], "fraction"),
    ],
)
@pytest.mark.parametrize("text", [True, False])
def test_a_value_that_does_not_fit_is_named(yt_type: Any, value: Any, told: str | None, text: bool) -> None:
    column = YtColumn.of("c", yt_type, required=False)
    rows = batch(column, [None, value])
    if told is None:
        assert encode_rows(rows, [column], text=text)
        return
    with pytest.raises(SchemaError, match=f"row 1 .*column 'c'.*{told}"):
        encode_rows(rows, [column], text=text)


def test_columns_must_exist_and_have_their_type() -> None:
    column = YtColumn.of("a", "int64")
    with pytest.raises(SchemaError, match="do not have column 'a'"):
        encode_rows(batch(YtColumn.of("b", "int64"), [1]), [column])
    with pytest.raises(SchemaError, match="another type in column 'a'"):
        encode_rows(batch(YtColumn.of("a", "int32"), [1]), [column])


def test_distant_times_in_range_are_accepted() -> None:
    columns = [YtColumn.of(name, name) for name in ("date32", "datetime64", "timestamp64", "interval64")]
    rows = [
        {"date32": -53375809, "datetime64": -4611669897600, "timestamp64": 4611669811199999999, "interval64": -1},
        {"date32": 53375807, "datetime64": 4611669811199, "timestamp64": -4611669897600000000, "interval64": 1},
    ]
    assert encode_rows(decode_rows(written(rows), columns), columns) == written(rows)


def test_structs_are_maps_and_variants_are_pairs() -> None:
    members = [{"name": "a", "type": "int64"}, {"name": "b", "type": {"type_name": "optional", "item": "utf8"}}]
    columns = [
        YtColumn.of("s", {"type_name": "struct", "members": members}),
        YtColumn.of("v", {"type_name": "variant", "members": [*members[:1], {"name": "c", "type": "bool"}]}),
        YtColumn.of("t", {"type_name": "tuple", "elements": [{"type": "int64"}, {"type": "bool"}]}),
        YtColumn.of("d", {"type_name": "dict", "key": "utf8", "value": "uint8"}),
    ]
    row = {"s": {"a": 1, "b": None}, "v": {"_va": None, "_vc": True}, "t": {"_1": 2, "_2": False}, "d": [("k", 3)]}
    arrays = [pa.array([row[column.name]], type=column.type) for column in columns]
    data = encode_rows(pa.RecordBatch.from_arrays(arrays, names=list(row)), columns)
    wire = {"s": {"a": 1, "b": None}, "v": ["c", True], "t": [2, False], "d": [["k", 3]]}
    assert loads(data.removesuffix(b";")) == wire
    assert decode_rows(data, columns).to_pylist() == [row]
    # A struct can also be a list of its members, and a dict a map.
    other = {"s": [1, None], "v": [1, True], "t": [2, False], "d": {"k": 3}}
    assert decode_rows(written([other]), columns).to_pylist() == [row]
