"""Reads of many keys, and of the first rows of many key ranges, in one transaction of the caller."""

from __future__ import annotations

from collections.abc import Sequence

import apsw
import numpy as np
import pyarrow as pa

from headrace.errors import OptionError
from headrace.model.tables.conditions import KeyRange
from headrace.ports.arguments import checked_prefixes
from headrace.rows.by_position import sort_indices
from headrace.rows.nested import one_array
from headrace.stores.embedded.tables.keys import stored_values
from headrace.stores.embedded.tables.physical import PhysicalTable

_KEYS_AT_ONCE = 65_536


def get_many(
    connection: apsw.Connection, table: PhysicalTable, keys: pa.Table, columns: Sequence[str] | None
) -> pa.Table:
    """Return the rows of some keys; see `headrace.ports.Table.get_many`. The keys are typed."""
    schema = table.schema.nullable(columns)
    order = sort_indices(keys, table.schema.primary_key).to_numpy()
    # Lookups in key order touch each page of the b-tree once.
    in_order = bool((np.diff(order.astype(np.int64)) == 1).all())
    ordered = keys if in_order else keys.take(pa.array(order))
    found = [
        _rows(connection, table, part, schema)
        for start in range(0, keys.num_rows, _KEYS_AT_ONCE)
        for part in ordered.slice(start, _KEYS_AT_ONCE).combine_chunks().to_batches()
    ]
    rows = pa.Table.from_batches(found, schema)
    if in_order:
        return rows
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    return rows.take(pa.array(places))


def _rows(connection: apsw.Connection, table: PhysicalTable, keys: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    key = table.schema.primary_key
    attributes = [name for name in schema.names if name not in key]
    rows, present = table.fetch_attributes(connection, table.codec.encode_keys(keys), attributes)
    places = pa.array(np.arange(len(present)), mask=~present)
    arrays = [keys.column(name).take(places) if name in key else rows.column(name) for name in schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def first_rows(
    connection: apsw.Connection,
    table: PhysicalTable,
    ranges: Sequence[KeyRange],
    columns: Sequence[str] | None,
    rows: int,
) -> pa.Table:
    """Return the first rows of some ranges; see `headrace.ports.Table.first_rows`. The ranges are typed."""
    if rows < 1:
        raise OptionError("rows must be at least 1", received=rows)
    names = list(table.schema.names if columns is None else columns)
    schema = pa.schema([table.schema.arrow.field(table.schema.column(name).name) for name in names])
    return pa.Table.from_batches([table.first_rows(connection, names, ranges, rows)], schema)


def get_by_prefix(
    connection: apsw.Connection, table: PhysicalTable, prefixes: pa.Table, columns: Sequence[str] | None
) -> pa.Table:
    """Return the rows whose keys begin with some values; see `headrace.ports.Table.get_by_prefix`."""
    names = list(table.schema.names if columns is None else columns)
    schema = pa.schema([table.schema.arrow.field(table.schema.column(name).name) for name in names])
    prefixes = checked_prefixes(prefixes, table.schema).drop_null()
    # Lookups in key order touch each page of the b-tree once.
    ordered = prefixes.take(sort_indices(prefixes, prefixes.column_names))
    keys = [stored_values(one_array(column)) for column in ordered.columns]
    return pa.Table.from_batches([table.by_prefix(connection, names, keys)], schema)
