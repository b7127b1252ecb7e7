"""A Delta table as a table of headrace."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.errors import UnsupportedError
from headrace.model.tables.alterations import Alteration
from headrace.model.tables.changes import RowChange
from headrace.model.tables.conditions import KeyRange, Predicate
from headrace.model.tables.options import PARTITION_BY, TableOptions, check_option_names
from headrace.model.tables.schema import TableSchema, parse_columns
from headrace.ports import TableDescription
from headrace.ports.arguments import flag
from headrace_lake import data_files
from headrace_lake.delta import changes, reading
from headrace_lake.delta.actions import WRITES_VECTORS, Actions
from headrace_lake.delta.changes import Planner
from headrace_lake.delta.commits import commit
from headrace_lake.delta.schemas import PRE_IMAGES, keeps_pre_images, text_of
from headrace_lake.delta.snapshot import Snapshot
from headrace_lake.delta.versions import Versions
from headrace_lake.folding import TableWrite
from headrace_lake.partitions import check_not_set
from headrace_lake.scanning import Selection
from headrace_lake.tables import FileTable

_DEFAULT = TableOptions()
DELETION_VECTORS = "deletion_vectors"
"""The option of a table: whether deleted rows are written as deletion vectors."""
_PROPERTIES = {"pre_images": PRE_IMAGES, DELETION_VECTORS: WRITES_VECTORS}


def check_options(given: Mapping[str, Any]) -> None:
    """Raise `UnsupportedError` for options of a change log that the log of a Delta table does not have."""
    check_option_names(given, [PARTITION_BY, DELETION_VECTORS])
    for name, value in given.items():
        if name in _PROPERTIES or name == "change_log":
            flag(value, f"option {name}")
        elif name != PARTITION_BY and value not in (None, getattr(_DEFAULT, name)):
            raise UnsupportedError(
                "the changes of a Delta table are kept as long as its log and its files",
                received=f"{name}={value}",
                remedy="set the properties delta.logRetentionDuration and delta.deletedFileRetentionDuration",
            )


class DeltaTable(FileTable):
    """A table: a directory with data files and a log.

    Args:
        versions: its versions, the same for all handles of a process.
    """

    def __init__(self, versions: Versions) -> None:
        self.name = versions.name
        self.directory = versions.directory
        self.versions = versions

    def __repr__(self) -> str:
        return f"DeltaTable({self.name!r})"

    def snapshot(self) -> Snapshot:
        """Return the newest version.

        Raises:
            NotFoundError: the table does not exist.
        """
        return self.versions.newest()

    def _readable(self) -> Snapshot:
        snapshot = self.snapshot()
        snapshot.check_readable()
        return snapshot

    def _version(self, conditions: Sequence[Predicate] = ()) -> _Rows:
        return _Rows(self._readable())

    @property
    def schema(self) -> TableSchema:
        return self.snapshot().schema

    def identity(self) -> str:
        return self.snapshot().id

    def _write(self, change: RowChange, rows: pa.Table, *, keep_nulls: bool = True) -> int:
        if not rows.num_rows:
            return self.snapshot().version
        planner = Planner([TableWrite(change, rows, keep_nulls)], data_files.PREFIX)
        done: Actions | None = None

        def plan(snapshot: Snapshot) -> Actions:
            nonlocal done
            # An earlier attempt was certainly not committed.
            done = None
            snapshot.check_writable(removes=True)
            done = planner.actions(snapshot)
            return done

        try:
            version = commit(self.versions, plan)
        except Exception:
            # It may be that only the answer of the commit is lost: what the last attempt has added stays.
            planner.clean(done)
            raise
        planner.clean(done)
        assert version is not None
        return version

    # -- columns, options ---------------------------------------------------------------------------------

    def add_columns(self, columns: Mapping[str, str | pa.DataType]) -> None:
        self.alter(Alteration(added=parse_columns(columns)))

    def alter(self, alteration: Alteration) -> None:
        def plan(snapshot: Snapshot) -> Actions:
            snapshot.check_writable(removes=False)
            return Actions(definition=snapshot.changed(snapshot.altered(alteration).schema))

        commit(self.versions, plan)

    def set_options(self, **changes: Any) -> TableOptions:
        check_options(changes)
        check_not_set(changes)
        wanted = {key: text_of(changes[name]) for name, key in _PROPERTIES.items() if changes.get(name) is not None}

        def plan(snapshot: Snapshot) -> Actions | None:
            snapshot.check_writable(removes=False)
            if all(snapshot.properties.get(key) == value for key, value in wanted.items()):
                return None
            return Actions(definition=snapshot.changed(properties=wanted))

        if wanted:
            commit(self.versions, plan)
        return self._options(self.snapshot())

    def _options(self, snapshot: Snapshot) -> TableOptions:
        return TableOptions(pre_images=keeps_pre_images(snapshot.properties), retention_seconds=None)

    def describe(self) -> TableDescription:
        snapshot = self._readable()
        counts = [file.rows for file in snapshot.files]
        rows = sum(count for count in counts if count is not None) if None not in counts else None
        options, by = self._options(snapshot), snapshot.partition_columns
        return TableDescription(self.name, snapshot.schema, options, rows, (), partition_by=by)


@dataclass(frozen=True)
class _Rows:
    """The rows of a version."""

    snapshot: Snapshot

    @property
    def schema(self) -> TableSchema:
        return self.snapshot.schema

    def find(self, keys: pa.Table, columns: Sequence[str]) -> pa.Table:
        return changes.find(self.snapshot, keys, columns)

    def scan(self, selection: Selection) -> Iterator[pa.RecordBatch]:
        return reading.scan(self.snapshot, selection)

    def ranges(self, count: int) -> list[KeyRange]:
        return reading.ranges(self.snapshot, count)
