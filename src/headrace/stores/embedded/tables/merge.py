"""The effect of a write on rows, as pure functions over columns.

Rows are sorted by key; rows of one key stay in the given order and are a *group*. Each row of a group is one change of
the row that the change before it left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.tables.changes import ChangeOp
from headrace.model.tables.schema import TableSchema
from headrace.rows.by_position import sort_indices

Mask: TypeAlias = npt.NDArray[np.bool_]
Numbers: TypeAlias = npt.NDArray[np.int64]

_WITH_PREIMAGE = (ChangeOp.REPLACE, ChangeOp.UPDATE)


@dataclass(frozen=True)
class Groups:
    """The groups of rows with one key: masks of their first and last rows, and the group number of each row, from 0."""

    first: Mask
    last: Mask
    number: Numbers

    @property
    def all_single(self) -> bool:
        return bool(self.first.all())

    def only_last(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the last row of each group."""
        return rows if self.all_single else rows.filter(pa.array(self.last))


@dataclass(frozen=True)
class Resolved:
    """Changes of rows in key order.

    Attributes:
        rows: the new rows; for a delete, the row that the log will contain.
        ops: `ChangeOp` codes.
        before: the old rows of replacements and updates; None if they are not needed.
        written: for each row, a bitmap of the written attributes, or null for all of them; None if all are null.
    """

    rows: pa.RecordBatch
    ops: npt.NDArray[np.int8]
    before: pa.RecordBatch | None = None
    written: pa.BinaryArray | None = None


def sorted_by_key(rows: pa.Table, schema: TableSchema) -> pa.Table:
    """Return the rows in key order; the sort is stable."""
    return rows.take(sort_indices(rows, schema.primary_key))


def groups_of(rows: pa.RecordBatch | pa.Table, schema: TableSchema) -> Groups:
    """Return the groups of sorted rows."""
    count = rows.num_rows
    first = np.ones(count, dtype=np.bool_)
    if count > 1:
        same = np.ones(count - 1, dtype=np.bool_)
        for name in schema.primary_key:
            column = rows.column(name)
            same &= pc.equal(column[1:], column[:-1]).to_numpy(zero_copy_only=False)
        first[1:] = ~same
    last = np.ones(count, dtype=np.bool_)
    last[:-1] = first[1:]
    return Groups(first, last, np.cumsum(first) - 1)


def put(rows: pa.RecordBatch, groups: Groups, existed: Mask, old: pa.RecordBatch | None) -> Resolved:
    """Resolve puts of whole rows.

    Args:
        existed: for each group, whether the row existed.
        old: for each group, the old row; None if it is not needed.
    """
    replaces = existed[groups.number] | ~groups.first
    ops = np.where(replaces, ChangeOp.REPLACE, ChangeOp.INSERT).astype(np.int8)
    return Resolved(rows, ops, None if old is None else _before(rows, groups, old))


def update(
    rows: pa.RecordBatch, groups: Groups, written: Mask, existed: Mask, old: pa.RecordBatch, schema: TableSchema
) -> Resolved:
    """Resolve updates of cells.

    Args:
        rows: the key and some attributes.
        written: a mask of rows × all attributes of the table: the cells to set.
        existed: for each group, whether the row existed.
        old: for each group, the old row, or a row of nulls.
    """
    count = rows.num_rows
    start = np.flatnonzero(groups.first)[groups.number]
    arrays: dict[str, pa.Array] = {name: rows.column(name) for name in schema.primary_key}
    given = set(rows.schema.names)
    for index, column in enumerate(schema.attributes):
        if column.name not in given:
            arrays[column.name] = old.column(column.name).take(pa.array(groups.number))
            continue
        latest = np.maximum.accumulate(np.where(written[:, index], np.arange(count), -1))
        source = np.where(latest >= start, latest, count + groups.number)
        cells = pa.concat_arrays([rows.column(column.name), old.column(column.name)])
        arrays[column.name] = cells.take(pa.array(source))
    merged = pa.RecordBatch.from_arrays([arrays[name] for name in schema.names], schema=schema.arrow)
    updates = existed[groups.number] | ~groups.first
    ops = np.where(updates, ChangeOp.UPDATE, ChangeOp.UPSERT).astype(np.int8)
    return Resolved(merged, ops, _before(merged, groups, old), bitmaps(written))


def _before(rows: pa.RecordBatch, groups: Groups, old: pa.RecordBatch) -> pa.RecordBatch:
    """Return the row before each change: the old row of the key, or the result of the previous change."""
    if groups.all_single:
        return old
    source = np.where(groups.first, rows.num_rows + groups.number, np.arange(rows.num_rows) - 1)
    return _concatenated(rows, old).take(pa.array(source))


def bitmaps(written: Mask) -> pa.BinaryArray | None:
    """Return a little-endian bitmap of the attributes for each row; None if all rows have all of them."""
    if written.all():
        return None
    packed = np.packbits(written, axis=1, bitorder="little")
    count, width = packed.shape
    offsets = np.arange(0, (count + 1) * width, width, dtype=np.int32)[: count + 1]
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(packed)])


def delete(old: pa.RecordBatch, *, keep_old: bool, schema: TableSchema) -> Resolved:
    """Resolve deletes of rows; ``keep_old`` is whether the log gets their attributes."""
    op = ChangeOp.DELETE_WITH_ROW if keep_old else ChangeOp.DELETE
    return Resolved(old if keep_old else without_attributes(old, schema), np.full(old.num_rows, op, dtype=np.int8))


def with_preimages(changes: Resolved, before: pa.RecordBatch) -> Resolved:
    """Return the changes with a PREIMAGE entry before each replacement and update; ``before`` has the old rows."""
    count = len(changes.ops)
    has_preimage = np.isin(changes.ops, _WITH_PREIMAGE)
    place = np.cumsum(1 + has_preimage) - 1
    size = int(place[-1]) + 1 if count else 0
    source: Numbers = np.empty(size, dtype=np.int64)
    is_preimage = np.zeros(size, dtype=np.bool_)
    source[place] = np.arange(count)
    source[place[has_preimage] - 1] = np.flatnonzero(has_preimage)
    is_preimage[place[has_preimage] - 1] = True
    ops = np.where(is_preimage, ChangeOp.PREIMAGE, changes.ops[source]).astype(np.int8)
    both = _concatenated(changes.rows, before)
    rows = both.take(pa.array(np.where(is_preimage, count + source, source)))
    written = None if changes.written is None else changes.written.take(pa.array(source, mask=is_preimage))
    return Resolved(rows, ops, written=written)


def replace_all(
    old: pa.RecordBatch, new: pa.RecordBatch, same: Numbers, unequal: Mask, *, keep_old: bool, schema: TableSchema
) -> Resolved:
    """Resolve the replacement of rows by other rows; both are in key order, without repeated keys.

    Args:
        same: for each old row the index of the new row of the same key, or -1; see `match`.
        unequal: for each old row, whether the new row of the same key differs from it.
        keep_old: whether deletes contain the old attributes.
    """
    missing = np.flatnonzero(same < 0)
    replaced = np.flatnonzero((same >= 0) & unequal)
    inserted = np.setdiff1d(np.arange(new.num_rows), same)
    deleted = delete(old.take(pa.array(missing)), keep_old=keep_old, schema=schema)
    rows = _concatenated(
        deleted.rows,
        new.take(pa.array(same[replaced])),
        new.take(pa.array(inserted)),
    )
    puts = np.array([ChangeOp.REPLACE, ChangeOp.INSERT], dtype=np.int8)
    ops = np.concatenate([deleted.ops, np.repeat(puts, [len(replaced), len(inserted)])])
    found = np.concatenate([missing, replaced, np.zeros(len(inserted), dtype=np.int64)])
    before = old.take(pa.array(found, mask=ops == ChangeOp.INSERT)) if keep_old else None
    order = sort_indices(rows, schema.primary_key)
    return Resolved(rows.take(order), ops[order.to_numpy()], None if before is None else before.take(order))


def match(left: pa.RecordBatch, right: pa.RecordBatch, schema: TableSchema) -> Numbers:
    """Return, for each row of ``left``, the index of the row of ``right`` with the same key, or -1.

    The keys on each side are unique.
    """
    keys = list(schema.primary_key)
    both = pa.Table.from_batches([left.select(keys), right.select(keys)])
    order = sort_indices(both, keys).to_numpy().astype(np.int64)
    first = groups_of(both.take(pa.array(order)), schema).first
    second = np.flatnonzero(~first)
    result = np.full(left.num_rows, -1, dtype=np.int64)
    result[order[second - 1]] = order[second] - left.num_rows
    return result


def without_attributes(rows: pa.RecordBatch, schema: TableSchema) -> pa.RecordBatch:
    """Return the keys of rows, with null attributes also where a column is not nullable."""
    arrays: list[Any] = [
        rows.column(column.name) if column.name in schema.primary_key else pa.nulls(rows.num_rows, column.type)
        for column in schema.columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema.changes)


def _concatenated(*batches: pa.RecordBatch) -> pa.RecordBatch:
    schema = batches[0].schema
    columns = [pa.concat_arrays([batch.column(index) for batch in batches]) for index in range(len(schema))]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
