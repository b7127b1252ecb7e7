"""One version of a Delta table: all that a read or a commit takes from the log.

The package ``deltalake`` reads the log. Its native code does not survive a fork, see `_opened`. headrace writes the
entries of the log itself: the package has no deletion vectors, and no new columns beside new rows.
"""

from __future__ import annotations

import copy
import json
import math
import os
import re
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError, TableNotFoundError

from headrace.errors import NotFoundError, StoreDamagedError, StoreError, UnsupportedError, shown
from headrace.model.tables.alterations import Alteration
from headrace.model.tables.schema import TableSchema
from headrace.support.cached import cached_property
from headrace_lake import data_files
from headrace_lake.data_files import RowNumbers
from headrace_lake.delta.actions import (
    APPEND_ONLY,
    FEATURES_READER,
    FEATURES_WRITER,
    LOCAL_TIMES,
    VECTORS,
    WRITES_VECTORS,
    Action,
    Actions,
    Added,
    creation,
    entry,
    is_on,
    lines,
    needed_features,
    text_of,
    with_features,
)
from headrace_lake.delta.log import FEED, LOG, DataFile, Log, added_files, log_entry
from headrace_lake.delta.partitions import directory_of, partition_text, scalar_of
from headrace_lake.delta.schemas import check_schema, table_schema
from headrace_lake.delta.vectors import Vector, load
from headrace_lake.partitions import check_partitions
from headrace_lake.places import Place, create, storage_options

# Other readers and writers than these versions, or these features, need what headrace does not do.
# delta-rs adds variantType to tables with deletion vectors: `_VARIANT` finds columns of the type.
_READ_FEATURES = {LOCAL_TIMES, VECTORS, "variantType"}
# Constraints and rules of columns are looked for, too.
_WRITE_FEATURES = _READ_FEATURES | {
    *("appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns"),
}
_VARIANT = re.compile(r'[tT]ype": ?"variant"')
# The default intervals of delta-rs and of Spark. A reader of vectors reads the entries after the checkpoint.
_CHECKPOINT_INTERVAL, _CHECKPOINT_INTERVAL_OF_VECTORS = 100, 10
_PLAIN_READER, _PLAIN_WRITER = 1, 4
# Version 2 of readers has only this feature: the names of columns in the files are others.
_MAPPING_READER, _MAPPING = 2, "columnMapping"
_FIELD_RULES = ("delta.invariants", "delta.generationExpression", "delta.identity.start", "delta.columnMapping.id")
_REFUSED_PROPERTIES = {
    "delta.setTransactionRetentionDuration": "the markers of published batches must not expire",
}
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# What the package, which does not open a table that its reader does not know, says of it.
_UNKNOWN = re.compile("Unsupported: (.+)")
_process: int | None = None


class ConflictError(Exception):
    """Another commit of the table came first. The next attempt reads its version."""


class UncertainCommitError(StoreError):
    """A commit has failed, and may be done: its files must stay, and it must not be repeated without its marker."""


@dataclass
class _Handle:
    """A table of the package. The newest of its snapshots moves it on to the next version."""

    table: DeltaTable
    guard: threading.Lock = field(default_factory=threading.Lock)


class Snapshot:
    """One version of a table.

    Args:
        name: the table's name, for messages.
        directory: the directory of the table.
        version: the version; the newest one by default.
        handle: the table at the version, if it is open.

    Raises:
        DataLossError: the log no longer has the version.
        NotFoundError: there is no table.
        StoreDamagedError: the log cannot be read.
        UnsupportedError: the package does not know a feature or a version that a reader must know.
    """

    def __init__(self, name: str, directory: Place, version: int | None = None, handle: _Handle | None = None) -> None:
        self.name = name
        self.directory = directory
        self._handle = handle or _Handle(_opened(name, directory, version))
        table = self._handle.table
        self.version = table.version()
        self._metadata = table.metadata()
        self._protocol = table.protocol()
        self._columns = table.schema()
        # The library declares it as a number.
        self.id = str(self._metadata.id)
        self.properties: Mapping[str, str | None] = self._metadata.configuration
        self.partition_columns = tuple(self._metadata.partition_columns)
        self._markers: dict[str, int | None] = {}

    def newer(self) -> Snapshot | None:
        """Return the newest version, which takes the handle over; None if the entries between cannot be read."""
        # This version keeps its files.
        _ = self._actions
        with self._handle.guard:
            try:
                self._handle.table.update_incremental()
            except (DeltaError, OSError):
                return None
            return Snapshot(self.name, self.directory, handle=self._handle)

    @contextmanager
    def _table(self) -> Iterator[DeltaTable]:
        """Give the caller the table at this version."""
        with self._handle.guard:
            if self._handle.table.version() == self.version:
                yield self._handle.table
                return
        yield _opened(self.name, self.directory, self.version)

    @cached_property
    def schema(self) -> TableSchema:
        return table_schema(self.name, pa.schema(self._columns.to_arrow()), self.properties)

    @cached_property
    def files(self) -> tuple[DataFile, ...]:
        """The data files of this version."""
        actions = self._actions
        columns = {name: actions.column(name).to_pylist() for name in ("path", "size_bytes", "num_records")}
        bounds = zip(self._bounds(actions, "min"), self._bounds(actions, "max"), strict=True)
        partitions: Sequence[Any] = [{}] * actions.num_rows
        if self.partition_columns:
            partitions = actions.column("partition").to_pylist()
        return tuple(
            DataFile(
                path,
                size,
                rows,
                None if low is None or high is None else (low, high),
                {name: partition_text(value) for name, value in partition.items()},
                Vector.of(self._stored[path].get("deletionVector")) if self._can_have_vectors else None,
            )
            for path, size, rows, (low, high), partition in zip(*columns.values(), bounds, partitions, strict=True)
        )

    @cached_property
    def _actions(self) -> pa.Table:
        with self._table() as table:
            return pa.table(table.get_add_actions(flatten=False))

    @cached_property
    def _stored(self) -> Mapping[str, Mapping[str, Any]]:
        """The content of the log for each file, by its path in the log."""
        return added_files(self.name, self.directory, self.version, set(self._actions.column("path").to_pylist()))

    @property
    def _can_have_vectors(self) -> bool:
        return VECTORS in (self._protocol.reader_features or ())

    @property
    def writes_vectors(self) -> bool:
        """Whether deleted rows are to be written as deletion vectors."""
        return self._can_have_vectors and is_on(self.properties, WRITES_VECTORS)

    def _bounds(self, actions: pa.Table, side: str) -> Sequence[Any]:
        kind = actions.schema.field(side).type if side in actions.column_names else pa.struct([])
        for first in self.schema.primary_key[:1]:
            if first in self.partition_columns and data_files.has_bounds(self.schema.column(first).type):
                return [each[first] for each in actions.column("partition").to_pylist()]
            if kind.get_field_index(first) >= 0 and data_files.has_bounds(self.schema.column(first).type):
                return [each and each[first] for each in actions.column(side).to_pylist()]
        return [None] * actions.num_rows

    def marker(self, app: str) -> int | None:
        """Return the version of an application's last transaction."""
        if app not in self._markers:
            # The package reads all entries since the last checkpoint.
            with self._table() as table:
                self._markers[app] = table.transaction_version(app)
        return self._markers[app]

    @property
    def writes_feed(self) -> bool:
        """Whether commits that change rows must have files of the change feed."""
        return is_on(self.properties, "delta.enableChangeDataFeed")

    def read(self, file: DataFile, fields: pa.Schema) -> pa.Table:
        """Return the rows of a file of the table, of this version or another one; see `data_files.read`."""
        with data_files.opened(self.directory / file.path) as opened:
            return data_files.read(opened, fields, None, self.constants(file), self.deleted(file))

    def read_difference(self, file: DataFile, other: DataFile, fields: pa.Schema) -> pa.Table:
        """Return the rows of a file that are deleted in another version of it."""
        before, after = (self.deleted(each) for each in (file, other))
        gone = np.zeros(0, np.uint64) if after is None else after
        numbers = gone if before is None else np.setdiff1d(gone, before, assume_unique=True)
        return self.read_rows(file, fields, numbers)

    def read_rows(self, file: DataFile, fields: pa.Schema, numbers: RowNumbers) -> pa.Table:
        """Return some rows of a file."""
        with data_files.opened(self.directory / file.path) as opened:
            return data_files.read_rows(opened, fields, numbers, self.constants(file))

    def deleted(self, file: DataFile) -> RowNumbers | None:
        """Return the deleted rows of a file; None if there are none."""
        return None if file.vector is None else load(self.directory, file.vector)

    def constants(self, file: DataFile) -> dict[str, pa.Scalar]:
        """Return the values of the columns that a file does not have, because its partition has them."""
        return {
            name: scalar_of(text, self.schema.column(name).type)
            for name, text in file.partition.items()
            if name in self.schema
        }

    def new_path(self, prefix: str, partition: Mapping[str, str | None]) -> str:
        """Return the path of a new file of a partition, whose directory exists.

        Raises:
            StoreError: there cannot be such a directory.
        """
        directory = directory_of(partition, self.partition_columns)
        try:
            (self.directory / directory).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"the directory of a partition cannot be created: {error.strerror}",
                received=shown(directory),
                valid="names of directories, which have the values of partition columns, of up to 255 bytes",
            ) from error
        return f"{directory}/"[not directory :] + f"{prefix}{uuid.uuid4().hex}.parquet"

    def write(self, path: str, rows: pa.Table, partition: Mapping[str, str | None]) -> Added:
        """Write rows of one partition into a new file; see `data_files.write_sorted`."""
        statistics = data_files.write_sorted(self.directory / path, rows, self.schema, self.id, self.partition_columns)
        return self.added(path, statistics, partition)

    def rewrite(self, file: DataFile, path: str, without: RowNumbers, keys: pa.Table | None) -> Added:
        """Write the rows of a file into a new one.

        Args:
            without: the rows that are left out.
            keys: the keys of all rows, if they were read.
        """
        with data_files.opened(self.directory / file.path) as opened:
            rows = data_files.read(opened, self.schema.arrow, None, self.constants(file), without, keys)
            in_order = data_files.is_sorted(opened, self.id, self.schema.primary_key)
        statistics = data_files.write_sorted(
            self.directory / path, rows, self.schema, self.id, self.partition_columns, in_order=in_order
        )
        return self.added(path, statistics, file.partition)

    def write_ordered(
        self, path: str, parts: Iterator[pa.Table], least_bytes: int, partition: Mapping[str, str | None]
    ) -> Added:
        """Write the next rows of one partition into a new file; see `data_files.write_ordered`."""
        place, without = self.directory / path, self.partition_columns
        statistics = data_files.write_ordered(place, parts, least_bytes, self.schema, self.id, without)
        return self.added(path, statistics, partition)

    def write_feed(self, path: str, rows: pa.Table, partition: Mapping[str, str | None]) -> Added:
        """Write rows of one partition with their change types into a new file of the change feed."""
        (self.directory / FEED).mkdir(exist_ok=True)
        data_files.write(self.directory / path, rows.drop_columns(list(self.partition_columns)))
        return self.added(path, "", partition)

    def added(self, path: str, statistics: str, partition: Mapping[str, str | None]) -> Added:
        """Return the entry of a new file below the directory of the table."""
        status = (self.directory / path).stat()
        return Added(path, status.st_size, int(status.st_mtime * 1000), statistics, partition)

    def count(self, file: DataFile) -> int:
        """Return the number of rows of a file without deleted ones, which the log need not have."""
        with data_files.opened(self.directory / file.path) as opened:
            return int(opened.metadata.num_rows) - file.deleted_rows

    # -- checks -------------------------------------------------------------------------------------------

    def check_readable(self) -> None:
        """Raise `UnsupportedError` if a reader must know what headrace does not know."""
        for name in self.partition_columns:
            if pa.types.is_binary(self.schema.column(name).type):
                # Writers differ in the text of such a value.
                raise self._refused(f"partition column {name!r} of type binary", "use a table without it")
        protocol = self._protocol
        features = set(protocol.reader_features or ()) - _READ_FEATURES
        if protocol.min_reader_version == _MAPPING_READER:
            features.add(_MAPPING)
        if _VARIANT.search(self._columns.to_json()):
            features.add("variantType")
        if protocol.min_reader_version == FEATURES_READER and not features:
            return
        if protocol.min_reader_version > _PLAIN_READER:
            raise self._unknown(features, f"reader version {protocol.min_reader_version}")

    def check_writable(self, *, removes: bool) -> None:
        """Raise `UnsupportedError` if a writer must do what headrace does not do.

        Args:
            removes: the writer removes rows.
        """
        self.check_readable()
        protocol = self._protocol
        features = set(protocol.writer_features or ()) - _WRITE_FEATURES
        if features or _PLAIN_WRITER < protocol.min_writer_version < FEATURES_WRITER:
            raise self._unknown(features, f"writer version {protocol.min_writer_version}")
        constraints = [name for name in self.properties if name.startswith("delta.constraints.")]
        if constraints:
            raise self._refused(f"property {constraints[0]}", "drop the constraint")
        for property_name, reason in _REFUSED_PROPERTIES.items():
            if self.properties.get(property_name) not in (None, "false"):
                raise self._refused(f"property {property_name}: {reason}", "remove the property from the table")
        if self.partition_columns:
            check_partitions(self.schema, self.partition_columns)
        if removes and is_on(self.properties, APPEND_ONLY):
            raise self._refused("property delta.appendOnly, and the write replaces rows", "append rows")
        for column in json.loads(self._columns.to_json())["fields"]:
            rules = [rule for rule in _FIELD_RULES if rule in column["metadata"]]
            if rules:
                raise self._refused(f"column {column['name']!r} with {rules[0]}", "write into a table without it")

    def _unknown(self, features: set[str], version: str) -> UnsupportedError:
        wanted = [f"feature {name}" for name in sorted(features)]
        remedy = "use a table without it"
        if _MAPPING in features:
            remedy = "write its rows into a new table without property delta.columnMapping.mode, and use that table"
        return self._refused(", ".join(wanted) or version, remedy)

    def _refused(self, received: str, remedy: str) -> UnsupportedError:
        return _refused(self.name, received, remedy)

    def history(self, limit: int) -> list[dict[str, Any]]:
        """Return the newest commits, the newest first, as the log has them."""
        with self._table() as table:
            return table.history(limit)

    def vacuum(self, older_than: float) -> int:
        """Delete the files that commits have removed this many seconds ago; return their number.

        The library's full vacuum would also delete files of commits that are not complete.
        """
        hours = math.ceil(older_than / 3600)
        with self._table() as table:
            return len(table.vacuum(hours, dry_run=False, enforce_retention_duration=False))

    # -- the commit ---------------------------------------------------------------------------------------

    def commit(
        self,
        actions: Actions,
        markers: Mapping[str, int],
        information: Mapping[str, Any],
        *,
        data_change: bool = True,
    ) -> int:
        """Write the version after this one; return it.

        The checks of this snapshot hold for the new version: it is written only if no version has been written since.

        Args:
            markers: the transactions of the commit, by application.
            information: texts for the history of the table. Nothing depends on them.
            data_change: whether the rows of the table change.

        Raises:
            ConflictError: another version has been written since; nothing is changed.
            StoreError: a file does not exist as it was written; nothing is changed.
            UncertainCommitError: it is not certain whether the version was written.
        """
        for file in actions.added:
            path = self.directory / file.path
            if not path.exists() or path.stat().st_size != file.size:
                raise StoreError("a data file was deleted before its commit", received=str(path))
        written = entry(
            actions,
            now=int(time.time() * 1000),
            read_version=self.version,
            data_change=data_change,
            markers=markers,
            information=information,
            stored=self._stored if actions.shortened else {},
        )
        version = self.version + 1
        try:
            create(log_entry(self.directory, version), lines(written))
        except FileExistsError:
            raise ConflictError(f"version {version} of table {self.name!r} exists") from None
        except (OSError, StoreError) as error:
            received = error.received if isinstance(error, StoreError) else error.strerror
            raise UncertainCommitError(f"a commit of table {self.name!r} failed", received=received) from error
        return version

    def altered(self, alteration: Alteration | None) -> Snapshot:
        """Return this version with other columns, which no file has yet.

        Raises:
            SchemaError: the table cannot have the columns.
            UnsupportedError: Delta Lake cannot change columns so.
        """
        if alteration is None:
            return self
        others = {
            "dropped columns": alteration.dropped,
            "renamed columns": alteration.renamed,
            "wider types": alteration.widened,
            "values of new columns in existing rows": alteration.values,
        }
        for what, names in others.items():
            if names:
                raise UnsupportedError(
                    f"headrace gives Delta table {self.name!r} no {what}: not all readers support that, or all files "
                    "would change",
                    received=", ".join(names),
                    valid="new columns, and columns that may be null",
                    remedy="create another table, and INSERT INTO it the rows of this one",
                )
        schema = alteration.applied(self.schema)
        check_schema(schema)
        found = copy.copy(self)
        found.schema = schema
        return found

    def changed(
        self, schema: TableSchema | None = None, properties: Mapping[str, str] | None = None
    ) -> Sequence[Action]:
        """Return the actions that change the definition of the table.

        Args:
            schema: the columns: those of the table, which may have become nullable, and new ones after them.
            properties: properties with new values.
        """
        metadata = self._metadata
        fields = self._columns.to_json()
        if schema is not None:
            fields = _with_columns(json.loads(fields), schema)
        configuration = {**self.properties, **(properties or {})}
        definition = {
            "id": self.id,
            "name": metadata.name,
            "description": metadata.description,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": fields,
            "partitionColumns": list(self.partition_columns),
            "configuration": configuration,
            "createdTime": metadata.created_time,
        }
        features = needed_features(fields, configuration)
        protocol = self._protocol_action()
        wanted = with_features(protocol, features)
        actions: list[Action] = [{"metaData": {name: each for name, each in definition.items() if each is not None}}]
        return actions if wanted == protocol else [{"protocol": wanted}, *actions]

    def _protocol_action(self) -> dict[str, Any]:
        found = self._protocol
        protocol: dict[str, Any] = {
            "minReaderVersion": found.min_reader_version,
            "minWriterVersion": found.min_writer_version,
        }
        lists = {"readerFeatures": found.reader_features, "writerFeatures": found.writer_features}
        return protocol | {name: list(features) for name, features in lists.items() if features is not None}

    def is_checkpoint(self, version: int) -> bool:
        """Return whether a writer of a version should write a checkpoint."""
        interval = _CHECKPOINT_INTERVAL_OF_VECTORS if self._can_have_vectors else _CHECKPOINT_INTERVAL
        text = self.properties.get("delta.checkpointInterval") or ""
        return version % (int(text) if text.isdecimal() and int(text) else interval) == 0

    def write_checkpoint(self) -> None:
        """Write a checkpoint of this version, and delete entries of the log that are older than the table keeps them.

        Raises:
            StoreError: the library has failed.
        """
        try:
            with self._table() as table:
                table.create_checkpoint()
                if is_on(self.properties, "delta.enableExpiredLogCleanup", default=True):
                    table.cleanup_metadata()
        except (DeltaError, OSError) as error:
            raise StoreError(f"a checkpoint of table {self.name!r} failed", received=_reason(error)) from None


def create_version(
    directory: Place, schema: TableSchema, partitions: Sequence[str], properties: Mapping[str, str]
) -> bool:
    """Write the first version of a table; return False if there is one."""
    fields = Schema.from_arrow(schema.arrow).to_json()
    now = int(time.time() * 1000)
    written = creation(str(uuid.uuid4()), fields, partitions, properties, now)
    (directory / LOG).mkdir(parents=True, exist_ok=True)
    try:
        create(log_entry(directory, 0), lines(written))
    except FileExistsError:
        return False
    return True


def _with_columns(fields: dict[str, Any], schema: TableSchema) -> str:
    """Return columns as JSON: those of a table as they are, but null where they may be, and new ones."""
    stored = fields["fields"]
    for field_of, column in zip(stored, schema.columns, strict=False):
        field_of["nullable"] = field_of["nullable"] or column.nullable
    new = json.loads(Schema.from_arrow(pa.schema(list(schema.arrow)[len(stored) :])).to_json())["fields"]
    return text_of(fields | {"fields": [*stored, *new]})


def _refused(name: str, received: str, remedy: str) -> UnsupportedError:
    return UnsupportedError(
        f"headrace does not support what Delta table {name!r} needs", received=received, remedy=remedy
    )


def _reason(error: Exception) -> str:
    """Return the text of an error of the library, without its colours and the trace of native code."""
    return _COLOUR.sub("", str(error)).strip().partition("\n")[0]


def _opened(name: str, directory: Place, version: int | None) -> DeltaTable:
    """Open a table."""
    check_process()
    if not (directory / LOG).is_dir():
        raise NotFoundError("no such Delta table", received=repr(name))
    try:
        return DeltaTable(directory.as_uri(), version, storage_options=storage_options(directory))
    except OSError as error:
        raise StoreError(f"the log of Delta table {name!r} cannot be reached", received=_reason(error)) from None
    except DeltaError as error:
        if version is not None:
            Log(name, directory).check_has(version)
        if isinstance(error, TableNotFoundError):
            raise NotFoundError("no such Delta table", received=repr(name)) from None
        unknown = _UNKNOWN.search(_reason(error))
        if unknown is not None:
            raise _refused(name, unknown[1], "use a table without it") from None
        raise StoreDamagedError(f"the log of Delta table {name!r} cannot be read", received=_reason(error)) from None


def check_process() -> None:
    """Raise `StoreError` if this process was forked from one that has read a Delta table: native code would not run."""
    global _process
    if _process not in (None, os.getpid()):
        raise StoreError(
            "this process was forked from a process that has used Delta tables, which the package deltalake does not "
            "support",
            received=f"process {os.getpid()}, forked from {_process}",
            remedy='start processes with multiprocessing.get_context("spawn") or "forkserver"',
        )
    _process = os.getpid()
