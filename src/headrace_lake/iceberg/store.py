"""The store of the Iceberg tables of a SQL catalog."""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.errors import HeadraceError, NotFoundError, UnsupportedError
from headrace.model.existing import already_exists, other_columns
from headrace.model.findings import Finding, Status
from headrace.model.own_names import is_internal
from headrace.model.tables.conditions import OPERATORS
from headrace.model.tables.options import PARTITION_BY
from headrace.model.tables.schema import TableSchema
from headrace.ports import Capabilities, Disk, Files, Publisher, Table
from headrace_lake import publishing
from headrace_lake.home import OWN_DIRECTORY, Home
from headrace_lake.iceberg.catalog import Tables, parts_of
from headrace_lake.iceberg.maintenance import IcebergMaintenance
from headrace_lake.iceberg.partitions import spec_of
from headrace_lake.iceberg.publisher import IcebergPublisher
from headrace_lake.iceberg.schemas import check_schema, iceberg_schema, properties_of
from headrace_lake.iceberg.table import IcebergTable, check_options
from headrace_lake.maintenance import LakeStore
from headrace_lake.partitions import partition_columns
from headrace_lake.places import remove_tree

_MOMENT_SECONDS = 0.1


class IcebergStore(LakeStore):
    """Iceberg tables of a SQL catalog.

    Args:
        url: the URL of the store, without secrets.
        warehouse: an existing directory, which is absolute: new tables and staged rows are below it.
        home: the store with the state of jobs.
    """

    capabilities = Capabilities(
        transactions=True,
        atomic_targets=1,
        whole_rows=True,
        pre_images=False,
        add_columns=True,
        queues=False,
        tunnels=False,
        predicates=frozenset(OPERATORS),
        column_types=(
            *("boolean", "int", "long", "float", "double", "string", "binary"),
            *("date", "timestamp", "timestamp_ntz", "decimal(10,2)", "decimal(12,2)", "decimal(20,3)"),
        ),
        trims=False,
        files=True,
        row_times=False,
        backup_tool="a copy of the catalog's database, and then of the warehouse, while nothing writes into it",
    )

    def __init__(self, url: str, tables: Tables, warehouse: Path, home: Home) -> None:
        self.url = url
        self.id = url
        self._tables = tables
        self._warehouse = warehouse
        self._home = home
        self._seen: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"IcebergStore({self.url!r})"

    # -- tables -------------------------------------------------------------------------------------------

    def tables(self) -> list[str]:
        store = self._home.find()
        own = [] if store is None else [name for name in store.tables() if is_internal(name)]
        return sorted([*self._tables.names(), *own])

    def create_table(
        self,
        name: str,
        columns: Mapping[str, str | pa.DataType] | pa.Schema,
        primary_key: str | Sequence[str],
        *,
        exist_ok: bool = False,
        **options: Any,
    ) -> Table:
        if is_internal(name):
            return self._home.store().create_table(name, columns, primary_key, exist_ok=exist_ok, **options)
        schema = TableSchema.of(columns, primary_key)
        space, table_name = parts_of(name)
        check_schema(schema)
        check_options(options)
        partitions = partition_columns(schema, options.get(PARTITION_BY))
        # A dropped table of the name had another directory.
        location = self._warehouse / space / f"{table_name}-{uuid.uuid4().hex}"
        fields = iceberg_schema(schema.arrow)
        if self._tables.create(name, fields, spec_of(fields, partitions), location, properties_of(schema)):
            return IcebergTable(self._tables, name)
        remove_tree(location)
        if not exist_ok:
            raise already_exists(name, self.url)
        table = IcebergTable(self._tables, name)
        if table.schema != schema:
            raise other_columns(repr(name), schema, table.schema)
        return table

    def table(self, name: str, columns: Mapping[str, str | pa.DataType] | pa.Schema | None = None) -> Table:
        if not is_internal(name):
            self._tables.load(name)
            return IcebergTable(self._tables, name)
        store = self._home.find()
        if store is None:
            raise NotFoundError(f"no such table in {self.url}", received=repr(name))
        return store.table(name, columns)

    def drop_table(self, name: str, *, missing_ok: bool = False) -> None:
        if is_internal(name):
            store = self._home.find() if missing_ok else self._home.store()
            if store is not None:
                store.drop_table(name, missing_ok=missing_ok)
            return
        try:
            location = self._tables.load(name).location
            self._tables.drop(name)
        except NotFoundError:
            if not missing_ok:
                raise
            return
        if self._warehouse in location.parents:
            remove_tree(location)

    def lake_tables(self) -> list[str]:
        return self._tables.names()

    def maintenance(self, table: str) -> IcebergMaintenance:
        if is_internal(table):
            raise UnsupportedError("headrace's own tables need no maintenance", received=repr(table))
        self._tables.load(table)
        return IcebergMaintenance(table, partial(self._tables.load, table))

    # -- publication, files, waiting ------------------------------------------------------------------------

    def publisher(self, job: str, sink: str = "") -> Publisher:
        return IcebergPublisher(self._tables, self._home, self._warehouse / OWN_DIRECTORY, job, sink)

    def complete_batches(self, table: str) -> None:
        publishing.complete_batches(self, self._home, table)

    def files(self) -> Files:
        return self._home.store().files()

    def checkpoint_directory(self) -> str:
        return self._home.store().checkpoint_directory()

    def wait_for_change(self, timeout: float) -> bool:
        end = time.monotonic() + timeout
        while True:
            now = self._tables.versions()
            if now != self._seen:
                self._seen = now
                return True
            left = end - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(_MOMENT_SECONDS, left))

    def diagnose(self, table: str | None = None) -> list[Finding]:
        if table is not None:
            return super().diagnose(table)
        found = self._tables.names()
        findings = [Finding("Store", Status.OK, f"{self.url} has {len(found)} Iceberg tables")]
        for name in found:
            try:
                version = self._tables.load(name)
                version.check_writable()
                version.schema.check_keyed()
            except HeadraceError as error:
                findings.append(Finding(f"Table {name}", Status.WARN, str(error)))
        return findings + self._home.diagnose()

    def check(self, *, repair: bool = False) -> list[Finding]:
        if repair:
            raise UnsupportedError("headrace repairs no Iceberg tables", remedy="headrace lake vacuum deletes files")
        findings = [
            finding
            for name in self.lake_tables()
            for finding in IcebergMaintenance(name, partial(self._tables.load, name)).check()
        ]
        home = self._home.find()
        if home is not None:
            # Another system checks its own data.
            with suppress(UnsupportedError):
                findings += home.check()
        return findings

    def disk(self) -> Disk | None:
        usage = shutil.disk_usage(self._warehouse)
        return Disk(usage.free, usage.total)

    def close(self) -> None:
        with suppress(HeadraceError):
            self._tables.close()
        self._home.close()
