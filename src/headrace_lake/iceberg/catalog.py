"""Tables of a SQL catalog, by pyiceberg."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from sqlalchemy.exc import SQLAlchemyError

from headrace.errors import HeadraceError, NotFoundError, OptionError, StoreError
from headrace.support.finalizers import quiet_at_the_end
from headrace_lake.iceberg.files import SyncedFiles, location_of
from headrace_lake.iceberg.version import Version

DEFAULT_NAMESPACE = "default"
_NAME = re.compile(r"([A-Za-z0-9][\w -]*\.)?[A-Za-z0-9][\w -]*", re.ASCII)
_LONGEST_NAME = 200


def connected(name: str, uri: str) -> SqlCatalog:
    """Open a catalog, without its tables.

    Args:
        name: its name in the database.
        uri: the URL of the database for SQLAlchemy.
    """
    files = f"{SyncedFiles.__module__}.{SyncedFiles.__qualname__}"
    # A connection that the server has closed is replaced.
    properties = {"uri": uri, "py-io-impl": files, "init_catalog_tables": "false", "pool_pre_ping": "true"}
    catalog = SqlCatalog(name, **properties)
    # The files of tables get the properties, and need no password.
    del catalog.properties["uri"]
    return catalog


class Tables:
    """The tables of a catalog. Each process has its own connections.

    Args:
        connect: opens the catalog.
        create: create the tables of the catalog in the database if they do not exist.
    """

    def __init__(self, connect: Callable[[], SqlCatalog], *, create: bool) -> None:
        self._connect = connect
        self._opened: tuple[int, SqlCatalog] | None = None
        self._guard = threading.Lock()
        with translated():
            catalog = self._catalog()
            if create:
                try:
                    catalog.create_tables()
                except SQLAlchemyError:
                    # Another process creates them at the same time.
                    catalog.create_tables()

    def _catalog(self) -> SqlCatalog:
        with self._guard:
            if self._opened is None or self._opened[0] != os.getpid():
                self._opened = os.getpid(), self._connect()
            return self._opened[1]

    def names(self) -> list[str]:
        """Return the names of all tables of namespaces without others inside."""
        with translated():
            catalog = self._catalog()
            found = [each for space in catalog.list_namespaces() for each in catalog.list_tables(space)]
        # Tables of inner namespaces have more parts, and no name here.
        pairs = [each for each in found if len(each) == 2]
        return sorted(table if space == DEFAULT_NAMESPACE else f"{space}.{table}" for space, table in pairs)

    def versions(self) -> dict[str, str]:
        """Return a text for each table that can be loaded. A commit changes it."""
        found: dict[str, str] = {}
        for name in self.names():
            # Another process may drop a table meanwhile, and headrace cannot load all tables of other programs.
            with suppress(HeadraceError):
                found[name] = self.load(name).table.metadata_location
        return found

    def load(self, name: str) -> Version:
        """Return the newest version of a table.

        Raises:
            NotFoundError: there is no such table.
        """
        identifier = parts_of(name)
        try:
            with translated():
                return Version(name, self._catalog().load_table(identifier))
        except NoSuchTableError:
            raise NotFoundError("no such table in the catalog", received=repr(name), valid=self.names()) from None

    def create(
        self, name: str, schema: Schema, spec: PartitionSpec, location: Path, properties: dict[str, str]
    ) -> bool:
        """Create a table; return False if there is one of the name."""
        identifier = parts_of(name)
        with translated():
            catalog = self._catalog()
            try:
                if not catalog.namespace_exists(identifier[0]):
                    catalog.create_namespace(identifier[0])
            except (NamespaceAlreadyExistsError, SQLAlchemyError):
                # Another process has created it at the same time.
                if not catalog.namespace_exists(identifier[0]):
                    raise
            try:
                catalog.create_table(identifier, schema, location_of(location), spec, properties=properties)
            except TableAlreadyExistsError:
                return False
        return True

    def drop(self, name: str) -> None:
        """Drop a table; raise `NotFoundError` if there is none. Its files stay."""
        try:
            with translated():
                self._catalog().drop_table(parts_of(name))
        except (NoSuchTableError, NoSuchNamespaceError):
            raise NotFoundError("no such table in the catalog", received=repr(name)) from None

    def close(self) -> None:
        """Close the connections of this process."""
        with self._guard:
            if self._opened is not None and self._opened[0] == os.getpid():
                self._opened[1].close()
            self._opened = None

    @quiet_at_the_end
    def __del__(self) -> None:
        # The catalog is in a circle of SQLAlchemy's objects, which would keep its connections until a collection.
        self.close()


@contextmanager
def translated() -> Iterator[None]:
    """Raise `StoreError` for errors of the database. The message has no address."""
    try:
        yield
    except SQLAlchemyError as error:
        raise StoreError(
            "the database of the Iceberg catalog rejects a request, or cannot be reached", received=type(error).__name__
        ) from None


def parts_of(name: str) -> tuple[str, str]:
    """Return the namespace and the name of a table.

    Raises:
        OptionError: an Iceberg table of headrace cannot have this name.
    """
    if not _NAME.fullmatch(name) or len(name) > _LONGEST_NAME:
        raise OptionError(
            "an Iceberg table cannot have this name",
            received=repr(name)[:200],
            valid="table or namespace.table, each of ASCII letters, digits, spaces and _- after a letter or digit",
        )
    space, _, table = name.rpartition(".")
    if space == DEFAULT_NAMESPACE:
        # A batch could write the table under both names: the second part would find the marker of the first.
        raise OptionError("a table of the default namespace has one name", received=repr(name), valid=repr(table))
    return space or DEFAULT_NAMESPACE, table
