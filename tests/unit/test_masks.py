"""Masks of columns: what they make of values, and which types they fit."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import OptionError
from headrace.model.tunnels.masks import VALID, Mask, parse_masks

KEY = b"k" * 32


def applied(text: str, values: list[object], data_type: pa.DataType) -> list[object]:
    mask = Mask.parse("c", text)
    found = mask.applied(pa.array(values, data_type), KEY) if mask.reads else mask.repeated("c", len(values), data_type)
    assert found.type == mask.type_of("c", data_type)
    return list(found.to_pylist())


@pytest.mark.parametrize(
    ("text", "data_type", "values", "expected"),
    [
        ("null", pa.int32(), [1, None], [None, None]),
        ("constant(-7)", pa.int32(), [1, None], [-7, -7]),
        ("constant()", pa.string(), ["a", None], ["", ""]),
        ("constant(a (b)\n)", pa.string(), ["x"], ["a (b)\n"]),
        ("first(2)", pa.string(), ["äöü", "x", "", None], ["äö", "x", "", None]),
        (" last(2) ", pa.string(), ["äöü", "x", "", None], ["öü", "x", "", None]),
    ],
)
def test_masks_have_their_values(text: str, data_type: pa.DataType, values: list[object], expected: object) -> None:
    assert applied(text, values, data_type) == expected


@given(st.lists(st.none() | st.text()), st.binary(min_size=16, max_size=64))
def test_hashes_are_equal_for_equal_values_only(values: list[str | None], key: bytes) -> None:
    found = Mask.parse("c", "hash").applied(pa.array(values, pa.string()), key).to_pylist()
    assert [each is None for each in found] == [each is None for each in values]
    assert len(set(found)) == len(set(values))
    assert all(each is None or len(each) == 32 for each in found)
    other = Mask.parse("c", "hash").applied(pa.array(values, pa.string()), key + b"." if len(key) < 64 else b"x" * 16)
    assert not set(found) & set(other.to_pylist()) - {None}


def test_a_hash_is_the_same_in_each_release_and_for_a_number_and_its_text() -> None:
    expected = ["f4593b6943ee1ec3156cd0b9f7fef85c", None]
    assert applied("hash", ["42", None], pa.string()) == expected
    assert applied("hash", [42, None], pa.int64()) == applied("hash", [b"42", None], pa.binary()) == expected


@pytest.mark.parametrize(
    "text", ["", "sha256", "first", "first()", "first(0)", "last(-1)", "constant", "hash(1)", "null)", 5, None]
)
def test_other_texts_are_no_masks(text: object) -> None:
    with pytest.raises(OptionError, match="unknown mask of column 'c'") as caught:
        parse_masks({"c": text})
    assert str(VALID[1]) in str(caught.value)
    with pytest.raises(OptionError, match="option mask"):
        parse_masks([text])


@pytest.mark.parametrize(
    ("text", "data_type"),
    [
        ("hash", pa.float64()),
        ("hash", pa.list_(pa.string())),
        ("first(2)", pa.int32()),
        ("last(2)", pa.binary()),
        ("constant(x)", pa.int32()),
        ("constant(300)", pa.int8()),
        ("constant(1)", pa.list_(pa.int32())),
    ],
)
def test_a_mask_fits_its_column(text: str, data_type: pa.DataType) -> None:
    with pytest.raises(OptionError, match="column 'c'"):
        Mask.parse("c", text).type_of("c", data_type)
