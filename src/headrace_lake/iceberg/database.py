"""An Iceberg catalog in a PostgreSQL database: pyiceberg's, and commits in transactions of headrace.

A catalog has the location of the newest file of metadata of each table. A commit writes another file, and replaces the
location. pyiceberg's catalog does so in a transaction of its own, and `locked` in the one of the caller.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

from psycopg import sql
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.serializers import FromInputFile, ToOutputFile
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.update import TableRequirement, TableUpdate, update_table_metadata
from sqlalchemy import URL, Connection, event

from headrace.errors import NotFoundError
from headrace.stores.opening import CREATION
from headrace.stores.postgres.for_lakes import Bulk, PostgresStore, Server
from headrace_lake.iceberg.catalog import Tables, connected, parts_of
from headrace_lake.iceberg.files import SyncedFiles
from headrace_lake.iceberg.version import Version

_NUMBERED = re.compile(r"(\d+)-.*")
_KEY = "catalog_name = $1 AND table_namespace = $2 AND table_name = $3"


def check_exists(database: PostgresStore, schema: str) -> None:
    """Raise `NotFoundError` if a schema of a database has no catalog."""
    query = "SELECT pg_catalog.to_regclass(%s) IS NULL"
    if database.connection.ask(lambda session: session.execute(query, (_table(schema),)).fetchone()) == (True,):
        raise NotFoundError(
            "the database has no Iceberg catalog",
            received=f"{database.url}, schema {schema!r}",
            remedy=f"{CREATION}; or set option schema (in Spark icebergSchema)",
        )


def _table(schema: str) -> str:
    """Return the complete name of the table with the locations."""
    return sql.Identifier(schema, IcebergTables.__tablename__).as_string(None)


class DatabaseTables(Tables):
    """The tables of a catalog in a PostgreSQL database.

    Args:
        database: the store of the database.
        schema: the schema with the tables of the catalog.
        catalog: the name of the catalog in these tables.
        create: create the tables of the catalog if they do not exist.

    Attributes:
        table: the complete name of the table with the locations.
    """

    def __init__(self, database: PostgresStore, schema: str, catalog: str, *, create: bool) -> None:
        self.table = _table(schema)
        self._name = catalog
        super().__init__(partial(_connected, database, schema, catalog), create=create)

    def locked(self, bulk: Bulk, name: str) -> Version:
        """Return the newest version of a table, whose commits are part of the caller's transaction.

        No other program commits to the table until the transaction ends.

        Raises:
            NotFoundError: there is no such table.
        """
        identifier = parts_of(name)
        pointer = _Pointer(bulk, self.table, (self._name, *identifier))
        location = pointer.locked()
        if location is None:
            raise NotFoundError("no such table in the catalog", received=repr(name))
        files = SyncedFiles()
        metadata = FromInputFile.table_metadata(files.new_input(location))
        return Version(name, Table(identifier, metadata, location, files, pointer))


def _connected(database: PostgresStore, schema: str, name: str) -> SqlCatalog:
    """Open a catalog. Its sessions have the settings of the store's."""
    address = database.connection.address
    parameters = dict(address.parameters)
    # In this place SQLAlchemy shows no password.
    user, secret = parameters.pop("user", ""), parameters.pop("password", None)
    query = {"conninfo": replace(address, parameters=parameters).conninfo()}
    uri = URL.create("postgresql+psycopg", user, secret, query=query)
    catalog = connected(name, uri.render_as_string(hide_password=False))
    event.listen(catalog.engine, "begin", partial(_begin, database.connection.server))
    # BEGIN says the mode: the defaults of a session change its later transactions only.
    catalog.engine = catalog.engine.execution_options(
        schema_translate_map={None: schema}, isolation_level="READ COMMITTED", postgresql_readonly=False
    )
    return catalog


def _begin(server: Server, connection: Connection) -> None:
    """Begin a transaction of SQLAlchemy with the settings of the store's sessions."""
    connection.exec_driver_sql(server.settings)


class _Pointer(NoopCatalog):
    """The location of a table's metadata, as a catalog that commits in a transaction of the caller.

    Args:
        table: the complete name of the table with the locations.
        key: the names of the catalog, the namespace and the table.
    """

    def __init__(self, bulk: Bulk, table: str, key: tuple[str, str, str]) -> None:
        super().__init__(key[0])
        self._bulk = bulk
        self._table = table
        self._key = key

    def locked(self) -> str | None:
        """Return the location; None if there is no such table. Other writers wait until the transaction ends."""
        return self._run(f"SELECT metadata_location FROM {self._table} WHERE {_KEY} FOR UPDATE")

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        before = table.metadata_location
        for each in requirements:
            each.validate(table.metadata)
        metadata = update_table_metadata(table.metadata, updates, metadata_location=before)
        numbered = _NUMBERED.fullmatch(before.rpartition("/")[2])
        number = 0 if numbered is None else int(numbered[1]) + 1
        places = load_location_provider(metadata.location, metadata.properties)
        location = places.new_table_metadata_file_location(number)
        ToOutputFile.table_metadata(metadata, table.io.new_output(location))
        replaced = self._run(
            f"UPDATE {self._table} SET metadata_location = $4, previous_metadata_location = $5"
            f" WHERE {_KEY} AND metadata_location = $5 RETURNING metadata_location",
            location,
            before,
        )
        if replaced is None:
            raise CommitFailedException("another version of the table was committed")
        return CommitTableResponse(metadata=metadata, **{"metadata-location": location})

    def _run(self, statement: str, *values: str) -> str | None:
        """Run a statement; return its value."""
        with self._bulk.cursor() as cursor:
            cursor.execute(statement, (*self._key, *values))
            row = cursor.fetchone()
            return None if row is None else row[0]
