"""The store of the Iceberg tables of a catalog in a PostgreSQL database, which is also their home."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from headrace.model.findings import Finding
from headrace.model.own_names import is_internal
from headrace.ports import Publisher
from headrace.stores.postgres.for_lakes import PostgresStore
from headrace_lake.home import OWN_DIRECTORY, Home, name_beside
from headrace_lake.iceberg.database import DatabaseTables, check_exists
from headrace_lake.iceberg.database_publisher import DatabasePublisher
from headrace_lake.iceberg.store import IcebergStore


class IcebergDatabaseStore(IcebergStore):
    """Iceberg tables of a catalog in a PostgreSQL database.

    Args:
        database: the store of the database.
        warehouse: see `IcebergStore`.
        schema: the schema with the tables of the catalog.
        catalog: the name of the catalog in these tables.
        create: create the tables of the catalog if they do not exist.
    """

    capabilities = replace(
        IcebergStore.capabilities,
        atomic_targets=None,
        backup_tool="the tools of PostgreSQL, and then a copy of the warehouse",
    )

    def __init__(self, database: PostgresStore, warehouse: Path, schema: str, catalog: str, *, create: bool) -> None:
        # The first question to the server: the store waits for one that starts.
        identity = database.id
        if not create:
            check_exists(database, schema)
        self._catalog_tables = DatabaseTables(database, schema, catalog, create=create)
        super().__init__(
            f"iceberg+{database.url}", self._catalog_tables, warehouse, Home(warehouse, database.url, None, database)
        )
        self.id = f"iceberg:{identity}/{schema}/{catalog}"
        self._database = database
        self._lake = f"iceberg/{schema}/{catalog}"
        self._pointers = self._catalog_tables.table

    def beside(self, table: str, name: str) -> str:
        return name_beside(self._lake, name)

    def changed_tables(self, table: str, store: str) -> list[str]:
        pointers = self._database.changed_tables(table if is_internal(table) else self._pointers, store)
        return [*super().changed_tables(table, store), *pointers]

    def publisher(self, job: str, sink: str = "") -> Publisher:
        inner = self._database.publisher(job, sink)
        return DatabasePublisher(self._catalog_tables, inner, self._warehouse / OWN_DIRECTORY)

    def diagnose(self, table: str | None = None) -> list[Finding]:
        found = super().diagnose(table)
        return found if table is not None else [*found, *self._database.diagnose()]
