"""Encoding of Arrow rows into PlainBuffer: the hot path of writing, and of an endpoint's responses.

Every function takes columns with the schema's names and types, key columns without nulls, and writes them in the
schema's order. Attributes that are not in the rows are omitted. The only loop over rows creates the `bytes` objects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import SchemaError, UnsupportedError
from headrace.model.tables.changes import ChangeOp, Changes
from headrace.model.tables.schema import RowSchema, TableSchema
from headrace.model.types import type_name
from headrace_tablestore.wire.plainbuffer.cells import text_buffers
from headrace_tablestore.wire.plainbuffer.pieces import COLUMN_TYPES, Mask, Pieces, Stamps
from headrace_tablestore.wire.plainbuffer.values import HEADER, Tag

Integers: TypeAlias = npt.NDArray[np.int64]
Timestamps: TypeAlias = int | Integers | Mapping[str, Integers]
"""Milliseconds since 1970: the same for all cells, one for each row, or one for each row of an attribute."""

PUT_ROW, UPDATE_ROW, DELETE_ROW = 1, 2, 3
"""The codes of ``ActionType`` in the records of a tunnel."""

_ACTIONS: Final = {
    ChangeOp.BASE: PUT_ROW,
    ChangeOp.INSERT: PUT_ROW,
    ChangeOp.REPLACE: PUT_ROW,
    ChangeOp.UPDATE: UPDATE_ROW,
    ChangeOp.UPSERT: UPDATE_ROW,
    ChangeOp.DELETE: DELETE_ROW,
    ChangeOp.DELETE_WITH_ROW: DELETE_ROW,
}


@dataclass(frozen=True)
class _Cells:
    """An attribute, with the rows that set it (None: all) and the rows that remove it (None: none)."""

    name: str
    values: pa.Array
    put: Mask | None
    removed: Mask | None = None


def check_schema(schema: RowSchema) -> None:
    """Check that Tablestore has a type for every column.

    Raises:
        UnsupportedError: a column has another type; the text names the column.
    """
    for column in schema.columns:
        if column.type not in COLUMN_TYPES:
            raise UnsupportedError(
                f"Tablestore has no type for column {column.name!r}",
                received=type_name(column.type),
                valid=[type_name(data_type) for data_type in COLUMN_TYPES],
                remedy="convert the column",
            )


def encode_puts(rows: pa.RecordBatch, schema: TableSchema, *, timestamps: Timestamps | None = None) -> list[bytes]:
    """Return each row as in a PutRow: one message with a header; nulls are omitted.

    Without timestamps the server sets them.
    """
    return _split(_encode(rows, schema, _puts(rows, schema), timestamps, header=HEADER))


def encode_updates(
    rows: pa.RecordBatch,
    schema: TableSchema,
    written: Mapping[str, pa.BooleanArray] | None,
    *,
    timestamps: Timestamps | None = None,
    deletes_nulls: bool,
) -> list[bytes]:
    """Return each row as in an UpdateRow: one message with a header.

    Args:
        rows: the key columns and the attributes to set.
        schema: the schema of the table.
        written: the cells to set, as in `Changes.written`; the others are omitted.
        timestamps: the timestamps of the cells that are set.
        deletes_nulls: whether cells that are set to null are removed; otherwise they are omitted.
    """
    cells = []
    for name, values in _attributes(rows, schema):
        marks = None if written is None else _mask(written.get(name))
        removed = _both(_missing(values), marks) if deletes_nulls else None
        cells.append(_Cells(name, values, _both(_present(values), marks), removed))
    return _split(_encode(rows, schema, cells, timestamps, header=HEADER))


def encode_deletes(keys: pa.RecordBatch, schema: TableSchema) -> list[bytes]:
    """Return each key as in a DeleteRow: one message with a header; columns outside the key are ignored."""
    return _split(_encode(keys, schema, [], None, header=HEADER, deleted=np.ones(keys.num_rows, dtype=np.bool_)))


def encode_block(rows: pa.RecordBatch, schema: TableSchema, *, timestamps: Timestamps | None = None) -> bytes:
    """Return consecutive rows behind one header, as in responses of GetRange; empty for no rows."""
    if rows.num_rows == 0:
        return b""
    data, offsets = text_buffers(_encode(rows, schema, _puts(rows, schema), timestamps, header=b""))
    return HEADER + data[offsets[0] : offsets[-1]].tobytes()


def encode_records(
    changes: Changes,
    schema: TableSchema,
    *,
    timestamps: Timestamps | None = None,
    row_indexes: Integers | None = None,
) -> tuple[list[int], list[bytes]]:
    """Return changes as the records of a tunnel: the codes of their ``ActionType``, and messages with a header each.

    Base data has no sequence info. Pre-images are omitted.

    Args:
        changes: consecutive changes of a channel.
        schema: the schema of the table.
        timestamps: the timestamps of the cells; by default, and for attributes that are not in a mapping, the commit
            time.
        row_indexes: the position of each change among those of its commit time. By default positions are counted
            from the first of these changes, which is correct if it is the first of its commit.
    """
    times = changes.timestamps.cast(pa.int64()).to_numpy(zero_copy_only=False)
    indexes = _places_in_runs(times) if row_indexes is None else row_indexes
    ops = changes.ops.to_numpy(zero_copy_only=False)
    if (keep := ops != ChangeOp.PREIMAGE).all():
        keep = None
    else:
        changes, times, indexes, ops = changes.filter(pa.array(keep)), times[keep], indexes[keep], ops[keep]
    commit_times = times // 1000
    if timestamps is None:
        timestamps = commit_times
    elif not isinstance(timestamps, int):
        timestamps = _filtered(timestamps, keep)
    if isinstance(timestamps, Mapping):
        timestamps = {column.name: commit_times for column in schema.attributes} | dict(timestamps)
    codes = np.zeros(max(ChangeOp) + 1, dtype=np.int64)
    codes[list(_ACTIONS)] = list(_ACTIONS.values())
    actions = codes[ops]
    rows = _encode(
        changes.rows,
        schema,
        _changed(changes, schema, actions),
        timestamps,
        header=HEADER,
        deleted=actions == DELETE_ROW,
        sequence=(times, indexes, ops != ChangeOp.BASE),
    )
    return actions.tolist(), _split(rows)


def _filtered(timestamps: Integers | Mapping[str, Integers], keep: Mask | None) -> Integers | Mapping[str, Integers]:
    if keep is None:
        return timestamps
    if isinstance(timestamps, Mapping):
        return {name: numbers[keep] for name, numbers in timestamps.items()}
    return timestamps[keep]


def _places_in_runs(numbers: Integers) -> Integers:
    """Return the position of each entry within its run of equal entries."""
    places = np.arange(len(numbers), dtype=np.int64)
    begins = np.ones(len(numbers), dtype=np.bool_)
    begins[1:] = numbers[1:] != numbers[:-1]
    places -= np.maximum.accumulate(np.where(begins, places, 0))
    return places


def _puts(rows: pa.RecordBatch, schema: TableSchema) -> list[_Cells]:
    return [_Cells(name, values, _present(values)) for name, values in _attributes(rows, schema)]


def _changed(changes: Changes, schema: TableSchema, actions: Integers) -> list[_Cells]:
    """Return the cells of changes: for a put the cells that are not null, for an update the written cells."""
    puts, updates = actions == PUT_ROW, actions == UPDATE_ROW
    all_put, no_update = bool(puts.all()), not updates.any()
    cells = []
    for name, values in _attributes(changes.rows, schema):
        present = _present(values)
        if all_put:
            cells.append(_Cells(name, values, present))
            continue
        marks = None if changes.written is None else _mask(changes.written.get(name))
        written = updates if marks is None else updates & marks
        removed = None if no_update else _both(_missing(values), written)
        cells.append(_Cells(name, values, _both(present, puts | written), removed))
    return cells


def _attributes(rows: pa.RecordBatch, schema: TableSchema) -> list[tuple[str, pa.Array]]:
    check_schema(schema)
    names = set(rows.schema.names)
    return [(column.name, _column(rows, schema, column.name)) for column in schema.attributes if column.name in names]


def _column(rows: pa.RecordBatch, schema: TableSchema, name: str) -> pa.Array:
    """Return a column; raise an error if it is missing or has another type."""
    place = rows.schema.get_field_index(name)
    if place < 0:
        raise SchemaError(f"the rows have no column {name!r}", received=rows.schema.names)
    values = rows.column(place)
    wanted = schema.column(name).type
    if values.type != wanted:
        raise SchemaError(
            f"the rows have another type in column {name!r}", received=values.type, valid=type_name(wanted)
        )
    return values


def _mask(values: pa.BooleanArray | None) -> Mask | None:
    """Return which cells are written, where null means written; None for all."""
    if values is None:
        return None
    marks: Mask = values.fill_null(True).to_numpy(zero_copy_only=False)
    return marks


def _present(values: pa.Array) -> Mask | None:
    """Return which values are not null; None for all."""
    return pc.is_valid(values).to_numpy(zero_copy_only=False) if values.null_count else None


def _missing(values: pa.Array) -> Mask:
    missing: Mask = pc.is_null(values).to_numpy(zero_copy_only=False)
    return missing


def _both(one: Mask | None, other: Mask | None) -> Mask | None:
    """Return the conjunction of two masks; None is true everywhere."""
    if one is None or other is None:
        return other if one is None else one
    return one & other


def _encode(
    rows: pa.RecordBatch,
    schema: TableSchema,
    cells: list[_Cells],
    timestamps: Timestamps | None,
    *,
    header: bytes,
    deleted: Mask | None = None,
    sequence: tuple[Integers, Integers, Mask] | None = None,
) -> pa.LargeBinaryArray:
    """Encode every row.

    Args:
        deleted: the rows with a delete marker.
        sequence: the times and row indexes, and the rows that have them.
    """
    check_schema(schema)
    if rows.num_rows == 0:
        return pa.array([], type=pa.large_binary())
    pieces = Pieces(rows.num_rows)
    pieces.constant(header + bytes([Tag.KEY]))
    for name in schema.primary_key:
        values = _column(rows, schema, name)
        if values.null_count:
            raise SchemaError(f"a value of key column {name!r} is null")
        pieces.cell(name, values)
    cells = [cell for cell in cells if cell.put is None or cell.put.any() or _some(cell.removed)]
    if cells:
        pieces.constant(bytes([Tag.ATTRIBUTES]), _anything(cells))
    stamps_of = _stamps(timestamps)
    for cell in cells:
        if cell.put is None or cell.put.any():
            pieces.cell(cell.name, cell.values, stamps_of(cell.name), _unless_all(cell.put))
        if _some(cell.removed):
            pieces.deleted_cell(cell.name, cell.removed)
    if _some(deleted):
        pieces.constant(bytes([Tag.DELETE_ROW]), _unless_all(deleted))
    if sequence is not None:
        times, indexes, have = sequence
        if have.any():
            pieces.sequence(times, indexes, _unless_all(have))
    pieces.checksum(False if deleted is None else deleted)
    return pieces.joined()


def _some(mask: Mask | None) -> bool:
    return mask is not None and bool(mask.any())


def _unless_all(mask: Mask | None) -> Mask | None:
    """Return None for a mask that is true everywhere: pieces of every row are cheaper."""
    return None if mask is None or mask.all() else mask


def _anything(cells: list[_Cells]) -> Mask | None:
    """Return the rows with any cell; None for all."""
    found: Mask | None = None
    for cell in cells:
        if cell.put is None:
            return None
        found = cell.put if found is None else found | cell.put
        if cell.removed is not None:
            found = found | cell.removed
    return _unless_all(found)


def _stamps(timestamps: Timestamps | None) -> Callable[[str], Stamps | None]:
    """Return the function from an attribute's name to the timestamps of its cells."""
    if timestamps is None:
        return lambda name: None
    if isinstance(timestamps, Mapping):
        each = {name: Stamps.of(numbers) for name, numbers in timestamps.items()}
        return each.get
    same = Stamps.of(timestamps)
    return lambda name: same


def _split(rows: pa.LargeBinaryArray) -> list[bytes]:
    if len(rows) == 0:
        return []
    data, offsets = text_buffers(rows)
    whole = data.tobytes()
    return [whole[begin:end] for begin, end in pairwise(offsets.tolist())]
