"""The open instances of an endpoint. An instance is an embedded store in a directory of its own."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterator
from pathlib import Path

from headrace.errors import NotFoundError, SchemaError
from headrace.model.tables.column_limits import check_key_types
from headrace.model.tables.schema import TableSchema
from headrace.stores.embedded.for_servers import EmbeddedStore, EmbeddedTable
from headrace_tablestore.endpoint.errors import refused
from headrace_tablestore.endpoint.json_table import JsonTable
from headrace_tablestore.endpoint.rows.concurrent_writes import ConcurrentWrites
from headrace_tablestore.endpoint.rows.layout import layout_of
from headrace_tablestore.endpoint.tables.settings import SETTINGS_TABLE, parse_settings
from headrace_tablestore.endpoint.tunnels.stream_bounds import STREAM_BOUNDS_TABLE, StreamBounds
from headrace_tablestore.wire.errors import ServiceError
from headrace_tablestore.wire.limits import is_name

MAX_OPEN = 32


class Instance:
    """An open instance: the argument of a handler.

    Attributes:
        name: the name of the instance.
        store: the embedded store with the tables. Thread-safe.
        settings: the settings of tables that only Tablestore has.
        stream_bounds: the start and the end of tunnels of type Stream.
        changing: the lock of all creations, updates and drops of tables. It keeps a table and its settings consistent,
            and enforces the limit of tables. Requests for rows do not use it.
        page_rows: the number of rows that fill a page of a range, estimated from the last page, by table.
    """

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.store = EmbeddedStore(directory, create=True)
        self.settings = JsonTable(self.store, SETTINGS_TABLE, "name", "settings", parse_settings)
        self.stream_bounds = JsonTable(self.store, STREAM_BOUNDS_TABLE, "id", "span", StreamBounds)
        self.changing = threading.Lock()
        self.page_rows: dict[str, int] = {}
        self._tables: dict[str, EmbeddedTable] = {}
        self._writes: dict[str, ConcurrentWrites] = {}

    def writes(self, table: str) -> ConcurrentWrites:
        """Return the writes of a table by several threads at once."""
        return self._writes.setdefault(table, ConcurrentWrites())

    def table(self, name: str) -> EmbeddedTable:
        """Return a table. It is cached, and may have been dropped since.

        Raises:
            NotFoundError: the table does not exist.
            ServiceError: OTSParameterInvalid: the table does not exist, and its name is invalid.
            UnsupportedError: a key column has a type that Tablestore does not have.
        """
        known = self._tables.get(name)
        if known is None:
            try:
                if name.startswith(":"):
                    raise NotFoundError("the table belongs to the endpoint", received=repr(name))
                found = self.store.table(name)
            except NotFoundError:
                if is_name(name):
                    raise
                raise refused(f"Invalid table name: '{name}'.") from None
            assert isinstance(found, EmbeddedTable)
            check_key_types(found.schema, "Tablestore")
            known = self._tables[name] = found
        return known

    def column_names(self, table: str) -> Collection[str]:
        """Return the wire names of a table's columns; none if the table does not exist.

        Raises:
            ServiceError: see `table`.
        """
        try:
            return layout_of(self.table(table).schema).names
        except NotFoundError:
            return ()

    def forget(self, name: str) -> None:
        """Remove the cached values of a dropped table."""
        self._tables.pop(name, None)
        self._writes.pop(name, None)
        self.page_rows.pop(name, None)


@contextlib.contextmanager
def staying(table: EmbeddedTable, *seen: TableSchema) -> Iterator[None]:
    """Turn a schema error into a retriable one if the table was dropped and created again during the request.

    Args:
        seen: all schemas of the table that the request has used.
    """
    try:
        yield
    except SchemaError as error:
        if {table.schema} == set(seen):
            raise
        raise ServiceError("OTSTableNotReady", "The table is being changed.") from error


class Instances:
    """The instances below a directory. The last used instances stay open. Thread-safe.

    Args:
        root: the directory. The first instance creates it.
        max_open: the limit of open instances without requests.
    """

    def __init__(self, root: Path, *, max_open: int = MAX_OPEN) -> None:
        self._root = root
        self._max_open = max_open
        self._lock = threading.Lock()
        self._open: OrderedDict[str, Instance] = OrderedDict()
        self._users: dict[str, int] = {}

    @contextlib.contextmanager
    def use(self, name: str) -> Iterator[Instance]:
        """Open an instance for a block. Create its store if necessary.

        Args:
            name: a name that `headrace_tablestore.wire.limits.is_instance_name` accepts.
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
        """Close all instances. No request may run."""
        with self._lock:
            for instance in self._open.values():
                instance.store.close()
            self._open.clear()

    def _close_oldest(self) -> None:
        # An instance in use stays open: closing it would close the connection of a running transaction.
        unused = [name for name in self._open if name not in self._users]
        for name in unused[: max(0, len(self._open) - self._max_open)]:
            self._open.pop(name).store.close()
