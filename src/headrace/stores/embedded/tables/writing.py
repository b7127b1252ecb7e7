"""The write path of a table: rows are prepared without the writer lock and applied inside a transaction.

In the transaction of the caller, `Writer.apply` changes the rows, writes undo rows for open snapshots, counts the rows
of the partitions, and logs each change in the partition of its key.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

import apsw
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import SchemaError
from headrace.model.tables.changes import DELETES, ChangeOp, RowChange
from headrace.model.tables.options import TableOptions
from headrace.model.tables.schema import Key, TableSchema
from headrace.model.types import type_name
from headrace.stores.embedded.tables import change_log, merge, partitions, retention
from headrace.stores.embedded.tables.codec import Encoded
from headrace.stores.embedded.tables.merge import Groups, Resolved
from headrace.stores.embedded.tables.partitions import OpenPartition
from headrace.stores.embedded.tables.physical import PhysicalTable
from headrace.support.cached import cached_property

_PART_ROWS = 65536
_PART_BYTES = 64 << 20
# The number of parts that are encoded without the lock; more would use too much memory.
_PARTS_AHEAD = 4


class EncodedPart:
    """Some of the rows of a write, in key order and encoded for SQLite."""

    def __init__(self, table: PhysicalTable, rows: pa.RecordBatch) -> None:
        self.rows = rows
        self.groups: Groups = merge.groups_of(rows, table.schema)
        self._table = table

    @cached_property
    def keys(self) -> tuple[list[Any], ...]:
        """The distinct keys, as columns of Python values."""
        return self._table.codec.encode_keys(self.groups.only_last(self.rows))

    @cached_property
    def encoded(self) -> Encoded:
        """The last row of each key; only for rows that have all columns."""
        return self._table.codec.encode(self.groups.only_last(self.rows))


class Prepared:
    """Rows of one write, sorted and partly encoded, for one version of a table's schema.

    Args:
        table: the SQLite tables of the table.
        change: the kind of change.
        rows: rows in the table's types: all columns for PUT and REPLACE_ALL, the key and the cells to set for UPDATE,
            the key for DELETE.
        keep_nulls: whether nulls are values to set (UPDATE only).
    """

    def __init__(self, table: PhysicalTable, change: RowChange, rows: pa.Table, *, keep_nulls: bool = False) -> None:
        self.table = table
        self.change = change
        self.keep_nulls = keep_nulls
        self.rows = merge.sorted_by_key(rows, table.schema)
        if change is RowChange.REPLACE_ALL:
            self.rows = self.rows.filter(pa.array(merge.groups_of(self.rows, table.schema).last))
            return
        ahead = list(zip(range(_PARTS_AHEAD), self._slices(), strict=False))
        self._ahead = [part for _, part in ahead]
        for part in self._ahead:
            _ = part.encoded if change is RowChange.PUT else part.keys

    def parts(self) -> Iterator[EncodedPart]:
        """Yield the rows in parts. Each part is applied to the result of the part before it."""
        done = 0
        for part in self._ahead:
            yield part
            done += part.rows.num_rows
        yield from self._slices(done)

    def _slices(self, start: int = 0) -> Iterator[EncodedPart]:
        average = self.rows.nbytes // max(1, self.rows.num_rows)
        size = max(1, min(_PART_ROWS, _PART_BYTES // max(1, average)))
        for offset in range(start, self.rows.num_rows, size):
            yield EncodedPart(self.table, one_batch(self.rows.slice(offset, size)))


def one_batch(rows: pa.Table) -> pa.RecordBatch:
    """Return a table's rows as one record batch.

    Raises:
        SchemaError: a column has more than 2 GiB of text, the limit of one Arrow array.
    """
    batches = rows.combine_chunks().to_batches()
    if len(batches) > 1:
        raise SchemaError(
            "these rows are too large for one write",
            received=f"{rows.num_rows} rows of {rows.nbytes} bytes",
            remedy="write fewer rows at a time",
        )
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=rows.schema)


class Writer:
    """Applies prepared rows in one transaction.

    Args:
        connection: a connection in a write transaction.
        table: the SQLite tables in that transaction.
        options: the options of the table.
        version: the version of the commit; ``ts`` is its timestamp (µs since 1970).
    """

    def __init__(
        self, connection: apsw.Connection, table: PhysicalTable, options: TableOptions, version: int, ts: int
    ) -> None:
        self._connection = connection
        self._table = table
        self._options = options
        self._version = version
        self._ts = ts
        found = connection.execute("SELECT id FROM snapshot WHERE object = ?", (table.object_id,))
        self._snapshots = [snapshot for (snapshot,) in found]
        self._partitions = partitions.open_partitions(connection, table.object_id)

    def apply(self, prepared: Prepared) -> None:
        """Apply the changes and log them."""
        if prepared.change is RowChange.REPLACE_ALL:
            self._replace_all(prepared.rows)
        else:
            step = {RowChange.PUT: self._put, RowChange.DELETE: self._delete}.get(prepared.change)
            for part in prepared.parts():
                if step is not None:
                    step(part)
                else:
                    self._update(part, keep_nulls=prepared.keep_nulls)
        retention.after_append(self._connection, self._table.object_id, [each.id for each in self._partitions])

    def _put(self, part: EncodedPart) -> None:
        self._preserve(part.keys)
        old = None
        if self._options.pre_images:
            old, _ = self._table.fetch(self._connection, part.keys)
        existed = self._table.write(self._connection, part.encoded)
        self._log(merge.put(part.rows, part.groups, existed, old))

    def _update(self, part: EncodedPart, *, keep_nulls: bool) -> None:
        self._preserve(part.keys)
        old, existed = self._table.fetch(self._connection, part.keys)
        attributes = self._table.schema.attributes
        written = np.zeros((part.rows.num_rows, len(attributes)), dtype=np.bool_)
        given = set(part.rows.schema.names)
        for index, column in enumerate(attributes):
            if column.name in given:
                cells = part.rows.column(column.name)
                written[:, index] = keep_nulls or cells.is_valid().to_numpy(zero_copy_only=False)
        changes = merge.update(part.rows, part.groups, written, existed, old, self._table.schema)
        self._check_whole(changes.rows)
        self._table.write(self._connection, self._table.codec.encode(part.groups.only_last(changes.rows)))
        self._log(changes)

    def _check_whole(self, rows: pa.RecordBatch) -> None:
        """Raise `SchemaError` if an update creates a row with null in a NOT NULL column."""
        for column in self._table.schema.attributes:
            cells = rows.column(column.name)
            if cells.null_count and not column.nullable:
                row = pc.index(cells.is_null(), True).as_py()
                key = {name: rows.column(name)[row].as_py() for name in self._table.schema.primary_key}
                raise SchemaError(
                    f"column {column.name!r} is NOT NULL, and the update would create row {key!r} without it",
                    valid=type_name(column.type),
                    remedy="set the column too, or put the whole row",
                )

    def _delete(self, part: EncodedPart) -> None:
        self._preserve(part.keys)
        old = part.groups.only_last(part.rows)
        if self._options.pre_images:
            old, _ = self._table.fetch(self._connection, part.keys)
        existed = self._table.delete(self._connection, part.keys)
        old = old.filter(pa.array(existed))
        self._log(merge.delete(old, keep_old=self._options.pre_images, schema=self._table.schema))

    def _replace_all(self, rows: pa.Table) -> None:
        """Compare each page of old rows with the new rows of the same key range."""
        schema = self._table.schema
        start, after = 0, None
        for old in self._table.pages(self._connection, schema.names):
            after = old.last or after
            end = rows.num_rows if old.ended or after is None else start_of(rows, schema, after, after=True)
            self._replace(old.rows, one_batch(rows.slice(start, end - start)))
            start = end

    def _replace(self, old: pa.RecordBatch, new: pa.RecordBatch) -> None:
        schema = self._table.schema
        same = merge.match(old, new, schema)
        matched = np.flatnonzero(same >= 0)
        unequal = np.zeros(old.num_rows, dtype=np.bool_)
        unequal[matched] = self._differ(old.take(pa.array(matched)), new.take(pa.array(same[matched])))
        changes = merge.replace_all(old, new, same, unequal, keep_old=self._options.pre_images, schema=schema)
        deleted = np.isin(changes.ops, DELETES)
        self._preserve(self._table.codec.encode_keys(changes.rows))
        self._table.delete(self._connection, self._table.codec.encode_keys(changes.rows.filter(pa.array(deleted))))
        self._table.write(self._connection, self._table.codec.encode(changes.rows.filter(pa.array(~deleted))))
        self._log(changes)

    def _differ(self, left: pa.RecordBatch, right: pa.RecordBatch) -> merge.Mask:
        """Return a mask of the rows that differ in some bit: NaN equals NaN, and -0.0 does not equal 0.0."""
        codec = self._table.codec
        left, right = codec.stored(left), codec.stored(right)
        differ: merge.Mask = (codec.pack(left) != codec.pack(right)).any(axis=1)
        for name in codec.variable_attributes:
            # Nulls are already compared in the packed presence bytes.
            unequal = pc.not_equal(left.column(name), right.column(name)).fill_null(False)
            differ |= unequal.to_numpy(zero_copy_only=False)
        return differ

    def _preserve(self, keys: Sequence[Sequence[Any]]) -> None:
        if self._snapshots:
            self._table.preserve(self._connection, self._snapshots, keys)

    def _log(self, changes: Resolved) -> None:
        if self._options.pre_images and changes.before is not None:
            changes = merge.with_preimages(changes, changes.before)
        for partition, start, end in self._cut(changes.rows):
            ops = changes.ops[start:end]
            if self._options.change_log:
                change_log.append(
                    self._connection,
                    partition.id,
                    self._table.schema_version,
                    changes.rows.slice(start, end - start),
                    pa.array(ops),
                    None if changes.written is None else changes.written.slice(start, end - start),
                    self._version,
                    self._ts,
                )
            added = int(np.isin(ops, (ChangeOp.INSERT, ChangeOp.UPSERT)).sum() - np.isin(ops, DELETES).sum())
            self._count(partition.id, added)

    def _cut(self, rows: pa.RecordBatch) -> Iterator[tuple[OpenPartition, int, int]]:
        """Yield the partitions that have some of the sorted rows, with the first row of each and the first after it."""
        if len(self._partitions) == 1:
            if rows.num_rows:
                yield self._partitions[0], 0, rows.num_rows
            return
        columns = [rows.column(name) for name in self._table.schema.primary_key]
        start = 0
        while start < rows.num_rows:
            key = tuple(column[start].as_py() for column in columns)
            place = bisect_right(self._partitions, key, key=lambda each: each.keys.low or ()) - 1
            partition = self._partitions[place]
            high = partition.keys.high
            end = rows.num_rows if high is None else start_of(rows, self._table.schema, high)
            yield partition, start, end
            start = end

    def _count(self, partition: int, added: int) -> None:
        if added:
            self._connection.execute("UPDATE partition SET rows = rows + ? WHERE id = ?", (added, partition))


def start_of(rows: pa.RecordBatch | pa.Table, schema: TableSchema, prefix: Key | None, *, after: bool = False) -> int:
    """Return the index of the first sorted row whose key starts with a prefix or is greater.

    With ``after``, it is the first row after all keys that start with the prefix.
    """
    if prefix is None:
        return 0
    columns = [rows.column(name) for name in schema.primary_key[: len(prefix)]]
    search = bisect_right if after else bisect_left
    return search(range(rows.num_rows), prefix, key=lambda row: tuple(column[row].as_py() for column in columns))
