"""The store of a DuckLake and of the PostgreSQL database with its catalog."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from headrace.errors import NotFoundError, UnsupportedError
from headrace.model.existing import already_exists, other_columns
from headrace.model.findings import Finding, Status
from headrace.model.tables.conditions import OPERATORS
from headrace.model.tables.options import PARTITION_BY
from headrace.model.tables.schema import TableSchema
from headrace.ports import Capabilities, Files, Publisher, Table
from headrace.stores.postgres.for_lakes import Bulk, PostgresStore
from headrace.support.cached import cached_property
from headrace_lake.ducklake.columns import MAX_COLUMNS, check_schema, numbered
from headrace_lake.ducklake.database import LakeDatabase
from headrace_lake.ducklake.maintenance import DuckLakeMaintenance
from headrace_lake.ducklake.names import check_name, in_database, prefixed
from headrace_lake.ducklake.publisher import DuckLakePublisher
from headrace_lake.ducklake.table import LakeTable, check_options
from headrace_lake.home import name_beside
from headrace_lake.maintenance import LakeStore, Maintenance
from headrace_lake.partitions import partition_columns

_CATALOG_TABLES = "ducklake_"


class DuckLakeStore(LakeStore):
    """The tables of a DuckLake, and of the database with its catalog.

    It can be pickled, with the password. No message contains the password.

    Args:
        database: the store of the database.
        catalog: the schema of the database with the tables of the catalog.
        data: the directory of the data files; None if the catalog has it.
    """

    capabilities = Capabilities(
        transactions=True,
        whole_rows=True,
        pre_images=False,
        add_columns=True,
        queues=False,
        predicates=frozenset(OPERATORS),
        column_types=(
            *("boolean", "byte", "short", "int", "long", "float", "double", "string", "binary"),
            *("date", "timestamp", "timestamp_ntz", "decimal(10,2)", "decimal(12,2)", "decimal(20,3)"),
        ),
        trims=False,
        tunnels=False,
        files=True,
        row_times=False,
        backup_tool="the tools of PostgreSQL, and then a copy of the directory of the data files",
        max_columns=MAX_COLUMNS,
    )

    def __init__(self, database: PostgresStore, catalog: str, data: str | None) -> None:
        self.url = f"ducklake+{database.url}"
        self._store = database
        self._database = LakeDatabase(database, catalog, data)
        self._catalog = catalog

    def __repr__(self) -> str:
        return f"DuckLakeStore({self.url!r})"

    @cached_property
    def id(self) -> str:
        """The identity of the database, and the schema of the catalog."""
        return f"ducklake:{self._store.id}/{self._catalog}"

    def create(self) -> None:
        """Create the DuckLake, unless it exists."""
        self._database.create()

    # -- tables -------------------------------------------------------------------------------------------

    def lake_tables(self) -> list[str]:
        return sorted(self._database.read(self._database.lake.names))

    def changed_tables(self, table: str, store: str) -> list[str]:
        schema = self._catalog.replace('"', '""')
        return self._store.changed_tables(in_database(table) or f'"{schema}".{_CATALOG_TABLES}*', store)

    def maintenance(self, table: str) -> Maintenance:
        if in_database(table) is not None:
            raise UnsupportedError("the database maintains its own tables", received=repr(table))
        names = self.lake_tables()
        if table not in names:
            raise NotFoundError(f"no such DuckLake table in {self.url}", received=repr(table), valid=names)
        return DuckLakeMaintenance(self._database, table)

    def tables(self) -> list[str]:
        others = [name for name in self._store.tables() if not name.rpartition(".")[2].startswith(_CATALOG_TABLES)]
        return sorted([*self.lake_tables(), *map(prefixed, others)])

    def create_table(
        self,
        name: str,
        columns: Mapping[str, str | pa.DataType] | pa.Schema,
        primary_key: str | Sequence[str],
        *,
        exist_ok: bool = False,
        **options: Any,
    ) -> Table:
        own = in_database(name)
        if own is not None:
            return _of_database(self._store.create_table(own, columns, primary_key, exist_ok=exist_ok, **options))
        schema = TableSchema.of(columns, primary_key)
        check_name(name)
        check_schema(schema)
        check_options(options)
        partitions = partition_columns(schema, options.get(PARTITION_BY))
        lake = self._database.lake

        def create(bulk: Bulk) -> bool:
            if lake.has_name(bulk, name):
                return False
            lake.create_table(bulk, name, schema, numbered(schema.arrow, 1), partitions)
            return True

        if self._database.write(create):
            return LakeTable(self._database, name)
        if not exist_ok:
            raise already_exists(name, self.url, "a table or view")
        table = LakeTable(self._database, name)
        if table.schema != schema:
            raise other_columns(repr(name), schema, table.schema)
        return table

    def table(self, name: str, columns: Mapping[str, str | pa.DataType] | pa.Schema | None = None) -> Table:
        own = in_database(name)
        if own is not None:
            return _of_database(self._store.table(own, columns))
        table = LakeTable(self._database, name)
        table.definition()
        return table

    def drop_table(self, name: str, *, missing_ok: bool = False) -> None:
        own = in_database(name)
        if own is not None:
            self._store.drop_table(own, missing_ok=missing_ok)
            return

        def drop(bulk: Bulk) -> None:
            self._database.lake.drop_table(bulk, self._database.lake.definition(bulk, name))

        try:
            self._database.write(drop)
        except NotFoundError:
            if not missing_ok:
                raise

    def beside(self, table: str, name: str) -> str:
        own = in_database(table)
        if own is not None:
            return self._store.beside(own, name)
        return name_beside(self._catalog, name)

    # -- publication, files, waiting ------------------------------------------------------------------------

    def publisher(self, job: str, sink: str = "") -> Publisher:
        return DuckLakePublisher(self._database, self._store.publisher(job, sink))

    def files(self) -> Files:
        return self._store.files()

    def checkpoint_directory(self) -> str:
        return self._store.checkpoint_directory()

    def wait_for_change(self, timeout: float) -> bool:
        return self._store.wait_for_change(timeout)

    def diagnose(self, table: str | None = None) -> list[Finding]:
        if table is not None:
            return super().diagnose(table)
        found = Finding("Store", Status.OK, f"{self.url} has {len(self.lake_tables())} DuckLake tables")
        return [found, *self._store.diagnose()]

    def check(self, *, repair: bool = False) -> list[Finding]:
        if repair:
            raise UnsupportedError("headrace repairs no DuckLake tables", remedy="headrace lake vacuum deletes orphans")
        return [finding for name in self.lake_tables() for finding in DuckLakeMaintenance(self._database, name).check()]

    def close(self) -> None:
        self._store.close()


def _of_database(table: Table) -> Table:
    """Return a table of the database under its name in this store."""
    table.name = prefixed(table.name)
    return table
