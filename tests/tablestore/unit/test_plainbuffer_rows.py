"""Single PlainBuffer rows: the bytes of the official SDKs, and errors for malformed input."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import HeadraceError
from headrace_tablestore.wire.plainbuffer import checksum
from headrace_tablestore.wire.plainbuffer.rows import (
    decode_row,
    decode_rows,
    decode_value,
    encode_row,
    encode_rows,
    encode_value,
)
from headrace_tablestore.wire.plainbuffer.values import Cell, CellOp, Marker, PlainBufferError, Row, SequenceInfo, Value
from tests.tablestore.unit.plainbuffer_samples import SAMPLES, patient, rows, values

sampled = pytest.mark.parametrize(("row", "data"), SAMPLES.values(), ids=SAMPLES)


@sampled
def test_encoded_rows_match_the_official_sdks(row: Row, data: bytes) -> None:
    assert encode_row(row) == data
    assert encode_row(row, header=False) == data[4:]


@sampled
def test_rows_of_the_official_sdks_are_decoded(row: Row, data: bytes) -> None:
    assert decode_row(data) == row


def test_rows_follow_one_header() -> None:
    every = [row for row, _ in SAMPLES.values()]
    data = encode_rows(every)
    assert data == b"u\0\0\0" + b"".join(data[4:] for _, data in SAMPLES.values())
    assert decode_rows(data) == every


def test_no_rows_have_no_bytes() -> None:
    assert encode_rows([]) == b""
    assert decode_rows(b"") == []


@patient
@given(st.lists(rows, max_size=4))
def test_rows_survive_encoding_and_decoding(given: list[Row]) -> None:
    assert decode_rows(encode_rows(given)) == given


@patient
@given(values)
def test_values_survive_encoding_and_decoding(value: Value) -> None:
    decoded = decode_value(encode_value(value))
    assert decoded == value
    assert type(decoded) is type(value)


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (1, "000100000000000000"),
        (True, "0201"),
        (1.0, "01000000000000f03f"),
        ("a", "030100000061"),
        (b"a", "070100000061"),
        (None, "06"),
        (Marker.INF_MIN, "09"),
        (Marker.INF_MAX, "0a"),
        (Marker.AUTO_INCREMENT, "0b"),
    ],
)
def test_the_python_type_determines_the_type_on_the_wire(value: Value, data: str) -> None:
    assert encode_value(value).hex() == data


def test_null_is_decoded_as_none() -> None:
    cell = bytes.fromhex("0304020000006331 0501000000 06 0a")
    crc = checksum.crc8(b"c1\x06")
    row_crc = checksum.crc8(bytes([crc, 0]))
    data = bytes.fromhex("75000000 01 02") + cell + bytes([crc, 0x09, row_crc])
    assert decode_row(data) == Row((), (Cell("c1"),))


@pytest.mark.parametrize(
    "row",
    [
        Row((("pk", 2**63),)),
        Row((("pk", "\ud800"),)),
        Row((("\ud800", 1),)),
        Row((("pk", 1),), (Cell("c", 1, timestamp=2**63),)),
        Row((("pk", 1),), sequence=SequenceInfo(0, 0, 2**31)),
        Row((("pk", [1]),)),  # type: ignore[arg-type]
    ],
)
def test_values_outside_the_format_are_refused(row: Row) -> None:
    with pytest.raises(PlainBufferError):
        encode_row(row)


def test_an_error_names_the_offset() -> None:
    _, data = SAMPLES["put"]
    with pytest.raises(PlainBufferError, match="byte 25: wrong checksum of a cell"):
        decode_row(data[:25] + b"\0" + data[26:])
    with pytest.raises(PlainBufferError, match="byte 4: tag 0x02 instead of 0x01"):
        decode_row(data[:4] + b"\2" + data[5:])
    assert issubclass(PlainBufferError, HeadraceError)


def test_decode_row_refuses_other_numbers_of_rows() -> None:
    row, data = SAMPLES["put"]
    with pytest.raises(PlainBufferError, match="0 rows"):
        decode_row(b"")
    with pytest.raises(PlainBufferError, match="2 rows"):
        decode_row(encode_rows([row, row]))
    with pytest.raises(PlainBufferError):
        decode_row(data + b"\0\1")


@pytest.mark.parametrize("name", SAMPLES)
def test_zero_bytes_may_follow_one_row(name: str) -> None:
    """The JavaScript client reserves too many bytes for infinities, numbered keys and timestamps."""
    row, data = SAMPLES[name]
    assert decode_row(data + b"\0" * 3) == row
    with pytest.raises(PlainBufferError):
        decode_rows(data + b"\0")


def test_a_key_cell_has_only_a_value() -> None:
    cells = encode_row(Row((), (Cell("pk", 1, timestamp=5),)), header=False)
    as_key = b"u\0\0\0\1" + cells[2:]
    with pytest.raises(PlainBufferError, match="key cell"):
        decode_row(as_key)


@pytest.mark.parametrize(
    "data",
    [
        "",
        "00",
        "000100000000000000ff",
        "0202",
        "0301000000",
        "03ffffffff61",
        "0300000000ff",
        "03010000 00ff",
        "04",
        "ff",
    ],
)
def test_a_malformed_value_is_an_error(data: str) -> None:
    with pytest.raises(PlainBufferError):
        decode_value(bytes.fromhex(data))


@pytest.mark.parametrize("at", [7, 14, 19], ids=["of a name", "of a value", "of a text"])
def test_a_false_length_is_an_error_and_allocates_nothing(at: int) -> None:
    _, data = SAMPLES["key"]
    assert int.from_bytes(data[at : at + 4], "little") < 10
    with pytest.raises(PlainBufferError, match="byte"):
        decode_row(data[:at] + b"\xff\xff\xff\xff" + data[at + 4 :])


@patient
@given(st.sampled_from(sorted(SAMPLES)), st.data())
def test_a_truncated_row_is_an_error(name: str, data: st.DataObject) -> None:
    _, message = SAMPLES[name]
    at = data.draw(st.integers(0, len(message) - 1))
    with pytest.raises(PlainBufferError):
        decode_row(message[:at])


def _plain_crc8(data: bytes) -> int:
    crc = 0
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc << 1) ^ (0x107 if crc & 0x80 else 0)
    return crc


def test_the_checksum_is_crc_8() -> None:
    assert checksum.crc8(b"123456789") == 0xF4


@patient
@given(st.binary(max_size=400), st.binary(max_size=400))
def test_a_checksum_can_be_continued(one: bytes, other: bytes) -> None:
    assert checksum.crc8(one + other) == _plain_crc8(one + other) == checksum.crc8(other, checksum.crc8(one))


@patient
@given(st.lists(st.binary(max_size=300)), st.binary(max_size=5))
def test_checksums_of_texts_match_single_checksums(texts: list[bytes], before: bytes) -> None:
    data = np.frombuffer(before + b"".join(texts), dtype=np.uint8)
    offsets = np.cumsum([len(before), *map(len, texts)])
    assert checksum.crc8_texts(data, offsets).tolist() == [_plain_crc8(text) for text in texts]


def test_the_checksum_of_a_text_longer_than_a_block() -> None:
    text = bytes(range(256)) * 300
    assert checksum.crc8(text) == _plain_crc8(text)


@patient
@given(st.lists(st.integers(0, 2**64 - 1)), st.sampled_from(["u1", "<u2", "<u4", "<u8"]))
def test_checksums_of_numbers_match_those_of_their_bytes(numbers: list[int], width: str) -> None:
    array = np.array(numbers, dtype=np.uint64).astype(width)
    assert checksum.crc8_numbers(array).tolist() == [_plain_crc8(number.tobytes()) for number in array]


@patient
@given(st.binary(max_size=50), st.binary(max_size=300))
def test_a_shifted_checksum_can_be_continued(one: bytes, other: bytes) -> None:
    crc = np.array([checksum.crc8(one)], dtype=np.uint8)
    wanted = [_plain_crc8(one + other)]
    assert (checksum.crc8_shifted(crc, len(other)) ^ np.uint8(_plain_crc8(other))).tolist() == wanted


def test_operations_have_the_codes_of_the_format() -> None:
    assert [int(op) for op in CellOp] == [1, 3, 4]
