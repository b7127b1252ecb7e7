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
class Traits:
    """Differences between kinds of stores that only tests know, besides the `Capabilities`.

    Attributes:
        split_partitions: a user can split and merge partitions.
        all_key_types: key columns can have all `headrace.model.types.KEY_TYPE_NAMES`; otherwise string, long and
            binary.
        any_names: tables and columns may have any name that is not empty.
        nul_in_text: strings can contain the character NUL. Otherwise a write of such a string fails with `SchemaError`.
        tells_changes: `Store.wait_for_change` can detect that there was no commit.
        logs_calls: the log has each write as it was called: it distinguishes a put from an update, an update names the
            cells that it set, and several rows of a key in one call are several changes. Otherwise a new row is an
            INSERT, any other write a REPLACE with the whole row, of several rows of a key the last one is logged, and a
            put of a row that has only a key is no change if the row exists.
        returns_versions: a write returns the commit version of its changes.
        starts_in_past: a new tunnel can start at changes from before its creation.
        partition_sizes: queues know the size of each partition; otherwise it is estimated from the size of the queue.
        several_tables: a tunnel can follow several tables, see `Store.create_tunnel_of_tables`.
    """

    split_partitions: bool = False
    all_key_types: bool = False
    any_names: bool = False
    nul_in_text: bool = True
    tells_changes: bool = False
    logs_calls: bool = True
    returns_versions: bool = True
    starts_in_past: bool = True
    partition_sizes: bool = True
    several_tables: bool = False


TRAITS: dict[type[Store], Traits] = {
    EmbeddedStore: Traits(split_partitions=True, all_key_types=True, any_names=True, tells_changes=True),
    PostgresStore: Traits(
        nul_in_text=False,
        tells_changes=True,
        logs_calls=False,
        returns_versions=False,
        starts_in_past=False,
        partition_sizes=False,
        several_tables=True,
    ),
    TablestoreStore: Traits(),
    YtStore: Traits(partition_sizes=False),
}


def traits(store: Store) -> Traits:
    """Return the traits of a store's kind."""
    return TRAITS[type(store)]


@dataclass(frozen=True)
class Kind:
    """A kind of store.

    Attributes:
        open: opens a store, and creates it if it does not exist. The argument is a directory of the test. Calls with
            the same directory, in any process, open the same store; stores of different directories share nothing.
        store: the class of these stores.
    """

    open: Callable[[Path], Store]
    store: type[Store]

    def has(self, name: str) -> bool:
        """Return whether the stores have a capability or a trait. Tests that need others do not run on them."""
        traits = TRAITS[self.store]
        return bool(getattr(traits, name) if hasattr(traits, name) else getattr(self.store.capabilities, name))


STORES = {
    "embedded": Kind(_embedded, EmbeddedStore),
    "postgres": Kind(_postgres, PostgresStore),
    "tablestore": Kind(_tablestore, TablestoreStore),
    "ytsaurus": Kind(_ytsaurus, YtStore),
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
    return [value for value in values if traits(store).nul_in_text or not _has_nul(value)]


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
    """Return whether the store of a test's parameters has the capabilities and traits that the test needs.

    A test declares them by the marks ``needs``, with names of `headrace.ports.Capabilities` and `Traits`, and
    ``needs_type``, with types of columns.
    """
    callspec = getattr(item, "callspec", None)
    place = None if callspec is None else callspec.params.get("place")
    # Tests in other folders also have parameters of this name.
    if not isinstance(place, str) or place not in STORES:
        return True
    kind = STORES[place]
    needed = [name for mark in item.iter_markers("needs") for name in mark.args]
    types = [name for mark in item.iter_markers("needs_type") for name in mark.args]
    return all(map(kind.has, needed)) and all(_has_type(kind.store.capabilities, name) for name in types)
