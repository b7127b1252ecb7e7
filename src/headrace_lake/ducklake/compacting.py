"""Rows move: inlined rows into files (a *flush*), and those of several files into one.

The past stays as it was. A row keeps its number, the snapshot that has added it and the one that has deleted it: rows
that are not deleted are in one file, the deleted ones in another, which only earlier snapshots have.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from headrace.rows.by_position import sort_indices
from headrace.rows.fields import with_fields
from headrace_lake import data_files
from headrace_lake.ducklake.columns import every
from headrace_lake.ducklake.partitions import FilePartition
from headrace_lake.ducklake.state import LakeFile, stored_rows
from headrace_lake.ducklake.statistics import ColumnStatistics
from headrace_lake.ducklake.writing import (
    ROW_COLUMN,
    SNAPSHOT_COLUMN,
    SnapshotTable,
    internal_field,
)
from headrace_lake.maintenance import TARGET_BYTES, has_many_small, small_files

MAX_INLINED_ROWS = 10_000
"""The number of rows in the catalog, with deleted ones, from which on a write is followed by a flush."""
_OWN = pa.schema({"row_id": pa.int64(), "begin_snapshot": pa.int64(), "end_snapshot": pa.int64()})
"""The number of a row, the snapshot that has added it, and the one that has deleted it."""
_NEVER = np.iinfo(np.int64).max


def groups(files: Sequence[LakeFile], target_bytes: int) -> list[list[LakeFile]]:
    """Return groups of neighbours in key order to merge: of small files, and of those with deleted rows.

    Args:
        target_bytes: the size of a group.
    """
    found: list[list[LakeFile]] = []
    size = 0
    chosen = [file for file in files if file.size < target_bytes // 2 or file.has_deletes]
    for file in sorted(chosen, key=lambda each: (each.bounds is None, each.bounds or (), each.id)):
        if not found or size + file.size > target_bytes:
            found.append([])
            size = 0
        found[-1].append(file)
        size += file.size
    return [group for group in found if is_worth(group)]


def is_worth(group: Sequence[LakeFile]) -> bool:
    """Return whether there is something to merge, or to leave out."""
    return len(group) > 1 or any(file.has_deletes for file in group)


def small_groups(files: Sequence[LakeFile]) -> list[list[LakeFile]]:
    """Return groups of the small files, if a table has many of them: streams merge these between two batches."""
    return groups(small_files(files), TARGET_BYTES) if has_many_small(files) else []


def flush(table: SnapshotTable) -> int | None:
    """Move all inlined rows of a table into files.

    Returns:
        The number of the files; None if there are no such rows.
    """
    definition = table.definition
    definition.check_writable()
    count: int | None = None
    for inlined in definition.inlined:
        rows, own = stored_rows(table.lake, table.bulk, definition, inlined, "true")
        if rows.num_rows:
            own = own.cast(_OWN)
            # The columns by their places: a table of another program may have a column with the name of another one.
            both = pa.table([*rows.columns, *own.columns], [*rows.column_names, *own.column_names])
            places = list(range(both.num_columns))
            count = count or 0
            for partition, part in definition.divided(rows, both):
                pieces = part.select(places[: -len(_OWN)]), part.select(places[-len(_OWN) :])
                count += _write(table, *pieces, partition)
            table.run("DELETE FROM {c}.{table}", table=sql.Identifier(inlined.name))
    if count is not None:
        _renew_statistics(table)
    return count


def merge(table: SnapshotTable, merged: Sequence[LakeFile]) -> int:
    """Replace data files, and their files of deleted rows; return the number of new data files.

    Args:
        merged: files of one partition.
    """
    fields = table.definition.schema.nullable()
    parts = [_file_rows(table, file, fields) for file in merged]
    rows, own = (pa.concat_tables(each) for each in zip(*parts, strict=True))
    count = _write(table, rows, own, merged[0].partition)
    _remove(table, [file.id for file in merged])
    _renew_statistics(table)
    return count


def _file_rows(table: SnapshotTable, file: LakeFile, fields: pa.Schema) -> tuple[pa.Table, pa.Table]:
    """Return all rows of a file, with deleted ones, and their numbers and snapshots."""
    (row,) = table.rows(
        "SELECT begin_snapshot, row_id_start FROM {c}.ducklake_data_file WHERE data_file_id = {id}",
        id=file.id,
    )
    with data_files.opened(file.path) as opened:
        rows = data_files.read(opened, fields)
        own = {}
        for name, column in ((ROW_COLUMN, "row_id"), (SNAPSHOT_COLUMN, "begin_snapshot")):
            if name in opened.schema_arrow.names:
                own[column] = opened.read(columns=[name]).column(0).cast(pa.int64())
    if "row_id" not in own:
        own["row_id"] = pa.array(row["row_id_start"] + np.arange(rows.num_rows, dtype=np.int64))
    if "begin_snapshot" not in own:
        own["begin_snapshot"] = pa.repeat(pa.scalar(row["begin_snapshot"], pa.int64()), rows.num_rows)
    ends = np.full(rows.num_rows, _NEVER)
    for positions, snapshots in _deletes(table, file):
        # A later file of deleted rows has the rows of the one that it replaces.
        np.minimum.at(ends, positions, snapshots)
    own["end_snapshot"] = pa.array(ends, mask=ends == _NEVER)
    return rows, pa.table([own[name] for name in _OWN.names], _OWN)


def _deletes(table: SnapshotTable, file: LakeFile) -> Iterator[tuple[np.ndarray, np.ndarray | int]]:
    """Yield positions of deleted rows of a file, and the snapshots that have deleted them."""
    for row in table.rows(
        "SELECT path, path_is_relative AS relative, begin_snapshot FROM {c}.ducklake_delete_file"
        " WHERE data_file_id = {id}",
        id=file.id,
    ):
        with data_files.opened(table.definition.file(row["path"], row["relative"])) as opened:
            there = SNAPSHOT_COLUMN in opened.schema_arrow.names
            found = opened.read(columns=["pos", SNAPSHOT_COLUMN] if there else ["pos"])
        yield _numbers(found, "pos"), _numbers(found, SNAPSHOT_COLUMN) if there else row["begin_snapshot"]
    if table.definition.deletes is not None:
        found = table.lake.arrow(
            table.bulk,
            "SELECT row_id, begin_snapshot FROM {c}.{table} WHERE file_id = {id}",
            table=sql.Identifier(table.definition.deletes),
            id=file.id,
        )
        yield _numbers(found, "row_id"), _numbers(found, "begin_snapshot")


def _numbers(rows: pa.Table, name: str) -> np.ndarray:
    found: np.ndarray = rows.column(name).to_numpy().astype(np.int64)
    return found


# -- new files ----------------------------------------------------------------------------------------------------


def _write(table: SnapshotTable, rows: pa.Table, own: pa.Table, partition: FilePartition | None) -> int:
    """Write rows of a partition with their numbers and snapshots into files; return the number of data files."""
    (oldest,) = table.rows("SELECT min(snapshot_id) AS id FROM {c}.ducklake_snapshot")
    ends = own.column("end_snapshot")
    # No snapshot and no changes between two snapshots have the rows that were deleted before the oldest one.
    wanted = pc.greater_equal(ends, oldest["id"])
    count = 0
    for chosen in (ends.is_null(), pc.fill_null(wanted, fill_value=False)):
        if pc.any(chosen).as_py():
            _write_file(table, rows.filter(chosen), own.filter(chosen), partition)
            count += 1
    return count


def _write_file(table: SnapshotTable, rows: pa.Table, own: pa.Table, partition: FilePartition | None) -> None:
    """Write a file of rows that are all deleted, or all not."""
    if key := table.definition.schema.primary_key:
        order = sort_indices(rows, key)
        rows, own = rows.take(order), own.take(order)
    fields = [field.with_nullable(True) for field in table.definition.fields if field.name in rows.column_names]
    typed = with_fields(rows, pa.schema(fields))
    typed = typed.append_column(internal_field(ROW_COLUMN), own.column("row_id"))
    typed = typed.append_column(internal_field(SNAPSHOT_COLUMN), own.column("begin_snapshot"))
    begins, ends = pc.min_max(own.column("begin_snapshot")), own.column("end_snapshot")
    since, until = begins["min"].as_py(), begins["max"].as_py()
    end = pc.max(ends).as_py()
    number, path, _ = table.add_file(
        typed,
        pc.min(own.column("row_id")).as_py(),
        partition,
        since=since,
        until=until if until > since else None,
        end=end,
    )
    # The last rows are deleted with the file.
    positions = pc.indices_nonzero(pc.less(ends, end).combine_chunks()).cast(pa.int64()) if end is not None else []
    if len(positions):
        snapshots = ends.take(positions).combine_chunks()
        table.add_delete_file(number, path, positions, snapshots, end=end)


# -- old files ----------------------------------------------------------------------------------------------------


def _remove(table: SnapshotTable, numbers: Sequence[int]) -> None:
    """Remove data files from the catalog, and let a vacuum delete them, and their files of deleted rows."""
    for name, column in (("ducklake_data_file", "data_file_id"), ("ducklake_delete_file", "delete_file_id")):
        table.run(
            "INSERT INTO {c}.ducklake_files_scheduled_for_deletion"
            " (data_file_id, path, path_is_relative, schedule_start) SELECT {column},"
            " CASE WHEN path_is_relative THEN {directory} || path ELSE path END, false, clock_timestamp()"
            " FROM {c}.{name} WHERE data_file_id = ANY({numbers}::bigint[])",
            name=sql.Identifier(name),
            column=sql.Identifier(column),
            # Relative paths of this list would be relative to the directory of the DuckLake.
            directory=f"{table.definition.path}/",
            numbers=list(numbers),
        )
    removed = ["ducklake_data_file", "ducklake_delete_file", "ducklake_file_column_stats"]
    for name in (*removed, "ducklake_file_variant_stats", "ducklake_file_partition_value"):
        table.run(
            "DELETE FROM {c}.{name} WHERE data_file_id = ANY({numbers}::bigint[])",
            name=sql.Identifier(name),
            numbers=list(numbers),
        )
    if table.definition.deletes is not None:
        table.run(
            "DELETE FROM {c}.{name} WHERE file_id = ANY({numbers}::bigint[])",
            name=sql.Identifier(table.definition.deletes),
            numbers=list(numbers),
        )


def _renew_statistics(table: SnapshotTable) -> None:
    """Count the bytes of a table's current files, and widen its bounds by those of all files.

    DuckDB 1.5.5 computes the bounds anew when it rewrites files, and reads texts of the catalog in another form: then
    its conditions leave out rows. A column without bounds is not narrowed.
    """
    table.run(
        "UPDATE {c}.ducklake_table_stats SET file_size_bytes = coalesce((SELECT sum(file_size_bytes)::bigint"
        " FROM {c}.ducklake_data_file WHERE table_id = {table} AND end_snapshot IS NULL), 0)"
        " WHERE table_id = {table}",
        table=table.definition.id,
    )
    kinds = {column.id: column.kind for column in every(table.definition.columns)}
    found: dict[int, ColumnStatistics] = {}
    for row in table.rows(
        "SELECT column_id AS id, f.null_count AS nulls, f.min_value AS low, f.max_value AS high, f.contains_nan AS nan"
        " FROM {c}.ducklake_file_column_stats f JOIN {c}.ducklake_table_column_stats t USING (table_id, column_id)"
        " WHERE table_id = {table} AND t.min_value IS NOT NULL AND t.max_value IS NOT NULL",
        table=table.definition.id,
    ):
        number = row["id"]
        each = ColumnStatistics(kinds[number], 0, row["nulls"] or 0, row["low"], row["high"], row["nan"])
        found[number] = found[number].merged(each) if number in found else each
    table.widen(found)
