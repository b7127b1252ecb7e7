"""Decoding of PlainBuffer into Arrow: the results of the scalar decoder, and errors for malformed pages."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from headrace.errors import UnsupportedError
from headrace.model.tables.schema import TableSchema
from headrace.testing.effort import thorough
from headrace_tablestore.wire.plainbuffer import cells as cells_module
from headrace_tablestore.wire.plainbuffer import decoding
from headrace_tablestore.wire.plainbuffer import rows as rows_module
from headrace_tablestore.wire.plainbuffer.decoding import Decoded, decode_block, decode_records
from headrace_tablestore.wire.plainbuffer.rows import decode_rows, encode_row, encode_rows
from headrace_tablestore.wire.plainbuffer.values import (
    Cell,
    CellKind,
    CellOp,
    Marker,
    PlainBufferError,
    Row,
    SequenceInfo,
    Value,
)
from tests.tablestore.unit.plainbuffer_samples import SAMPLES, cells, integers, patient, sequences, texts

SCHEMA = TableSchema.of(
    {
        "user": "string",
        "order": "long",
        "a": "string",
        "b": "long",
        "c": "int",
        "d": "short",
        "e": "byte",
        "f": "double",
        "g": "float",
        "h": "boolean",
        "a rather long name": "binary",
    },
    ["user", "order"],
)
_BITS = {pa.int32(): 32, pa.int16(): 16, pa.int8(): 8, pa.int64(): 64}

rows = st.builds(
    Row,
    st.tuples(st.tuples(st.just("user"), texts), st.tuples(st.just("order"), integers)),
    cells(
        st.sampled_from([*SCHEMA.names, "unknown", "", "a rather long nose"]),
        st.none() | st.sampled_from([CellOp.DELETE_ALL, CellOp.DELETE_ONE]),
    ),
    st.booleans(),
    st.none() | sequences,
)


@pytest.fixture
def without_checksums(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every checksum 0, so that damage reaches the code behind the checks."""
    for module in (rows_module, cells_module, decoding):
        for name in ("crc8", "crc8_texts", "crc8_numbers", "crc8_shifted"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, _ZEROS[name])


_ZEROS: dict[str, Callable[..., Any]] = {
    "crc8": lambda data, crc=0: 0,
    "crc8_texts": lambda data, offsets: np.zeros(len(offsets) - 1, dtype=np.uint8),
    "crc8_numbers": lambda numbers: np.zeros(len(numbers), dtype=np.uint8),
    "crc8_shifted": lambda crcs, lengths: np.zeros(len(crcs), dtype=np.uint8),
}


@pytest.fixture(params=[0, 64], ids=["in steps", "one by one"])
def few(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decode by columns, and by a loop over cells."""
    monkeypatch.setattr(decoding, "_FEW", request.param)


def _fitting(value: Value, wanted: pa.DataType) -> Any:
    """Return a value in a column's type, or None if it does not fit; independent of the decoder."""
    if wanted in _BITS and type(value) is int:
        return value if -(2 ** (_BITS[wanted] - 1)) <= value < 2 ** (_BITS[wanted] - 1) else None
    if wanted == pa.float64() and type(value) in (int, float):
        return float(value)  # type: ignore[arg-type]
    if wanted == pa.float32() and type(value) is int:
        return float(np.int64(value).astype(np.float32))
    if wanted == pa.float32() and type(value) is float:
        try:
            return struct.unpack("<f", struct.pack("<f", value))[0]
        except OverflowError:
            return None
    exact = {pa.string(): str, pa.binary(): bytes, pa.bool_(): bool}
    return value if type(value) is exact.get(wanted) else None


def _expected(row: Row) -> tuple[dict[str, Any], dict[str, int]]:
    """Return the columns of a row and the kinds of its attributes."""
    columns: dict[str, Any] = dict.fromkeys(SCHEMA.names) | dict(row.key)
    kinds = {column.name: CellKind.ABSENT for column in SCHEMA.attributes}
    for cell in row.cells:
        if cell.name not in kinds:
            continue
        columns[cell.name] = None
        if cell.op is not None:
            kinds[cell.name] = CellKind[cell.op.name]
            continue
        columns[cell.name] = _fitting(cell.value, SCHEMA.column(cell.name).type)
        kinds[cell.name] = CellKind.MISFIT if columns[cell.name] is None else CellKind.PUT
    return columns, {name: int(kind) for name, kind in kinds.items()}


def _check(decoded: Decoded, wanted: Sequence[Row]) -> None:
    decoded.rows.validate(full=True)
    assert decoded.rows.schema == SCHEMA.changes
    expected = [_expected(row) for row in wanted]
    # As text, because NaN is not equal to itself.
    assert repr(decoded.rows.to_pylist()) == repr([columns for columns, _ in expected])
    for name, kinds in decoded.kinds.items():
        assert kinds.type == pa.int8()
        assert kinds.to_pylist() == [of_row[name] for _, of_row in expected]
    assert decoded.deleted.to_pylist() == [row.delete for row in wanted]
    assert decoded.sequence_timestamps.to_pylist() == [row.sequence.timestamp if row.sequence else 0 for row in wanted]
    assert decoded.row_indexes.to_pylist() == [row.sequence.index if row.sequence else 0 for row in wanted]
    known = {column.name for column in SCHEMA.attributes}
    assert decoded.others.to_pylist() == [any(cell.name not in known for cell in row.cells) for row in wanted]


@patient
@given(st.lists(rows, max_size=12))
def test_records_match_the_scalar_decoder(given: list[Row]) -> None:
    for few in (0, 64):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(decoding, "_FEW", few)
            _check(decode_records([encode_row(row) for row in given], SCHEMA), given)


_NULL_IN_A_SHORT_ROW = [
    Row((("user", ""), ("order", 0)), (Cell("a", None),)),
    Row((("user", ""), ("order", 0)), ()),
]


@patient
@example(_NULL_IN_A_SHORT_ROW)
@given(st.lists(rows, max_size=12))
def test_a_block_matches_the_scalar_decoder(given: list[Row]) -> None:
    _check(decode_block(encode_rows(given), SCHEMA), given)


_KEY = (("user", "u"), ("order", 1))


def _cells_of(*cells: Cell) -> dict[str, Any]:
    decoded = decode_records([encode_row(Row(_KEY, cells))], SCHEMA)
    kinds = {name: CellKind(kinds[0].as_py()) for name, kinds in decoded.kinds.items()}
    found = decoded.rows.to_pylist()[0]
    return {name: (kinds[name].name, found[name]) for name in kinds if kinds[name] != CellKind.ABSENT}


def test_samples_of_the_official_sdks_are_decoded() -> None:
    schema = TableSchema.of({"pk": "string", "c1": "string", "c2": "long", "c3": "double"}, "pk")
    names = ["put", "update", "delete", "record of a put", "record of an update"]
    decoded = decode_records([SAMPLES[name][1] for name in names], schema)
    assert decoded.rows.column("pk").to_pylist() == ["a"] * 5
    assert decoded.rows.column("c1").to_pylist() == ["v", None, None, "v", None]
    assert decoded.kinds["c1"].to_pylist() == [1, 4, 0, 1, 4]
    assert decoded.kinds["c2"].to_pylist() == [0, 2, 0, 0, 2]
    assert decoded.kinds["c3"].to_pylist() == [0, 3, 0, 0, 3]
    assert decoded.deleted.to_pylist() == [False, False, True, False, False]
    assert decoded.sequence_timestamps.to_pylist() == [0, 0, 0, 1700000000000000, 1700000000001000]
    assert decoded.row_indexes.to_pylist() == [0, 0, 0, 0, 1]


def test_the_example_of_the_manual_is_decoded() -> None:
    columns = {"pk1": "string", "pk2": "long", "column1": "string", "column2": "int", "column3": "double"}
    schema = TableSchema.of(columns, ["pk1", "pk2"])
    decoded = decode_block(SAMPLES["example of the manual"][1], schema)
    assert list(decoded.rows.to_pylist()[0].values()) == ["iampk", 100, "bad", 128, 34.2]


def test_the_last_cell_of_a_column_counts(few: None) -> None:
    assert _cells_of(Cell("b", 1), Cell("b", 2)) == {"b": ("PUT", 2)}
    assert _cells_of(Cell("a", "x"), Cell("a", op=CellOp.DELETE_ALL)) == {"a": ("DELETE_ALL", None)}
    assert _cells_of(Cell("a", op=CellOp.DELETE_ONE, timestamp=1), Cell("a", "x")) == {"a": ("PUT", "x")}


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("b", 2**63 - 1, ("PUT", 2**63 - 1)),
        ("b", 1.0, ("MISFIT", None)),
        ("b", True, ("MISFIT", None)),
        ("c", -(2**31), ("PUT", -(2**31))),
        ("c", 2**31, ("MISFIT", None)),
        ("e", 128, ("MISFIT", None)),
        ("f", 5, ("PUT", 5.0)),
        ("f", float("inf"), ("PUT", float("inf"))),
        ("g", 1.5, ("PUT", 1.5)),
        ("g", 1e39, ("MISFIT", None)),
        ("h", 1, ("MISFIT", None)),
        ("a", b"x", ("MISFIT", None)),
        ("a", "", ("PUT", "")),
        ("a rather long name", "x", ("MISFIT", None)),
        ("a", Marker.INF_MIN, ("MISFIT", None)),
        ("b", None, ("MISFIT", None)),
        ("unknown", 1, None),
        ("order", 1, None),
    ],
)
def test_a_value_that_does_not_fit_its_column_is_a_misfit(few: None, name: str, value: Value, found: Any) -> None:
    assert _cells_of(Cell(name, value)) == ({} if found is None else {name: found})


def test_empty_messages_have_no_rows() -> None:
    for decoded in (decode_records([], SCHEMA), decode_block(b"", SCHEMA)):
        _check(decoded, [])


def test_a_value_can_look_like_the_start_of_a_row() -> None:
    row = Row(_KEY, (Cell("a rather long name", encode_row(Row(_KEY)) + encode_row(Row(_KEY), header=False)),))
    given = [row, Row(_KEY), row]
    _check(decode_block(encode_rows(given), SCHEMA), given)


def test_rows_with_different_columns_are_decoded() -> None:
    names = [column.name for column in SCHEMA.attributes] + [f"other {number}" for number in range(50)]
    given = [
        Row(
            (("user", str(number)), ("order", number)),
            tuple(Cell(name, number % 100) for name in names[number % 7 :: 3]),
        )
        for number in range(500)
    ]
    _check(decode_records([encode_row(row) for row in given], SCHEMA), given)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (Row((("user", "u"),)), "no cell of key column 'order'"),
        (Row((*_KEY, ("third", 1))), "more key cells"),
        (Row((("user", "u"), ("Order", 1))), "another key column instead of 'order'"),
        (Row((("user", "u"), ("order", "1"))), "a value of another type in key column 'order'"),
        (Row((("user", Marker.INF_MIN), ("order", 1))), "a value of another type in key column 'user'"),
        (Row((("user", "u"), ("order", None))), "a value of another type in key column 'order'"),
        (Row(_KEY, (Cell("b", 1, op=CellOp.INCREMENT),)), "an unexpected increment"),
    ],
)
def test_an_error_names_the_record_that_does_not_fit_the_table(row: Row, problem: str) -> None:
    fine = encode_row(Row(_KEY, (Cell("b", 1),)))
    with pytest.raises(PlainBufferError, match=f"of record 1: {problem}"):
        decode_records([fine, encode_row(row), fine], SCHEMA)
    with pytest.raises(PlainBufferError, match=problem):
        decode_block(encode_rows([Row(_KEY), row]), SCHEMA)


@pytest.mark.parametrize("name", ["a", "user"])
def test_a_string_that_is_not_utf_8_is_an_error(name: str, without_checksums: None) -> None:
    text: dict[str, Value] = {"a": "u", "user": "u"} | {name: b"\xff"}
    data = encode_row(Row((("user", text["user"]), ("order", 1)), (Cell("a", text["a"]),)))
    as_string = data.replace(b"\7\1\0\0\0\xff", b"\3\1\0\0\0\xff")
    with pytest.raises(PlainBufferError, match=f"a string of column '{name}' that is not UTF-8"):
        decode_records([as_string], SCHEMA)


def test_a_column_of_an_unsupported_type_is_refused() -> None:
    schema = TableSchema.of({"id": "long", "day": "date"}, "id")
    with pytest.raises(UnsupportedError, match="'day'"):
        decode_records([], schema)
    with pytest.raises(UnsupportedError, match="'day'"):
        decode_block(b"", schema)


_SEEDS = [row for row, _ in SAMPLES.values()] + [
    Row(
        _KEY,
        (Cell("a", "text", timestamp=5), Cell("b", 7, timestamp=5), Cell("h", True)),
        sequence=SequenceInfo(0, 9, 1),
    ),
    Row(_KEY, (Cell("a", op=CellOp.DELETE_ALL), Cell("unknown", b"\0" * 20), Cell("f", 0.5)), delete=True),
    Row(_KEY, (Cell("c", 1, timestamp=1), Cell("c", op=CellOp.DELETE_ONE, timestamp=2), Cell("e", None))),
]


@st.composite
def _broken(draw: st.DrawFn) -> bytes:
    """A message with some bytes changed, inserted, removed, or copied from another message."""
    data = bytearray(encode_rows(draw(st.lists(st.sampled_from(_SEEDS), min_size=1, max_size=2))))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        match draw(st.integers(0, 4)):
            case 0:
                data[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
            case 1:
                data[at:at] = draw(st.binary(max_size=9))
            case 2:
                del data[at : at + draw(st.integers(1, 9))]
            case 3:
                number = draw(st.sampled_from([0, 1, 4, 5, 2**31 - 1, 2**31, 2**32 - 1]))
                data[at : at + 4] = number.to_bytes(4, "little")
            case 4:
                other = encode_row(draw(st.sampled_from(_SEEDS)))
                begin = draw(st.integers(0, len(other)))
                data[at:at] = other[begin : begin + draw(st.integers(0, 40))]
    return bytes(data)


def _judge(data: bytes) -> None:
    """Check that both decoders agree on a message, and raise only PlainBufferError."""
    told = ""
    wanted: list[Row] | None = None
    try:
        wanted = decode_rows(data)
    except PlainBufferError as error:
        told = error.problem
    if wanted is not None and not all(_belongs(row) for row in wanted):
        wanted = None
    try:
        _agree(decode_block(data, SCHEMA), wanted, told)
    except PlainBufferError:
        assert wanted is None
    fine = Row(_KEY, (Cell("a", "fine"),))
    wanted = None if wanted is None or len(wanted) != 1 else [fine, wanted[0], fine]
    try:
        _agree(decode_records([encode_row(fine), data, encode_row(fine)], SCHEMA), wanted, told)
    except PlainBufferError:
        assert wanted is None


def _agree(decoded: Decoded, wanted: list[Row] | None, told: str) -> None:
    # Texts that are not returned are not checked.
    assert wanted is not None or "UTF-8" in told
    if wanted is not None:
        _check(decoded, wanted)


def _belongs(row: Row) -> bool:
    fits = [(name, type(value)) for name, value in row.key] == [("user", str), ("order", int)]
    return fits and all(cell.op != CellOp.INCREMENT for cell in row.cells)


@settings(deadline=None, max_examples=thorough(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=_broken())
def test_malformed_bytes_raise_plainbuffer_errors(few: None, data: bytes) -> None:
    _judge(data)


@settings(deadline=None, max_examples=thorough(300), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_malformed_bytes_with_valid_checksums_raise_plainbuffer_errors(
    few: None, without_checksums: None, data: st.DataObject
) -> None:
    _judge(data.draw(_broken()))
