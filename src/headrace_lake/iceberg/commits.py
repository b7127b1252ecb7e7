"""The commits of an Iceberg table: from writes of rows by key to one snapshot with its marker.

1. Read the newest version, and check on it what the commit relies on: the marker, the columns, the files.
2. Plan the commit: write the new rows, and rewrite each file that has a row with one of their keys.
3. Commit a snapshot after this version, with the marker as a property of the table. If another snapshot was first,
   nothing is committed, and all steps are repeated: the table does not let pyiceberg repeat a commit by itself.

Each commit has a snapshot, also one without rows: only a snapshot makes the catalog compare the version.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import ValidationError
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table.update.snapshot import ExpireSnapshots
from pyiceberg.typedef import Record
from sqlalchemy.exc import SQLAlchemyError

from headrace.errors import SchemaError, StoreBusyError, StoreError
from headrace.model.tables.changes import RowChange
from headrace.rows import check_not_null
from headrace.support import failpoints
from headrace.support.retries import jitter
from headrace_lake import data_files
from headrace_lake.folding import DELETED, TableWrite, last_state
from headrace_lake.iceberg.files import local_path, location_of
from headrace_lake.iceberg.version import StoredFile, Version, number_of
from headrace_lake.lookup import Found, Keys
from headrace_lake.places import second_name, sync
from headrace_lake.ready_files import ReadyFiles
from headrace_lake.staging import WHOLE_ROWS, Columns

_PATIENCE_SECONDS = 120.0
_LONGEST_PAUSE = 0.2
_FILE_ROWS = 2_000_000


@dataclass(frozen=True)
class Changes:
    """The files that a commit adds and removes.

    Attributes:
        expired: the snapshots that the commit removes from the metadata, besides `Version.surplus_snapshots`.
    """

    added: Sequence[DataFile] = ()
    removed: Sequence[DataFile] = ()
    expired: Sequence[int] = ()


class NewFiles:
    """The data files that the attempts of a commit write.

    Args:
        prefix: the beginning of their names.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._paths: set[Path] = set()

    def path(self, version: Version) -> Path:
        """Return a path that no other file has."""
        directory = version.location / "data"
        if not directory.is_dir():
            directory.mkdir(parents=True, exist_ok=True)
            sync(directory.parent)
        path = directory / f"{self._prefix}{uuid.uuid4().hex}.parquet"
        self._paths.add(path)
        return path

    def write(self, version: Version, rows: pa.Table, *, in_order: bool = False) -> Iterator[DataFile]:
        """Write rows into files of their partitions; yield the entry of each.

        Args:
            in_order: whether the rows are known to be in key order.
        """
        fields = version.columns.fields
        for partition, part in version.partitions(rows):
            for start in range(0, part.num_rows, _FILE_ROWS):
                path, piece = self.path(version), part.slice(start, _FILE_ROWS)
                statistics = data_files.write_sorted(
                    path, piece, version.schema, version.id, fields=fields, in_order=in_order
                )
                yield version.added(path, statistics, partition)

    def write_ordered(
        self, version: Version, parts: Iterator[pa.Table], least_bytes: int, partition: Record
    ) -> DataFile:
        """Write the next rows of a partition into a file; return its entry. See `data_files.write_ordered`."""
        path, fields = self.path(version), version.columns.fields
        statistics = data_files.write_ordered(path, parts, least_bytes, version.schema, version.id, fields=fields)
        return version.added(path, statistics, partition)

    def clean(self, kept: Changes | None) -> None:
        """Delete the files, except those of a commit."""
        names = set() if kept is None else {each.file_path for each in kept.added}
        for path in self._paths:
            if location_of(path) not in names:
                path.unlink(missing_ok=True)


class Plan(Protocol):
    """What a commit is to change, for each version on which it is tried."""

    files: NewFiles

    def plan(self, version: Version) -> Changes | None:
        """Return the changes of a version; None if there is nothing to do. The files that they add are written."""


@dataclass
class Planner:
    """Plans the commit of some writes for a version, and for another version after a conflict.

    Args:
        writes: the writes, in order; or files.
        columns: the columns that the writes have; by default those of the first version.
        spec: the partition spec; by default that of the first version.
    """

    writes: list[TableWrite] | ReadyFiles
    files: NewFiles
    columns: Columns | None = None
    spec: PartitionSpec | None = None
    _rewritten: dict[Path, list[DataFile] | None] = field(default_factory=dict, init=False)
    _inserted: list[DataFile] | None = field(default=None, init=False)
    _keys: Keys | None = field(default=None, init=False)

    @property
    def changes(self) -> set[RowChange]:
        """The row changes of the writes."""
        return {self.writes.change} if isinstance(self.writes, ReadyFiles) else {each.change for each in self.writes}

    def plan(self, version: Version) -> Changes:
        """Return the changes of a version. The files that they add are written."""
        self._check_same(version)
        if not self.changes <= {*WHOLE_ROWS}:
            version.schema.check_keyed()
        if RowChange.UPDATE in self.changes:
            # The new rows depend on those of the version.
            self._inserted = None
        if self._inserted is None:
            self._inserted = self._new_rows(version)
        added, removed = [*self._inserted], []
        if RowChange.REPLACE_ALL in self.changes:
            return Changes(added, [file.entry for file in version.files])
        if version.schema.primary_key:
            for file in version.files:
                left = self._without(version, file)
                if left is not None:
                    added += left
                    removed.append(file.entry)
        return Changes(added, removed)

    def _check_same(self, version: Version) -> None:
        """Raise `SchemaError` if the table, its columns or its partitions are not those of the writes."""
        if self.columns is None:
            self.columns, self.spec = version.columns, version.spec
        if self.columns[:2] != version.columns[:2] or self.spec != version.spec:
            raise SchemaError(
                f"Iceberg table {version.name!r} was replaced, or its partitions or columns were changed, during "
                "this write",
                received=", ".join(version.schema.names),
                remedy="write again",
            )

    # -- new rows -----------------------------------------------------------------------------------------

    def _new_rows(self, version: Version) -> list[DataFile]:
        schema = version.schema
        if isinstance(self.writes, ReadyFiles):
            if schema.primary_key:
                self._keys = Keys(schema, self.writes.all_keys(schema))
            return [self._placed(version, path) for path in self.writes.files]
        state = last_state(self.writes, schema, version.find)
        if schema.primary_key:
            self._keys = Keys(schema, state)
        alive = state.filter(pc.invert(state.column(DELETED))).drop_columns([DELETED])
        check_not_null(alive, schema)
        return list(self.files.write(version, alive))

    def _placed(self, version: Version, path: Any) -> DataFile:
        with data_files.opened(path) as opened:
            statistics = data_files.statistics_of(opened)
        target = self.files.path(version)
        # It may have been staged long ago: a vacuum must not take it for one of a writer that has died.
        os.utime(path)
        second_name(path, target)
        # Only a table without partitions has files that tasks have written.
        return version.added(target, statistics, Record())

    # -- old rows -----------------------------------------------------------------------------------------

    def _without(self, version: Version, file: StoredFile) -> list[DataFile] | None:
        """Return the files that replace one with written keys; None if it has none of them."""
        if file.path not in self._rewritten:
            assert self._keys is not None
            found = version.rows_of(self._keys, file)
            self._rewritten[file.path] = None if found is None else self._rest(version, file, found)
        return self._rewritten[file.path]

    def _rest(self, version: Version, file: StoredFile, found: Found) -> list[DataFile]:
        with data_files.opened(file.path) as opened:
            left = data_files.read(
                opened, version.schema.arrow, constants=file.constants, deleted=found.numbers, known=found.keys
            )
            in_order = data_files.is_sorted(opened, version.id, version.schema.primary_key)
        return list(self.files.write(version, left, in_order=in_order))


class UncertainCommitError(StoreError):
    """A commit has failed, and may be done: its files must stay, and it must not be repeated without its marker."""


def commit(
    load: Callable[[], Version],
    plan: Plan,
    check: Callable[[Version], bool] = lambda _: True,
    *,
    markers: Mapping[str, str] | None = None,
    information: Mapping[str, str] | None = None,
) -> int | None:
    """Change a table in one snapshot.

    Args:
        load: returns the newest version.
        check: checks a version; returns whether it lacks the changes.
        markers: properties of the table.
        information: texts for the history of the table. Nothing depends on them.

    Returns:
        The number of the new version; None if the table has the changes, or if there are none.

    Raises:
        StoreBusyError: other programs commit all the time.
        UncertainCommitError: the commit may be done.
    """
    changes: Changes | None = None

    def attempt(version: Version) -> int | None:
        nonlocal changes
        # An earlier attempt was certainly not committed.
        changes = None
        if not check(version):
            return None
        planned = prepared(version, plan)
        if planned is None:
            return None
        changes = planned
        number = committed(version, changes, markers or {}, information or {})
        failpoints.reach("marker-written")
        return number

    try:
        return repeated(load, attempt)
    except UncertainCommitError:
        raise
    except Exception:
        changes = None
        raise
    finally:
        plan.files.clean(changes)


def prepared(version: Version, plan: Plan) -> Changes | None:
    """Return what a plan changes in a version; None if that is nothing. The files that it adds are on the disk."""
    version.check_writable()
    changes = plan.plan(version)
    if changes is None:
        return None
    for each in changes.removed:
        # For a vacuum, the age of a replaced file begins now, unless the file belongs to another user.
        with suppress(OSError):
            os.utime(local_path(each.file_path))
    for parent in {local_path(each.file_path).parent for each in changes.added}:
        sync(parent)
    failpoints.reach("rows-written")
    return changes


def committed(version: Version, changes: Changes, markers: Mapping[str, str], information: Mapping[str, str]) -> int:
    """Commit the snapshot after a version; return its number.

    Args:
        changes: what `prepared` has returned for the version.
        markers, information: see `commit`.

    Raises:
        CommitFailedException, ValidationException: another commit came first.
        UncertainCommitError: the commit may be done.
    """
    transaction = version.table.transaction()
    if markers:
        transaction.set_properties(dict(markers))
    update = transaction.update_snapshot(snapshot_properties=dict(information))
    with update.overwrite() if changes.removed else update.merge_append() as snapshot:
        for file in changes.added:
            snapshot.append_data_file(file)
        for file in changes.removed:
            snapshot.delete_data_file(file)
    if changes.removed and version.merges_manifests:
        # pyiceberg merges manifests in appends only.
        with transaction.update_snapshot(
            snapshot_properties={"headrace.operation": "merge of manifests"}
        ).merge_append():
            pass
    expired = [*version.surplus_snapshots(), *changes.expired]
    if expired:
        # In the transaction of a snapshot: a rollback by another program, to one of these, is a conflict.
        with ExpireSnapshots(transaction) as expiry:
            expiry.by_ids(expired)
    try:
        return number_of(transaction.commit_transaction())
    except SQLAlchemyError as error:
        raise UncertainCommitError(
            f"a commit to Iceberg table {version.name!r} may have failed: the database of the catalog has not answered",
            received=type(error).__name__,
        ) from None
    except ValueError as error:
        if isinstance(error, ValidationError) or not expired:
            raise
        # Another program has expired some of the snapshots. This is found before anything is written.
        raise CommitFailedException(str(error)) from None


def repeated(load: Callable[[], Version], attempt: Callable[[Version], int | None]) -> int | None:
    """Run an attempt on the newest version, and again if another program has committed meanwhile."""
    end = time.monotonic() + _PATIENCE_SECONDS
    pause = 0.005
    while True:
        version = load()
        try:
            return attempt(version)
        except (CommitFailedException, ValidationException) as error:
            reason = str(error)
        except UncertainCommitError:
            raise
        except StoreError as error:
            # Perhaps another program has expired the version, and deleted its files.
            if load().table.metadata_location == version.table.metadata_location:
                raise
            reason = str(error)
        if time.monotonic() > end:
            raise StoreBusyError(
                f"other programs commit to Iceberg table {version.name!r} all the time", received=reason
            )
        time.sleep(jitter(0, pause))
        pause = min(2 * pause, _LONGEST_PAUSE)
