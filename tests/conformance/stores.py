"""The places of the stores that the conformance tests run on."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import headrace
from headrace.ports import Capabilities, Store
from headrace.stores.embedded.store import EmbeddedStore
from headrace.stores.postgres.store import PostgresStore
from headrace.testing import Place, Traits
from headrace.testing.capabilities import lacking
from headrace.testing.effort import THOROUGH
from headrace_lake.delta.store import DeltaStore
from headrace_lake.ducklake.store import DuckLakeStore
from headrace_lake.iceberg.database_store import IcebergDatabaseStore
from headrace_lake.iceberg.store import IcebergStore
from headrace_tablestore.store.store import TablestoreStore
from headrace_ytsaurus.store.files import YtFiles
from headrace_ytsaurus.store.store import YtStore
from tests.conformance import serving


def embedded(directory: Path) -> Place:
    """Return the place of an embedded store."""
    return Place("{directory}/store", directory, {"synchronous": "off"})


class DeltaPlace(Place):
    """A directory of Delta tables."""

    def commits(self, count: int) -> int:
        # A commit writes several files, and many reads open those of all commits.
        return super().commits(count // (2 if THOROUGH else 4))


def delta(directory: Path) -> Place:
    """Return the place of a directory of Delta tables."""
    return DeltaPlace("delta://{directory}/store", directory)


def iceberg(directory: Path) -> Place:
    """Return the place of Iceberg tables."""
    return Place("iceberg+sqlite://{directory}/store/catalog.db", directory)


class TablestorePlace(Place):
    """An instance of Tablestore. Each is an embedded store below the directory of the endpoint."""

    has_partitions = True

    def split(self, table: str) -> None:
        with headrace.open(serving.tablestore_root() / self.name) as store:
            store.table(table).split()


def tablestore(directory: Path) -> Place:
    """Return the place of an instance of Tablestore."""
    keys = {"access_key_id": serving.KEY_ID, "access_key_secret": serving.KEY_SECRET}
    return TablestorePlace(f"tablestore+{serving.tablestore_endpoint()}/{{name}}", directory, keys)


class YtsaurusPlace(Place):
    """A folder of the YTsaurus cluster that all tests share, with a tree of files of its own."""

    def open(self) -> Store:
        store = super().open()
        assert isinstance(store, YtStore)
        directory = f"{store._names.directory}/files"
        store.files = partial(YtFiles, store._connection, store._names, directory)  # type: ignore[method-assign]
        return store

    def commits(self, count: int) -> int:
        # A commit takes several requests.
        return super().commits(count // 8)


def ytsaurus(directory: Path) -> Place:
    """Return the place of a folder of YTsaurus."""
    options = {"token": serving.TOKEN, "retry_seconds": 20}
    return YtsaurusPlace(f"yt+{serving.ytsaurus_endpoint()}//tests/{{name}}", directory, options)


class PostgresPlace(Place):
    """A database of the PostgreSQL server that all tests share, created when it is opened."""

    def __reduce__(self) -> tuple[Callable[..., Place], tuple[Any, ...]]:
        return _elsewhere, (type(self), vars(self), serving.variables())

    def open(self) -> Store:
        return headrace.open(serving.postgres_database(self.name), **self.options)


class IcebergPlace(PostgresPlace):
    """Iceberg tables with a catalog in a database of its own, and the test's directory as warehouse."""

    def open(self) -> Store:
        url = f"iceberg+{serving.postgres_database(self.name)}"
        return headrace.open(url, create=True, warehouse=str(self.directory / "files"), **self.options)


def iceberg_postgres(directory: Path) -> Place:
    """Return the place of Iceberg tables with a catalog in PostgreSQL."""
    return IcebergPlace("iceberg+postgresql:", directory, {"retry_seconds": 20})


class DuckLakePlace(PostgresPlace):
    """A DuckLake in a database of its own, with data files in the test's directory."""

    def open(self) -> Store:
        url = f"ducklake+{serving.postgres_database(self.name)}"
        return headrace.open(url, create=True, data=str(self.directory / "files"), **self.options)


def ducklake(directory: Path) -> Place:
    """Return the place of a DuckLake."""
    return DuckLakePlace("ducklake+postgresql:", directory, {"retry_seconds": 20})


def postgres(directory: Path) -> Place:
    """Return the place of a PostgreSQL database."""
    return PostgresPlace("postgresql:", directory, {"retry_seconds": 20})


def _elsewhere(kind: type[PostgresPlace], fields: dict[str, Any], servers: dict[str, str]) -> Place:
    """Return a place in another process, which may have started before this process's server."""
    os.environ.update(servers)
    return kind(**fields)


class Kind(NamedTuple):
    """A kind of store: the place in a test's directory, and what its stores can. Tests that need more do not run.

    Attributes:
        modules: the names of the modules whose tests run; None for all.
    """

    at: Callable[[Path], Place]
    capabilities: Capabilities
    traits: Traits
    modules: tuple[str, ...] | None = None


STORES = {
    "embedded": Kind(
        embedded,
        EmbeddedStore.capabilities,
        Traits(split_partitions=True, any_names=True, tells_changes=True),
    ),
    "delta": Kind(
        delta,
        DeltaStore.capabilities,
        Traits(tells_changes=True, logs_calls=False, logs_equal_rows=False, forks=False, own_versions=True),
    ),
    "ducklake": Kind(
        ducklake,
        DuckLakeStore.capabilities,
        Traits(tells_changes=True, logs_calls=False),
    ),
    "iceberg": Kind(
        iceberg,
        IcebergStore.capabilities,
        Traits(tells_changes=True, logs_calls=False, own_versions=True),
    ),
    "iceberg-postgres": Kind(
        iceberg_postgres,
        IcebergDatabaseStore.capabilities,
        Traits(tells_changes=True, logs_calls=False, own_versions=True),
        # Its tables are those of "iceberg".
        ("test_changes", "test_files", "test_handles", "test_jobs", "test_publication"),
    ),
    "postgres": Kind(
        postgres,
        PostgresStore.capabilities,
        Traits(
            nul_in_text=False,
            tells_changes=True,
            logs_calls=False,
            returns_versions=False,
            starts_in_past=False,
            partition_sizes=False,
            schemas=True,
        ),
    ),
    "tablestore": Kind(tablestore, TablestoreStore.capabilities, Traits()),
    "ytsaurus": Kind(ytsaurus, YtStore.capabilities, Traits(partition_sizes=False)),
}


def fits(item: pytest.Item) -> bool:
    """Return whether the store of a test's parameters has the capabilities and traits that the test needs."""
    callspec = getattr(item, "callspec", None)
    kind = None if callspec is None else callspec.params.get("place")
    # Tests in other folders also have parameters of this name.
    if not isinstance(kind, str) or kind not in STORES:
        return True
    found = STORES[kind]
    if found.modules is not None and item.path.stem not in found.modules:
        return False
    return not lacking(item, found.capabilities, found.traits)
