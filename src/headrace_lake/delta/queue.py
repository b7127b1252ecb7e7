"""`DeltaQueue`: an append-only Delta table as a queue with one partition.

A row's index is the number of rows that were appended before it. So the rows of a version end at the number of rows
that the table then had, and the entries of the log, backwards from the newest version, tell where each file begins.
OPTIMIZE does not change that. A delete would: property `delta.appendOnly` forbids it.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Any, NoReturn

import pyarrow as pa

from headrace.errors import DataLossError, NotFoundError, OptionError, UnsupportedError
from headrace.model.queues.columns import QueueSchema
from headrace.model.queues.values import Bounds, QueueOptions, QueuePage, RowRange
from headrace.ports import Queue, QueueDescription, QueuePartition, Rows
from headrace.rows.fields import with_fields
from headrace_lake.data_files import MissingFileError
from headrace_lake.delta.actions import APPEND_ONLY, is_on
from headrace_lake.delta.log import DataFile, Entry, Log
from headrace_lake.delta.snapshot import Snapshot
from headrace_lake.delta.table import DeltaTable


class DeltaQueue(Queue):
    """A table of a directory as a queue.

    Args:
        table: the table.

    Raises:
        UnsupportedError: the table is not append-only.
    """

    def __init__(self, table: DeltaTable) -> None:
        self.name = table.name
        self._table = table
        self._files: list[tuple[int, Entry, DataFile]] = []
        self._versions = range(0)
        self._low = self._high = 0
        self._copies = 0
        self._open(table.snapshot())

    def __repr__(self) -> str:
        return f"DeltaQueue({self.name!r})"

    def _open(self, snapshot: Snapshot) -> None:
        snapshot.check_readable()
        if not is_on(snapshot.properties, APPEND_ONLY):
            raise UnsupportedError(
                f"Delta table {self.name!r} is not append-only, so its rows have no lasting addresses",
                received=f"{APPEND_ONLY} = {snapshot.properties.get(APPEND_ONLY)}",
                valid="true",
                remedy="set the property, if no row is ever changed; otherwise read the table by a tunnel",
            )
        self._snapshot = snapshot
        self._log = Log(self.name, self._table.directory)
        self._last: tuple[str, pa.Table] | None = None
        self._lost = 0
        # The entries are read backwards, as far as rows are asked for.
        self._files, self._low = [], sum(self._rows(file) for file in snapshot.files)
        self._high = self._low
        self._versions = range(snapshot.version + 1, snapshot.version + 1)
        self._digest = self._digest_of(snapshot.version)

    def _digest_of(self, version: int) -> str | None:
        """Return the hash of a version's entry; None if the log does not have it."""
        try:
            return self._log.entry(version, look=True).digest
        except DataLossError:
            return None

    def _rows(self, file: DataFile) -> int:
        return self._snapshot.count(file) if file.rows is None else file.rows

    @property
    def id(self) -> str:
        return self._newest().id

    @property
    def copies(self) -> int:
        self._newest()
        return self._copies

    @property
    def schema(self) -> QueueSchema:
        return QueueSchema(self._newest().schema.columns)

    def _newest(self) -> Snapshot:
        """Return the newest version, with the files that it has added."""
        before, now = self._snapshot, self._table.versions.newer(self._snapshot)
        if now is not before:
            now.check_readable()
            if now.schema != before.schema:
                # What was read has other columns.
                self._last = None
        known = self._versions.stop - 1
        if now.id != before.id or now.version < known or self._digest_of(known) not in (self._digest, None):
            # Another table, or an older copy, which can have more versions by now.
            self._copies += 1
            self._open(self._table.snapshot())
        elif now.version > known:
            self._snapshot = now
            try:
                entries = list(self._log.after(known, now.version))
            except DataLossError:
                # Reading tells whether lost entries had unread rows.
                self._open(now)
                return self._snapshot
            for entry in entries:
                self._check(entry)
                counts = [self._rows(file) for file in entry.added]
                for file, count in zip(entry.added, counts, strict=True):
                    self._files.append((self._high, entry, file))
                    self._high += count
                self._versions, self._digest = range(self._versions.start, entry.version + 1), entry.digest
        return self._snapshot

    def _reach(self, row: int) -> None:
        """Read the log backwards, until it has the version with a row, or as far as there are entries."""
        there = self._log.versions()
        found: list[tuple[int, Entry, DataFile]] = []
        low, version = self._low, self._versions.start
        while low > row and version > there.start:
            version -= 1
            entry = self._log.entry(version)
            self._check(entry)
            for file in reversed(entry.added):
                low -= self._rows(file)
                found.append((low, entry, file))
        self._files = [*reversed(found), *self._files]
        self._low, self._versions = low, range(version, self._versions.stop)

    def _check(self, entry: Entry) -> None:
        if entry.removed:
            raise DataLossError(
                f"rows of the append-only Delta table {self.name!r} were removed, so the addresses of its rows have "
                "changed",
                received=f"version {entry.version}",
                remedy="read the table by a new tunnel",
            )

    # -- reading ----------------------------------------------------------------------------------------

    def bounds(self) -> dict[int, Bounds]:
        size = sum(file.size for file in self._newest().files)
        self._reach(-1)
        return {0: Bounds(max(self._low, self._lost), self._high, size)}

    def read(self, partition: int, first_row: int, max_rows: int = 1000, *, until: int | None = None) -> QueuePage:
        self._check_partition(partition)
        if first_row < 0 or max_rows < 1:
            raise OptionError(
                "a page needs a first row index and at least one row",
                received=f"first_row={first_row}, max_rows={max_rows}",
            )
        fields = self._newest().schema.arrow
        self._reach(first_row)
        if first_row < max(self._low, self._lost):
            raise DataLossError(
                f"the log of Delta table {self.name!r} no longer has the versions with these rows",
                received=f"rows {first_row} to {max(self._low, self._lost) - 1}",
                remedy=f"read from row {max(self._low, self._lost)}",
            )
        end = min(self._high, first_row + max_rows if until is None else min(until, first_row + max_rows))
        if first_row >= end:
            return QueuePage(partition, first_row, pa.RecordBatch.from_pylist([], fields))
        first, _, file = self._file_of(first_row)
        rows = self._content(first, file).slice(first_row - first, end - first_row)
        return QueuePage(partition, first_row, rows.combine_chunks().to_batches()[0])

    def _file_of(self, row: int) -> tuple[int, Entry, DataFile]:
        return self._files[bisect.bisect_right(self._files, row, key=lambda each: each[0]) - 1]

    def _content(self, first: int, file: DataFile) -> pa.Table:
        if self._last is None or self._last[0] != file.path:
            try:
                rows = self._snapshot.read(file, self._snapshot.schema.nullable())
            except MissingFileError as error:
                self._lost = first + self._rows_of_lost(first)
                raise DataLossError(
                    f"VACUUM has deleted a file of Delta table {self.name!r} before its rows were read",
                    received=error.received,
                    remedy="the retention of VACUUM must be longer than the pauses of the table's readers; a tunnel "
                    "reads the table as it is, and then what is appended",
                ) from None
            self._last = (file.path, with_fields(rows, self._snapshot.schema.arrow))
        return self._last[1]

    def _rows_of_lost(self, first: int) -> int:
        after = [start for start, _, _ in self._files if start > first]
        return min(after, default=self._high) - first

    def row_at(self, partition: int, timestamp: float) -> int:
        self.bounds()
        self._check_partition(partition)
        return next((first for first, entry, _ in self._files if entry.time >= timestamp * 1e6), self._high)

    def commit_time(self, partition: int, row: int) -> float | None:
        self._check_partition(partition)
        self._newest()
        self._reach(row)
        return self._file_of(row)[1].time / 1e6 if max(0, self._low) <= row < self._high else None

    def describe(self) -> QueueDescription:
        bounds = self.bounds()[0]
        last = self._files[-1][1].time / 1e6 if self._files else None
        return QueueDescription(self.name, self.schema, QueueOptions(), (QueuePartition(0, bounds, None, last),), ())

    def _check_partition(self, partition: int) -> None:
        if partition != 0:
            raise NotFoundError(f"queue {self.name!r} has no such partition", received=partition, valid=[0])

    # -- writing ----------------------------------------------------------------------------------------

    def append(
        self, rows: Rows, *, partition: int | None = None, key: str | Sequence[str] | None = None
    ) -> list[RowRange]:
        self._refuse("streams write it as a table", "append")

    def trim(self, partition: int | None = None, before: int | None = None) -> int:
        self._refuse("rows are never removed", "trim")

    def add_partitions(self, count: int) -> int:
        self._refuse("there is one partition", f"{count} partitions")

    def set_options(self, **changes: Any) -> QueueOptions:
        self._refuse("it is not trimmed", ", ".join(changes))

    def _refuse(self, reason: str, received: str) -> NoReturn:
        raise UnsupportedError(f"queue {self.name!r} is a Delta table: {reason}", received=received)
