"""The names of a workspace, for completion at the prompt and for its command ``\\d``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError
from headrace.model.types import type_name
from headrace.ports import Queue
from headrace.streaming_sql.catalog import Catalog, TableDefinition
from headrace.streaming_sql.locations import location_of
from headrace.streaming_sql.providers import is_headrace
from headrace.streaming_sql.stream_registry import StreamRegistry

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Column:
    """A column of a table or queue. ``key`` is its position in the primary key, from 1; None outside of the key."""

    name: str
    type: str
    key: int | None = None


class Names:
    """Lists the tables, scans and streams of a workspace, and the columns of tables and scans."""

    def __init__(self, catalog: Catalog, registry: StreamRegistry) -> None:
        self._catalog = catalog
        self._registry = registry

    def tables(self) -> list[str]:
        return [table.name for table in self._catalog.tables()]

    def scans(self) -> list[str]:
        return [scan.name for scan in self._catalog.scans()]

    def streams(self) -> list[str]:
        return [status.name for status in self._registry.all()]

    def all(self) -> list[tuple[str, str, str]]:
        """Return the name, the kind and a description of each table, scan and stream."""
        return [
            *((table.name, "table", f"USING {table.provider}") for table in self._catalog.tables()),
            *((scan.name, "scan", f"{scan.kind} of {scan.table}") for scan in self._catalog.scans()),
            *((status.name, "stream", f"{status.state}, into {status.target}") for status in self._registry.all()),
        ]

    def columns(self, name: str) -> list[Column]:
        """Return the columns of a table in its store, or of the table of a scan.

        Raises:
            NotFoundError: there is no such table or scan, or its store has no such table.
            UnsupportedError: the table belongs to another format than headrace's.
            StoreError: the store cannot be opened.
        """
        scan = self._catalog.find_scan(name)
        definition = self._catalog.table(scan.table if scan is not None else name)
        location = location_of(definition)
        with location.open_store() as store:
            found = location.open(store)
            if isinstance(found, Queue):
                return [Column(column.name, type_name(column.type)) for column in found.schema.columns]
            key = list(found.schema.primary_key)
            return [_column(column.name, column.type, key) for column in found.schema.columns]

    def column_names(self, name: str) -> list[str]:
        """Return the names of the columns of a table or scan; nothing if they cannot be read."""
        try:
            return [column.name for column in self.columns(name)]
        except (HeadraceError, OSError):
            return []

    def definition(self, name: str) -> TableDefinition | None:
        """Return the definition of a table without its secrets; None for other names."""
        found = self._catalog.find_table(name)
        return None if found is None else found.without_secrets()

    def has_columns(self, name: str) -> bool:
        """Return whether `columns` can be asked for a name."""
        scan = self._catalog.find_scan(name)
        table = self._catalog.find_table(scan.table if scan is not None else name)
        return table is not None and is_headrace(table.provider)


def _column(name: str, type_: pa.DataType, key: list[str]) -> Column:
    return Column(name, type_name(type_), key.index(name) + 1 if name in key else None)
