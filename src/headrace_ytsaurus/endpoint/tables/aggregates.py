"""Aggregating columns: a written value is combined with the existing one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import apsw
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.stores.embedded.for_servers import Database, EmbeddedTable
from headrace_ytsaurus.endpoint.errors import refused
from headrace_ytsaurus.endpoint.tables.row_changes import SortedChange
from headrace_ytsaurus.endpoint.tables.state import Schema, Table


def _sum(old: pa.Array, new: pa.Array) -> pa.Array:
    both = pc.and_(old.is_valid(), new.is_valid())
    return pc.if_else(both, pc.add_checked(old, new).cast(old.type), pc.coalesce(old, new))


_FUNCTIONS: Mapping[str, Callable[[pa.Array, pa.Array], pa.Array]] = {
    "sum": _sum,
    "min": pc.min_element_wise,
    "max": pc.max_element_wise,
    "first": pc.coalesce,
}


def functions_of(schema: Schema) -> dict[str, str]:
    """Return name → function of the aggregating columns.

    Raises:
        YtError: the function of a column is unknown.
    """
    found = {column.name: str(column.more["aggregate"]) for column in schema.columns if "aggregate" in column.more}
    for name, function in found.items():
        if function not in _FUNCTIONS:
            raise refused(f"Column {name!r} has an unknown aggregate", received=function, valid=", ".join(_FUNCTIONS))
    return found


def aggregated(database: Database, table: Table, change: SortedChange) -> Iterator[AggregatedChange]:
    """Yield changes that together have the effect of one, with aggregation. Keys within each change are unique."""
    stored = change.stored
    hashes = table.schema.layout.hashes(stored)
    order = np.argsort(hashes, kind="stable")
    _, starts, counts = np.unique(hashes[order], return_index=True, return_counts=True)
    times = np.empty(len(hashes), dtype=np.int64)
    times[order] = np.arange(len(hashes)) - np.repeat(starts, counts)
    for time in range(int(times.max(initial=-1)) + 1):
        yield AggregatedChange(database, table, change, stored.filter(pa.array(times == time)))


class AggregatedChange(SortedChange):
    """A change of rows with different keys that combines aggregating columns with existing values."""

    def __init__(self, database: Database, table: Table, change: SortedChange, rows: pa.RecordBatch) -> None:
        super().__init__(database, table, change.change, rows, keep_nulls=change.keep_nulls, stored=True)
        self._functions = functions_of(table.schema)
        self._rows = EmbeddedTable(database, table.name)

    def apply(self, connection: apsw.Connection, version: int, ts: int) -> None:
        self.require_mounted(connection)
        _, stored, exist = self._rows.fetch(connection, self.stored)
        arrays = []
        for name, new in zip(self.stored.schema.names, self.stored.columns, strict=True):
            if name in self._functions:
                # The values of rows that do not exist are undefined.
                old = pc.if_else(pa.array(exist), stored.column(name), pa.scalar(None, new.type))
                new = _FUNCTIONS[self._functions[name]](old, new)
            arrays.append(new)
        rows = pa.RecordBatch.from_arrays(arrays, names=self.stored.schema.names)
        prepared = self._rows.prepare(self.change, rows, keep_nulls=self.keep_nulls)
        self._rows.apply(connection, self.change, prepared, version, ts)
