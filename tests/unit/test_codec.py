"""Packed rows are restored bit by bit, and packed values sort like the values."""

from __future__ import annotations

import datetime
import decimal
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.model.tables.schema import TableSchema
from headrace.rows.byte_order import ordered_bytes
from headrace.stores.embedded.tables.codec import RowCodec

UTC = datetime.UTC
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "byte": st.integers(-(2**7), 2**7 - 1),
    "short": st.integers(-(2**15), 2**15 - 1),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "string": st.text(),
    "binary": st.binary(),
    "date": st.dates(),
    "timestamp": st.datetimes(timezones=st.just(UTC)),
    "timestamp_ntz": st.datetimes(),
    "interval day to second": st.timedeltas(datetime.timedelta(-9999), datetime.timedelta(9999)),
    "decimal(38,10)": st.integers(-(10**38) + 1, 10**38 - 1).map(
        lambda number: decimal.Decimal(number).scaleb(-10, decimal.Context(prec=38))
    ),
}
COMPOSITE: dict[str, st.SearchStrategy[Any]] = {
    "array<string>": st.lists(st.none() | st.text()),
    "struct<a:int,b:map<string,boolean>>": st.fixed_dictionaries(
        {"a": st.none() | VALUES["int"], "b": st.none() | st.lists(st.tuples(st.text(), st.none() | st.booleans()))}
    ),
}
KEY = {"k": "binary", "n": "long", "s": "string"}
SCHEMA = TableSchema.of({kind: kind for kind in [*VALUES, *COMPOSITE]} | KEY, ["s", "n", "k"])
ROWS = st.lists(
    st.fixed_dictionaries(
        {kind: st.none() | values for kind, values in (VALUES | COMPOSITE).items()}
        | {"k": st.binary(), "n": VALUES["long"], "s": st.text()}
    ),
    max_size=5,
)


def joined(codec: RowCodec, rows: pa.RecordBatch) -> tuple[bytes, dict[str, bytes]]:
    """Return the concatenated columns of encoded rows, as SQLite concatenates them."""
    encoded = codec.encode(rows)
    native = {f"k{index}": column for index, column in enumerate(encoded.keys)}
    native |= {f"v{index}": column for index, column in enumerate(encoded.values)}
    blobs = {}
    for name in codec.blobs(codec.schema.names):
        texts = [value.encode() if isinstance(value, str) else value for value in native[name]]
        blobs[name] = b"".join(text for text in texts if text is not None)
    return b"".join(encoded.packed), blobs


def round_trip(schema: TableSchema, rows: pa.RecordBatch, columns: list[str] | None = None) -> pa.RecordBatch:
    codec = RowCodec(schema)
    return codec.decode(*joined(codec, rows), columns or schema.names)


@settings(deadline=None)
@given(ROWS)
def test_rows_round_trip(rows: list[dict[str, Any]]) -> None:
    batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA.arrow)
    decoded = round_trip(SCHEMA, batch)
    decoded.validate(full=True)
    assert decoded.schema == SCHEMA.arrow
    assert decoded.equals(batch)


@settings(deadline=None)
@given(ROWS, st.lists(st.sampled_from(SCHEMA.names), min_size=1, unique=True))
def test_any_columns_are_read_in_the_requested_order(rows: list[dict[str, Any]], columns: list[str]) -> None:
    batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA.arrow)
    decoded = round_trip(SCHEMA, batch, columns)
    assert decoded.equals(batch.select(columns))


@settings(deadline=None)
@given(ROWS, st.integers(0, 5), st.integers(0, 5))
def test_only_the_rows_of_a_slice_are_encoded(rows: list[dict[str, Any]], start: int, length: int) -> None:
    batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA.arrow).slice(start, length)
    assert round_trip(SCHEMA, batch).equals(batch)


@pytest.mark.parametrize(("kind", "code"), [("float", "I"), ("double", "Q")])
def test_floats_keep_every_bit(kind: str, code: str) -> None:
    width = struct.calcsize(code)
    patterns = [0, 1, 1 << (8 * width - 1), (1 << 8 * width) - 1, 0x7FF8000000000001 >> (64 - 8 * width)]
    schema = TableSchema.of({"id": "long", "x": kind}, "id")
    data = pa.py_buffer(struct.pack(f"<{len(patterns)}{code}", *patterns))
    floats = pa.Array.from_buffers(schema.column("x").type, len(patterns), [None, data])
    batch = pa.RecordBatch.from_arrays([pa.array(range(len(patterns))), floats], schema=schema.arrow)
    decoded = round_trip(schema, batch).column("x")
    assert decoded.buffers()[1].to_pybytes()[: len(data)] == data.to_pybytes()


@pytest.mark.parametrize("kind", [kind for kind in VALUES if kind not in ("string", "binary")])
@settings(deadline=None)
@given(data=st.data())
def test_packed_values_sort_like_the_values(kind: str, data: st.DataObject) -> None:
    left, right = data.draw(VALUES[kind]), data.draw(VALUES[kind])
    packed = ordered_bytes(pa.array([left, right], SCHEMA.column(kind).type))
    if left < right:
        assert packed[0].tobytes() < packed[1].tobytes()
    elif left == right and not (left == 0 and kind in ("float", "double")):
        assert packed[0].tobytes() == packed[1].tobytes()


def test_rows_before_a_new_column_have_null_in_it() -> None:
    before = TableSchema.of({"id": "long", "name": "string"}, "id")
    after = before.with_columns({"price": "decimal(10,2)", "note": "string"})
    old = pa.RecordBatch.from_pylist([{"id": 1, "name": "x"}, {"id": 2, "name": None}], schema=before.arrow)
    packed, blobs = joined(RowCodec(before), old)
    width, wider = RowCodec(before).row_width, RowCodec(after).row_width
    padded = b"".join(packed[at : at + width].ljust(wider, b"\0") for at in range(0, len(packed), width))
    decoded = RowCodec(after).decode(padded, {**blobs, "v1": b""}, after.names)
    assert decoded.to_pylist() == [row | {"price": None, "note": None} for row in old.to_pylist()]


def test_null_slots_are_zero_so_that_equal_rows_have_equal_bytes() -> None:
    schema = TableSchema.of({"id": "long", "x": "double"}, "id")
    garbage = pa.Array.from_buffers(pa.float64(), 1, [pa.py_buffer(b"\0"), pa.py_buffer(b"\x42" * 8)])
    one = pa.RecordBatch.from_arrays([pa.array([1]), garbage], schema=schema.arrow)
    two = pa.RecordBatch.from_arrays([pa.array([1]), pa.nulls(1, pa.float64())], schema=schema.arrow)
    codec = RowCodec(schema)
    assert np.array_equal(codec.pack(one), codec.pack(two))
