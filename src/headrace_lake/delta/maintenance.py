"""The maintenance of Delta tables: compaction in key order, orphans, and the checks of a table.

Each batch adds files, and a batch of keys rewrites the files with these keys. So files become small, and their key
ranges overlap; each read and each batch then opens more of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from headrace.errors import HeadraceError, StoreDamagedError
from headrace.model.findings import Finding, Status
from headrace.model.tables.conditions import KeyRange
from headrace_lake.data_files import PREFIX, MissingFileError
from headrace_lake.delta import reading
from headrace_lake.delta.actions import Actions, Added
from headrace_lake.delta.commits import commit, remove_files
from headrace_lake.delta.log import FEED, LOG, DataFile
from headrace_lake.delta.snapshot import Snapshot
from headrace_lake.delta.table import DeltaTable
from headrace_lake.delta.vectors import DIRECTORY, FILES, location_of
from headrace_lake.maintenance import (
    RETENTION_SECONDS,
    TARGET_BYTES,
    Compaction,
    TableVersion,
    file_contents,
    groups,
    has_many_small,
    in_partitions,
    key_problems,
    repeats_a_key,
    small_files,
)
from headrace_lake.places import files_below
from headrace_lake.scanning import Selection


class DeltaMaintenance:
    """The maintenance of a Delta table: see `headrace_lake.maintenance.Maintenance`."""

    def __init__(self, table: DeltaTable) -> None:
        self._table = table

    def compact(self, target_bytes: int = TARGET_BYTES) -> Compaction:
        return compact(self._table, target_bytes)

    def vacuum(self, older_than: float = RETENTION_SECONDS) -> int:
        return vacuum(self._table, older_than)

    def check(self) -> list[Finding]:
        return check(self._table)

    def history(self, limit: int) -> list[TableVersion]:
        found = self._table.snapshot().history(limit)
        return [
            TableVersion(
                each["version"],
                each["timestamp"] / 1000,
                each["operation"],
                each.get("headrace", {}).get("job"),
                each.get("headrace", {}).get("batch"),
            )
            for each in found
        ]


def compact(table: DeltaTable, target_bytes: int = TARGET_BYTES) -> Compaction:
    """Replace files that are small, or whose key ranges overlap, by files in key order that do not overlap.

    Files with deleted rows are replaced, too. The rows do not change. If another program commits meanwhile, the
    compaction begins again.

    Args:
        target_bytes: the approximate size of a new file.
    """
    return _compact(table, target_bytes, lambda files: list(groups(files, target_bytes)))


def merge_small(table: DeltaTable) -> Compaction:
    """Merge the small files of a table, if it has many of them: streams do so between two batches."""
    return _compact(table, TARGET_BYTES, lambda files: [small_files(files)] if has_many_small(files) else [])


def _compact(
    table: DeltaTable, target_bytes: int, choose: Callable[[Sequence[DataFile]], list[list[DataFile]]]
) -> Compaction:
    """Replace each group of files that ``choose`` returns."""
    written: set[str] = set()
    done: Actions | None = None

    def plan(snapshot: Snapshot) -> Actions | None:
        nonlocal done
        # An earlier attempt was certainly not committed.
        done = None
        snapshot.check_writable(removes=False)
        columns = snapshot.partition_columns
        chosen = in_partitions(snapshot.files, lambda file: tuple(map(file.partition.get, columns)), choose)
        done = Actions(
            [new for group in chosen for new in _merged(snapshot, group, target_bytes, written)],
            [file for group in chosen for file in group],
            # As before. OPTIMIZE and overwrites of delta-rs do not conflict with the removal of a file whose rows stay:
            # they would commit the rows again. They conflict with a definition.
            definition=snapshot.changed(),
        )
        return done if chosen else None

    try:
        version = commit(
            table.versions,
            plan,
            information={"compaction": "by key"},
            data_change=False,
        )
    finally:
        kept = set() if done is None else {each.path for each in done.added}
        remove_files(table.directory, written - kept)
    if version is None or done is None:
        return Compaction(None)
    return Compaction(version, len(done.removed), len(done.added))


def _merged(snapshot: Snapshot, files: Sequence[DataFile], target_bytes: int, written: set[str]) -> Iterator[Added]:
    selection = Selection(snapshot.schema.names, KeyRange(), ())
    rows = reading.scan(snapshot, selection, files)
    for content in file_contents(rows, target_bytes):
        path = snapshot.new_path(PREFIX, files[0].partition)
        written.add(path)
        yield snapshot.write_ordered(path, content, target_bytes, files[0].partition)


def orphans(table: DeltaTable, older_than: float = RETENTION_SECONDS) -> list[str]:
    """Return the names of headrace's files that no version has: of writers that have died.

    Args:
        older_than: the least age of a file in seconds. A younger one can be of a commit that is not complete.
    """
    snapshot = table.snapshot()
    end = time.time() - older_than
    depth = "*/" * len(snapshot.partition_columns)
    used = _used(snapshot)
    found = _old_files(table, "", f"{depth}{PREFIX}*.parquet", end) - used
    # The log has the directories of partitions, and the names of files of vectors, in another form.
    texts = {path: path.rpartition("/")[2] for path in found}
    texts |= {path: location_of(path) for path in _old_files(table, DIRECTORY, FILES, end) - used}
    # A file of the feed is as old as the entry that names it.
    texts |= {path: path.rpartition("/")[2] for path in _old_files(table, FEED, f"{PREFIX}*.parquet", end)}
    drafts = _old_files(table, LOG, ".*.tmp", end)
    return sorted({*_unnamed(table, texts, end, since=0.0), *drafts})


def _used(snapshot: Snapshot) -> set[str | None]:
    """Return the files of a version. The log need not have their entries: a checkpoint has them, too."""
    vectors = {file.vector.file for file in snapshot.files if file.vector is not None}
    return {*vectors, *(file.path for file in snapshot.files)}


def _old_files(table: DeltaTable, directory: str, pattern: str, end: float) -> set[str]:
    """Return the files of a directory below that of a table, relative to the latter."""
    found = files_below(table.directory / directory, pattern)
    return {f"{directory}/{name}" if directory else name for name, written in found.items() if written < end}


def _unnamed(table: DeltaTable, texts: Mapping[str, str], end: float, *, since: float) -> set[str]:
    """Return the files that no entry of the log names; none if the log does not have all entries since a time.

    Args:
        texts: how the log names each file.
        end: the time; an entry that was deleted later may name a file that readers of an older version still need.
        since: the time of the first entry that counts.
    """
    log = table.directory / LOG
    entries = sorted(files_below(log, "[0-9]*.json").items())
    if not entries or (int(entries[0][0].partition(".")[0]) and entries[0][1] > end):
        return set()
    found = set(texts)
    for name, written in entries:
        if found and written >= since:
            try:
                text = (log / name).read_text("utf-8")
            except FileNotFoundError:
                # Another program removes old entries meanwhile.
                return set()
            found = {path for path in found if texts[path] not in text}
    return found


def _replaced_vectors(table: DeltaTable, older_than: float) -> set[str]:
    """Return headrace's files of vectors that neither the newest version has, nor one that was replaced since."""
    end = time.time() - older_than
    used = _used(table.snapshot())
    texts = {path: location_of(path) for path in _old_files(table, DIRECTORY, FILES, end) - used}
    return _unnamed(table, texts, end, since=end)


def vacuum(table: DeltaTable, older_than: float = RETENTION_SECONDS) -> int:
    """Delete the files of versions that were replaced, and orphans; return their number.

    Args:
        older_than: the least age of the files in seconds, since they were replaced or written.
    """
    replaced = Snapshot(table.name, table.directory).vacuum(older_than)
    names = {*orphans(table, older_than), *_replaced_vectors(table, older_than)}
    remove_files(table.directory, names)
    return replaced + len(names)


def check(table: DeltaTable) -> list[Finding]:
    """Check a table: its files, its rows and their keys."""
    name = f"Table {table.name}"
    try:
        snapshot = table.snapshot()
        snapshot.check_writable(removes=False)
        problems = list(_problems(snapshot))
    except (MissingFileError, StoreDamagedError) as error:
        problems = [str(error)]
    except HeadraceError as error:
        return [Finding(name, Status.WARN, str(error))]
    if problems:
        return [Finding(name, Status.FAIL, "; ".join(problems), "restore the files, or load the table again")]
    unused = orphans(table)
    rows = sum(file.rows or 0 for file in snapshot.files)
    deleted = sum(file.deleted_rows for file in snapshot.files)
    found = f"version {snapshot.version}, {rows} rows in {len(snapshot.files)} files"
    if snapshot.schema.primary_key:
        found += "; all keys are different"
    if deleted:
        found += f"; {deleted} rows are in deletion vectors"
    if unused:
        remedy = "headrace lake vacuum deletes them"
        return [Finding(name, Status.WARN, f"{found}; {len(unused)} files of writers that have died", remedy)]
    return [Finding(name, Status.OK, found)]


def _problems(snapshot: Snapshot) -> Iterator[str]:
    key = list(snapshot.schema.primary_key)
    for file in snapshot.files:
        path = snapshot.directory / file.path
        if not path.exists() or path.stat().st_size != file.size:
            yield f"file {file.path} does not exist as the log has it"
            return
        rows = snapshot.read(file, snapshot.schema.nullable(key))
        yield from key_problems(file.path, rows, file.rows, file.bounds, "the log")
    if key and repeats_a_key(reading.scan(snapshot, Selection(key, KeyRange(), ())), key):
        yield "two rows have the same key"
