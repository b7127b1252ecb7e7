"""headrace's own tables: markers of publications, and offsets that publications have set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace_ytsaurus.store.connection import YtConnection
from headrace_ytsaurus.store.failures import translated
from headrace_ytsaurus.wire.types import YtColumn, schema_of

_known: set[tuple[Any, str]] = set()


@dataclass(frozen=True)
class StateTable:
    """A sorted table of headrace; the first write creates it.

    Attributes:
        key: the names of the key columns.
        columns: all columns, key columns first.
    """

    connection: YtConnection
    path: str
    columns: tuple[YtColumn, ...]

    @property
    def key(self) -> tuple[YtColumn, ...]:
        return tuple(column for column in self.columns if column.sort_order is not None)

    @property
    def exists(self) -> bool:
        """Return whether the table exists; True is cached."""
        place = self.connection.address, self.path
        if place not in _known and self.connection.attribute(self.path, "tablet_state") == "mounted":
            _known.add(place)
        return place in _known

    def ensure(self) -> None:
        """Create and mount the table if it does not exist."""
        if self.exists:
            return
        from yt.yson import to_yson_type

        schema = to_yson_type(schema_of(self.columns), attributes={"strict": True, "unique_keys": True})
        client = self.connection.client
        with translated(f"make {self.path}, where headrace keeps what it has published"):
            attributes = {"dynamic": True, "schema": schema}
            client.create("table", self.path, recursive=True, ignore_existing=True, attributes=attributes)
            client.mount_table(self.path, sync=True)
        _known.add((self.connection.address, self.path))

    def load(self, keys: Sequence[Mapping[str, Any]], *, client: Any = None) -> list[dict[str, Any]]:
        """Return the existing rows of some keys; none if the table does not exist."""
        if not self.exists:
            return []
        rows: list[dict[str, Any]] = self.connection.lookup(
            self.path, self._batch(keys, self.key), self.key, self.columns, client=client
        ).to_pylist()
        return rows

    def write(self, rows: Sequence[Mapping[str, Any]], *, client: Any = None) -> None:
        """Write whole rows; the table must exist."""
        self.connection.insert(self.path, self._batch(rows, self.columns), self.columns, client=client)

    def delete(self, keys: Sequence[Mapping[str, Any]], *, client: Any = None) -> None:
        self.connection.delete(self.path, self._batch(keys, self.key), self.key, client=client)

    @staticmethod
    def _batch(rows: Sequence[Mapping[str, Any]], columns: Sequence[YtColumn]) -> pa.RecordBatch:
        schema = pa.schema([(column.name, column.type) for column in columns])
        return pa.RecordBatch.from_pylist([dict(row) for row in rows], schema=schema)
