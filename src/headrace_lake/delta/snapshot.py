"""One version of a Delta table: all that a read or a commit takes from the log.

The package ``deltalake`` reads the log. Its native code does not survive a fork, see `_opened`.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from headrace.errors import NotFoundError, StoreDamagedError, StoreError, UnsupportedError
from headrace.model.tables.schema import TableSchema
from headrace.support.cached import cached_property
from headrace_lake.delta import data_files
from headrace_lake.delta.log import LOG, DataFile
from headrace_lake.delta.partitions import check_partitions, directory_of, scalar_of, text_of
from headrace_lake.delta.places import Place, storage_options
from headrace_lake.delta.schemas import table_schema

# Other readers and writers than these versions, or these features, need what headrace does not do.
_READ_FEATURES = {"timestampNtz"}
_WRITE_FEATURES = {"timestampNtz", "appendOnly", "invariants"}
_FEATURES_READER, _FEATURES_WRITER = 3, 7
_PLAIN_READER, _PLAIN_WRITER = 1, 2
_FIELD_RULES = ("delta.invariants", "delta.generationExpression", "delta.identity.start", "delta.columnMapping.id")
_REFUSED_PROPERTIES = {
    "delta.enableChangeDataFeed": "headrace writes no change feed of Delta Lake: each rewritten row would be in it",
    "delta.setTransactionRetentionDuration": "the markers of published batches must not expire",
}
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_process: int | None = None


class ConflictError(Exception):
    """Another commit of the table came first. The next attempt reads its version."""


@dataclass(frozen=True)
class Added:
    """A file that a commit adds. It is in the directory of the table."""

    path: str
    size: int
    statistics: str
    partition: Mapping[str, str | None] = field(default_factory=dict)

    @classmethod
    def of(cls, directory: Place, path: str, statistics: str, partition: Mapping[str, str | None]) -> Added:
        """Return the entry of a file that was written below the directory of a table."""
        return cls(path, (directory / path).stat().st_size, statistics, partition)


class Snapshot:
    """One version of a table.

    Args:
        name: the table's name, for messages.
        directory: the directory of the table.
        version: the version; the newest one by default.

    Raises:
        NotFoundError: there is no table.
        StoreDamagedError: the log cannot be read.
    """

    def __init__(self, name: str, directory: Place, version: int | None = None) -> None:
        self.name = name
        self.directory = directory
        self._table = _opened(name, directory, version)
        self.version = self._table.version()
        metadata = self._table.metadata()
        # The library declares it as a number.
        self.id = str(metadata.id)
        self.properties: Mapping[str, str | None] = metadata.configuration
        self.partition_columns = tuple(metadata.partition_columns)

    @cached_property
    def schema(self) -> TableSchema:
        return table_schema(self.name, pa.schema(self._table.schema().to_arrow()), self.properties)

    @cached_property
    def files(self) -> tuple[DataFile, ...]:
        """The data files of this version."""
        actions = pa.table(self._table.get_add_actions(flatten=False))
        columns = {name: actions.column(name).to_pylist() for name in ("path", "size_bytes", "num_records")}
        bounds = zip(self._bounds(actions, "min"), self._bounds(actions, "max"), strict=True)
        partitions: Sequence[Any] = [{}] * actions.num_rows
        if self.partition_columns:
            partitions = actions.column("partition").to_pylist()
        return tuple(
            DataFile(
                unquote(path),
                size,
                rows,
                None if low is None or high is None else (low, high),
                {name: text_of(value) for name, value in partition.items()},
            )
            for path, size, rows, (low, high), partition in zip(*columns.values(), bounds, partitions, strict=True)
        )

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
        return self._table.transaction_version(app)

    def read(self, file: DataFile, fields: pa.Schema, groups: Sequence[int] | None = None) -> pa.Table:
        """Return the rows of a file of the table, of this version or another one; see `data_files.read`."""
        with data_files.opened(self.directory / file.path) as opened:
            return data_files.read(opened, fields, groups, self.constants(file))

    def constants(self, file: DataFile) -> dict[str, pa.Scalar]:
        """Return the values of the columns that a file does not have, because its partition has them."""
        return {
            name: scalar_of(text, self.schema.column(name).type)
            for name, text in file.partition.items()
            if name in self.schema
        }

    def new_path(self, prefix: str, partition: Mapping[str, str | None]) -> str:
        """Return the path of a new file of a partition, whose directory exists."""
        directory = directory_of(partition, self.partition_columns)
        (self.directory / directory).mkdir(parents=True, exist_ok=True)
        return f"{directory}/"[not directory :] + f"{prefix}{uuid.uuid4().hex}.parquet"

    def write(self, path: str, rows: pa.Table, partition: Mapping[str, str | None]) -> Added:
        """Write rows of one partition into a new file; see `data_files.write_sorted`."""
        statistics = data_files.write_sorted(self.directory / path, rows, self.schema, self.id, self.partition_columns)
        return Added.of(self.directory, path, statistics, partition)

    def count(self, file: DataFile) -> int:
        """Return the number of rows of a file, which the log need not have."""
        with data_files.opened(self.directory / file.path) as opened:
            return int(opened.metadata.num_rows)

    # -- checks -------------------------------------------------------------------------------------------

    def check_readable(self) -> None:
        """Raise `UnsupportedError` if a reader must know what headrace does not know."""
        protocol = self._table.protocol()
        features = set(protocol.reader_features or ()) - _READ_FEATURES
        if protocol.min_reader_version == _FEATURES_READER and not features:
            return
        if protocol.min_reader_version > _PLAIN_READER:
            raise self._unknown(features, f"reader version {protocol.min_reader_version}")

    def check_writable(self, *, removes: bool) -> None:
        """Raise `UnsupportedError` if a writer must do what headrace does not do.

        Args:
            removes: the writer removes rows.
        """
        self.check_readable()
        protocol = self._table.protocol()
        features = set(protocol.writer_features or ()) - _WRITE_FEATURES
        if features or _PLAIN_WRITER < protocol.min_writer_version < _FEATURES_WRITER:
            raise self._unknown(features, f"writer version {protocol.min_writer_version}")
        for property_name, reason in _REFUSED_PROPERTIES.items():
            if self.properties.get(property_name) not in (None, "false"):
                raise self._refused(f"property {property_name}: {reason}", "remove the property from the table")
        if self.partition_columns:
            check_partitions(self.schema, self.partition_columns)
        if removes and self.properties.get("delta.appendOnly") == "true":
            raise self._refused("property delta.appendOnly, and the write replaces rows", "append rows")
        for column in json.loads(self._table.schema().to_json())["fields"]:
            rules = [rule for rule in _FIELD_RULES if rule in column["metadata"]]
            if rules:
                raise self._refused(f"column {column['name']!r} with {rules[0]}", "write into a table without it")

    def _unknown(self, features: set[str], version: str) -> UnsupportedError:
        wanted = [f"feature {name}" for name in sorted(features)]
        return self._refused(", ".join(wanted) or version, "use a table without it")

    def _refused(self, received: str, remedy: str) -> UnsupportedError:
        return UnsupportedError(
            f"headrace does not support what Delta table {self.name!r} needs", received=received, remedy=remedy
        )

    def history(self, limit: int) -> list[dict[str, Any]]:
        """Return the newest commits, the newest first, as the log has them."""
        return self._table.history(limit)

    def vacuum(self, older_than: float) -> int:
        """Delete the files that commits have removed this many seconds ago; return their number.

        The library's full vacuum would also delete files of commits that are not complete.
        """
        hours = math.ceil(older_than / 3600)
        return len(self._table.vacuum(hours, dry_run=False, enforce_retention_duration=False))

    # -- the commit ---------------------------------------------------------------------------------------

    def commit(
        self,
        added: Sequence[Added],
        removed: Sequence[DataFile],
        markers: Mapping[str, int],
        information: Mapping[str, Any],
        *,
        data_change: bool = True,
    ) -> int:
        """Write the version after this one; return it.

        The checks of this snapshot hold for the new version: without retries the library writes it only if no version
        has been written since. It checks no file itself, and with retries it would remove a file that OPTIMIZE has
        rewritten, whose rows would then live on.

        Args:
            markers: the transactions of the commit, by application.
            information: texts for the history of the table. Nothing depends on them.
            data_change: whether the rows of the table change.

        Raises:
            ConflictError: another version has been written since; nothing is changed.
            StoreError: a file does not exist as it was written; nothing is changed.
        """
        for file in added:
            path = self.directory / file.path
            if not path.exists() or path.stat().st_size != file.size:
                raise StoreError("a data file was deleted before its commit", received=str(path))
        now = int(time.time() * 1000)
        actions: list[AddAction | RemoveAction] = [
            AddAction(each.path, each.size, each.partition, now, data_change, each.statistics) for each in added
        ]
        actions += [RemoveAction(each.path, data_change, now, each.size, dict(each.partition)) for each in removed]
        properties = CommitProperties(
            custom_metadata={"headrace": dict(information)},
            max_commit_retries=0,
            app_transactions=[Transaction(app, version, now) for app, version in markers.items()],
        )
        try:
            self._table.create_write_transaction(
                actions,
                "append",
                self._table.schema(),
                partition_by=list(self.partition_columns) or None,
                commit_properties=properties,
            )
        except CommitFailedError as error:
            raise ConflictError(_reason(error)) from None
        except (DeltaError, OSError) as error:
            raise StoreError(f"a commit of table {self.name!r} failed", received=_reason(error)) from None
        return self.version + 1

    def set_properties(self, properties: Mapping[str, str]) -> None:
        """Write the version after this one, with other properties of the table.

        Raises:
            ConflictError: another version has been written since; nothing is changed.
        """
        try:
            self._table.alter.set_table_properties(
                dict(properties),
                raise_if_not_exists=False,
                commit_properties=CommitProperties(max_commit_retries=0),
            )
        except CommitFailedError as error:
            raise ConflictError(_reason(error)) from None

    def add_columns(self, fields: pa.Schema) -> None:
        """Write the version after this one, with more columns.

        Raises:
            ConflictError: another version has been written since; nothing is changed.
        """
        try:
            self._table.alter.add_columns(
                Schema.from_arrow(fields).fields, commit_properties=CommitProperties(max_commit_retries=0)
            )
        except CommitFailedError as error:
            raise ConflictError(_reason(error)) from None


def _reason(error: Exception) -> str:
    """Return the text of an error of the library, without its colours and the trace of native code."""
    return _COLOUR.sub("", str(error)).strip().partition("\n")[0]


def _opened(name: str, directory: Place, version: int | None) -> DeltaTable:
    """Open a table.

    Raises:
        StoreError: this process was forked from one that has read a Delta table: the native code would not run.
    """
    global _process
    if _process not in (None, os.getpid()):
        raise StoreError(
            "this process was forked from a process that has used Delta tables, which the package deltalake does not "
            "support",
            received=f"process {os.getpid()}, forked from {_process}",
            remedy='start processes with multiprocessing.get_context("spawn") or "forkserver"',
        )
    _process = os.getpid()
    if not (directory / LOG).is_dir():
        raise NotFoundError("no such Delta table", received=repr(name))
    try:
        return DeltaTable(directory.as_uri(), version, storage_options=storage_options(directory))
    except TableNotFoundError:
        raise NotFoundError("no such Delta table", received=repr(name)) from None
    except OSError as error:
        raise StoreError(f"the log of Delta table {name!r} cannot be reached", received=_reason(error)) from None
    except DeltaError as error:
        raise StoreDamagedError(f"the log of Delta table {name!r} cannot be read", received=_reason(error)) from None
