"""The stores that the definitions of a workspace point to, and what lies there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from headrace.errors import NotFoundError, OptionError, UnsupportedError
from headrace.formats.registry import DEFAULT_FORMAT, format_named
from headrace.streaming_sql.catalog import Catalog, TableDefinition
from headrace.streaming_sql.language import statements as st
from headrace.streaming_sql.providers import QUEUE_PROVIDERS, is_headrace

if TYPE_CHECKING:
    from headrace.formats.location import Location
    from headrace.ports import Consumer, Queue, Store


def store_at(url: str) -> Location:
    """Return the place of a store that only its address is known of."""
    return DEFAULT_FORMAT.locate({"store": url})


def location_of(table: TableDefinition, over: Mapping[str, str] | None = None) -> Location:
    """Return where a definition of one of headrace's formats points to, other options laid over its own.

    Raises:
        UnsupportedError: it is of another format.
        OptionError: an option is missing.
    """
    if not is_headrace(table.provider):
        raise UnsupportedError(
            f"table {table.name} is in no store", received=f"USING {table.provider}", valid="a format of headrace"
        )
    return format_named(table.provider).locate(table.resolved_options(over))


def locations(catalog: Catalog, providers: Iterable[str]) -> list[Location]:
    """Return one location for each store that the catalog's tables of these providers are in."""
    tables = [table for table in catalog.tables() if table.provider.lower() in providers]
    found = [location_of(table) for table in tables]
    return list({location.store_url: location for location in found}.values())


class QueuePlaces:
    """Finds queues and consumers by the names of the catalog's tables, or by their own in the catalog's stores."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def stores(self) -> list[Location]:
        """Return the stores that have queues; that of the environment if the catalog names none."""
        found = locations(self._catalog, QUEUE_PROVIDERS)
        default = os.environ.get("HEADRACE_STORE")
        if not found and default:
            found = [store_at(default)]
        by_id: dict[str, Location] = {}
        for location in found:
            # Two addresses can be those of one store.
            with location.open_store() as store:
                if store.capabilities.queues:
                    by_id[store.id] = location
        return list(by_id.values())

    def the_store(self) -> Location:
        """Return the store where there is but one.

        Raises:
            OptionError: there is none, or there are several.
        """
        found = self.stores()
        if len(found) != 1:
            raise OptionError(
                "this workspace's tables are in several stores" if found else "this workspace names no store yet",
                remedy="name one: OPTIONS (store = '…')",
            )
        return found[0]

    @contextlib.contextmanager
    def queue(self, name: st.Name) -> Iterator[tuple[Store, Queue]]:
        """Open the store of a queue.

        Raises:
            NotFoundError: there is no such queue.
            UnsupportedError: the name is that of a table.
        """
        from headrace.ports import Queue

        table = self._catalog.find_table(str(name))
        if table is None:
            with self._holding(str(name), "queue") as store:
                yield store, store.queue(str(name))
            return
        location = location_of(table)
        with location.open_store() as store:
            found = location.open(store)
            if not isinstance(found, Queue):
                raise UnsupportedError(f"{table.name} is a table, not a queue", remedy="SHOW QUEUES lists the queues")
            yield store, found

    @contextlib.contextmanager
    def consumer(self, name: st.Name, queue: st.Name | None = None) -> Iterator[tuple[Store, Consumer]]:
        """Open the store of a consumer: that of a queue if one is named.

        Raises:
            NotFoundError: there is no such consumer, or queue.
            OptionError: several stores have a consumer of this name.
        """
        holding = self._holding(str(name), "consumer") if queue is None else self._store_of(queue)
        with holding as store:
            yield store, store.consumer(str(name))

    @contextlib.contextmanager
    def _store_of(self, queue: st.Name) -> Iterator[Store]:
        with self.queue(queue) as (store, _):
            yield store

    @contextlib.contextmanager
    def _holding(self, name: str, kind: str) -> Iterator[Store]:
        """Open the one store that has something of a name."""
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
    """Tell whether a store has a queue or a consumer of a name. It need not list all that it finds."""
    try:
        store.queue(name) if kind == "queue" else store.consumer(name)
    except NotFoundError:
        return False
    return True
