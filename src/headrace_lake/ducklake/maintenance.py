"""The maintenance of DuckLake tables: compaction, files that nothing needs, checks and the history."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.errors import HeadraceError, StoreDamagedError, StoreError
from headrace.model.findings import Finding, Status
from headrace.model.tables.conditions import KeyRange
from headrace.stores.postgres.for_lakes import Bulk
from headrace_lake import data_files
from headrace_lake.data_files import PREFIX, MissingFileError
from headrace_lake.ducklake import compacting, state
from headrace_lake.ducklake.catalog import Definition, Snapshot
from headrace_lake.ducklake.columns import every
from headrace_lake.ducklake.database import LakeDatabase
from headrace_lake.ducklake.state import LakeFile, State
from headrace_lake.ducklake.statistics import statistics_of
from headrace_lake.ducklake.values import is_same_bound, wider
from headrace_lake.maintenance import (
    RETENTION_SECONDS,
    TARGET_BYTES,
    Compaction,
    TableVersion,
    key_problems,
    repeats_a_key,
)
from headrace_lake.scanning import Selection


class DuckLakeMaintenance:
    """The maintenance of a DuckLake table: see `headrace_lake.maintenance.Maintenance`."""

    def __init__(self, database: LakeDatabase, name: str) -> None:
        self._database = database
        self._lake = database.lake
        self._name = name

    def compact(self, target_bytes: int = TARGET_BYTES) -> Compaction:
        moved = self._database.flush(self._name)
        merged = self._database.compact(self._name, partial(compacting.groups, target_bytes=target_bytes))
        version = moved.version if merged.version is None else merged.version
        return Compaction(version, merged.before, moved.after + merged.after)

    # -- files that nothing needs ---------------------------------------------------------------------------

    def vacuum(self, older_than: float = RETENTION_SECONDS) -> int:
        def vacuum(bulk: Bulk) -> int:
            # A transaction that writes files has a snapshot: now there is none, so every file is in the catalog.
            snapshot = Snapshot.next(self._lake, bulk)
            definition = self._database.definition(bulk, self._name, snapshot.schema_version)
            replaced = self._replaced(bulk, definition, older_than)
            unused = {*replaced.values(), *self._orphans(bulk, definition, older_than)}
            try:
                for path in unused:
                    path.unlink(missing_ok=True)
            except OSError as error:
                message = f"a file of the DuckLake cannot be deleted: {error.strerror}"
                raise StoreError(message, received=str(error.filename)) from error
            self._lake.run(
                bulk,
                "DELETE FROM {c}.ducklake_files_scheduled_for_deletion WHERE data_file_id = ANY({ids}::bigint[])",
                ids=list(replaced),
            )
            snapshot.finish(bulk, [])
            return len(unused)

        return self._database.write(vacuum)

    def _replaced(self, bulk: Bulk, definition: Definition, older_than: float) -> dict[int, Path]:
        """Return the files of the table that were replaced, by their numbers, and that no snapshot has."""
        data = Path(self._lake.setting(bulk, "data_path") or "")
        found = self._lake.rows(
            bulk,
            "SELECT data_file_id AS id, path, path_is_relative AS relative"
            " FROM {c}.ducklake_files_scheduled_for_deletion"
            " WHERE schedule_start < clock_timestamp() - {seconds} * interval '1 second'",
            seconds=older_than,
        )
        paths = {row["id"]: data / row["path"] if row["relative"] else Path(row["path"]) for row in found}
        return {number: path for number, path in paths.items() if path.is_relative_to(definition.path)}

    def _orphans(self, bulk: Bulk, definition: Definition, older_than: float) -> list[Path]:
        """Return headrace's files that the catalog does not have: of writers that have died.

        Args:
            older_than: the least age of a file in seconds.
        """
        end = time.time() - older_than
        there = {path for path in definition.path.glob(f"{PREFIX}*.parquet") if path.stat().st_mtime < end}
        known = self._lake.rows(
            bulk,
            "SELECT path FROM {c}.ducklake_data_file WHERE table_id = {table}"
            " UNION ALL SELECT path FROM {c}.ducklake_delete_file WHERE table_id = {table}"
            " UNION ALL SELECT path FROM {c}.ducklake_files_scheduled_for_deletion",
            table=definition.id,
        )
        names = {Path(row["path"]).name for row in known}
        return sorted(path for path in there if path.name not in names)

    # -- checks -------------------------------------------------------------------------------------------------

    def check(self) -> list[Finding]:
        name = f"Table {self._name}"
        try:
            found, problems, narrow, unused = self._database.read(self._checked)
        except HeadraceError as error:
            return [Finding(name, Status.WARN, str(error))]
        try:
            problems += _problems(found)
        except (MissingFileError, StoreDamagedError) as error:
            problems.append(str(error))
        if problems or narrow:
            remedy = "restore the files, or load the table again" if problems else "headrace lake compact widens them"
            return [Finding(name, Status.FAIL, "; ".join([*problems, *narrow]), remedy)]
        text = f"{found.count()} rows, {found.inlined.num_rows} of them in the catalog; {len(found.files)} files"
        if found.schema.primary_key:
            text += "; all keys are different"
        if unused:
            remedy = "headrace lake vacuum deletes them"
            return [Finding(name, Status.WARN, f"{text}; {unused} files of writers that have died", remedy)]
        return [Finding(name, Status.OK, text)]

    def _checked(self, bulk: Bulk) -> tuple[State, list[str], list[str], int]:
        """Return the rows of the table, the files and the bounds that are wrong, and the number of orphans."""
        definition = self._database.definition(bulk, self._name)
        found = state.load(self._lake, bulk, definition)
        missing = list(self._missing_files(bulk, definition))
        narrow = list(dict.fromkeys(self._narrow_statistics(bulk, definition, found.inlined)))
        return found, missing, narrow, len(self._orphans(bulk, definition, RETENTION_SECONDS))

    def _missing_files(self, bulk: Bulk, definition: Definition) -> Iterator[str]:
        """Yield the files of all snapshots that do not exist as the catalog has them."""
        for row in self._lake.rows(
            bulk,
            "SELECT path, path_is_relative AS relative, file_size_bytes AS size FROM {c}.ducklake_data_file"
            " WHERE table_id = {table} UNION ALL SELECT path, path_is_relative, file_size_bytes"
            " FROM {c}.ducklake_delete_file WHERE table_id = {table}",
            table=definition.id,
        ):
            path = definition.file(row["path"], row["relative"])
            if not path.exists() or path.stat().st_size != row["size"]:
                yield f"file {path.name} does not exist as the catalog has it"

    def _narrow_statistics(self, bulk: Bulk, definition: Definition, inlined: pa.Table) -> Iterator[str]:
        """Yield the columns whose bounds in the whole table exclude some of its rows: readers would skip them."""
        kinds = {column.id: column for column in every(definition.columns)}
        known = self._lake.rows(
            bulk,
            "SELECT column_id AS id, min_value AS low, max_value AS high FROM {c}.ducklake_table_column_stats"
            " WHERE table_id = {table}",
            table=definition.id,
        )
        found = self._lake.rows(
            bulk,
            "SELECT f.column_id AS id, f.min_value AS low, f.max_value AS high FROM {c}.ducklake_file_column_stats f"
            " JOIN {c}.ducklake_data_file d USING (data_file_id)"
            " WHERE f.table_id = {table} AND d.end_snapshot IS NULL",
            table=definition.id,
        )
        if inlined.num_rows:
            of_rows = statistics_of(inlined, definition.columns)
            found += [{"id": number, "low": each.low, "high": each.high} for number, each in of_rows.items()]
        bounds = {row["id"]: row for row in known}
        for row in found:
            column = kinds[row["id"]]
            for side in ("low", "high"):
                bound = bounds[column.id][side] if column.id in bounds else None
                widest = wider(column.kind, bound, row[side], up=side == "high")
                if bound is not None and widest is not None and not is_same_bound(column.kind, bound, widest):
                    yield f"column {column.name} has a value outside of the bounds of the table"

    # -- history ------------------------------------------------------------------------------------------------

    def history(self, limit: int) -> list[TableVersion]:
        def found(bulk: Bulk) -> list[TableVersion]:
            definition = self._database.definition(bulk, self._name)
            rows = self._lake.rows(
                bulk,
                "SELECT s.snapshot_id AS version, extract(epoch FROM s.snapshot_time)::float8 AS time,"
                " c.changes_made AS made, c.commit_extra_info AS information FROM {c}.ducklake_snapshot s"
                " JOIN {c}.ducklake_snapshot_changes c USING (snapshot_id)"
                " WHERE ',' || c.changes_made || ',' LIKE {pattern}"
                " OR s.snapshot_id = (SELECT begin_snapshot FROM {c}.ducklake_table WHERE table_id = {table}"
                " ORDER BY begin_snapshot LIMIT 1) ORDER BY s.snapshot_id DESC LIMIT {limit}",
                pattern=f"%:{definition.id},%",
                table=definition.id,
                limit=limit,
            )
            return [_version(row, definition.id) for row in rows]

        return self._database.read(found)


def _version(row: dict[str, Any], table: int) -> TableVersion:
    changes = [each.partition(":") for each in row["made"].split(",")]
    names = [name for name, _, of in changes if of == str(table) or name == "created_table"]
    ours = _published(row["information"])
    return TableVersion(row["version"], row["time"], ", ".join(names), ours.get("job"), ours.get("batch"))


def _published(information: str | None) -> dict[str, Any]:
    """Return the job and the batch of a snapshot; nothing if another program has added it."""
    try:
        found = json.loads(information or "{}")
    except ValueError:
        return {}
    ours = found.get("headrace") if isinstance(found, dict) else None
    return ours if isinstance(ours, dict) else {}


def _problems(found: State) -> Iterator[str]:
    key = list(found.schema.primary_key)
    for file in found.files:
        yield from _problems_of(file, found, key)
    if key and repeats_a_key(found.scan(Selection(key, KeyRange(), ())), key):
        yield "two rows have the same key"


def _problems_of(file: LakeFile, found: State, key: list[str]) -> Iterator[str]:
    name, deleted = file.path.name, file.deleted()
    with data_files.opened(file.path) as opened:
        rows = data_files.read(opened, found.schema.nullable(key))
    yield from key_problems(name, rows, file.rows, file.bounds, "the catalog")
    if len(deleted) and deleted[-1] >= rows.num_rows:
        yield f"row {deleted[-1]} of file {name} is deleted, and the file has {rows.num_rows}"
