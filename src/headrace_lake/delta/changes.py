"""The changes of one commit to a table: from writes of rows by key to files that are added and removed.

The writes are folded into the last state of each key. Then all rows of these keys are removed from the files of the
version. A file without other rows is removed. In a table with deletion vectors, another one gets a vector with these
rows; without, or if more than a quarter of its rows are deleted, it is rewritten. A data file never changes, so a
repeated attempt uses what an earlier one has written for it.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import SchemaError
from headrace.model.tables.change_columns import CHANGE_TYPE
from headrace.model.tables.changes import RowChange
from headrace.model.tables.schema import TableSchema
from headrace.rows import check_not_null
from headrace.rows.by_position import compared, last_rows
from headrace.rows.fields import with_fields
from headrace_lake import data_files
from headrace_lake.data_files import RowNumbers
from headrace_lake.delta import vectors
from headrace_lake.delta.actions import Actions, Added, Shortened
from headrace_lake.delta.commits import remove_files
from headrace_lake.delta.log import FEED, DataFile
from headrace_lake.delta.partitions import divided
from headrace_lake.delta.snapshot import Snapshot
from headrace_lake.delta.vectors import Vector
from headrace_lake.folding import DELETED, TableWrite, last_state
from headrace_lake.lookup import Found, Keys
from headrace_lake.places import Place, second_name
from headrace_lake.ready_files import ReadyFiles

_FILE_ROWS = 2_000_000
_MOST_DELETED = 0.25
"""The share of deleted rows of a file, which each reader reads, beyond which it is rewritten."""


@dataclass(frozen=True)
class _Removal:
    """How a file loses rows.

    Attributes:
        replacements: the files that replace it; None if it gets a vector.
        rows: the rows that it loses.
        deleted: its deleted rows: these, and earlier ones.
    """

    file: DataFile
    replacements: Sequence[Added] | None
    rows: RowNumbers
    deleted: RowNumbers


@dataclass
class Planner:
    """Plans the commit of some writes for a version, and for another version after a conflict.

    Args:
        writes: the writes, in order; or files.
        prefix: the beginning of the names of new files.
    """

    writes: Sequence[TableWrite] | ReadyFiles
    prefix: str
    _written: set[str] = field(default_factory=set, init=False)
    _removals: dict[tuple[str, Vector | None, bool], _Removal] = field(default_factory=dict, init=False)
    _inserted: list[Added] | None = field(default=None, init=False)
    _keys: Keys | None = field(default=None, init=False)
    _directory: Place | None = field(default=None, init=False)
    _table: tuple[str, TableSchema] | None = field(default=None, init=False)

    @property
    def changes(self) -> set[RowChange]:
        """The row changes of the writes."""
        return {self.writes.change} if isinstance(self.writes, ReadyFiles) else {each.change for each in self.writes}

    def actions(self, snapshot: Snapshot) -> Actions:
        """Return the actions for a version. The files that they add are written."""
        self._check_same(snapshot)
        if RowChange.UPDATE in self.changes:
            # The new rows depend on those of the version.
            self._inserted = None
        added = self._new_rows(snapshot)
        if RowChange.REPLACE_ALL in self.changes:
            return Actions(added, snapshot.files)
        if not snapshot.files or not snapshot.schema.primary_key:
            return Actions(added)
        removals = self._without(snapshot)
        rewritten = [each for each in removals if each.replacements is not None]
        return Actions(
            [*added, *(new for each in rewritten for new in each.replacements or ())],
            [each.file for each in rewritten],
            self._shortened(snapshot, [each for each in removals if each.replacements is None]),
            self._feed(snapshot, removals, added) if snapshot.writes_feed and removals else (),
        )

    def clean(self, kept: Actions | None) -> None:
        """Delete the files that attempts have written, except those of the commit."""
        if self._directory is not None:
            remove_files(self._directory, self._written - (set() if kept is None else kept.files))

    def _check_same(self, snapshot: Snapshot) -> None:
        """Raise `SchemaError` if the table is not the one of the first attempt. More columns are no difference."""
        known = (snapshot.id, snapshot.schema)
        if self._table is None:
            self._table = known
        before, columns = self._table
        now = snapshot.schema.columns[: len(columns.columns)]
        if before != snapshot.id or columns.primary_key != snapshot.schema.primary_key or columns.columns != now:
            raise SchemaError(
                f"Delta table {snapshot.name!r} was replaced, or its columns were changed, during this write",
                received=", ".join(snapshot.schema.names),
                remedy="write again",
            )

    # -- new rows -----------------------------------------------------------------------------------------

    def _new_rows(self, snapshot: Snapshot) -> list[Added]:
        """Write, or place, the files with the new rows, unless an earlier attempt has."""
        self._directory = snapshot.directory
        if self._inserted is None:
            if isinstance(self.writes, ReadyFiles):
                self._inserted = self._placed(snapshot, self.writes.files)
            else:
                self._inserted = self._folded(snapshot, self.writes)
        return self._inserted

    def _folded(self, snapshot: Snapshot, writes: Sequence[TableWrite]) -> list[Added]:
        state = last_state(writes, snapshot.schema, partial(find, snapshot))
        if snapshot.schema.primary_key:
            self._keys = Keys(snapshot.schema, state)
        alive = state.filter(pc.invert(state.column(DELETED))).drop_columns([DELETED])
        check_not_null(alive, snapshot.schema)
        parts = (alive.slice(n, _FILE_ROWS) for n in range(0, len(alive), _FILE_ROWS))
        return [file for part in parts for file in self._written_files(snapshot, part)]

    def _placed(self, snapshot: Snapshot, files: Sequence[Place]) -> list[Added]:
        added: list[Added] = []
        for path in files:
            with data_files.opened(path) as opened:
                statistics = data_files.statistics_of(opened)
            target = self._new_file(snapshot, {})
            second_name(path, snapshot.directory / target)
            added.append(snapshot.added(target, statistics, {}))
        return added

    def _written_files(self, snapshot: Snapshot, rows: pa.Table) -> Iterator[Added]:
        """Write rows into a file for each partition."""
        for partition, part in divided(rows, snapshot.partition_columns):
            yield snapshot.write(self._new_file(snapshot, partition), part, partition)

    def _new_file(self, snapshot: Snapshot, partition: Mapping[str, str | None]) -> str:
        """Return a path that no other planner has: two drivers may complete the same batch at the same time."""
        path = snapshot.new_path(self.prefix, partition)
        self._written.add(path)
        return path

    # -- old rows -----------------------------------------------------------------------------------------

    def _without(self, snapshot: Snapshot) -> list[_Removal]:
        """Return how files lose the rows of the written keys."""
        if self._keys is None:
            assert isinstance(self.writes, ReadyFiles)
            self._keys = Keys(snapshot.schema, self.writes.all_keys(snapshot.schema))
        keys = self._keys

        def removal(file: DataFile) -> _Removal | None:
            same = (file.path, file.vector, snapshot.writes_vectors)
            if same not in self._removals and (found := _rows_of(keys, snapshot, file)) is not None:
                self._removals[same] = self._removal(snapshot, file, found)
            return self._removals.get(same)

        # Each file is waited for until it is on the disk.
        with ThreadPoolExecutor(2 * (os.cpu_count() or 1)) as pool:
            return [each for each in pool.map(removal, snapshot.files) if each is not None]

    def _removal(self, snapshot: Snapshot, file: DataFile, found: Found) -> _Removal:
        before, rows = snapshot.deleted(file), found.numbers
        deleted = rows if before is None else np.union1d(before, rows)
        if file.stored_rows is None:
            file = replace(file, stored_rows=snapshot.count(file) + file.deleted_rows)
        assert file.stored_rows is not None
        if len(deleted) == file.stored_rows:
            return _Removal(file, (), rows, deleted)
        if snapshot.writes_vectors and len(deleted) <= _MOST_DELETED * file.stored_rows:
            return _Removal(file, None, rows, deleted)
        new = snapshot.rewrite(file, self._new_file(snapshot, file.partition), deleted, found.keys)
        return _Removal(file, [new], rows, deleted)

    def _shortened(self, snapshot: Snapshot, removals: Sequence[_Removal]) -> list[Shortened]:
        """Write the vectors of files into one file."""
        written = vectors.write(snapshot.directory, [each.deleted for each in removals])
        self._written |= {name for each in written if (name := each.file) is not None}
        return [Shortened(each.file, vector) for each, vector in zip(removals, written, strict=True)]

    # -- the change feed ----------------------------------------------------------------------------------

    def _feed(self, snapshot: Snapshot, removals: Sequence[_Removal], added: Sequence[Added]) -> list[Added]:
        """Write the files of the change feed: the old and the new rows, with their change types."""
        fields, key = snapshot.schema.nullable(), snapshot.schema.primary_key
        empty = fields.empty_table()
        old = pa.concat_tables([empty, *(snapshot.read_rows(each.file, fields, each.rows) for each in removals)])
        files = [DataFile(each.log_path, each.size, None, partition=each.partition) for each in added]
        new = pa.concat_tables([empty, *(snapshot.read(file, fields) for file in files)])
        # Another program may have written a key twice.
        last = last_rows(old, key)
        repeated = old.take(pa.array(np.setdiff1d(np.arange(old.num_rows), last)))
        old = old.take(pa.array(last))
        pairs = compared(old, new, key)
        pieces = {
            "insert": new.take(pairs.only_right),
            "update_preimage": old.take(pairs.left),
            "update_postimage": new.take(pairs.right),
            "delete": pa.concat_tables([old.take(pairs.only_left), repeated]),
        }
        rows = pa.concat_tables(
            [each.append_column(CHANGE_TYPE, pa.repeat(kind, each.num_rows)) for kind, each in pieces.items()]
        )
        written = []
        for partition, part in divided(rows, snapshot.partition_columns):
            # Without directories of partitions: delta-rs reads the path as it is in the log.
            path = f"{FEED}/{self.prefix}{uuid.uuid4().hex}.parquet"
            self._written.add(path)
            written.append(snapshot.write_feed(path, part, partition))
        return written


def find(snapshot: Snapshot, keys: pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
    """Return the rows of a version with some keys, in no order: the columns of the key, and further ones.

    Args:
        keys: different keys.
        columns: the columns besides the key; all by default.
    """
    wanted, schema = Keys(snapshot.schema, keys), snapshot.schema
    names = [name for name in schema.names if columns is None or name in columns or name in schema.primary_key]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(lambda file: _rows_of(wanted, snapshot, file, names), snapshot.files))
    fields = schema.nullable(names)
    parts = [with_fields(each.rows, fields) for each in filter(None, found)]
    return pa.concat_tables([fields.empty_table(), *parts])


def _rows_of(keys: Keys, snapshot: Snapshot, file: DataFile, columns: Sequence[str] = ()) -> Found | None:
    """Return the rows of a file with some keys; see `Keys.rows_of`."""
    if not keys.can_be_between(file.bounds):
        return None
    path, constants = snapshot.directory / file.path, snapshot.constants(file)
    return keys.rows_of(path, columns, constants, snapshot.deleted(file))
