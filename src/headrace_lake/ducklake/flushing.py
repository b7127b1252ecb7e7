"""The flush of inlined rows into files: reads and writes of a table stay fast, and its past stays as it was.

A file has the numbers of its rows and their snapshots, and so has its file of deleted positions. Earlier snapshots find
the same rows, and the changes between two snapshots are the same.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from headrace.rows.by_position import sort_indices
from headrace.rows.fields import with_fields
from headrace.stores.postgres.for_lakes import Bulk
from headrace_lake.ducklake.catalog import Definition, InlinedTable, Lake, Snapshot
from headrace_lake.ducklake.state import stored_rows
from headrace_lake.ducklake.writing import (
    ROW_COLUMN,
    SNAPSHOT_COLUMN,
    NewFiles,
    add_delete_file,
    add_file,
    internal_field,
)

MAX_INLINED_ROWS = 10_000
"""The number of rows in the catalog, with deleted ones, from which on a write is followed by a flush."""


def flush(lake: Lake, bulk: Bulk, snapshot: Snapshot, definition: Definition, files: NewFiles) -> int:
    """Move all inlined rows of a table into files, in a snapshot; return the number of rows."""
    count = sum(_flush(lake, bulk, snapshot, definition, each, files) for each in definition.inlined)
    if count:
        lake.run(
            bulk,
            "UPDATE {c}.ducklake_table_stats SET file_size_bytes = coalesce((SELECT sum(file_size_bytes)::bigint"
            " FROM {c}.ducklake_data_file WHERE table_id = {table} AND end_snapshot IS NULL), 0)"
            " WHERE table_id = {table}",
            table=definition.id,
        )
    return count


def _flush(
    lake: Lake, bulk: Bulk, snapshot: Snapshot, definition: Definition, table: InlinedTable, files: NewFiles
) -> int:
    rows, own = stored_rows(lake, bulk, definition, table, "true")
    if not rows.num_rows:
        return 0
    order = pa.array(range(rows.num_rows))
    if definition.schema.primary_key:
        # Stable: of several rows with one key, the last one is not deleted.
        order = sort_indices(rows, definition.schema.primary_key)
    rows, own = rows.take(order), own.take(order)
    fields = [field for field in definition.fields if field.name in rows.column_names]
    typed = with_fields(rows, pa.schema([field.with_nullable(True) for field in fields]))
    typed = typed.append_column(internal_field(ROW_COLUMN), own.column("row_id"))
    typed = typed.append_column(internal_field(SNAPSHOT_COLUMN), own.column("begin_snapshot"))
    begins = pc.min_max(own.column("begin_snapshot"))
    first = pc.min(own.column("row_id")).as_py()
    since, until = begins["min"].as_py(), begins["max"].as_py()
    number, path, _ = add_file(
        lake, bulk, snapshot, definition, files, typed, first, since=since, until=until if until > since else None
    )
    ends = own.column("end_snapshot")
    if ends.null_count < len(ends):
        positions = pc.indices_nonzero(ends.is_valid()).cast(pa.int64())
        snapshots = pa.concat_arrays(ends.take(positions).chunks)
        add_delete_file(lake, bulk, snapshot, definition, files, number, path, positions, snapshots)
    lake.run(bulk, "DELETE FROM {c}.{table}", table=sql.Identifier(table.name))
    return int(rows.num_rows)
