"""Encoding of Arrow into PlainBuffer: the bytes of the scalar encoder, and of the official SDKs."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import SchemaError, UnsupportedError
from headrace.model.tables.changes import DELETES, ChangeOp, Changes
from headrace.model.tables.schema import TableSchema
from headrace_tablestore.wire.plainbuffer.decoding import decode_records
from headrace_tablestore.wire.plainbuffer.encoding import (
    check_schema,
    encode_block,
    encode_deletes,
    encode_puts,
    encode_records,
    encode_updates,
)
from headrace_tablestore.wire.plainbuffer.rows import encode_row, encode_rows
from headrace_tablestore.wire.plainbuffer.values import Cell, CellOp, Row, SequenceInfo
from tests.tablestore.unit.plainbuffer_samples import SAMPLES, doubles, integers, patient, texts

SCHEMA = TableSchema.of(
    {
        "a": "string",
        "user": "string",
        "b": "long",
        "order": "long",
        "c": "byte",
        "f": "double",
        "g": "float",
        "h": "boolean",
        "i": "binary",
    },
    ["user", "order"],
)
_VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.string(): texts,
    pa.int64(): integers,
    pa.int8(): st.integers(-128, 127),
    pa.float64(): doubles,
    pa.float32(): st.floats(allow_nan=False, width=32),
    pa.bool_(): st.booleans(),
    pa.binary(): st.binary(max_size=200),
}


@st.composite
def batches(draw: st.DrawFn) -> pa.RecordBatch:
    """Rows of the schema, sometimes a slice of a larger batch, in columns with no, some or only nulls."""
    count = draw(st.integers(0, 6))
    columns = []
    for column in SCHEMA.changes:
        value = _VALUES[column.type]
        kind = draw(st.sampled_from(["full", "some", "none"])) if column.nullable else "full"
        value = {"full": value, "some": st.none() | value, "none": st.none()}[kind]
        columns.append(pa.array(draw(st.lists(value, min_size=count, max_size=count)), type=column.type))
    batch = pa.RecordBatch.from_arrays(columns, schema=SCHEMA.changes)
    return batch.slice(draw(st.integers(0, count)))


def _marks(count: int) -> st.SearchStrategy[list[bool | None]]:
    return st.lists(st.sampled_from([True, False, None]), min_size=count, max_size=count)


@st.composite
def written(draw: st.DrawFn, count: int) -> dict[str, pa.BooleanArray] | None:
    """The written cells of updates, for some attributes."""
    names = draw(st.none() | st.sets(st.sampled_from([column.name for column in SCHEMA.attributes])))
    return None if names is None else {name: pa.array(draw(_marks(count)), type=pa.bool_()) for name in sorted(names)}


def _is_written(marks: Mapping[str, pa.BooleanArray] | None, name: str, place: int) -> bool:
    return marks is None or name not in marks or marks[name][place].as_py() is not False


def _row(
    values: Mapping[str, Any],
    cells: list[Cell],
    *,
    delete: bool = False,
    sequence: SequenceInfo | None = None,
) -> Row:
    return Row(tuple((name, values[name]) for name in SCHEMA.primary_key), tuple(cells), delete, sequence)


def _puts(values: Mapping[str, Any], timestamp: int | None) -> list[Cell]:
    names = [column.name for column in SCHEMA.attributes]
    return [Cell(name, values[name], timestamp=timestamp) for name in names if values[name] is not None]


def _updates(
    values: Mapping[str, Any],
    marks: Mapping[str, pa.BooleanArray] | None,
    place: int,
    timestamp: int | None,
    deletes: bool,
) -> list[Cell]:
    cells = []
    for column in SCHEMA.attributes:
        if not _is_written(marks, column.name, place):
            continue
        if values[column.name] is not None:
            cells.append(Cell(column.name, values[column.name], timestamp=timestamp))
        elif deletes:
            cells.append(Cell(column.name, op=CellOp.DELETE_ALL))
    return cells


@patient
@given(batches(), st.none() | integers)
def test_puts_and_blocks_match_the_scalar_encoder(batch: pa.RecordBatch, timestamp: int | None) -> None:
    rows = [_row(values, _puts(values, timestamp)) for values in batch.to_pylist()]
    assert encode_puts(batch, SCHEMA, timestamps=timestamp) == [encode_row(row) for row in rows]
    assert encode_block(batch, SCHEMA, timestamps=timestamp) == encode_rows(rows)


@patient
@given(st.data(), batches(), st.booleans())
def test_updates_match_the_scalar_encoder(data: st.DataObject, batch: pa.RecordBatch, deletes: bool) -> None:
    marks = data.draw(written(batch.num_rows))
    encoded = encode_updates(batch, SCHEMA, marks, timestamps=5, deletes_nulls=deletes)
    for place, values in enumerate(batch.to_pylist()):
        assert encoded[place] == encode_row(_row(values, _updates(values, marks, place, 5, deletes)))
    assert len(encoded) == batch.num_rows


@patient
@given(batches())
def test_deletes_match_the_scalar_encoder(batch: pa.RecordBatch) -> None:
    assert encode_deletes(batch, SCHEMA) == [encode_row(_row(values, [], delete=True)) for values in batch.to_pylist()]


@st.composite
def changes(draw: st.DrawFn) -> Changes:
    """Consecutive changes with any operations."""
    batch = draw(batches())
    count = batch.num_rows
    ops = draw(st.lists(st.sampled_from(sorted(set(ChangeOp) - {ChangeOp.TRUNCATE})), min_size=count, max_size=count))
    times = sorted(draw(st.lists(st.integers(0, 3), min_size=count, max_size=count)))
    numbers = np.array(times, dtype=np.int64) * 1000 + 1_700_000_000_000_000
    return Changes(
        batch,
        pa.array(ops, type=pa.int8()),
        pa.array(times, type=pa.int64()),
        pa.array(numbers).cast(pa.timestamp("us", tz="UTC")),
        draw(written(count)),
    )


@patient
@given(changes())
def test_records_match_the_scalar_encoder(run: Changes) -> None:
    codes, records = encode_records(run, SCHEMA)
    wanted = []
    indexes: dict[int, int] = {}
    for place, values in enumerate(run.rows.to_pylist()):
        op = ChangeOp(run.ops[place].as_py())
        time = run.timestamps[place].value
        index = indexes[time] = indexes.get(time, -1) + 1
        sequence = None if op == ChangeOp.BASE else SequenceInfo(0, time, index)
        if op in (ChangeOp.UPDATE, ChangeOp.UPSERT):
            wanted.append(
                (2, _row(values, _updates(values, run.written, place, time // 1000, True), sequence=sequence))
            )
        elif op in DELETES:
            wanted.append((3, _row(values, [], delete=True, sequence=sequence)))
        elif op != ChangeOp.PREIMAGE:
            wanted.append((1, _row(values, _puts(values, time // 1000), sequence=sequence)))
    assert codes == [code for code, _ in wanted]
    assert records == [encode_row(row) for _, row in wanted]


def _changes(count: int, ops: list[ChangeOp], **columns: Any) -> tuple[Changes, TableSchema]:
    """Changes of one commit in a table with the key ``pk``."""
    schema = TableSchema.of({"pk": "string"} | dict.fromkeys(columns, "string"), "pk")
    times = pa.array([datetime.datetime(2023, 11, 14, 22, 13, 20, tzinfo=datetime.UTC)] * count)
    batch = pa.RecordBatch.from_pydict({"pk": ["a"] * count} | columns, schema=schema.changes)
    return Changes(
        batch, pa.array(ops, type=pa.int8()), pa.array([1] * count), times.cast(pa.timestamp("us", "UTC"))
    ), schema


def test_samples_of_the_official_sdks_are_encoded() -> None:
    schema = TableSchema.of({"pk": "string", "c1": "string"}, "pk")
    batch = pa.RecordBatch.from_pydict({"pk": ["a"], "c1": ["v"]}, schema=schema.changes)
    assert encode_puts(batch, schema, timestamps=1700000000000) == [SAMPLES["put"][1]]
    assert encode_block(batch, schema, timestamps={"c1": np.array([1700000000000])}) == SAMPLES["put"][1]
    assert encode_deletes(batch, schema) == [SAMPLES["delete"][1]]
    assert encode_puts(batch.select(["pk"]), schema) == [SAMPLES["key"][1]]
    run, schema = _changes(1, [ChangeOp.INSERT], c1=["v"])
    assert encode_records(run, schema) == ([1], [SAMPLES["record of a put"][1]])


def test_the_example_of_the_manual_is_encoded() -> None:
    columns = {
        "pk1": "string",
        "pk2": "long",
        "column1": "string",
        "column2": "long",
        "column3": "double",
        "column4": "long",
    }
    schema = TableSchema.of(columns, ["pk1", "pk2"])
    values = {
        "pk1": ["iampk"],
        "pk2": [100],
        "column1": ["bad"],
        "column2": [128],
        "column3": [34.2],
        "column4": [None],
    }
    batch = pa.RecordBatch.from_pydict(values, schema=schema.changes)
    timestamps = {f"column{number}": np.array([1000 + number]) for number in (1, 2, 3)}
    encoded = encode_updates(batch, schema, None, timestamps=timestamps, deletes_nulls=True)
    assert encoded == [SAMPLES["example of the manual"][1]]


def test_each_row_can_have_its_own_timestamps() -> None:
    schema = TableSchema.of({"pk": "string", "c1": "string", "c2": "long"}, "pk")
    batch = pa.RecordBatch.from_pydict({"pk": ["a", "b"], "c1": ["x", None], "c2": [1, 2]}, schema=schema.changes)
    of_rows = encode_puts(batch, schema, timestamps=np.array([5, 6]))
    assert of_rows == [
        encode_row(Row((("pk", "a"),), (Cell("c1", "x", timestamp=5), Cell("c2", 1, timestamp=5)))),
        encode_row(Row((("pk", "b"),), (Cell("c2", 2, timestamp=6),))),
    ]
    of_columns = encode_puts(batch, schema, timestamps={"c2": np.array([7, 8])})
    assert of_columns[0] == encode_row(Row((("pk", "a"),), (Cell("c1", "x"), Cell("c2", 1, timestamp=7))))


def test_cells_of_records_have_the_commit_time_by_default() -> None:
    run, schema = _changes(2, [ChangeOp.PREIMAGE, ChangeOp.REPLACE], c1=["x", "y"], c2=["x", "y"])
    _, records = encode_records(run, schema, timestamps={"c1": np.array([1, 2])}, row_indexes=np.array([40, 41]))
    cells = (Cell("c1", "y", timestamp=2), Cell("c2", "y", timestamp=1700000000000))
    assert records == [encode_row(Row((("pk", "a"),), cells, sequence=SequenceInfo(0, 1700000000000000, 41)))]


def test_changes_of_one_commit_time_are_numbered() -> None:
    run, schema = _changes(3, [ChangeOp.INSERT, ChangeOp.REPLACE, ChangeOp.DELETE], c1=["x", "y", None])
    _, records = encode_records(run, schema)
    decoded = decode_records(records, schema)
    assert decoded.row_indexes.to_pylist() == [0, 1, 2]
    assert decoded.deleted.to_pylist() == [False, False, True]


@pytest.mark.parametrize("kind", ["date", "timestamp", "decimal(10,2)", "array<long>"])
def test_an_error_names_the_column_of_an_unsupported_type(kind: str) -> None:
    with pytest.raises(UnsupportedError, match="'odd'"):
        check_schema(TableSchema.of({"id": "long", "odd": kind}, "id"))


def test_rows_that_do_not_fit_the_schema_are_refused() -> None:
    schema = TableSchema.of({"id": "long", "a": "long"}, "id")
    with pytest.raises(SchemaError, match="'id' is null"):
        encode_puts(pa.RecordBatch.from_pydict({"id": pa.array([None], pa.int64())}), schema)
    with pytest.raises(SchemaError, match="the rows have no column 'id'"):
        encode_deletes(pa.RecordBatch.from_pydict({"a": [1]}), schema)
    with pytest.raises(SchemaError, match="another type in column 'a'"):
        encode_puts(pa.RecordBatch.from_pydict({"id": [1], "a": ["x"]}), schema)
