"""The maintenance of Delta tables: compaction in key order, orphans, and the checks of a table.

Each batch adds files, and a batch of keys rewrites the files with these keys. So files become small, and their key
ranges overlap; each read and each batch then opens more of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import HeadraceError
from headrace.model.findings import Finding, Status
from headrace.model.tables.conditions import KeyRange
from headrace.rows.by_position import repeats
from headrace.rows.rebatching import rebatched
from headrace_lake.delta import reading
from headrace_lake.delta.commits import Actions, commit, remove_files
from headrace_lake.delta.data_files import PREFIX
from headrace_lake.delta.log import LOG, DataFile
from headrace_lake.delta.places import files_below
from headrace_lake.delta.snapshot import Added, Snapshot
from headrace_lake.delta.table import DeltaTable

TARGET_BYTES = 64 << 20
SMALL_BYTES, MOST_SMALL = 8 << 20, 50
RETENTION_SECONDS = 7 * 86400.0
# The rows of a file are about this much larger in memory.
_PACKED = 4


@dataclass(frozen=True)
class Compaction:
    """What a compaction has done.

    Attributes:
        version: the new version; None if nothing was to be done.
        before: the number of files that were replaced.
        after: the number of files that replace them.
    """

    version: int | None
    before: int = 0
    after: int = 0


def compact(table: DeltaTable, target_bytes: int = TARGET_BYTES) -> Compaction:
    """Replace files that are small, or whose key ranges overlap, by files in key order that do not overlap.

    The rows do not change. If another program commits meanwhile, the compaction begins again.

    Args:
        target_bytes: the approximate size of a new file.
    """
    table.schema.check_keyed()
    return _compact(table, target_bytes, lambda files: list(_groups(files, target_bytes)))


def merge_small(table: DeltaTable) -> Compaction:
    """Merge the small files of a table, if it has many of them: streams do so between two batches."""
    return _compact(table, TARGET_BYTES, lambda files: [small_files(files)] if has_many_small(files) else [])


def small_files(files: Sequence[DataFile]) -> list[DataFile]:
    """Return the files that are much smaller than a file of a compaction."""
    return [file for file in files if file.size < SMALL_BYTES]


def has_many_small(files: Sequence[DataFile]) -> bool:
    """Return whether `merge_small` would merge files."""
    return len(small_files(files)) >= MOST_SMALL


def _compact(
    table: DeltaTable, target_bytes: int, choose: Callable[[Sequence[DataFile]], list[list[DataFile]]]
) -> Compaction:
    """Replace each group of files that ``choose`` returns."""
    written: set[str] = set()
    done: Actions | None = None

    def plan(snapshot: Snapshot) -> Actions | None:
        nonlocal done
        snapshot.check_writable(removes=False)
        partitions: dict[tuple[str | None, ...], list[DataFile]] = {}
        for file in snapshot.files:
            partitions.setdefault(tuple(map(file.partition.get, snapshot.partition_columns)), []).append(file)
        chosen = [group for files in partitions.values() for group in choose(files)]
        done = Actions(
            [new for group in chosen for new in _merged(snapshot, group, target_bytes, written)],
            [file for group in chosen for file in group],
        )
        return done if chosen else None

    try:
        version = commit(
            table.name,
            table.directory,
            plan,
            log=table.log,
            information={"compaction": "by key"},
            data_change=False,
        )
    finally:
        kept = set() if done is None else {each.path for each in done.added}
        remove_files(table.directory, written - kept)
    if version is None or done is None:
        return Compaction(None)
    return Compaction(version, len(done.removed), len(done.added))


def _groups(files: Sequence[DataFile], target_bytes: int) -> Iterator[list[DataFile]]:
    """Yield groups of files to replace: chains of files that overlap, and neighbours that are small together."""
    if any(file.bounds is None for file in files):
        if len(files) > 1 and sum(file.size for file in files) < len(files) * target_bytes // 2:
            yield list(files)
        return
    group: list[DataFile] = []
    end = None
    for file in sorted(files, key=lambda each: each.bounds or ()):
        assert file.bounds is not None
        low, high = file.bounds
        overlaps = end is not None and low <= end
        small = sum(each.size for each in group) + file.size <= target_bytes
        if group and not overlaps and not small:
            if len(group) > 1:
                yield group
            group, end = [], None
        group.append(file)
        end = high if end is None else max(end, high)
    if len(group) > 1:
        yield group


def _merged(snapshot: Snapshot, files: Sequence[DataFile], target_bytes: int, written: set[str]) -> Iterator[Added]:
    selection = reading.Selection(snapshot.schema.names, KeyRange(), ())
    rows = reading.scan(snapshot, selection, files)
    for part in rebatched(rows, _PACKED * target_bytes, by_bytes=True):
        path = snapshot.new_path(PREFIX, files[0].partition)
        written.add(path)
        yield snapshot.write(path, part, files[0].partition)


def orphans(table: DeltaTable, older_than: float = RETENTION_SECONDS) -> list[str]:
    """Return the names of headrace's files that no version has: of writers that have died.

    Args:
        older_than: the least age of a file in seconds. A younger one can be of a commit that is not complete.
    """
    snapshot = table.snapshot()
    known = {file.path for file in snapshot.files}
    end = time.time() - older_than
    depth = "*/" * len(snapshot.partition_columns)
    found = {
        path for path, written in files_below(table.directory, f"{depth}{PREFIX}*.parquet").items() if written < end
    } - known
    log = table.directory / LOG
    entries = sorted(files_below(log, "*.json").items())
    if not entries or (int(entries[0][0].partition(".")[0]) and entries[0][1] > end):
        # An entry that is deleted may have removed a file that readers of an older version still need.
        return []
    for entry, _ in entries:
        text = (log / entry).read_text()
        # The log has the directories of partitions in another form.
        found = {path for path in found if path.rpartition("/")[2] not in text}
    return sorted(found)


def vacuum(table: DeltaTable, older_than: float = RETENTION_SECONDS) -> int:
    """Delete the files of versions that were replaced, and orphans; return their number.

    Args:
        older_than: the least age of the files in seconds, since they were replaced or written.
    """
    replaced = table.snapshot().vacuum(older_than)
    names = orphans(table, older_than)
    remove_files(table.directory, names)
    return replaced + len(names)


def check(table: DeltaTable) -> list[Finding]:
    """Check a table: its files, its rows and their keys."""
    name = f"Table {table.name}"
    try:
        snapshot = table.snapshot()
        snapshot.check_writable(removes=False)
        snapshot.schema.check_keyed()
    except HeadraceError as error:
        return [Finding(name, Status.WARN, str(error))]
    problems = list(_problems(snapshot))
    if problems:
        return [Finding(name, Status.FAIL, "; ".join(problems), "restore the files, or load the table again")]
    unused = orphans(table)
    rows = sum(file.rows or 0 for file in snapshot.files)
    found = f"version {snapshot.version}, {rows} rows in {len(snapshot.files)} files; all keys are different"
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
        if file.rows is not None and rows.num_rows != file.rows:
            yield f"file {file.path} has {rows.num_rows} rows, and the log has {file.rows}"
        if any(column.null_count for column in rows.columns):
            yield f"file {file.path} has a key that is null"
        if file.bounds is not None and rows.num_rows:
            bounds = pc.min_max(rows.column(0))
            if bounds["min"].as_py() < file.bounds[0] or bounds["max"].as_py() > file.bounds[1]:
                yield f"file {file.path} has a key outside of the bounds in the log"
    last: pa.RecordBatch | None = None
    for part in reading.scan(snapshot, reading.Selection(key, KeyRange(), ())):
        pieces = [part] if last is None else [last, part]
        if repeats(pa.Table.from_batches(pieces), key):
            yield "two rows have the same key"
            return
        last = part.slice(part.num_rows - 1)
