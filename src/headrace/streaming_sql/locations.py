"""The locations of stores, and the look-up of queues and consumers in the stores of a workspace."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from headrace.errors import NotFoundError, OptionError, UnsupportedError
from headrace.formats.registry import DEFAULT_FORMAT, format_named
from headrace.sql_text.script import Name
from headrace.streaming_sql.catalog import Catalog, TableDefinition
from headrace.streaming_sql.providers import QUEUE_PROVIDERS, is_headrace

if TYPE_CHECKING:
    from headrace.formats.location import Location
    from headrace.ports import Consumer, Queue, Store


def store_at(url: str) -> Location:
    """Return the location of a store by its address."""
    return DEFAULT_FORMAT.locate({"store": url})


def location_of(table: TableDefinition, over: Mapping[str, str] | None = None) -> Location:
    """Return the location of a definition with one of headrace's formats, with options that override its own.

    Raises:
        UnsupportedError: the definition has another format.
        OptionError: an option is missing.
    """
    if not is_headrace(table.provider):
        raise UnsupportedError(
            f"table {table.name} is in no store", received=f"USING {table.provider}", valid="a format of headrace"
        )
    return format_named(table.provider).locate(table.resolved_options(over))


def table_in_store(definition: TableDefinition, location: Location) -> str:
    """Return the name that the table of a definition has in its store.

    Raises:
        OptionError: the definition names none.
    """
    if location.table is None:
        raise OptionError(
            "option table is missing",
            received=f"table {definition.name} of the workspace, without the name of a table in its store",
            remedy=f"DROP TABLE {definition.name}, and create it again with OPTIONS (…, table = '…')",
        )
    return location.table


def locations(catalog: Catalog, providers: Iterable[str]) -> list[Location]:
    """Return one location for each store with tables of these providers."""
    tables = [table for table in catalog.tables() if table.provider.lower() in providers]
    found = [location_of(table) for table in tables]
    return list({location.store.url: location for location in found}.values())


class QueueLookup:
    """Finds queues by their names in the catalog or in its stores, and consumers by their names in its stores."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def stores(self) -> list[Location]:
        """Return the stores with queues. If the catalog has no store, return the store of the environment."""
        found = locations(self._catalog, QUEUE_PROVIDERS)
        default = os.environ.get("HEADRACE_STORE")
        if not found and default:
            found = [store_at(default)]
        by_id: dict[str, Location] = {}
        for location in found:
            # Two addresses can belong to the same store.
            with location.open_store() as store:
                if store.capabilities.queues:
                    by_id[store.id] = location
        return list(by_id.values())

    def only_store(self) -> Location:
        """Return the only store.

        Raises:
            OptionError: the workspace has no store, or several.
        """
        found = self.stores()
        if len(found) != 1:
            raise OptionError(
                "this workspace's tables are in several stores" if found else "this workspace names no store yet",
                remedy="name one: OPTIONS (store = '…')",
            )
        return found[0]

    @contextlib.contextmanager
    def queue(self, name: Name) -> Iterator[tuple[Store, Queue]]:
        """Open the store of a queue.

        Raises:
            NotFoundError: the queue does not exist.
            UnsupportedError: the name belongs to a table.
        """
        from headrace.ports import Queue

        table = self._catalog.find_table(str(name))
        if table is None:
            with self._store_with(str(name), "queue") as store:
                yield store, store.queue(str(name))
            return
        location = location_of(table)
        with location.open_store() as store:
            found = location.open(store)
            if not isinstance(found, Queue):
                raise UnsupportedError(f"{table.name} is a table, not a queue", remedy="SHOW QUEUES lists the queues")
            yield store, found

    @contextlib.contextmanager
    def consumer(self, name: Name, queue: Name | None = None) -> Iterator[tuple[Store, Consumer]]:
        """Open the store of a consumer. With ``queue``, it is the store of that queue.

        Raises:
            NotFoundError: the consumer or the queue does not exist.
            OptionError: several stores have a consumer of this name.
        """
        with contextlib.ExitStack() as opened:
            if queue is None:
                store = opened.enter_context(self._store_with(str(name), "consumer"))
            else:
                store, _ = opened.enter_context(self.queue(queue))
            yield store, store.consumer(str(name))

    @contextlib.contextmanager
    def _store_with(self, name: str, kind: str) -> Iterator[Store]:
        """Open the store that has a queue or consumer with a name, if only one store has it."""
        found, known = [], []
        for location in self.stores():
            with location.open_store() as store:
                known += store.queues() if kind == "queue" else store.consumers()
                if _has(store, name, kind):
                    found.append(location)
        if not found:
            raise NotFoundError(f"no such {kind} in the stores of this workspace", received=name, valid=known)
        if len(found) > 1:
            raise OptionError(
                f"several stores of this workspace have a {kind} of this name",
                received=name,
                remedy=f"use `headrace {kind} --store …`, or define a queue by CREATE TABLE and name that",
            )
        with found[0].open_store() as store:
            yield store


def _has(store: Store, name: str, kind: str) -> bool:
    """Return whether a store has a queue or a consumer with a name, without listing all of them."""
    try:
        store.queue(name) if kind == "queue" else store.consumer(name)
    except NotFoundError:
        return False
    return True
