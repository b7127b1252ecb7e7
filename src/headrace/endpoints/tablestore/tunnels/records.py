"""Changes of a channel as the records of a ReadRecords answer.

A cell that an update has set is a cell of the record, one that it has set to null deletes all versions; the columns
of other types that a table has for the same name on the wire are not the client's business.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.endpoints.tablestore.rows.layout import (
    CHANGE,
    TIMESTAMP,
    VERSIONS,
    Layout,
    Numbers,
    Placed,
    cell_timestamps,
    unpack_cells,
)
from headrace.endpoints.tablestore.rows.reading import Selected
from headrace.tables.changes import ChangeOp, Changes
from headrace.tables.schema import Column, TableSchema
from headrace.wire.plainbuffer.encoding import encode_records
from headrace.wire.plainbuffer.rows import encode_row
from headrace.wire.plainbuffer.values import Cell, CellOp, Row, SequenceInfo
from headrace.wire.tablestore import tunnel_pb2 as pb
from headrace.wire.tablestore.limits import MAX_PAGE_BYTES, MAX_PAGE_ROWS

Mask = npt.NDArray[np.bool_]

# The place of a change within its commit is a number of 31 bits on the wire.
_INDEX_MASK = (1 << 31) - 1
_ACTIONS = {
    ChangeOp.UPDATE: pb.UPDATE_ROW,
    ChangeOp.UPSERT: pb.UPDATE_ROW,
    ChangeOp.DELETE: pb.DELETE_ROW,
}


@dataclass(frozen=True)
class RecordPage:
    """Records as they are sent, and how many of the changes given are behind when they are read.

    ``message`` is a ReadRecordsResponse without its other fields, serialised.
    """

    message: bytes
    changes: int


def record_page(changes: Changes, layout: Layout, first: int, origin: Sequence[str] = ()) -> RecordPage:
    """Return the records of as many changes as one answer may hold, but at least of one.

    Args:
        changes: with all columns of the table.
        layout: the table's.
        first: number of the first change in its channel. With it all changes of a commit are told apart, in whichever
            pages they come.
        origin: columns whose values before the change records are to have, where the table keeps pre-images.

    Raises:
        UnsupportedError: the table has a column that Tablestore has no type for.
    """
    layout.check_sendable()
    changes = _whole(changes.slice(0, MAX_PAGE_ROWS))
    ops = changes.ops.to_numpy()
    chosen = np.flatnonzero(ops != ChangeOp.PREIMAGE)
    given = changes if len(chosen) == len(ops) else changes.filter(pa.array(ops != ChangeOp.PREIMAGE))
    actions, records = _encoded(given, layout, (first + chosen) & _INDEX_MASK)
    ends: list[bytes] = []
    if origin and 0 < len(chosen) < len(ops):
        ends = [b"" if each is None else _field(3, each) for each in _origins(changes, chosen, layout, origin)]
    sizes = list(map(len, records))
    total = np.cumsum(np.array(sizes) + np.array(list(map(len, ends)) or 0))
    count = max(1, int(np.searchsorted(total, MAX_PAGE_BYTES, side="right")))
    all_given = count >= len(chosen)
    message = _records_message(actions[:count], sizes[:count], records[:count], ends[:count])
    return RecordPage(message, len(ops) if all_given else int(chosen[count - 1]) + 1)


def _records_message(
    actions: Sequence[int], sizes: Sequence[int], records: Sequence[bytes], ends: Sequence[bytes]
) -> bytes:
    """Return field ``records`` of a ReadRecordsResponse. To make an object of each record costs more than all else."""
    if not ends:
        heads = map(_head, actions, sizes)
        return b"".join(itertools.chain.from_iterable(zip(heads, records, strict=True)))
    heads = map(_head, actions, sizes, map(len, ends))
    return b"".join(itertools.chain.from_iterable(zip(heads, records, ends, strict=True)))


@functools.lru_cache(maxsize=4096)
def _head(action: int, size: int, end_size: int = 0) -> bytes:
    """Return what stands before the bytes of a record: all of its message up to there."""
    head = bytes([1 << 3, action, 2 << 3 | 2]) + _varint(size)
    return bytes([1 << 3 | 2]) + _varint(len(head) + size + end_size) + head


def _field(number: int, value: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(value)) + value


def _varint(number: int) -> bytes:
    result = bytearray()
    while number > 0x7F:
        result.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*result, number])


def _whole(changes: Changes) -> Changes:
    """Return changes without a pre-image at the end whose change has been cut off."""
    count = changes.num_rows
    ends_before_change = count > 1 and changes.ops[count - 1].as_py() == ChangeOp.PREIMAGE
    return changes.slice(0, count - 1) if ends_before_change else changes


# -- cells ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Attribute:
    """An attribute that has something to say: its place, its cells, which of them were written, their times (ms)."""

    place: Placed
    cells: pa.Array
    written: Mask
    timestamps: Numbers


def _encoded(changes: Changes, layout: Layout, indexes: Numbers) -> tuple[list[int], list[bytes]]:
    """Return the ActionType and the record of each change."""
    attributes = _attributes(changes, layout)
    names = [attribute.place.name for attribute in attributes]
    has_versions = layout.versioned and any(
        changes.rows.column(column).null_count < changes.num_rows for column in (VERSIONS, CHANGE)
    )
    if has_versions or len(set(names)) < len(names):
        return _one_by_one(changes, layout, attributes, indexes)
    key = changes.rows.select(list(layout.schema.primary_key))
    arrays = [*key.columns, *(attribute.cells for attribute in attributes)]
    schema = _schema((*key.schema.names, *names), tuple(array.type for array in arrays), key.num_columns)
    typed = replace(
        changes,
        rows=pa.RecordBatch.from_arrays(arrays, schema=schema.changes),
        written={attribute.place.name: pa.array(attribute.written) for attribute in attributes},
    )
    timestamps = {attribute.place.name: attribute.timestamps for attribute in attributes}
    return encode_records(typed, schema, timestamps=timestamps, row_indexes=indexes)


def _attributes(changes: Changes, layout: Layout) -> list[_Attribute]:
    """Return the attributes that any of the changes has a cell of, or deletes one of."""
    timestamps = _timestamps(changes, layout)
    ops = changes.ops.to_numpy()
    updates = (ops == ChangeOp.UPDATE) | (ops == ChangeOp.UPSERT)
    attributes = []
    for places in layout.of_name.values():
        written = [_written(changes, place.column) for place in places]
        there = [_valid(changes.rows.column(place.column)) for place in places]
        if len(places) > 1:
            written = _of_one_name(written, there, updates)
        for place, was_written, is_there in zip(places, written, there, strict=True):
            if np.any(np.where(updates, was_written, is_there)):
                cells = changes.rows.column(place.column)
                attributes.append(_Attribute(place, cells, was_written, timestamps[place.column]))
    return attributes


def _of_one_name(written: Sequence[Mask], there: Sequence[Mask], updates: Mask) -> list[Mask]:
    """Return which columns of one name updates have written as the client sees it.

    A cell that changes its type is written in one column and set to null in another: that is no deletion. A cell that
    is deleted is set to null in several, and that is one deletion.
    """
    put = np.logical_or.reduce([was & is_there for was, is_there in zip(written, there, strict=True)])
    said = put.copy()
    result = []
    for was_written, is_there in zip(written, there, strict=True):
        deleted = was_written & ~is_there & ~said
        said |= deleted
        result.append(np.where(updates, (was_written & is_there) | deleted, was_written))
    return result


def _written(changes: Changes, column: str) -> Mask:
    flags = None if changes.written is None else changes.written.get(column)
    if flags is None:
        return np.ones(changes.num_rows, np.bool_)
    result: Mask = flags.fill_null(True).to_numpy(zero_copy_only=False)
    return result


def _valid(cells: pa.Array) -> Mask:
    result: Mask = cells.is_valid().to_numpy(zero_copy_only=False)
    return result


def _timestamps(changes: Changes, layout: Layout) -> Mapping[str, Numbers]:
    """Return the times of all cells by column, in ms; those of rows without times of their own are the commits'.

    They must not depend on when the changes are read: the same token gives the same records.
    """
    committed = pc.divide(changes.timestamps.view(pa.int64()), 1000)
    if not layout.timed:
        same = committed.to_numpy()
        return {place.column: same for place in layout.placed}
    rows = changes.rows
    index = rows.schema.get_field_index(TIMESTAMP)
    filled = pc.coalesce(rows.column(index), committed)
    return cell_timestamps(rows.set_column(index, rows.schema.field(index), filled), layout, 0)


def _one_by_one(
    changes: Changes, layout: Layout, attributes: Iterable[_Attribute], indexes: Numbers
) -> tuple[list[int], list[bytes]]:
    # Only for changes among which a column has cells of several types, or a cell several versions.
    ops = changes.ops.to_pylist()
    cells: list[list[Cell]] = [[] for _ in ops]
    for attribute in attributes:
        name = attribute.place.name
        values = attribute.cells.to_pylist()
        for row, (op, value, was_written) in enumerate(zip(ops, values, attribute.written.tolist(), strict=True)):
            is_update = _ACTIONS.get(op) == pb.UPDATE_ROW
            if op == ChangeOp.DELETE or (is_update and not was_written):
                continue
            if value is not None:
                cells[row].append(Cell(name, value, timestamp=int(attribute.timestamps[row])))
            elif is_update:
                cells[row].append(Cell(name, op=CellOp.DELETE_ALL))
    if layout.versioned:
        _add_versions(cells, changes)
    keys = changes.rows.select(list(layout.schema.primary_key)).to_pylist()
    commits = changes.timestamps.view(pa.int64()).to_pylist()
    encoded = [
        encode_row(Row(tuple(key.items()), tuple(row), sequence=SequenceInfo(0, commit, index)))
        for key, row, commit, index in zip(keys, cells, commits, indexes.tolist(), strict=True)
    ]
    return [_ACTIONS.get(op, pb.PUT_ROW) for op in ops], encoded


def _add_versions(cells: list[list[Cell]], changes: Changes) -> None:
    """Add the older versions of cells to puts; let updates be what the client sent."""
    ops = changes.ops.to_pylist()
    older = changes.rows.column(VERSIONS).to_pylist()
    sent = changes.rows.column(CHANGE).to_pylist()
    for row, (op, was_sent) in enumerate(zip(ops, _written(changes, CHANGE).tolist(), strict=True)):
        if op == ChangeOp.DELETE:
            continue
        if _ACTIONS.get(op) == pb.UPDATE_ROW:
            if was_sent and sent[row] is not None:
                cells[row] = list(unpack_cells(sent[row]))
        elif older[row] is not None:
            # A cell that headrace itself has removed since then has none. The newest version comes last: readers that
            # want one take the last.
            there = {cell.name for cell in cells[row]}
            versions = [*cells[row], *(cell for cell in unpack_cells(older[row]) if cell.name in there)]
            cells[row] = sorted(versions, key=lambda cell: (cell.name, cell.timestamp))


@functools.lru_cache(maxsize=256)
def _schema(names: tuple[str, ...], types: tuple[pa.DataType, ...], key_columns: int) -> TableSchema:
    columns = tuple(Column(name, data_type) for name, data_type in zip(names, types, strict=True))
    return TableSchema(columns, names[:key_columns])


# -- values before the change -------------------------------------------------------------------------------


def _origins(changes: Changes, chosen: Numbers, layout: Layout, origin: Sequence[str]) -> list[bytes | None]:
    """Return, for each chosen change, its row before it with the columns ``origin``; None where there was none."""
    result: list[bytes | None] = [None] * len(chosen)
    has_image = np.zeros(len(chosen), np.bool_)
    has_image[1:] = np.diff(chosen) > 1
    has_image[0] = chosen[0] > 0
    images = pa.array(chosen[has_image] - 1)
    changes = Changes(
        changes.rows.take(images),
        changes.ops.take(images),
        changes.versions.take(images),
        changes.timestamps.take(images),
    )
    places = [place for name in origin for place in layout.of_name.get(name, ())]
    cells = [(place, changes.rows.column(place.column)) for place in places]
    used = [(place, column) for place, column in cells if column.null_count < len(column)]
    timestamps = _timestamps(changes, layout)
    selected = Selected(
        changes.rows.select(list(layout.schema.primary_key)),
        tuple(column for _, column in used),
        tuple(place.name for place, _ in used),
        tuple(timestamps[place.column] for place, _ in used),
        np.ones(changes.num_rows, np.bool_),
    )
    for number, image in zip(np.flatnonzero(has_image).tolist(), selected.each(), strict=True):
        result[number] = image
    return result
