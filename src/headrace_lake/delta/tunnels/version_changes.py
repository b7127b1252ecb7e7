"""The changes of rows of one version, in parts that are read one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import DataLossError, UnsupportedError
from headrace.model.tables.change_columns import CHANGE_TYPE
from headrace.model.tables.changes import ChangeOp, Changes
from headrace.model.tables.schema import TableSchema
from headrace.rows.by_position import compared, sort_indices
from headrace.rows.differing import unequal_rows
from headrace.rows.fields import with_fields
from headrace_lake.data_files import MissingFileError
from headrace_lake.delta.log import DataFile, Entry
from headrace_lake.delta.snapshot import Snapshot
from headrace_lake.primary_keys import PRIMARY_KEY

_OLD, _NEW = ("delete", "update_preimage"), ("insert", "update_postimage")


@dataclass(frozen=True)
class Part:
    """Some changes of a version.

    Attributes:
        key: names the part among all parts of the table.
        count: the number of changes; None if they must be read for it.
        size: the size of the files to read, in bytes.
        load: reads the changes.
    """

    key: tuple[str, int]
    count: int | None
    size: int
    load: Callable[[], Changes]


def parts_of(entry: Entry, snapshot: Snapshot, pre_images: Callable[[], bool]) -> list[Part]:
    """Return the parts of a version's changes, in order.

    New rows alone are a part for each file. Otherwise all rows of the version are compared by key.

    Args:
        snapshot: the newest version of the table, for the columns.
        pre_images: returns whether updates and deletes have the old row.

    Raises:
        UnsupportedError: rows of a table without a key were removed.
    """
    if not entry.files:
        return []
    if not entry.feed and not entry.removed:
        return [
            Part((entry.digest, number), file.rows, file.size, lambda file=file: _inserts(entry, snapshot, file))  # type: ignore[misc]
            for number, file in enumerate(entry.added)
        ]
    if not snapshot.schema.primary_key and not entry.feed:
        raise UnsupportedError(
            f"rows of Delta table {snapshot.name!r} were replaced or removed, and without a key their changes are "
            "unknown",
            received=f"version {entry.version}",
            remedy=f"set property {PRIMARY_KEY} of the table, if no two rows have the same key",
        )
    return [Part((entry.digest, 0), None, entry.size, lambda: _compared(entry, snapshot, pre_images=pre_images()))]


def _inserts(entry: Entry, snapshot: Snapshot, file: DataFile) -> Changes:
    rows = read_or_lost(snapshot, file, snapshot.schema.nullable())
    return changes(entry.version, entry.time, rows, np.full(rows.num_rows, ChangeOp.INSERT), snapshot.schema)


def changes(version: int, time: int, rows: pa.Table, ops: npt.NDArray[Any], schema: TableSchema) -> Changes:
    """Return rows of one version as changes."""
    count = rows.num_rows
    batches = with_fields(rows, schema.changes).combine_chunks().to_batches()
    return Changes(
        batches[0] if batches else pa.RecordBatch.from_pylist([], schema.changes),
        pa.array(ops, pa.int8()),
        pa.array(np.full(count, version), pa.int64()),
        pa.array(np.full(count, time), pa.int64()).cast(pa.timestamp("us", tz="UTC")),
    )


def _compared(entry: Entry, snapshot: Snapshot, *, pre_images: bool) -> Changes:
    schema = snapshot.schema
    old, new = (
        _feed(entry, snapshot)
        if entry.feed
        else (
            _rows(entry.removed, entry.added, snapshot),
            _rows(entry.added, entry.removed, snapshot),
        )
    )
    if not schema.primary_key:
        ops = np.repeat([ChangeOp.DELETE_WITH_ROW, ChangeOp.INSERT], [old.num_rows, new.num_rows])
        return changes(entry.version, entry.time, pa.concat_tables([old, new]), ops, schema)
    found = compared(old, new, schema.primary_key)
    before, after = old.take(found.left), new.take(found.right)
    differs = pa.array(unequal_rows(before, after))
    before, after = before.filter(differs), after.filter(differs)
    deleted, inserted = old.take(found.only_left), new.take(found.only_right)
    # Columns for the order of the result: a pre-image comes right before its change.
    pieces = [(inserted, ChangeOp.INSERT), (after, ChangeOp.REPLACE)]
    if pre_images:
        pieces = [(before, ChangeOp.PREIMAGE), *pieces, (deleted, ChangeOp.DELETE_WITH_ROW)]
    else:
        pieces.append((_keys_only(deleted, schema), ChangeOp.DELETE))
    rows = pa.concat_tables([rows for rows, _ in pieces])
    ops = np.concatenate([np.full(rows.num_rows, op) for rows, op in pieces])
    # The sort is stable.
    order = sort_indices(rows, schema.primary_key)
    return changes(entry.version, entry.time, rows.take(order), ops[order.to_numpy()], schema)


def _keys_only(rows: pa.Table, schema: TableSchema) -> pa.Table:
    columns = [
        rows.column(field.name) if field.name in schema.primary_key else pa.nulls(rows.num_rows, field.type)
        for field in rows.schema
    ]
    return pa.table(columns, schema=rows.schema)


def _rows(files: Sequence[DataFile], others: Sequence[DataFile], snapshot: Snapshot) -> pa.Table:
    """Return the rows of files, without rows that other files have: a file with another deletion vector."""
    fields = snapshot.schema.nullable()
    same = {file.path: file for file in others}
    parts = (read_or_lost(snapshot, file, fields, same.get(file.path)) for file in files)
    return pa.concat_tables([fields.empty_table(), *parts])


def _feed(entry: Entry, snapshot: Snapshot) -> tuple[pa.Table, pa.Table]:
    """Return the old and the new rows of the files of the change feed."""
    fields = snapshot.schema.nullable().append(pa.field(CHANGE_TYPE, pa.string()))
    rows = pa.concat_tables([read_or_lost(snapshot, file, fields) for file in entry.feed])
    kinds = rows.column(CHANGE_TYPE)
    rows = rows.drop_columns([CHANGE_TYPE])
    old, new = (rows.filter(pc.is_in(kinds, value_set=pa.array(names))) for names in (_OLD, _NEW))
    return old, new


def read_or_lost(snapshot: Snapshot, file: DataFile, fields: pa.Schema, other: DataFile | None = None) -> pa.Table:
    """Return the rows of a file.

    Args:
        other: the same file with another deletion vector: the rows that are not deleted there are left out.

    Raises:
        DataLossError: the file was deleted.
    """
    try:
        return snapshot.read(file, fields) if other is None else snapshot.read_difference(file, other, fields)
    except MissingFileError as error:
        raise DataLossError(
            f"VACUUM has deleted a file of Delta table {snapshot.name!r} before its rows were read",
            received=error.received,
            remedy="the retention of VACUUM must be longer than the pauses of the table's readers; create a new tunnel "
            "to read the table again",
        ) from None
