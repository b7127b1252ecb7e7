"""The stores of the conformance suite. A new store is one entry in `STORES`."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest
from _pytest.mark import ParameterSet

import headrace
from headrace.ports import Capabilities, Store
from headrace.stores.embedded.store import EmbeddedStore
from headrace.stores.postgres.store import PostgresStore
from headrace_tablestore.store.store import TablestoreStore
from headrace_ytsaurus.store.files import YtFiles
from headrace_ytsaurus.store.store import YtStore
from tests.conformance import serving
from tests.effort import thorough

Value = TypeVar("Value")


def _embedded(directory: Path) -> Store:
    return headrace.open(directory / "store", create=True, synchronous="off")


def _instance(directory: Path) -> str:
    # An instance's name has at most 16 characters.
    return "t" + hashlib.sha256(str(directory).encode()).hexdigest()[:15]


def _tablestore(directory: Path) -> Store:
    url = f"tablestore+{serving.tablestore_endpoint()}/{_instance(directory)}"
    return headrace.open(url, access_key_id=serving.KEY_ID, access_key_secret=serving.KEY_SECRET)


def _ytsaurus(directory: Path) -> Store:
    url = f"yt+{serving.ytsaurus_endpoint()}//tests/{_instance(directory)}"
    store = headrace.open(url, token=serving.TOKEN, retry_seconds=20)
    assert isinstance(store, YtStore)
    # All tests share one cluster with one tree of files.
    store.files = lambda: YtFiles(store._connection, store._names, f"{store._names.directory}/files")  # type: ignore[method-assign]
    return store


def _postgres(directory: Path) -> Store:
    return headrace.open(serving.postgres_database(_instance(directory)), retry_seconds=20)


@dataclass(frozen=True)
class Kind:
    """A kind of store.

    Attributes:
        open: opens a store, and creates it if it does not exist. The argument is a directory of the test. Calls with
            the same directory, in any process, open the same store; stores of different directories share nothing.
        capabilities: the capabilities of these stores. Tests that need others do not run on them.
    """

    open: Callable[[Path], Store]
    capabilities: Capabilities


STORES = {
    "embedded": Kind(_embedded, EmbeddedStore.capabilities),
    "postgres": Kind(_postgres, PostgresStore.capabilities),
    "tablestore": Kind(_tablestore, TablestoreStore.capabilities),
    "ytsaurus": Kind(_ytsaurus, YtStore.capabilities),
}


@dataclass(frozen=True)
class Place:
    """The location of a test's store. It can be pickled, so that another process can open the store."""

    kind: str
    directory: Path

    def __reduce__(self) -> tuple[Callable[..., Place], tuple[str, Path, dict[str, str]]]:
        return _unpickled, (self.kind, self.directory, serving.variables())

    def open(self) -> Store:
        """Return a handle on the store."""
        return STORES[self.kind].open(self.directory)

    def commits(self, count: int) -> int:
        """Return the number of commits of a test with many processes: fewer if a commit takes several requests."""
        return thorough(count // 8 if self.kind == "ytsaurus" else count)

    @property
    def has_partitions(self) -> bool:
        """Whether the log of a table is divided into partitions."""
        return self.kind != "postgres"

    def split(self, table: str) -> None:
        """Split the largest partition of a table, as services do automatically. Some stores have no partitions."""
        if not self.has_partitions:
            return
        with _embedded_behind(self) as store:
            store.table(table).split()


def _unpickled(kind: str, directory: Path, servers: dict[str, str]) -> Place:
    """Return a place in another process, which may have started before this process's servers."""
    os.environ.update(servers)
    return Place(kind, directory)


def _embedded_behind(place: Place) -> Store:
    """Return the embedded store with the rows of a test's store: the store itself, or the store of its endpoint."""
    if place.kind == "embedded":
        return place.open()
    return headrace.open(serving.tablestore_root() / _instance(place.directory))


def has_type(store: Store, kind: str) -> bool:
    """Return whether columns of the store can have a type."""
    return _has_type(store.capabilities, kind)


def _has_type(capabilities: Capabilities, kind: str) -> bool:
    return capabilities.column_types is None or kind in capabilities.column_types


def storable(store: Store, values: Iterable[Value]) -> list[Value]:
    """Return the values that the store can have: those without the character NUL, if its strings cannot contain it.

    Args:
        values: values of columns, or keys, rows and lists of such values.
    """
    return [value for value in values if store.capabilities.nul_in_text or not _has_nul(value)]


def _has_nul(value: object) -> bool:
    if isinstance(value, dict):
        return any(map(_has_nul, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_has_nul, value))
    return isinstance(value, str) and "\0" in value


def types(kinds: Iterable[str]) -> list[ParameterSet]:
    """Return parameters of a test for each of some column types; see `fits`."""
    return [pytest.param(kind, marks=pytest.mark.needs_type(kind)) for kind in kinds]


def fits(item: pytest.Item) -> bool:
    """Return whether the store of a test's parameters has the capabilities that the test needs.

    A test declares them by the marks ``needs``, with names of `headrace.ports.Capabilities`, and ``needs_type``, with
    types of columns.
    """
    callspec = getattr(item, "callspec", None)
    place = None if callspec is None else callspec.params.get("place")
    # Tests in other folders also have parameters of this name.
    if not isinstance(place, str) or place not in STORES:
        return True
    capabilities = STORES[place].capabilities
    needed = [name for mark in item.iter_markers("needs") for name in mark.args]
    kinds = [kind for mark in item.iter_markers("needs_type") for kind in mark.args]
    return all(getattr(capabilities, name) for name in needed) and all(_has_type(capabilities, kind) for kind in kinds)
