"""One version of an Iceberg table: what a read or a commit takes from its metadata."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.conversions import from_bytes, to_bytes
from pyiceberg.manifest import DataFile, FileFormat, ManifestContent, ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.typedef import Record
from pyiceberg.types import DateType, IntegerType, LongType, PrimitiveType, StringType

from headrace.errors import UnsupportedError
from headrace.model.tables.conditions import KeyRange
from headrace.model.tables.schema import TableSchema
from headrace.rows.fields import with_fields
from headrace.support.cached import cached_property
from headrace_lake import data_files, scanning
from headrace_lake.iceberg.files import local_path, location_of
from headrace_lake.iceberg.partitions import check_spec, constants, partitions_of
from headrace_lake.iceberg.schemas import (
    MANIFESTS,
    MERGES,
    RETRIES,
    SNAPSHOTS,
    arrow_fields,
    check_history,
    table_schema,
)
from headrace_lake.lookup import Found, Keys
from headrace_lake.scanning import Selection
from headrace_lake.staging import Columns

_FORMAT_VERSION = 2
_DEFAULT_MANIFESTS = 100
_WRITES = {"write.format.default": "parquet", "write.wap.enabled": "false"}
_BOUNDED = (IntegerType, LongType, StringType, DateType)


@dataclass(frozen=True)
class StoredFile:
    """A data file of a version.

    Attributes:
        bounds: bounds of the first key column; None if they are not known.
        constants: the values of the columns that the file need not have.
    """

    entry: DataFile
    path: Path
    bounds: tuple[Any, Any] | None
    constants: Mapping[str, pa.Scalar]

    @property
    def size(self) -> int:
        """The number of bytes."""
        return int(self.entry.file_size_in_bytes)

    @property
    def deleted_rows(self) -> int:
        """The number of deleted rows: a version with delete files is refused."""
        return 0


def number_of(table: Table) -> int:
    """Return the number of the newest snapshot of a table; 0 if it has none."""
    snapshot = table.current_snapshot()
    return 0 if snapshot is None else snapshot.sequence_number or 0


class Version:
    """One version of a table.

    Args:
        name: the table's name, for messages.
        table: the table as it was loaded.

    Raises:
        UnsupportedError: headrace does not read the table exactly.
    """

    def __init__(self, name: str, table: Table) -> None:
        self.name = name
        self.table = table
        metadata = table.metadata
        self.id = str(metadata.table_uuid)
        self.properties: Mapping[str, str] = metadata.properties
        self.number = number_of(table)

    @cached_property
    def columns(self) -> Columns:
        """The columns, with the ids of the fields."""
        fields = arrow_fields(self.table.schema())
        return Columns(self.id, table_schema(self.name, fields, self.properties), fields)

    @property
    def schema(self) -> TableSchema:
        """The columns and the key."""
        return self.columns.schema

    @property
    def location(self) -> Path:
        """The directory of the table."""
        return local_path(self.table.location())

    @property
    def spec(self) -> PartitionSpec:
        """The partition spec of new files."""
        return self.table.spec()

    @cached_property
    def _specs(self) -> Mapping[int, PartitionSpec]:
        return self.table.specs()

    # -- checks -------------------------------------------------------------------------------------------

    def check_readable(self) -> None:
        """Raise `UnsupportedError` if headrace does not read the table exactly."""
        metadata = self.table.metadata
        if metadata.format_version != _FORMAT_VERSION:
            raise UnsupportedError(
                f"Iceberg table {self.name!r} has another format version",
                received=str(metadata.format_version),
                valid=str(_FORMAT_VERSION),
            )
        check_history(self.name, self.table.schema(), metadata.schemas)

    def check_writable(self) -> None:
        """Raise `UnsupportedError` if headrace does not write the table."""
        self.check_readable()
        check_spec(self.name, self.spec, self.table.schema())
        # With more, a commit of an old version is repeated without its checks: rows twice.
        if self.properties.get(RETRIES) != "0":
            raise UnsupportedError(
                f"Iceberg table {self.name!r} lets pyiceberg repeat commits",
                received=f"{RETRIES}={self.properties.get(RETRIES, '4, the default')}",
                remedy=f"set the table property {RETRIES}=0",
            )
        for name in (MANIFESTS, SNAPSHOTS):
            if not self.properties.get(name, "0").isdecimal():
                raise UnsupportedError(
                    f"property {name} of Iceberg table {self.name!r} must be a number",
                    received=repr(self.properties[name])[:200],
                )
        for name, valid in _WRITES.items():
            if self.properties.get(name, valid) != valid:
                raise UnsupportedError(
                    f"headrace does not write Iceberg tables with this property: {name}",
                    received=self.properties[name],
                    valid=valid,
                )

    # -- files --------------------------------------------------------------------------------------------

    @cached_property
    def files(self) -> tuple[StoredFile, ...]:
        """The data files.

        Raises:
            UnsupportedError: the version has delete files, or other files than Parquet.
        """
        self.check_readable()
        found: list[StoredFile] = []
        for manifest in self._manifests:
            if manifest.content == ManifestContent.DELETES:
                if manifest.has_added_files() or manifest.has_existing_files():
                    raise UnsupportedError(
                        f"Iceberg table {self.name!r} has delete files, which headrace does not read",
                        remedy="rewrite its data files by the program that wrote them",
                    )
                continue
            found += [self._stored(entry.data_file) for entry in manifest.fetch_manifest_entry(self.table.io)]
        return tuple(found)

    @cached_property
    def _manifests(self) -> Sequence[ManifestFile]:
        snapshot = self.table.current_snapshot()
        return [] if snapshot is None else snapshot.manifests(self.table.io)

    @property
    def merges_manifests(self) -> bool:
        """Whether the table has so many manifests that an append of pyiceberg merges them."""
        enabled = self.properties.get(MERGES, "false").lower() == "true"
        return enabled and len(self._manifests) >= int(self.properties.get(MANIFESTS, _DEFAULT_MANIFESTS))

    def surplus_snapshots(self) -> list[int]:
        """Return the ids of the oldest snapshots, which are more than the table is to keep."""
        kept = self.properties.get(SNAPSHOTS)
        found = self.unprotected_snapshots
        return [] if kept is None else [each.snapshot_id for each in found[: max(len(found) - int(kept), 0)]]

    @property
    def unprotected_snapshots(self) -> list[Snapshot]:
        """The snapshots that no branch and no tag names, the oldest first."""
        metadata = self.table.metadata
        heads = {ref.snapshot_id for ref in metadata.refs.values()}
        found = [each for each in metadata.snapshots if each.snapshot_id not in heads]
        return sorted(found, key=lambda each: each.sequence_number or 0)

    def _stored(self, entry: DataFile) -> StoredFile:
        if entry.file_format != FileFormat.PARQUET:
            raise UnsupportedError(
                f"Iceberg table {self.name!r} has files that headrace does not read",
                received=str(entry.file_format),
                valid="Parquet",
            )
        spec = self._specs[entry.spec_id]
        same = constants(self.name, entry.partition, spec, self.table.schema(), self.schema)
        return StoredFile(entry, local_path(entry.file_path), self._bounds(entry), same)

    def _bounds(self, entry: DataFile) -> tuple[Any, Any] | None:
        key = self.schema.primary_key
        if not key or not data_files.has_bounds(self.schema.column(key[0]).type):
            return None
        field = self.table.schema().find_field(key[0])
        low, high = ((each or {}).get(field.field_id) for each in (entry.lower_bounds, entry.upper_bounds))
        if low is None or high is None:
            return None
        kind = self.schema.column(key[0]).type
        assert isinstance(field.field_type, PrimitiveType)
        values = (pa.scalar(from_bytes(field.field_type, each), kind).as_py() for each in (low, high))
        return next(values), next(values)

    def partitions(self, rows: pa.Table) -> Iterator[tuple[Record, pa.Table]]:
        """Yield the partitions of rows for new files, with the rows of each."""
        return partitions_of(rows, self.spec, self.table.schema())

    def added(self, path: Path, statistics: str, partition: Record) -> DataFile:
        """Return the entry of a new file of a partition.

        Args:
            statistics: the statistics of `data_files.write_sorted`.
        """
        found = json.loads(statistics)
        kinds = {each.name: (each.field_id, each.field_type) for each in self.table.schema().fields}
        nulls = {kinds[name][0]: count for name, count in found["nullCount"].items()}

        def bounds(values: Mapping[str, Any]) -> dict[int, bytes]:
            return {
                kinds[name][0]: to_bytes(kind, date.fromisoformat(value) if isinstance(kind, DateType) else value)
                for name, value in values.items()
                if isinstance(kind := kinds[name][1], _BOUNDED)
            }

        entry = DataFile.from_args(
            content=0,
            file_path=location_of(path),
            file_format=FileFormat.PARQUET,
            partition=partition,
            record_count=found["numRecords"],
            file_size_in_bytes=path.stat().st_size,
            value_counts=dict.fromkeys(nulls, found["numRecords"]),
            null_value_counts=nulls,
            lower_bounds=bounds(found["minValues"]),
            upper_bounds=bounds(found["maxValues"]),
        )
        entry.spec_id = self.spec.spec_id
        return entry

    # -- rows ---------------------------------------------------------------------------------------------

    def rows_of(self, keys: Keys, file: StoredFile, columns: Sequence[str] = ()) -> Found | None:
        """Return the rows of a file with some keys; see `Keys.rows_of`."""
        return keys.rows_of(file.path, columns, file.constants) if keys.can_be_between(file.bounds) else None

    def find(self, keys: pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows with some different keys, in no order: the columns of the key, and further ones, or all."""
        wanted, schema = Keys(self.schema, keys), self.schema
        names = [name for name in schema.names if columns is None or name in columns or name in schema.primary_key]
        fields = schema.nullable(names)
        found = [self.rows_of(wanted, file, names) for file in self.files]
        return pa.concat_tables([fields.empty_table(), *(with_fields(each.rows, fields) for each in found if each)])

    def scan(self, selection: Selection, files: Sequence[StoredFile] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some files, or of all, in key order; of a table without a key in no order."""
        sources = [
            scanning.Source(
                file.bounds,
                partial(scanning.file_rows, file.path, self.schema, selection, self.id, constants=file.constants),
            )
            for file in (self.files if files is None else files)
        ]
        return scanning.scan(sources, self.schema, selection)

    def ranges(self, count: int) -> list[KeyRange]:
        """Return at most ``count`` ranges of keys of about equal size."""
        return scanning.ranges([(file.path, file.bounds) for file in self.files], self.schema, count)
