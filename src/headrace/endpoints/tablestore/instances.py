"""The open instances of an endpoint: an instance is a directory, and the embedded store in it."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterator
from pathlib import Path

from headrace.endpoints.tablestore.errors import refused
from headrace.endpoints.tablestore.rows.layout import layout_of
from headrace.endpoints.tablestore.tables.settings import SettingsTable
from headrace.endpoints.tablestore.tunnels.stream_bounds import StreamBoundsTable
from headrace.errors import NotFoundError, SchemaError
from headrace.stores.embedded.store import EmbeddedStore
from headrace.stores.embedded.tables.table import EmbeddedTable
from headrace.tables.schema import TableSchema
from headrace.wire.tablestore.errors import ServiceError
from headrace.wire.tablestore.limits import is_name

MAX_OPEN = 32


class Instance:
    """One instance, open: what a handler of a request gets.

    Attributes:
        name: its name.
        store: the embedded store that holds its tables; it may be used by several threads.
        settings: what Tablestore knows of a table beyond its columns.
        stream_bounds: where Stream tunnels begin and end.
        changing: held while tables are made, changed and dropped. A table and its settings are two things, and that
            there are not too many tables is about all of them; such requests are rare, so one lock for all tables will
            do. Requests for rows do not wait for it.
        page_rows: table → how many rows of the size of those read last fill a page of a range.
    """

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.store = EmbeddedStore(directory, create=True)
        self.settings = SettingsTable(self.store)
        self.stream_bounds = StreamBoundsTable(self.store)
        self.changing = threading.Lock()
        self.page_rows: dict[str, int] = {}
        self._tables: dict[str, EmbeddedTable] = {}

    def table(self, name: str) -> EmbeddedTable:
        """Return a table, which may have been dropped since this was last asked.

        Raises:
            NotFoundError: there is no such table.
            ServiceError: OTSParameterInvalid: there is none, and Tablestore does not allow the name.
        """
        known = self._tables.get(name)
        if known is None:
            try:
                if name.startswith(":"):
                    raise NotFoundError("the table is the endpoint's own", received=repr(name))
                found = self.store.table(name)
            except NotFoundError:
                if is_name(name):
                    raise
                raise refused(f"Invalid table name: '{name}'.") from None
            assert isinstance(found, EmbeddedTable)
            known = self._tables[name] = found
        return known

    def column_names(self, table: str) -> Collection[str]:
        """Return the names on the wire of a table's columns; none if there is no such table.

        Raises:
            ServiceError: see `table`.
        """
        try:
            return layout_of(self.table(table).schema).names
        except NotFoundError:
            return ()

    def forget(self, name: str) -> None:
        """Forget what is remembered of a table that was dropped."""
        self._tables.pop(name, None)
        self.page_rows.pop(name, None)


@contextlib.contextmanager
def staying(table: EmbeddedTable, *seen: TableSchema) -> Iterator[None]:
    """Let a client try again what does not fit because its table was dropped and made anew in the meantime.

    Args:
        seen: the table's schema whenever the request looked at it, in any order.
    """
    try:
        yield
    except SchemaError as error:
        if {table.schema} == set(seen):
            raise
        raise ServiceError("OTSTableNotReady", "The table is being changed.") from error


class Instances:
    """All instances under one directory, of which the last used are kept open.

    Args:
        root: the directory; made when the first instance is.
        max_open: how many unused instances at most stay open.
    """

    def __init__(self, root: Path, *, max_open: int = MAX_OPEN) -> None:
        self._root = root
        self._max_open = max_open
        self._lock = threading.Lock()
        self._open: OrderedDict[str, Instance] = OrderedDict()
        self._users: dict[str, int] = {}

    @contextlib.contextmanager
    def use(self, name: str) -> Iterator[Instance]:
        """Open an instance, making its store if need be; it stays open until the block ends.

        Args:
            name: a name that `headrace.wire.tablestore.limits.is_instance_name` accepts.
        """
        with self._lock:
            instance = self._open.get(name)
            if instance is None:
                instance = self._open[name] = Instance(name, self._root / name)
            self._open.move_to_end(name)
            self._users[name] = self._users.get(name, 0) + 1
        try:
            yield instance
        finally:
            with self._lock:
                self._users[name] -= 1
                if not self._users[name]:
                    del self._users[name]
                self._close_oldest()

    def close(self) -> None:
        """Close all instances; no request may be running."""
        with self._lock:
            for instance in self._open.values():
                instance.store.close()
            self._open.clear()

    def _close_oldest(self) -> None:
        # An instance in use stays: closing takes the connection from under a transaction.
        unused = [name for name in self._open if name not in self._users]
        for name in unused[: max(0, len(self._open) - self._max_open)]:
            self._open.pop(name).store.close()
