"""Changes of a channel as the records of a ReadRecords response.

A cell that an update has set is a cell of the record. A cell that an update has set to null is the deletion of all its
versions. Records do not show that a name has several columns for its types.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.tables.changes import DELETES, ChangeOp, Changes
from headrace_tablestore.endpoint.rows.layout import (
    CHANGE,
    TIMESTAMP,
    VERSIONS,
    CellColumn,
    Layout,
    Mask,
    Numbers,
    as_mask,
    cell_timestamps,
    is_valid,
    unpack_cells,
    wire_schema,
)
from headrace_tablestore.endpoint.rows.reading import Selected
from headrace_tablestore.wire import tunnel_pb2 as pb
from headrace_tablestore.wire.limits import MAX_PAGE_BYTES, MAX_PAGE_ROWS
from headrace_tablestore.wire.plainbuffer.encoding import encode_records
from headrace_tablestore.wire.plainbuffer.rows import encode_row
from headrace_tablestore.wire.plainbuffer.values import Cell, CellOp, Row, SequenceInfo

# The number of a change in its commit has 31 bits on the wire.
_INDEX_MASK = (1 << 31) - 1
_ACTIONS = {
    ChangeOp.UPDATE: pb.UPDATE_ROW,
    ChangeOp.UPSERT: pb.UPDATE_ROW,
    ChangeOp.DELETE: pb.DELETE_ROW,
    ChangeOp.DELETE_WITH_ROW: pb.DELETE_ROW,
}


@dataclass(frozen=True)
class RecordPage:
    """Encoded records.

    Attributes:
        message: a serialised ReadRecordsResponse with only the records.
        changes: the number of input changes in the page, including pre-images.
    """

    message: bytes
    changes: int


def record_page(changes: Changes, layout: Layout, first: int, origin: Sequence[str] = ()) -> RecordPage:
    """Return the records of the first changes, up to the limits of a response, and at least one record.

    Args:
        changes: changes with all columns of the table.
        layout: the layout of the table.
        first: the number of the first change in its channel. It makes the numbers of the changes of a commit unique
            across pages.
        origin: the columns whose previous values the records have, if the table keeps pre-images.

    Raises:
        UnsupportedError: the table has a column without a wire type.
    """
    layout.check_wire_types()
    changes = _whole(changes.slice(0, MAX_PAGE_ROWS))
    ops = changes.ops.to_numpy()
    chosen = np.flatnonzero(ops != ChangeOp.PREIMAGE)
    shown = changes if len(chosen) == len(ops) else changes.filter(pa.array(ops != ChangeOp.PREIMAGE))
    actions, records = _encoded(shown, layout, (first + chosen) & _INDEX_MASK)
    ends: list[bytes] = []
    if origin and len(chosen) and np.isin(ops, (ChangeOp.PREIMAGE, ChangeOp.DELETE_WITH_ROW)).any():
        ends = [b"" if each is None else _field(3, each) for each in _origins(changes, chosen, layout, origin)]
    sizes = list(map(len, records))
    total = np.cumsum(np.array(sizes) + np.array(list(map(len, ends)) or 0))
    count = max(1, int(np.searchsorted(total, MAX_PAGE_BYTES, side="right")))
    complete = count >= len(chosen)
    message = _records_message(actions[:count], sizes[:count], records[:count], ends[:count])
    return RecordPage(message, len(ops) if complete else int(chosen[count - 1]) + 1)


def _records_message(
    actions: Sequence[int], sizes: Sequence[int], records: Sequence[bytes], ends: Sequence[bytes]
) -> bytes:
    """Return the field ``records`` of a ReadRecordsResponse. Protobuf objects for the records would be much slower."""
    if not ends:
        heads = map(_head, actions, sizes)
        return b"".join(itertools.chain.from_iterable(zip(heads, records, strict=True)))
    heads = map(_head, actions, sizes, map(len, ends))
    return b"".join(itertools.chain.from_iterable(zip(heads, records, ends, strict=True)))


@functools.lru_cache(maxsize=4096)
def _head(action: int, size: int, end_size: int = 0) -> bytes:
    """Return the bytes of a record's message before the record itself."""
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
    """Return changes without a last pre-image that lacks its change."""
    count = changes.num_rows
    ends_before_change = count > 1 and changes.ops[count - 1].as_py() == ChangeOp.PREIMAGE
    return changes.slice(0, count - 1) if ends_before_change else changes


# -- cells ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Attribute:
    """An attribute of changes.

    Attributes:
        column: the column of the table.
        cells: the cells of all changes.
        written: which of the changes wrote the cell.
        timestamps: the timestamps of the cells, ms.
    """

    column: CellColumn
    cells: pa.Array
    written: Mask
    timestamps: Numbers


def _encoded(changes: Changes, layout: Layout, indexes: Numbers) -> tuple[list[int], list[bytes]]:
    """Return the ActionType and the record of each change."""
    attributes = _attributes(changes, layout)
    names = [attribute.column.name for attribute in attributes]
    has_versions = layout.versioned and any(
        changes.rows.column(column).null_count < changes.num_rows for column in (VERSIONS, CHANGE)
    )
    if has_versions or len(set(names)) < len(names):
        return _one_by_one(changes, layout, attributes, indexes)
    key = changes.rows.select(list(layout.schema.primary_key))
    arrays = [*key.columns, *(attribute.cells for attribute in attributes)]
    schema = wire_schema((*key.schema.names, *names), tuple(array.type for array in arrays), key.num_columns)
    typed = replace(
        changes,
        rows=pa.RecordBatch.from_arrays(arrays, schema=schema.changes),
        written={attribute.column.name: pa.array(attribute.written) for attribute in attributes},
    )
    timestamps = {attribute.column.name: attribute.timestamps for attribute in attributes}
    return encode_records(typed, schema, timestamps=timestamps, row_indexes=indexes)


def _attributes(changes: Changes, layout: Layout) -> list[_Attribute]:
    """Return the attributes of which a change has or deletes a cell."""
    timestamps = _timestamps(changes, layout)
    ops = changes.ops.to_numpy()
    updates = (ops == ChangeOp.UPDATE) | (ops == ChangeOp.UPSERT)
    attributes = []
    for columns in layout.of_name.values():
        written = [_written(changes, column.column) for column in columns]
        has_value = [is_valid(changes.rows.column(column.column)) for column in columns]
        if len(columns) > 1:
            written = _of_one_name(written, has_value, updates)
        for column, was_written, holds_value in zip(columns, written, has_value, strict=True):
            if np.any(np.where(updates, was_written, holds_value)):
                cells = changes.rows.column(column.column)
                attributes.append(_Attribute(column, cells, was_written, timestamps[column.column]))
    return attributes


def _of_one_name(written: Sequence[Mask], has_value: Sequence[Mask], updates: Mask) -> list[Mask]:
    """Return which columns of one name the updates have written, as the client sees it.

    An update that changes the type of a cell writes one column and sets another to null. This is not a deletion. A
    deletion sets several columns to null. This is one deletion.
    """
    put = np.logical_or.reduce([was & holds_value for was, holds_value in zip(written, has_value, strict=True)])
    seen = put.copy()
    result = []
    for was_written, holds_value in zip(written, has_value, strict=True):
        deleted = was_written & ~holds_value & ~seen
        seen |= deleted
        result.append(np.where(updates, (was_written & holds_value) | deleted, was_written))
    return result


def _written(changes: Changes, column: str) -> Mask:
    flags = None if changes.written is None else changes.written.get(column)
    if flags is None:
        return np.ones(changes.num_rows, np.bool_)
    return as_mask(flags.fill_null(True))


def _timestamps(changes: Changes, layout: Layout) -> Mapping[str, Numbers]:
    """Return the timestamps of all cells by column, in ms. A row without timestamps has the time of its commit.

    The timestamps must not depend on the time of the read, because the same token always returns the same records.
    """
    committed = pc.divide(changes.timestamps.view(pa.int64()), 1000)
    if not layout.timed:
        same = committed.to_numpy()
        return {each.column: same for each in layout.cell_columns}
    rows = changes.rows
    index = rows.schema.get_field_index(TIMESTAMP)
    filled = pc.coalesce(rows.column(index), committed)
    return cell_timestamps(rows.set_column(index, rows.schema.field(index), filled), layout, 0)


def _one_by_one(
    changes: Changes, layout: Layout, attributes: Iterable[_Attribute], indexes: Numbers
) -> tuple[list[int], list[bytes]]:
    # Only if a name has cells of several types, or a cell has several versions.
    ops = changes.ops.to_pylist()
    cells: list[list[Cell]] = [[] for _ in ops]
    for attribute in attributes:
        name = attribute.column.name
        values = attribute.cells.to_pylist()
        for row, (op, value, was_written) in enumerate(zip(ops, values, attribute.written.tolist(), strict=True)):
            is_update = _ACTIONS.get(op) == pb.UPDATE_ROW
            if op in DELETES or (is_update and not was_written):
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
    """Add the older versions of cells to puts, and replace updates by the cells that the client sent."""
    ops = changes.ops.to_pylist()
    older = changes.rows.column(VERSIONS).to_pylist()
    sent = changes.rows.column(CHANGE).to_pylist()
    for row, (op, was_sent) in enumerate(zip(ops, _written(changes, CHANGE).tolist(), strict=True)):
        if op in DELETES:
            continue
        if _ACTIONS.get(op) == pb.UPDATE_ROW:
            if was_sent and sent[row] is not None:
                cells[row] = list(unpack_cells(sent[row]))
        elif older[row] is not None:
            # A cell that headrace itself has deleted since then has no versions. The newest version is the last one,
            # which readers of one version use.
            names = {cell.name for cell in cells[row]}
            versions = [*cells[row], *(cell for cell in unpack_cells(older[row]) if cell.name in names)]
            cells[row] = sorted(versions, key=lambda cell: (cell.name, cell.timestamp))


# -- previous values -------------------------------------------------------------------------------


def _origins(changes: Changes, chosen: Numbers, layout: Layout, origin: Sequence[str]) -> list[bytes | None]:
    """Return the previous row of each chosen change, with the columns ``origin``; None without a previous row."""
    result: list[bytes | None] = [None] * len(chosen)
    has_image = np.zeros(len(chosen), np.bool_)
    has_image[1:] = np.diff(chosen) > 1
    has_image[0] = chosen[0] > 0
    has_row = changes.ops.to_numpy()[chosen] == ChangeOp.DELETE_WITH_ROW
    images = pa.array((chosen - has_image)[has_image | has_row])
    changes = Changes(
        changes.rows.take(images),
        changes.ops.take(images),
        changes.versions.take(images),
        changes.timestamps.take(images),
    )
    columns = [each for name in origin for each in layout.of_name.get(name, ())]
    cells = [(each, changes.rows.column(each.column)) for each in columns]
    used = [(each, array) for each, array in cells if array.null_count < len(array)]
    timestamps = _timestamps(changes, layout)
    selected = Selected(
        changes.rows.select(list(layout.schema.primary_key)),
        tuple(array for _, array in used),
        tuple(each.name for each, _ in used),
        tuple(timestamps[each.column] for each, _ in used),
        np.ones(changes.num_rows, np.bool_),
    )
    for number, image in zip(np.flatnonzero(has_image | has_row).tolist(), selected.each(), strict=True):
        result[number] = image
    return result
