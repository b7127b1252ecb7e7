"""The rows of a table: its data files, the rows in the catalog, and which of both are deleted."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, LiteralString

import numpy as np
import pyarrow as pa
from psycopg import sql

from headrace.errors import UnsupportedError
from headrace.model.tables.conditions import KeyRange, Predicate
from headrace.model.tables.schema import TableSchema
from headrace.rows.by_position import compared, sort_indices
from headrace.rows.fields import with_fields
from headrace.stores.postgres.for_lakes import Bulk
from headrace_lake import data_files, scanning
from headrace_lake.data_files import RowNumbers
from headrace_lake.ducklake.catalog import Definition, InlinedTable, Lake
from headrace_lake.ducklake.partitions import FilePartition
from headrace_lake.ducklake.values import from_catalog
from headrace_lake.lookup import Found, Keys
from headrace_lake.scanning import Selection

_FLUSH = "CALL ducklake_flush_inlined_data('…') in DuckDB writes them into a file"
_OWN = ("row_id", "begin_snapshot", "end_snapshot")


@dataclass(frozen=True)
class LakeFile:
    """A data file of a table.

    Attributes:
        rows: the number of its rows, with deleted ones.
        size: the number of its bytes.
        bounds: bounds of the first key column; None if they are not known.
        delete_file: the file with positions of deleted rows.
        positions: positions of deleted rows, of the catalog.
        partition: its partition; None if it has none.
    """

    id: int
    path: Path
    rows: int
    size: int
    bounds: tuple[Any, Any] | None
    delete_file: Path | None
    delete_file_id: int | None
    positions: Sequence[int]
    partition: FilePartition | None

    @property
    def has_deletes(self) -> bool:
        """Whether rows of it are deleted."""
        return self.delete_file is not None or bool(self.positions)

    def deleted(self) -> RowNumbers:
        """Return the deleted rows."""
        return np.union1d(self.deleted_by_file(), np.array(self.positions, np.uint64))

    def deleted_by_file(self) -> RowNumbers:
        """Return the rows that are deleted by the file with positions."""
        if self.delete_file is None:
            return np.zeros(0, np.uint64)
        with data_files.opened(self.delete_file) as opened:
            return np.unique(opened.read(columns=["pos"]).column("pos").to_numpy().astype(np.uint64))


@dataclass(frozen=True)
class State:
    """The rows of a table in one snapshot.

    Attributes:
        inlined: the rows in the catalog, in the types of the table.
    """

    definition: Definition
    files: Sequence[LakeFile]
    inlined: pa.Table

    @property
    def schema(self) -> TableSchema:
        return self.definition.schema

    def scan(self, selection: Selection) -> Iterator[pa.RecordBatch]:
        """Yield rows in key order; of a table without a key in no order."""
        schema = self.definition.schema
        sources = [scanning.Source(file.bounds, partial(self._rows, file, selection)) for file in self.files]
        if self.inlined.num_rows:
            rows = self.inlined.select(selection.fields(schema).names)
            if schema.primary_key:
                rows = rows.take(sort_indices(rows, schema.primary_key))
            sources.append(scanning.Source(None, partial(scanning.selected, rows, schema, selection)))
        return scanning.scan(sources, schema, selection)

    def _rows(self, file: LakeFile, selection: Selection) -> Iterator[pa.RecordBatch]:
        schema, table = self.definition.schema, self.definition.uuid
        yield from scanning.file_rows(file.path, schema, selection, table, deleted=file.deleted())

    def find(self, keys: pa.Table, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows with some keys, in no order: the columns of the key, and further ones.

        Args:
            keys: different keys.
            columns: the columns besides the key; all by default.
        """
        schema = self.definition.schema
        key = schema.primary_key
        names = [name for name in schema.names if columns is None or name in columns or name in key]
        fields = schema.nullable(names)
        wanted = Keys(schema, keys)
        parts = [fields.empty_table()]
        parts += [with_fields(found.rows, fields) for _, found in self.matches(wanted, names)]
        if self.inlined.num_rows:
            rows = self.inlined.select(names)
            found = compared(rows.select(list(key)), keys.select(list(key)), key)
            parts.append(with_fields(rows.take(found.left), fields))
        return pa.concat_tables(parts)

    def matches(self, keys: Keys, columns: Sequence[str] = ()) -> list[tuple[LakeFile, Found]]:
        """Return the files with rows of some keys, and these rows; see `Keys.rows_of`."""
        files = [file for file in self.files if keys.can_be_between(file.bounds)]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            found = pool.map(lambda file: keys.rows_of(file.path, columns, deleted=file.deleted()), files)
            return [(file, rows) for file, rows in zip(files, found, strict=True) if rows is not None]

    def count(self) -> int:
        """Return the number of rows."""
        return sum(file.rows - len(file.deleted()) for file in self.files) + int(self.inlined.num_rows)

    def ranges(self, count: int) -> list[KeyRange]:
        """Return at most ``count`` ranges of keys of about equal size."""
        return scanning.ranges([(file.path, file.bounds) for file in self.files], self.definition.schema, count)


def load(
    lake: Lake, bulk: Bulk, definition: Definition, *, inlined: bool = True, conditions: Sequence[Predicate] = ()
) -> State:
    """Return the rows of a table in the newest snapshot of a transaction.

    Args:
        inlined: read the rows in the catalog, too.
        conditions: conditions on rows: files are left out that have none, by the statistics of the catalog.
    """
    empty = definition.schema.nullable().empty_table()
    parts = [read_inlined(lake, bulk, definition, each) for each in definition.inlined] if inlined else []
    files = files_of(lake, bulk, definition)
    bounds = _bounds(lake, bulk, definition, {each.column for each in conditions}) if files else {}
    files = [each for each in files if scanning.can_satisfy(bounds.get(each.id, {}), definition.schema, conditions)]
    return State(definition, files, pa.concat_tables([empty, *parts]))


def _bounds(
    lake: Lake, bulk: Bulk, definition: Definition, names: Collection[str]
) -> Mapping[int, Mapping[str, scanning.Bounds]]:
    """Return the bounds of some columns in each file of the newest snapshot, where they are known."""
    columns = {each.id: each for each in definition.columns if each.name in names and _has_bounds(each.type)}
    found: dict[int, dict[str, scanning.Bounds]] = {}
    rows = columns and lake.rows(
        bulk,
        "SELECT f.data_file_id AS file, s.column_id, s.min_value AS low, s.max_value AS high,"
        " s.null_count IS DISTINCT FROM 0 AS nulls, s.null_count = f.record_count AS no_values"
        " FROM {c}.ducklake_data_file f JOIN {c}.ducklake_file_column_stats s USING (data_file_id)"
        " WHERE f.table_id = {table} AND f.end_snapshot IS NULL AND s.column_id = ANY ({columns}::bigint[])",
        table=definition.id,
        columns=list(columns),
    )
    for row in rows or ():
        column = columns[row["column_id"]]
        bounds = None
        if row["low"] is not None and row["high"] is not None:
            try:
                bounds = tuple(pa.scalar(row[side]).cast(column.type).as_py() for side in ("low", "high"))
            except (pa.ArrowInvalid, OverflowError):
                # A year that Python does not have.
                continue
        if bounds is not None or row["no_values"]:
            found.setdefault(row["file"], {})[column.name] = scanning.Bounds(bounds, row["nulls"])
    return found


def _has_bounds(kind: pa.DataType) -> bool:
    # The text of an instant has the time zone of DuckDB's session.
    return data_files.has_bounds(kind) or (pa.types.is_timestamp(kind) and kind.tz is None)


def files_of(lake: Lake, bulk: Bulk, definition: Definition) -> list[LakeFile]:
    """Return the data files of the newest snapshot.

    Raises:
        UnsupportedError: headrace does not support a file.
    """
    key = definition.schema.primary_key
    first = next((column for column in definition.columns if key and column.name == key[0]), None)
    deletes: sql.Composable = sql.SQL("NULL::text")
    if definition.deletes is not None:
        positions = "SELECT array_to_json(array_agg(i.row_id))::text FROM {} i WHERE i.file_id = f.data_file_id"
        deletes = sql.SQL("({})").format(sql.SQL(positions).format(lake.table(definition.deletes)))
    rows = lake.rows(
        bulk,
        "SELECT f.data_file_id AS id, f.path, f.path_is_relative AS relative, f.record_count AS rows,"
        " f.file_size_bytes AS size, f.file_format,"
        " f.mapping_id, f.encryption_key, d.delete_file_id, d.path AS delete_path,"
        " d.path_is_relative AS delete_relative, d.format AS delete_format, s.min_value AS low,"
        " s.max_value AS high, {deletes} AS positions, f.partition_id, p.partition_values"
        " FROM {c}.ducklake_data_file f"
        " LEFT JOIN {c}.ducklake_delete_file d ON d.data_file_id = f.data_file_id AND d.end_snapshot IS NULL"
        " LEFT JOIN {c}.ducklake_file_column_stats s ON s.data_file_id = f.data_file_id AND s.column_id = {column}"
        " LEFT JOIN (SELECT data_file_id, array_to_json(array_agg(partition_value ORDER BY partition_key_index))::text"
        "  AS partition_values FROM {c}.ducklake_file_partition_value WHERE table_id = {table} GROUP BY data_file_id) p"
        "  ON p.data_file_id = f.data_file_id"
        " WHERE f.table_id = {table} AND f.end_snapshot IS NULL ORDER BY f.data_file_id",
        deletes=deletes,
        column=-1 if first is None else first.id,
        table=definition.id,
    )
    return [_file(definition, row, None if first is None else first.type) for row in rows]


def _file(definition: Definition, row: Mapping[str, Any], kind: pa.DataType | None) -> LakeFile:
    delete_format = row["delete_format"] or "parquet"
    known = row["file_format"] == "parquet" and delete_format == "parquet"
    if not known or row["mapping_id"] is not None or row["encryption_key"] is not None:
        raise UnsupportedError(
            f"DuckLake table {definition.name!r} has a file that headrace does not support",
            received=f"{row['path']}: {row['file_format']}, deletes {delete_format}, mapping {row['mapping_id']}",
            valid="Parquet files that DuckLake has written, without encryption",
        )
    bounds = None
    if kind is not None and row["low"] is not None and row["high"] is not None and data_files.has_bounds(kind):
        try:
            bounds = tuple(pa.scalar(row[side]).cast(kind).as_py() for side in ("low", "high"))
        except pa.ArrowInvalid:
            raise UnsupportedError(
                f"DuckLake table {definition.name!r} has keys outside of the years 1 to 9999",
                received=f"{row['path']}: {row['low']} to {row['high']}",
                remedy="DELETE these rows in DuckDB",
            ) from None
    delete, partition = row["delete_path"], row["partition_id"]
    return LakeFile(
        row["id"],
        definition.file(row["path"], row["relative"]),
        row["rows"],
        row["size"],
        bounds,
        None if delete is None else definition.file(delete, row["delete_relative"]),
        row["delete_file_id"],
        [] if row["positions"] is None else _positions(row["positions"]),
        None if partition is None else FilePartition(partition, tuple(json.loads(row["partition_values"]))),
    )


def _positions(text: str) -> list[int]:
    return [int(each) for each in text.strip("[]").split(",") if each]


def read_inlined(lake: Lake, bulk: Bulk, definition: Definition, table: InlinedTable) -> pa.Table:
    """Return the rows of one table with inlined rows, in the types of the table."""
    fields = definition.schema.nullable()
    found, _ = stored_rows(lake, bulk, definition, table, "end_snapshot IS NULL")
    return with_fields(found, fields)


def stored_rows(
    lake: Lake, bulk: Bulk, definition: Definition, table: InlinedTable, condition: LiteralString
) -> tuple[pa.Table, pa.Table]:
    """Return inlined rows that satisfy a condition: the columns of the table, and those of DuckLake.

    A column that was added later is null.

    Raises:
        UnsupportedError: they have nested values, or times that the catalog does not get from headrace.
    """
    columns = [column for column in definition.columns if column.name in table.columns and not column.inner]
    selected = [
        sql.SQL("{}::text" if column.kind.startswith("decimal") else "{}").format(sql.Identifier(column.name))
        for column in columns
    ]
    found = lake.arrow(
        bulk,
        "SELECT {columns} FROM {c}.{table} WHERE {condition} ORDER BY row_id",
        columns=sql.SQL(", ").join([*selected, *map(sql.Identifier, _OWN)]),
        table=sql.Identifier(table.name),
        condition=sql.SQL(condition),
    )
    if found.num_rows and len(columns) < len(table.columns):
        raise UnsupportedError(
            f"DuckLake table {definition.name!r} has nested values in the catalog, which headrace does not read",
            remedy=_FLUSH,
        )
    try:
        values = [from_catalog(found.column(place), column) for place, column in enumerate(columns)]
    except pa.ArrowInvalid as error:
        raise UnsupportedError(
            f"DuckLake table {definition.name!r} has times outside of the years 1 to 9999 in the catalog, which "
            "headrace does not read",
            received=str(error),
            remedy=_FLUSH,
        ) from None
    there = {column.name: column_values for column, column_values in zip(columns, values, strict=True)}
    rows = {
        field.name: there[field.name] if field.name in there else pa.nulls(found.num_rows, field.type)
        for field in definition.schema.arrow
    }
    return pa.table(rows), found.select(list(range(len(columns), found.num_columns)))
