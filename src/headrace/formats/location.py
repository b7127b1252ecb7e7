"""`Location`: the store, and the table or queue, that the options of a format name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from headrace.errors import NotFoundError, OptionError
from headrace.model.own_names import of_users
from headrace.stores.registry import StoreAddress, absolute

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.ports import Queue, Store, Table


@dataclass(frozen=True)
class Location:
    """The address of a store, and the name of a table or queue in it.

    Attributes:
        store: the address of the store.
        table: the name of the table; of a table or queue if the user did not say which.
        queue: the name that the user gave as that of a queue.
        columns: the columns of the table that the user named; None if the store knows all columns.
    """

    store: StoreAddress
    table: str | None
    queue: str | None = None
    columns: pa.Schema | None = None

    def absolute(self) -> Self:
        """Return the location for processes with another working directory."""
        return replace(self, store=replace(self.store, url=absolute(self.store.url)))

    def open_store(self, *, create: bool = False) -> Store:
        """Open the store. ``create`` creates a missing embedded store."""
        return self.store.open(create=create)

    def open(self, store: Store) -> Table | Queue:
        """Return the table or queue of this location. Raises as `open_table`."""
        if self.queue is not None:
            return store.queue(self.queue)
        return find_queue(store, self.table) or self.open_table(store)

    def open_table(self, store: Store) -> Table:
        """Return the table of this location.

        Raises:
            NotFoundError: the store has no table of this name.
            OptionError: the location names no table.
        """
        if self.table is None:
            raise OptionError(
                "option table or queue is missing",
                valid=of_users(store.tables()) + _queues(store),
                remedy='name one, or load("name") or save("name")',
            )
        try:
            return store.table(self.table, self.columns)
        except NotFoundError as error:
            if not store.capabilities.queues:
                raise
            raise NotFoundError(
                "no such table or queue", received=error.received, valid=of_users(store.tables()) + store.queues()
            ) from None


def find_queue(store: Store, name: str | None) -> Queue | None:
    """Return the queue of a name; None if there is none."""
    if name is None or not store.capabilities.queues:
        return None
    # Not by `store.queues()`: a store may find queues that it does not list.
    try:
        return store.queue(name)
    except NotFoundError:
        return None


def find_table(store: Store, name: str, columns: pa.Schema | None = None) -> Table | None:
    """Return the table of a name; None if there is none. For ``columns`` see `Location`."""
    try:
        return store.table(name, columns)
    except NotFoundError:
        return None


def _queues(store: Store) -> list[str]:
    return store.queues() if store.capabilities.queues else []
