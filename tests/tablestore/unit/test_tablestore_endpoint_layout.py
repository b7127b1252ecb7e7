"""The layout of Tablestore's rows in tables of typed columns keeps types and timestamps."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import UnsupportedError
from headrace.model.tables.conditions import KeyRange
from headrace.model.tables.schema import TableSchema
from headrace_tablestore.endpoint.rows.keys import range_of
from headrace_tablestore.endpoint.rows.layout import (
    HIDDEN_COLUMNS,
    CellType,
    CellVersion,
    RowState,
    cell_timestamps,
    cell_type,
    layout_of,
    states_of,
    whole_row,
)
from headrace_tablestore.endpoint.rows.reading import Selection, select
from headrace_tablestore.wire.errors import ServiceError
from headrace_tablestore.wire.plainbuffer.rows import decode_row, decode_rows, encode_row
from headrace_tablestore.wire.plainbuffer.values import Cell, Marker, Row

NOW = 1_700_000_000_000
CELLS = st.dictionaries(
    st.sampled_from(["a", "b", "c"]),
    st.builds(
        CellVersion,
        st.one_of(
            st.integers(-(2**63), 2**63 - 1),
            st.floats(allow_nan=False),
            st.booleans(),
            st.text(max_size=5),
            st.binary(max_size=5),
        ),
        st.sampled_from([NOW, NOW - 5, NOW + 7]),
    ),
)


def schema_with(cells: list[tuple[str, CellType]]) -> TableSchema:
    schema = TableSchema.of({"k": "long", **HIDDEN_COLUMNS}, "k")
    return schema.with_columns(layout_of(schema).missing(cells))


def stored(rows: list[dict[str, CellVersion]]) -> tuple[pa.RecordBatch, TableSchema]:
    """Return rows in the columns of the table."""
    kinds = [(name, cell_type(held.value)) for row in rows for name, held in row.items()]
    schema = schema_with([(name, kind) for name, kind in kinds if kind is not None])
    layout = layout_of(schema)
    whole = [{"k": number, **whole_row(row, layout, NOW)} for number, row in enumerate(rows)]
    return pa.RecordBatch.from_pylist(whole, schema=schema.arrow), schema


@settings(deadline=None)
@given(st.lists(CELLS, max_size=5))
def test_rows_are_read_as_they_were_written(rows: list[dict[str, CellVersion]]) -> None:
    batch, schema = stored(rows)
    layout = layout_of(schema)
    assert states_of(batch, [True] * len(rows), layout, NOW) == [RowState(row, NOW) for row in rows]
    sent = select(batch, layout, Selection(), NOW)
    expected = [
        Row((("k", number),), tuple(Cell(name, row[name].value, None, row[name].timestamp) for name in sorted(row)))
        for number, row in enumerate(rows)
    ]
    assert decode_rows(sent.block()) == expected
    assert [decode_row(data) for data in sent.each()] == expected


def test_each_type_of_a_name_has_its_own_column() -> None:
    layout = layout_of(schema_with([("a", CellType.STRING), ("a", CellType.INTEGER), ("b", CellType.DOUBLE)]))
    assert {column.name: str(column.type) for column in layout.schema.attributes} == {
        ":timestamp": "int64",
        ":timestamps": "binary",
        "a": "string",
        "a:INTEGER": "int64",
        "b": "double",
    }
    assert layout.of_cell["a", CellType.INTEGER].column == "a:INTEGER"
    assert [each.column for each in layout.of_name["a"]] == ["a", "a:INTEGER"]
    assert layout.missing([("a", CellType.INTEGER), ("b", CellType.DOUBLE)]) == {}


def test_a_table_of_headrace_has_narrower_columns_and_no_timestamps() -> None:
    schema = TableSchema.of({"k": "string", "n": "int", "x": "float", "t": "string"}, "k")
    layout = layout_of(schema)
    assert layout.of_cell["n", CellType.INTEGER].column == "n"
    assert layout.of_cell["x", CellType.DOUBLE].column == "x"
    rows = pa.RecordBatch.from_pylist([{"k": "a", "n": 1, "x": 0.5}], schema=schema.arrow)
    assert cell_timestamps(rows, layout, NOW)["n"].tolist() == [NOW]
    (row,) = decode_rows(select(rows, layout, Selection(), NOW).block())
    assert row.cells == (Cell("n", 1, None, NOW), Cell("x", 0.5, None, NOW))


def test_a_column_without_a_wire_type_is_an_error_only_if_requested() -> None:
    schema = TableSchema.of({"k": "string", "n": "int", "d": "decimal(10,2)"}, "k")
    layout = layout_of(schema)
    with pytest.raises(UnsupportedError, match="'d'"):
        Selection().needed(layout)
    assert Selection(columns=frozenset({"n"})).needed(layout) == ["k", "n"]


def selected(rows: list[dict[str, CellVersion]], **wanted: Any) -> dict[int, list[str]]:
    """Return the names of the selected cells, by row."""
    batch, schema = stored(rows)
    sent = decode_rows(select(batch, layout_of(schema), Selection(**wanted), NOW).block())
    return {int(str(row.key[0][1])): [cell.name for cell in row.cells] for row in sent}


def test_rows_without_a_requested_column_are_omitted_unless_the_key_is_requested() -> None:
    rows = [{"a": CellVersion(1, NOW)}, {"b": CellVersion(1, NOW)}, {}]
    assert selected(rows) == {0: ["a"], 1: ["b"], 2: []}
    assert selected(rows, columns=frozenset({"a"})) == {0: ["a"]}
    assert selected(rows, columns=frozenset({"a", "k"})) == {0: ["a"], 1: [], 2: []}
    assert selected(rows, first="b") == {1: ["b"]}
    assert selected(rows, end="b") == {0: ["a"]}


def test_a_time_range_selects_cells_and_keeps_the_keys_of_other_rows() -> None:
    rows = [{"a": CellVersion(1, NOW), "b": CellVersion(2, NOW - 5)}, {"b": CellVersion(1, NOW - 5)}, {}]
    assert selected(rows, oldest=NOW) == {0: ["a"], 1: [], 2: []}
    assert selected(rows, newest=NOW) == {0: ["b"], 1: ["b"], 2: []}
    assert selected(rows, oldest=NOW + 1) == {0: [], 1: [], 2: []}
    assert selected(rows, oldest=NOW, columns=frozenset({"b"})) == {}


def test_a_row_with_only_expired_cells_is_not_returned() -> None:
    rows = [{"a": CellVersion(1, NOW), "b": CellVersion(2, NOW - 5)}, {"b": CellVersion(1, NOW - 5)}, {}]
    assert selected(rows, oldest=NOW - 4, expired_before=NOW - 4) == {0: ["a"], 2: []}


def key(*values: Any) -> bytes:
    return encode_row(Row(tuple(zip(("a", "b"), values, strict=True))))


SCHEMA = TableSchema.of({"a": "string", "b": "long"}, ["a", "b"])
LOW, HIGH = Marker.INF_MIN, Marker.INF_MAX


@pytest.mark.parametrize(
    ("start", "end", "backward", "expected"),
    [
        (key(LOW, LOW), key(HIGH, HIGH), False, KeyRange(None, None)),
        (key("x", 1), key("x", 5), False, KeyRange(("x", 1), ("x", 5))),
        (key("x", LOW), key("x", HIGH), False, KeyRange(("x",), ("x\0",))),
        (key("x", HIGH), key("y", LOW), False, KeyRange(("x\0",), ("y",))),
        (key(HIGH, LOW), key(HIGH, HIGH), False, None),
        (key(HIGH, HIGH), key(LOW, LOW), True, KeyRange(None, None)),
        (key("x", 5), key("x", 1), True, KeyRange(("x", 2), ("x", 6))),
        (key("x", HIGH), key("x", LOW), True, KeyRange(("x",), ("x\0",))),
        (key("x", 2**63 - 1), key("a", 2**63 - 1), True, KeyRange(("a\0",), ("x\0",))),
    ],
)
def test_bounds_become_key_ranges(start: bytes, end: bytes, backward: bool, expected: KeyRange | None) -> None:
    assert range_of(start, end, SCHEMA, backward=backward) == expected


@pytest.mark.parametrize(
    ("start", "end", "backward", "code"),
    [
        (key("y", 1), key("x", 5), False, "OTSParameterInvalid"),
        (key("x", 1), key("y", 5), True, "OTSParameterInvalid"),
        (key("x", 1), key("x", 1), False, "OTSParameterInvalid"),
        (key("x", 1), key("x", 1), True, "OTSParameterInvalid"),
        (key("x", LOW), key("x", LOW), False, "OTSParameterInvalid"),
        (key(HIGH, HIGH), key(HIGH, HIGH), True, "OTSParameterInvalid"),
        (key("x", HIGH), key("x", LOW), False, "OTSParameterInvalid"),
        (key("x", "1"), key("y", 5), False, "OTSInvalidPK"),
        (encode_row(Row((("a", "x"),))), key("y", 5), False, "OTSInvalidPK"),
        (key("x" * 1025, 1), key("y", 5), False, "OTSParameterInvalid"),
        (key("x", Marker.AUTO_INCREMENT), key("y", 5), False, "OTSParameterInvalid"),
    ],
)
def test_invalid_bounds_are_refused(start: bytes, end: bytes, backward: bool, code: str) -> None:
    with pytest.raises(ServiceError) as caught:
        range_of(start, end, SCHEMA, backward=backward)
    assert caught.value.code == code
