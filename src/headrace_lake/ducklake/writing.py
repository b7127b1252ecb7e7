"""Changes of a table in a snapshot: writes of rows by key become deleted and new rows."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from headrace.model.tables.changes import RowChange
from headrace.rows import check_not_null
from headrace.rows.by_position import sort_indices
from headrace.rows.fields import with_fields
from headrace.stores.postgres.for_lakes import STAGE, STAGED, Bulk, Given, stage
from headrace_lake import data_files
from headrace_lake.data_files import RowNumbers
from headrace_lake.ducklake import state
from headrace_lake.ducklake.catalog import Definition, Lake, Snapshot
from headrace_lake.ducklake.partitions import FilePartition
from headrace_lake.ducklake.state import LakeFile, State
from headrace_lake.ducklake.statistics import ColumnStatistics, statistics_of
from headrace_lake.ducklake.values import can_be_inlined, to_catalog
from headrace_lake.folding import DELETED, TableWrite, last_state
from headrace_lake.lookup import Keys
from headrace_lake.places import sync

INLINED_ROWS = 1_000
"""The maximum number of rows of a write that the catalog keeps; more are in a file."""
MAX_INLINED_DELETES = 10_000
"""The maximum number of deleted rows of a file that the catalog keeps; from then on they are in a file."""
_FILE_ROWS = 2_000_000
ROW_COLUMN, SNAPSHOT_COLUMN = "_ducklake_internal_row_id", "_ducklake_internal_snapshot_id"
"""The columns of files whose rows have numbers and snapshots of their own."""
_FIELD_IDS = {"file_path": 2147483646, "pos": 2147483645, ROW_COLUMN: 2147483540, SNAPSHOT_COLUMN: 2147483539}
# The directories of a table, of its schema and of the DuckLake.
_LEVELS = 3
_CHANGES = ("inserted_into_table", "deleted_from_table", "inlined_insert", "inlined_delete")


@dataclass
class NewFiles:
    """The files that the attempts at a transaction have written."""

    paths: list[Path] = field(default_factory=list)

    def path(self, directory: Path, ending: str = "") -> Path:
        """Return the path of a new file, whose directory exists."""
        directory.mkdir(parents=True, exist_ok=True)
        self.paths.append(directory / f"{data_files.PREFIX}{uuid.uuid4()}{ending}.parquet")
        return self.paths[-1]

    def sync(self) -> None:
        """Wait until the entries of the directories are on the disk."""
        for directory in {parent for path in self.paths for parent in (*path.parents,)[:_LEVELS]}:
            sync(directory)

    def clean(self, lake: Lake, bulk: Bulk) -> None:
        """Delete the files that the catalog does not have: those of attempts that were rolled back."""
        if not self._missing(lake, bulk):
            return
        # The answer of a commit can be lost before the commit is done, so no other transaction may have a snapshot.
        snapshot = Snapshot.next(lake, bulk)
        for path in self._missing(lake, bulk):
            with suppress(FileNotFoundError):
                path.unlink()
        snapshot.finish(bulk, [])

    def _missing(self, lake: Lake, bulk: Bulk) -> list[Path]:
        """Return the files that the catalog does not have."""
        return [
            path
            for path in self.paths
            if not lake.rows(
                bulk,
                "SELECT 1 AS there FROM {c}.ducklake_data_file WHERE path = {name} UNION ALL"
                " SELECT 1 FROM {c}.ducklake_delete_file WHERE path = {name} UNION ALL"
                # A compaction may have replaced it already.
                " SELECT 1 FROM {c}.ducklake_files_scheduled_for_deletion WHERE path = {path}",
                name=path.name,
                path=str(path),
            )
        ]


@dataclass
class SnapshotTable:
    """A table in the snapshot that a transaction adds.

    Args:
        files: the files of the transaction.
    """

    lake: Lake
    bulk: Bulk
    snapshot: Snapshot
    definition: Definition
    files: NewFiles

    def run(self, text: str, **parts: Any) -> None:
        self.lake.run(self.bulk, text, **parts)

    def rows(self, text: str, **parts: Any) -> list[dict[str, Any]]:
        return self.lake.rows(self.bulk, text, **parts)

    def add_file(
        self,
        rows: pa.Table,
        first: int,
        partition: FilePartition | None,
        *,
        since: int | None = None,
        until: int | None = None,
        end: int | None = None,
    ) -> tuple[int, Path, int]:
        """Add a data file to a table; return its number, path and size.

        Args:
            rows: rows in key order, with the field ids of Parquet.
            first: the number of the first row.
            partition: the partition of the rows.
            since: the first snapshot that has some of the rows; the one of the transaction by default.
            until: the first one that has all of them, if the rows name their snapshots.
            end: the snapshot that has deleted all of them.
        """
        definition = self.definition
        path = self.files.path(definition.path)
        data_files.write(path, data_files.marked_as_sorted(rows, definition.uuid, definition.schema.primary_key))
        size, number = path.stat().st_size, self.snapshot.new_file_id()
        self.run(
            "INSERT INTO {c}.ducklake_data_file (data_file_id, table_id, begin_snapshot, end_snapshot, path,"
            " path_is_relative, file_format, record_count, file_size_bytes, footer_size, row_id_start,"
            " partition_id, partial_max)"
            " VALUES ({id}, {table}, {snapshot}, {end}, {path}, true, 'parquet', {count}, {size}, {footer}, {first},"
            " {partition}, {until})",
            id=number,
            table=definition.id,
            snapshot=self.snapshot.id if since is None else since,
            end=end,
            path=path.name,
            count=rows.num_rows,
            size=size,
            footer=_footer_size(path),
            first=first,
            partition=None if partition is None else partition.id,
            until=until,
        )
        if partition is not None:
            self.run(
                "INSERT INTO {c}.ducklake_file_partition_value (data_file_id, table_id, partition_key_index,"
                " partition_value) VALUES {rows}",
                rows=_values((number, definition.id, place, text) for place, text in enumerate(partition.values)),
            )
        present = [column for column in definition.columns if column.name in rows.column_names]
        self.run(
            "INSERT INTO {c}.ducklake_file_column_stats (data_file_id, table_id, column_id, value_count, null_count,"
            " min_value, max_value, contains_nan) VALUES {rows}",
            rows=_values(
                (number, definition.id, column, each.values, each.nulls, each.low, each.high, each.nan)
                for column, each in statistics_of(rows, present).items()
            ),
        )
        return number, path, size

    def add_delete_file(
        self,
        data_file: int,
        data_path: Path,
        positions: pa.Array,
        snapshots: pa.Array | None = None,
        *,
        end: int | None = None,
    ) -> None:
        """Add a file with the positions of deleted rows of a data file.

        Args:
            positions: the positions, ascending.
            snapshots: the snapshots that have deleted them; the one of the transaction by default.
            end: the snapshot that has deleted all rows of the data file.
        """
        columns = {"file_path": pa.repeat(str(data_path), len(positions)), "pos": positions}
        if snapshots is not None:
            columns[SNAPSHOT_COLUMN] = snapshots
        fields = pa.schema(
            [
                pa.field(name, values.type, metadata={b"PARQUET:field_id": str(_FIELD_IDS[name]).encode()})
                for name, values in columns.items()
            ]
        )
        path = self.files.path(self.definition.path, "-delete")
        data_files.write(path, pa.table(list(columns.values()), fields))
        bounds = None if snapshots is None else pc.min_max(snapshots)
        self.run(
            "INSERT INTO {c}.ducklake_delete_file (delete_file_id, table_id, begin_snapshot, end_snapshot,"
            " data_file_id, path, path_is_relative, format, delete_count, file_size_bytes, footer_size, partial_max)"
            " VALUES ({id}, {table}, {snapshot}, {end}, {file}, {path}, true, 'parquet', {count}, {size}, {footer},"
            " {until})",
            id=self.snapshot.new_file_id(),
            table=self.definition.id,
            snapshot=self.snapshot.id if bounds is None else bounds["min"].as_py(),
            end=end,
            file=data_file,
            path=path.name,
            count=len(positions),
            size=path.stat().st_size,
            footer=_footer_size(path),
            until=None if bounds is None else bounds["max"].as_py(),
        )

    @property
    def _statistics(self) -> str:
        """The query for the statistics of the table, as one text."""
        return self.lake.statement(
            "SELECT coalesce(json_agg(s), '[]')::text AS known FROM {c}.ducklake_table_column_stats s"
            " WHERE table_id = {table}",
            table=self.definition.id,
        )

    def widen(self, found: Mapping[int, ColumnStatistics], known: str | None = None, *, is_first: bool = False) -> None:
        """Widen the statistics of the table by those of some rows.

        A column that was added to a table with rows has none: those of the new rows would exclude the old ones.

        Args:
            known: the statistics of the table, if they are read already.
            is_first: the table has had no other rows.
        """
        if known is None:
            known = self.rows("{query}", query=sql.SQL(self._statistics))[0]["known"]
        rows = {row["column_id"]: row for row in json.loads(known)}
        new, wider = [], []
        for column, each in found.items():
            row = rows.get(column)
            if row is None:
                new.append((self.definition.id, column, each.nulls > 0, each.nan, each.low, each.high))
                continue
            before = ColumnStatistics(
                each.kind,
                0,
                int(row["contains_null"] is not False),
                row["min_value"],
                row["max_value"],
                row["contains_nan"],
            )
            after = before.merged(each)
            if (after.nulls > 0, after.low, after.high, after.nan) != (
                row["contains_null"],
                before.low,
                before.high,
                before.nan,
            ):
                wider.append((column, after.nulls > 0, after.nan, after.low, after.high))
        if new and is_first:
            self.run(
                "INSERT INTO {c}.ducklake_table_column_stats (table_id, column_id, contains_null, contains_nan,"
                " min_value, max_value) VALUES {rows}",
                rows=_values(new),
            )
        if wider:
            self.run(
                "UPDATE {c}.ducklake_table_column_stats t SET contains_null = n.nulls::boolean,"
                " contains_nan = n.nan::boolean, min_value = n.low::varchar, max_value = n.high::varchar"
                " FROM (VALUES {rows}) AS n (column_id, nulls, nan, low, high)"
                " WHERE t.table_id = {table} AND t.column_id = n.column_id",
                rows=_values(wider),
                table=self.definition.id,
            )


@dataclass
class TableChange(SnapshotTable):
    """The change of one table in a snapshot."""

    inlined: int = field(default=0, init=False)
    """The rows in the catalog before the change, with deleted ones, if it adds some."""
    before: Sequence[LakeFile] = field(default=(), init=False)
    """The data files before the change."""
    _done: set[str] = field(default_factory=set, init=False)
    _staged: Mapping[str, sql.Identifier] = field(default_factory=dict, init=False)
    _given: Given | None = field(default=None, init=False)

    def apply(self, writes: Sequence[TableWrite]) -> list[str]:
        """Apply writes; return what has changed, as the catalog names it."""
        schema = self.definition.schema
        self.definition.check_writable()
        changes = {write.change for write in writes}
        if changes - {RowChange.PUT, RowChange.REPLACE_ALL}:
            schema.check_keyed()
        before = state.load(self.lake, self.bulk, self.definition, inlined=RowChange.UPDATE in changes)
        self.before = before.files
        rows = last_state(writes, schema, before.find)
        alive = rows.filter(pc.invert(rows.column(DELETED))).drop_columns([DELETED])
        check_not_null(alive, schema)
        data_files.check_years(alive, schema.primary_key)
        if RowChange.REPLACE_ALL in changes:
            self._end_all()
            staged = False
        else:
            staged = bool(schema.primary_key) and rows.num_rows > 0
        inlines = alive.num_rows <= INLINED_ROWS and self._has_inlined_table()
        inlines = inlines and can_be_inlined(alive, self.definition.columns)
        inlined = alive.num_rows if inlines else 0
        if staged:
            self._stage(rows if inlines else rows.select([*schema.primary_key, DELETED]))
            self._delete_in_files(before, Keys(schema, rows))
        elif inlined:
            self._stage(alive.append_column(DELETED, pa.array(np.zeros(inlined, np.bool_))))
        first, known = self._change_inlined(inlined, ends=staged)
        if (staged or inlined) and self._given is None:
            self.run("DROP TABLE pg_temp.{stage}", stage=sql.Identifier(STAGE))
        if alive.num_rows:
            found = statistics_of(alive, self.definition.columns)
            if not inlined:
                first = self._row_ids(alive.num_rows)
                self._write_files(alive, first)
            self.widen(found, known, is_first=first == 0)
        return [f"{name}:{self.definition.id}" for name in _CHANGES if name in self._done]

    # -- old rows -----------------------------------------------------------------------------------------

    def _end_all(self) -> None:
        """Delete all rows."""
        for name in ("ducklake_data_file", "ducklake_delete_file"):
            self.run(
                "UPDATE {c}.{name} SET end_snapshot = {snapshot} WHERE table_id = {table} AND end_snapshot IS NULL",
                name=sql.Identifier(name),
                snapshot=self.snapshot.id,
                table=self.definition.id,
            )
        for each in self.definition.inlined:
            self.run(
                "UPDATE {c}.{table} SET end_snapshot = {snapshot} WHERE end_snapshot IS NULL",
                table=sql.Identifier(each.name),
                snapshot=self.snapshot.id,
            )
        self._done |= {"deleted_from_table", "inlined_delete"}

    def _stage(self, rows: pa.Table) -> None:
        """Make rows, or keys, parameters of the next statement, or copy many into a table, as the catalog has them."""
        kinds = {column.name: column.kind for column in self.definition.columns}
        columns = [
            rows.column(name) if name == DELETED else to_catalog(rows.column(name), kinds[name])
            for name in rows.column_names
        ]
        converted = pa.table(columns, names=rows.column_names)
        self._given = Given.of(converted)
        if self._given is None:
            stage(self.bulk, converted)
        self._staged = {name: sql.Identifier("s", f"c{place}") for place, name in enumerate(rows.column_names)}

    @property
    def _source(self) -> sql.Composable:
        """The staged rows in a FROM clause."""
        return STAGED if self._given is None else self._given.source

    def _ending(self, table: str) -> str:
        """Return the statement that deletes the inlined rows whose keys are staged."""
        same = sql.SQL(" AND ").join(
            sql.SQL("t.{} OPERATOR(pg_catalog.=) {}").format(sql.Identifier(name), self._staged[name])
            for name in self.definition.schema.primary_key
        )
        return self.lake.statement(
            "UPDATE {c}.{table} t SET end_snapshot = {snapshot} FROM {source}"
            " WHERE t.end_snapshot IS NULL AND {same} RETURNING 1",
            table=sql.Identifier(table),
            source=self._source,
            snapshot=self.snapshot.id,
            same=same,
        )

    def _delete_in_files(self, before: State, keys: Keys) -> None:
        """Delete the rows of files with these keys."""
        found = [(file, each.numbers) for file, each in before.matches(keys)]
        few = sum(len(rows) for _, rows in found) <= INLINED_ROWS and self.definition.deletes is not None
        inlined: list[tuple[int, int]] = []
        for file, rows in found:
            if few and len(file.positions) + len(rows) <= MAX_INLINED_DELETES:
                inlined += [(file.id, int(row)) for row in rows]
            else:
                self._write_deletes(file, rows)
        if inlined:
            self.run(
                "INSERT INTO {c}.{table} (file_id, row_id, begin_snapshot) SELECT f, r, {snapshot}"
                " FROM unnest({files}::bigint[], {rows}::bigint[])"
                " AS new (f, r)",
                table=sql.Identifier(str(self.definition.deletes)),
                snapshot=self.snapshot.id,
                files=[file for file, _ in inlined],
                rows=[row for _, row in inlined],
            )
            # DuckDB looks for the second one only before it commits merged files without these rows.
            self._done |= {"inlined_delete", "deleted_from_table"}

    def _write_deletes(self, file: LakeFile, rows: RowNumbers) -> None:
        """Delete rows of a data file: replace its file with deleted positions; end a data file without other rows."""
        everything = len(file.deleted()) + len(rows) == file.rows
        self._done.add("deleted_from_table")
        ended = [("ducklake_delete_file", "delete_file_id", file.delete_file_id)]
        if everything:
            ended.append(("ducklake_data_file", "data_file_id", file.id))
        for table, column, number in ended:
            if number is not None:
                self.run(
                    "UPDATE {c}.{table} SET end_snapshot = {snapshot} WHERE {column} = {number}",
                    table=sql.Identifier(table),
                    column=sql.Identifier(column),
                    snapshot=self.snapshot.id,
                    number=number,
                )
        if everything:
            return
        # Without those in the catalog: DuckDB expects each position once.
        positions = pa.array(np.union1d(file.deleted_by_file(), rows).astype(np.int64))
        self.add_delete_file(file.id, file.path, positions)

    # -- new rows -----------------------------------------------------------------------------------------

    def _row_ids(self, count: int) -> int:
        """Take numbers for new rows; return the first one."""
        (first,) = self._run_as_one(self._numbers(count), ["(SELECT first FROM numbers)"])
        return int(first)

    def _numbers(self, count: int) -> dict[str, str]:
        """Return the statements that take numbers for new rows, the last one with the first number."""
        table = {"table": self.definition.id, "count": count}
        return {
            "taken": self.lake.statement(
                "UPDATE {c}.ducklake_table_stats SET next_row_id = next_row_id + {count},"
                " record_count = record_count + {count} WHERE table_id = {table}"
                " RETURNING next_row_id - {count} AS first",
                **table,
            ),
            "started": self.lake.statement(
                "INSERT INTO {c}.ducklake_table_stats (table_id, record_count, next_row_id, file_size_bytes)"
                " SELECT {table}, {count}, {count}, 0 WHERE NOT EXISTS (SELECT FROM taken) RETURNING 0 AS first",
                **table,
            ),
            "numbers": "SELECT first FROM taken UNION ALL SELECT first FROM started",
        }

    def _has_inlined_table(self) -> bool:
        """Return whether the catalog has a table for inlined rows with all columns."""
        names = tuple(column.name for column in self.definition.columns)
        return any(each.columns == names for each in self.definition.inlined[-1:])

    def _change_inlined(self, count: int, *, ends: bool) -> tuple[int, str | None]:
        """Change the rows in the catalog by the staged ones.

        It is one statement, because each one takes several exchanges with the server.

        Args:
            count: the number of staged rows to insert.
            ends: whether to delete the rows whose keys are staged.

        Returns:
            The number of the first new row, and the statistics of the table before it; None without new rows.
        """
        tables = self.definition.inlined if ends else ()
        parts = {f"ended_{place}": self._ending(each.name) for place, each in enumerate(tables)}
        shown = [" + ".join(f"(SELECT count(*) FROM {part})" for part in parts) or "0"]
        if count:
            last = self.definition.inlined[-1].name
            parts |= self._numbers(count) | {"new": self._inserting(last)}
            # Each part of a statement sees the rows before it.
            before = self.lake.table(last).as_string(None)
            shown += ["(SELECT first FROM numbers)", f"({self._statistics})", f"(SELECT count(*) FROM {before})"]
        if not parts:
            return 0, None
        ended, *numbers = self._run_as_one(parts, shown, self._given)
        if ended:
            self._done.add("inlined_delete")
        if not numbers:
            return 0, None
        first, known, self.inlined = numbers
        # DuckDB keeps the statistics of a table, with the numbers of rows, until the number of the next file changes.
        self.snapshot.new_file_id()
        self._done.add("inlined_insert")
        return first, known

    def _inserting(self, table: str) -> str:
        """Return the statement that inserts the staged rows into the catalog."""
        names = [name for name in self._staged if name != DELETED]
        return self.lake.statement(
            "INSERT INTO {c}.{table} (row_id, begin_snapshot, {names})"
            " SELECT first + row_number() OVER () - 1, {snapshot}, {values} FROM numbers, {source}"
            " WHERE NOT {deleted}",
            table=sql.Identifier(table),
            names=sql.SQL(", ").join(map(sql.Identifier, names)),
            snapshot=self.snapshot.id,
            values=sql.SQL(", ").join(self._staged[name] for name in names),
            source=self._source,
            deleted=self._staged[DELETED],
        )

    def _run_as_one(self, parts: Mapping[str, str], shown: Sequence[str], given: Given | None = None) -> list[Any]:
        """Run statements as one, and return values.

        Args:
            parts: the statements, by the names of their rows.
            shown: what has the values.
            given: rows that are parameters of the statements.
        """
        changes = ", ".join(f"{name} AS ({part})" for name, part in parts.items())
        columns = ", ".join(f"{each} AS n{place}" for place, each in enumerate(shown))
        with self.bulk.cursor() as cursor:
            cursor.execute(f"WITH {changes} SELECT {columns}", None if given is None else given.parameters)
            return list(cursor.fetchone())

    def _write_files(self, rows: pa.Table, first: int) -> None:
        """Write rows into files."""
        self._done.add("inserted_into_table")
        size = 0
        for partition, part in self.definition.divided(rows, rows):
            for start in range(0, part.num_rows, _FILE_ROWS):
                size += self._write_file(part.slice(start, _FILE_ROWS), first + start, partition)
            first += part.num_rows
        self.run(
            "UPDATE {c}.ducklake_table_stats SET file_size_bytes = file_size_bytes + {size} WHERE table_id = {table}",
            size=size,
            table=self.definition.id,
        )

    def _write_file(self, rows: pa.Table, first: int, partition: FilePartition | None) -> int:
        definition = self.definition
        if definition.schema.primary_key:
            rows = rows.take(sort_indices(rows, definition.schema.primary_key))
        typed = with_fields(rows, definition.fields)
        _, _, size = self.add_file(typed, first, partition)
        return size


def internal_field(name: str) -> pa.Field:
    """Return the field of a column that DuckLake adds to files."""
    return pa.field(name, pa.int64(), metadata={b"PARQUET:field_id": str(_FIELD_IDS[name]).encode()})


def _values(rows: Any) -> sql.Composable:
    """Return rows as they are in a list of values."""
    return sql.SQL(", ").join(sql.SQL("({})").format(sql.SQL(", ").join(map(sql.Literal, row))) for row in rows)


def _footer_size(path: Path) -> int:
    with path.open("rb") as file:
        file.seek(-8, os.SEEK_END)
        return int.from_bytes(file.read(4), "little")
