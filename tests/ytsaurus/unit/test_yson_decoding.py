"""Decoding of rows in YSON to Arrow: exact for all shapes of rows; broken rows raise one type of error."""

from __future__ import annotations

import decimal
import random
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import nullcontext
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
from headrace_ytsaurus.wire.yson import rows_decoding
from headrace_ytsaurus.wire.yson.documents import YsonError, dumps, load_fragment
from headrace_ytsaurus.wire.yson.message import Effort, Message, UnusualError
from headrace_ytsaurus.wire.yson.nesting import value_ends
from headrace_ytsaurus.wire.yson.rows_decoding import decode_rows, decoded_rows, read_rows
from headrace_ytsaurus.wire.yson.rows_encoding import encode_rows
from tests.ytsaurus.unit.yson_samples import LEAF_TYPES, tables, without_bindings, written

ORDERS = [
    YtColumn.of("id", "int64"),
    YtColumn.of("price", "double", required=False),
    YtColumn.of("user", "string", required=False),
    YtColumn.of("note", "utf8", required=False),
]


@pytest.fixture(autouse=True, params=["by numpy", "as it comes"])
def few(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use both decoders for small samples."""
    if request.param == "by numpy":
        monkeypatch.setattr(rows_decoding, "_FEW", 0)


def orders(count: int) -> list[dict[str, Any]]:
    return [{"id": i * 37 - 5, "price": i / 7, "user": f"u{i}", "note": "é" * (i % 90)} for i in range(count)]


def fast(data: bytes, columns: list[YtColumn]) -> rows_decoding.Decoded:
    """Decode rows with the fast decoder, or fail."""
    message = Message(data)
    return rows_decoding._read_fast(message, rows_decoding._rows_like_the_first(message), columns)


def test_common_rows_round_trip_through_the_fast_decoder() -> None:
    rows = orders(1000)
    found = fast(written(rows), ORDERS)
    assert found.rows.to_pylist() == rows
    assert (found.written, found.unknown, found.absent) == ({}, frozenset(), None)


@given(tables())
@settings(max_examples=thorough(40), deadline=None)
def test_every_type_round_trips_to_the_same_bytes(table: tuple[list[YtColumn], list[Any]]) -> None:
    columns, rows = table
    data = written(rows)
    found = decode_rows(data, columns)
    assert found.schema.types == [column.type for column in columns]
    assert found.num_rows == len(rows)
    assert encode_rows(found, columns) == data


@given(tables(LEAF_TYPES), st.randoms())
@settings(max_examples=thorough(40), deadline=None)
def test_keys_can_be_in_any_order_missing_or_unknown(
    table: tuple[list[YtColumn], list[dict[str, Any]]], rng: random.Random
) -> None:
    columns, rows = table
    mixed = []
    for row in rows:
        items = [(name, value) for name, value in row.items() if value is not None or rng.random() < 0.5]
        items += [(f"other {i}", rng.choice([None, 5, [1, {"a": b"};{\x01"}]])) for i in range(rng.randrange(3))]
        rng.shuffle(items)
        mixed.append(dict(items))
    for text in (False, True):
        found = read_rows(written(mixed, text=text), columns)
        assert found.rows.equals(decode_rows(written(rows), columns))
        for column in columns:
            given_ = [column.name in row for row in mixed]
            assert found.written.get(column.name, pa.array([True] * len(rows))).to_pylist() == given_
        assert found.unknown == {name for row in mixed for name in row if name.startswith("other")}


@given(tables())
@settings(max_examples=thorough(40), deadline=None)
def test_both_decoders_agree(table: tuple[list[YtColumn], list[Any]]) -> None:
    columns, rows = table
    for data in (written(rows), written(rows, text=True)):
        one_by_one = decoded_rows(load_fragment(data), columns)
        assert decode_rows(data, columns).equals(one_by_one.rows)


@pytest.mark.parametrize("bindings", [True, False])
def test_many_shapes_of_rows_in_several_blocks(bindings: bool) -> None:
    rows = orders(20_000 if bindings else 300)
    rng = random.Random(5)
    for row in rows[::7]:
        row["price"] = None
    mixed = [dict(rng.sample(list(row.items()), 4)) for row in rows]
    with nullcontext() if bindings else without_bindings():
        assert decode_rows(written(rows), ORDERS).to_pylist() == rows
        assert decode_rows(written(mixed), ORDERS).to_pylist() == rows


def test_strings_that_look_like_rows_are_not_split() -> None:
    looks = (b"};{\x01\x04id=" + b"x" * 5).decode()
    rows = [{"id": i, "price": None, "user": looks * (i % 3), "note": looks} for i in range(500)]
    assert decode_rows(written(rows), ORDERS).to_pylist() == rows


def test_null_rows_are_reported() -> None:
    found = read_rows(written([{"id": 1}, None, {"id": 3}]), ORDERS[:1])
    assert found.rows.to_pylist() == [{"id": 1}, {"id": None}, {"id": 3}]
    assert found.absent is not None
    assert found.absent.to_pylist() == [False, True, False]


@pytest.mark.parametrize("first", [b"#", b"\x01\x02x", b"\x05"])
def test_the_last_value_of_a_repeated_key_counts(first: bytes) -> None:
    row = b"{\x01\x08user=%b;\x01\x08user=\x01\x08last;};" % first
    once = b"{\x01\x08user=\x01\x08once;};"
    assert decode_rows(row * 300, ORDERS[2:3]).to_pylist() == [{"user": "last"}] * 300
    assert decode_rows((row + once) * 300, ORDERS[2:3]).to_pylist() == [{"user": "last"}, {"user": "once"}] * 300


def test_no_rows_and_no_columns_are_decoded() -> None:
    assert decode_rows(b"", ORDERS).num_rows == 0
    assert read_rows(written([{}, {}]), []).rows.num_rows == 2
    assert read_rows(written(orders(3)), []).rows.num_rows == 3
    assert decode_rows(written([{}] * 3), ORDERS).to_pylist() == [dict.fromkeys(("id", "price", "user", "note"))] * 3


@pytest.mark.parametrize("separator", [b";", b";\n"])
@pytest.mark.parametrize("end", [b"", b";", b";\n"])
def test_all_row_separators_are_accepted(separator: bytes, end: bytes) -> None:
    rows = orders(50)
    data = separator.join(dumps(row, text=False) for row in rows) + end
    assert fast(data, ORDERS).rows.to_pylist() == rows
    bare = separator.join(dumps(row, text=False).replace(b";}", b"}") for row in rows) + end
    assert decode_rows(bare, ORDERS).to_pylist() == rows


def test_signed_and_unsigned_numbers_convert_in_range() -> None:
    columns = [YtColumn.of("i", "int16"), YtColumn.of("u", "uint64")]
    rows = [{"i": yt.yson.YsonUint64(5), "u": 7}, {"i": -5, "u": yt.yson.YsonUint64(2**64 - 1)}] * 100
    found = decode_rows(written(rows), columns)
    assert found.column(0).to_pylist()[:2] == [5, -5]
    assert found.column(1).to_pylist()[:2] == [decimal.Decimal(7), decimal.Decimal(2**64 - 1)]


def test_special_doubles_are_kept_and_floats_are_rounded() -> None:
    columns = [YtColumn.of("d", "double"), YtColumn.of("f", "float")]
    rows = [{"d": d, "f": 0.1} for d in (float("nan"), float("inf"), float("-inf"), -0.0)] * 50
    found = decode_rows(written(rows), columns)
    assert found.column(0).to_numpy().tobytes() == np.array([row["d"] for row in rows]).tobytes()
    assert set(found.column(1).to_pylist()) == {float(np.float32(0.1))}


def test_strings_that_are_not_utf8_are_read_as_bytes() -> None:
    rows = [{"user": b"\xff\xfe"}, {"user": b"ok"}] * 100
    assert decode_rows(written(rows), [ORDERS[2].of_bytes]).to_pylist() == rows
    with pytest.raises(SchemaError, match=r"row 0 .*'user'.*not UTF-8"):
        decode_rows(written(rows), [ORDERS[2]])


def test_yson_columns_are_unchanged() -> None:
    values = [1, b"x", None, [1, {"a": [yt.yson.YsonUint64(3)]}], {}, True, 1.5, "y" * 100]
    rows = [{"a": value} for value in values] * 50
    found = decode_rows(written(rows), [YtColumn.of("a", "any")]).column(0).to_pylist()
    assert found == [None if value is None else dumps(value, text=False) for value in values] * 50


@pytest.mark.parametrize(
    ("yt_type", "value", "told"),
    [
        ("int8", 128, "int64 128.*from -128 to 127"),
        ("uint32", -1, "int64 -1"),
        ("int64", yt.yson.YsonUint64(2**63), "uint64 9223372036854775808"),
        ("date", yt.yson.YsonUint64(49673), "49673.*from 0 to 49672"),
        ("double", 5, "an int64 5.*double"),
        ("float", 1e300, "double"),
        ("bool", 1, "int64 1"),
        ("string", 1.5, "double"),
        ("utf8", b"\xff", "not UTF-8"),
        ("int64", [1], "a list"),
        ("string", yt.yson.to_yson_type("x", attributes={"a": 1}), "with attributes"),
        ("uuid", b"short", "5 bytes.*16"),
        ({"type_name": "decimal", "precision": 3, "scale": 1}, b"\x80\x00\x03\xe8", r"decimal\(3,1\)"),
        ({"type_name": "decimal", "precision": 20, "scale": 1}, b"\xff" * 16, r"decimal\(20,1\)"),
        ({"type_name": "list", "item": "int8"}, [1, None], "null"),
        ({"type_name": "struct", "members": [{"name": "a", "type": "int8"}]}, {"b": 1}, "members"),
        ({"type_name": "variant", "elements": [{"type": "int8"}]}, [1, 1], "variant"),
        ({"type_name": "tuple", "elements": [{"type": "int8"}]}, [], "list of 0"),
        ("void", 1, "void"),
    ],
)
@pytest.mark.parametrize("bindings", [True, False])
def test_a_value_that_does_not_fit_is_named(yt_type: Any, value: Any, told: str, bindings: bool) -> None:
    column = YtColumn.of("c", yt_type, required=False)
    rows: list[dict[str, Any]] = [{"c": None}] * 300 + [{"c": value}]
    with (
        nullcontext() if bindings else without_bindings(),
        pytest.raises(SchemaError, match=f"row 300 .*column 'c'.*{told}"),
    ):
        decode_rows(written(rows), [column])
    with pytest.raises(SchemaError, match=r"row 300 .*column 'c'"):
        decoded_rows(load_fragment(written(rows)), [column])


def test_a_repeated_column_is_an_error() -> None:
    with pytest.raises(SchemaError, match="twice"):
        decode_rows(b"{}", [ORDERS[0], ORDERS[0]])


def broken(data: bytes, rng: random.Random, count: int) -> Iterator[bytes]:
    """Return rows with bytes changed, removed, inserted or truncated."""
    for _ in range(count):
        mutated = bytearray(data)
        for _ in range(rng.choice([1, 1, 2, 5])):
            at = rng.randrange(len(mutated) or 1)
            how = rng.randrange(5)
            if how == 0:
                mutated[at : at + 1] = bytes([rng.randrange(256)])
            elif how == 1:
                del mutated[at : at + rng.randrange(4)]
            elif how == 2:
                mutated[at:at] = rng.choice([b"{", b"]", b"<", b";", b"\xff" * 9, b"\x01\xfe\xff\xff\xff\x0f", b"\x02"])
            elif how == 3:
                del mutated[at:]
            else:
                mutated[at:at] = mutated[rng.randrange(len(mutated) or 1) :][:20]
        yield bytes(mutated)


@pytest.mark.parametrize("bindings", [True, False])
def test_broken_rows_raise_one_type_of_error_with_little_memory(bindings: bool) -> None:
    rng = random.Random(11)
    composite = {"type_name": "list", "item": {"type_name": "tuple", "elements": [{"type": "int8"}]}}
    columns = [*ORDERS, YtColumn.of("any", "any"), YtColumn.of("list", composite)]
    rows = [{**row, "any": [{"a": 1}], "list": [[1], [2]]} for row in orders(4)]
    failed = 0
    tracemalloc.start()
    with nullcontext() if bindings else without_bindings():
        for text in (False, True):
            for data in broken(written(rows, text=text), rng, 200 if bindings else 30):
                try:
                    decode_rows(data, columns)
                except (YsonError, SchemaError):
                    failed += 1
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert failed > (200 if bindings else 30)
    assert peak < 30e6


@pytest.mark.parametrize(
    "data",
    [
        b"1;2",
        b"[{}]",
        b"<a=1>{}",
        b"<a=1>#",
        b"{",
        b"{\x01",
        b"{\x01\x02",
        b"{\x01\x02a",
        b"{\x01\x02a=",
        b"{\x01\x02a=\x01\xfe\xff\xff\xff\x0f",
        b"{\x01\x02a=\x01\x01}",
        b"{\x01\x02a=" + b"[" * 100_000,
        b"{\x01\x02a=\x02" + b"\xff" * 20 + b"}",
        b"{\x01\x02a=\x07}",
        b"{\x01\x02a=5}}",
        b"{\x01\x02a=[;]}",
        b"{\x01\x02a={\x02\x02=5}}",
        b"{\x01\x02a=[}]}",
        b"{\x01\x02a=[<}]}",
        b"\x00",
    ],
)
def test_values_other_than_rows_are_an_error(data: bytes) -> None:
    with pytest.raises(YsonError):
        decode_rows(data, [YtColumn.of("a", "any")])


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.binary(max_size=80),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=3), inner, max_size=4)
        | st.tuples(st.integers(0, 9), inner).map(lambda p: yt.yson.to_yson_type(p[0], attributes={"a": p[1]}))
    ),
    max_leaves=20,
)


@given(st.lists(VALUES, min_size=1, max_size=20))
@settings(max_examples=thorough(40), deadline=None)
def test_ends_of_nested_values_are_found(values: list[Any]) -> None:
    parts = [dumps(value, text=False) for value in values]
    lengths = np.array([len(part) for part in parts])
    ends = np.cumsum(lengths)
    message = Message(b"".join(parts))
    effort = Effort(10**6)
    assert value_ends(message, ends - lengths, ends, effort).tolist() == ends.tolist()
    with pytest.raises(UnusualError):
        value_ends(message, ends - lengths, ends - 1, effort)


def test_adversarial_rows_are_not_slow() -> None:
    # Each row has different keys, or a value with more parts.
    unlike = [{f"k{row}-{item}": item for item in range(50)} for row in range(400)]
    deep = [{"id": row, "any": [list(range(row % 7))] * row} for row in range(400)]
    for rows in (unlike, deep):
        begin = time.thread_time()
        assert decode_rows(written(rows), ORDERS).num_rows == len(rows)
        assert time.thread_time() - begin < 3
