"""Packed composite values are restored bit by bit, and have equal bytes exactly if they are equal."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.model.types import parse_type
from headrace.rows.packing import pack, unpack
from tests.unit.type_strategies import COMPOSITE_NAMES, cells_of


@st.composite
def columns(draw: st.DrawFn) -> pa.Array:
    data_type = parse_type(draw(COMPOSITE_NAMES))
    return pa.array(draw(st.lists(cells_of(pa.field("", data_type)), max_size=5)), data_type)


def round_trip(array: pa.Array) -> pa.Array:
    return unpack(pack(array).cast(pa.binary()), array.type)


@settings(deadline=None)
@given(columns())
def test_composite_values_round_trip(array: pa.Array) -> None:
    found = round_trip(array)
    found.validate(full=True)
    assert found.type.equals(array.type, check_metadata=True)
    assert found.to_pylist() == array.to_pylist()


@settings(deadline=None)
@given(columns(), st.integers(0, 5), st.integers(0, 5))
def test_only_the_rows_of_a_slice_are_packed(array: pa.Array, start: int, length: int) -> None:
    part = array.slice(start, length)
    packed = pack(array).slice(start, length)
    assert pack(part).equals(packed)
    assert unpack(packed, array.type).to_pylist() == part.to_pylist()


@settings(deadline=None)
@given(COMPOSITE_NAMES, st.data())
def test_values_have_equal_bytes_exactly_if_they_are_equal(name: str, data: st.DataObject) -> None:
    data_type = parse_type(name)
    cells = cells_of(pa.field("", data_type))
    left = data.draw(cells)
    right = data.draw(st.just(left) | cells)
    # Packed separately, so that no result depends on the other rows.
    packed = [pack(pa.array([value], data_type)).to_pylist()[0] for value in (left, right)]
    assert (packed[0] == packed[1]) == (left == right)


def test_bytes_under_a_null_are_not_packed() -> None:
    null_with_data = pa.Array.from_buffers(
        pa.float64(), 2, [pa.py_buffer(b"\x01"), pa.py_buffer(np.array([1.0, 42.0]))]
    )
    lists = pa.ListArray.from_arrays(pa.array([0, 2], pa.int32()), null_with_data)
    assert pack(lists).equals(pack(pa.array([[1.0, None]])))
    null_with_elements = pa.Array.from_buffers(
        lists.type, 1, [pa.py_buffer(b"\x00"), lists.buffers()[1]], children=[null_with_data]
    )
    assert pack(null_with_elements).to_pylist() == [None]
    inside = [
        pa.StructArray.from_arrays([each], names=["x"]) for each in (null_with_elements, pa.array([None], lists.type))
    ]
    assert pack(inside[0]).equals(pack(inside[1]))


def test_not_a_number_keeps_its_bits() -> None:
    bits = np.array([0x7FF8000000000001, 0xFFF0000000000002], np.uint64)
    values = pa.Array.from_buffers(pa.float64(), 2, [None, pa.py_buffer(bits)])
    array = pa.Array.from_buffers(
        parse_type("array<double>"), 1, [None, pa.py_buffer(np.array([0, 2], np.int32))], children=[values]
    )
    found = round_trip(array).flatten()
    assert np.frombuffer(found.buffers()[1], np.uint64).tolist() == bits.tolist()


def test_rows_of_different_sizes_are_packed_and_unpacked() -> None:
    rows: list[Any] = [
        None if n % 7 == 0 else {"tags": ["x" * (n % 5)] * (n % 4), "counts": [(f"k{i}", i) for i in range(n % 3)]}
        for n in range(10_000)
    ]
    array = pa.array(rows, parse_type("struct<tags:array<string>,counts:map<string,long>>"))
    packed = pack(array)
    assert packed.null_count == sum(row is None for row in rows)
    assert pc.count_distinct(packed).as_py() < 500
    assert round_trip(array).equals(array)
