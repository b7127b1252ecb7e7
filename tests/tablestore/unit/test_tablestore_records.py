"""The positions of the rows in the records of a page."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_tablestore.wire import tunnel_pb2 as pb
from headrace_tablestore.wire.records import places_of

_RECORDS = st.builds(
    lambda action, row, origin: pb.Record(action_type=action, record=row, origin_record=origin),
    st.sampled_from([pb.PUT_ROW, pb.UPDATE_ROW, pb.DELETE_ROW]),
    st.binary(max_size=300),
    st.none() | st.binary(max_size=5),
)


@given(st.lists(_RECORDS, max_size=9))
def test_positions_of_rows_match_protobuf(records: list[pb.Record]) -> None:
    written = [record.SerializeToString() for record in records]
    places = places_of(written)
    assert places is not None
    assert places.actions.tolist() == [record.action_type for record in records]
    rows = [
        data[first : first + length]
        for data, first, length in zip(written, places.offsets, places.lengths, strict=True)
    ]
    assert rows == [record.record for record in records]


@pytest.mark.parametrize("size", [0, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152])
def test_lengths_with_any_number_of_digits_are_read(size: int) -> None:
    places = places_of([pb.Record(action_type=pb.PUT_ROW, record=bytes(size)).SerializeToString()])
    assert places is not None
    assert places.lengths.tolist() == [size]


@pytest.mark.parametrize(
    "unusual",
    [
        b"",
        b"\x12\x01a\x08\x01",
        b"\x08\x01",
        b"\x08\x01\x12",
        b"\x08\x01\x12\x05abc",
        b"\x08\x09\x12\x01a",
        b"\x08\x01\x12\x80\x80\x80\x80\x80\x01",
        b"\x08\x01\x12\x01a\x12\x01b",
    ],
)
def test_a_record_with_an_unusual_order_of_fields_is_left_to_protobuf(unusual: bytes) -> None:
    usual = pb.Record(action_type=pb.PUT_ROW, record=b"a").SerializeToString()
    assert places_of([usual, unusual, usual]) is None


@given(st.lists(st.binary(max_size=20), max_size=5))
def test_positions_never_exceed_the_record(records: list[bytes]) -> None:
    places = places_of(records)
    if places is not None:
        sizes = np.array([len(record) for record in records], np.int64)
        assert (places.offsets + places.lengths <= sizes).all()
