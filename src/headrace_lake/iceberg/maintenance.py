"""The maintenance of Iceberg tables: compaction in key order, old snapshots and files, checks, the history."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
from pyiceberg.manifest import DataFile, ManifestFile
from pyiceberg.table.snapshots import ancestors_of

from headrace.errors import HeadraceError, StoreDamagedError, StoreError
from headrace.model.findings import Finding, Status
from headrace.model.tables.conditions import KeyRange
from headrace_lake import data_files
from headrace_lake.data_files import PREFIX, MissingFileError
from headrace_lake.iceberg.commits import Changes, NewFiles, commit
from headrace_lake.iceberg.files import local_path
from headrace_lake.iceberg.version import StoredFile, Version
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
    of_size,
    repeats_a_key,
    small_files,
)
from headrace_lake.places import files_below
from headrace_lake.scanning import Selection

# The names that headrace and Iceberg's own writers give: a file of another name may be waiting for its program.
_DATA_FILES = (f"{PREFIX}*.parquet", "[0-9]*-[0-9]*-*.parquet")
_METADATA_FILES = tuple(f"metadata/{name}" for name in ("snap-*.avro", "*-m[0-9]*.avro", "[0-9]*-*.metadata.json"))


class IcebergMaintenance:
    """The maintenance of an Iceberg table: see `headrace_lake.maintenance.Maintenance`.

    Args:
        load: returns the newest version.
    """

    def __init__(self, name: str, load: Callable[[], Version]) -> None:
        self._name = name
        self._load = load

    def compact(self, target_bytes: int = TARGET_BYTES) -> Compaction:
        return _compact(self._load, target_bytes, lambda files: list(groups(files, target_bytes)), divides=True)

    # -- snapshots and files that nothing needs -----------------------------------------------------------------

    def vacuum(self, older_than: float = RETENTION_SECONDS) -> int:
        end = time.time() - older_than
        commit(self._load, _Expiry(end))
        unused = _unused(self._load(), end)
        try:
            for path in unused:
                path.unlink(missing_ok=True)
        except OSError as error:
            message = f"a file of the Iceberg table cannot be deleted: {error.strerror}"
            raise StoreError(message, received=str(error.filename)) from error
        return len(unused)

    # -- checks -------------------------------------------------------------------------------------------------

    def check(self) -> list[Finding]:
        name = f"Table {self._name}"
        try:
            version = self._load()
            version.check_writable()
            problems = list(_problems(version))
            unused = len(_unused(version, time.time() - RETENTION_SECONDS))
        except (MissingFileError, StoreDamagedError) as error:
            problems = [str(error)]
        except HeadraceError as error:
            return [Finding(name, Status.WARN, str(error))]
        if problems:
            return [Finding(name, Status.FAIL, "; ".join(problems), "restore the files, or load the table again")]
        rows = sum(file.entry.record_count for file in version.files)
        found = f"version {version.number}, {rows} rows in {len(version.files)} files"
        if version.schema.primary_key:
            found += "; all keys are different"
        if unused:
            remedy = "headrace lake vacuum deletes them"
            return [Finding(name, Status.WARN, f"{found}; {unused} old files that no snapshot has", remedy)]
        return [Finding(name, Status.OK, found)]

    # -- history ------------------------------------------------------------------------------------------------

    def history(self, limit: int) -> list[TableVersion]:
        table = self._load().table
        found = []
        for snapshot in list(ancestors_of(table.current_snapshot(), table.metadata))[:limit]:
            summary = snapshot.summary
            operation = "" if summary is None else summary.operation.value
            ours = {} if summary is None else summary.additional_properties
            batch = ours.get("headrace.batch")
            found.append(
                TableVersion(
                    snapshot.sequence_number or 0,
                    snapshot.timestamp_ms / 1000,
                    ours.get("headrace.operation", operation),
                    ours.get("headrace.job"),
                    None if batch is None else int(batch),
                )
            )
        return found


# -- compaction ---------------------------------------------------------------------------------------------------


def merge_small(load: Callable[[], Version]) -> Compaction:
    """Merge the small files of a table, if it has many of them: streams do so between two batches."""

    def choose(files: Sequence[StoredFile]) -> list[list[StoredFile]]:
        return [small_files(files)] if has_many_small(files) else []

    return _compact(load, TARGET_BYTES, choose, divides=False)


class _Merge:
    """Replaces each group of files that ``choose`` returns.

    Args:
        divides: whether files of earlier partitionings are replaced, too. The next merge has their pieces.
    """

    def __init__(
        self, target_bytes: int, choose: Callable[[Sequence[StoredFile]], list[list[StoredFile]]], *, divides: bool
    ) -> None:
        self.files = NewFiles(PREFIX)
        self.done = Changes()
        self._target_bytes = target_bytes
        self._choose = choose
        self._divides = divides

    def plan(self, version: Version) -> Changes | None:
        files = [file for file in version.files if file.entry.spec_id == version.spec.spec_id]
        chosen = in_partitions(files, lambda file: file.entry.partition, self._choose)
        added = [new for group in chosen for new in self._merged(version, group)]
        if self._divides:
            earlier = [file for file in version.files if file.entry.spec_id != version.spec.spec_id]
            pieces = [*of_size(earlier, self._target_bytes)]
            added += [new for group in pieces for new in self._divided(version, group)]
            chosen += pieces
        self.done = Changes(added, [file.entry for group in chosen for file in group])
        return self.done if chosen else None

    def _divided(self, version: Version, group: Sequence[StoredFile]) -> Iterator[DataFile]:
        batches = list(version.scan(Selection(version.schema.names, KeyRange(), ()), group))
        if batches:
            yield from self.files.write(version, pa.Table.from_batches(batches))

    def _merged(self, version: Version, group: Sequence[StoredFile]) -> Iterator[DataFile]:
        rows = version.scan(Selection(version.schema.names, KeyRange(), ()), group)
        for content in file_contents(rows, self._target_bytes):
            yield self.files.write_ordered(version, content, self._target_bytes, group[0].entry.partition)


def _compact(
    load: Callable[[], Version],
    target_bytes: int,
    choose: Callable[[Sequence[StoredFile]], list[list[StoredFile]]],
    *,
    divides: bool,
) -> Compaction:
    merge = _Merge(target_bytes, choose, divides=divides)
    number = commit(load, merge, information={"headrace.operation": "compaction"})
    if number is None:
        return Compaction(None)
    return Compaction(number, len(merge.done.removed), len(merge.done.added))


# -- vacuum -------------------------------------------------------------------------------------------------------


class _Expiry:
    """Expires the snapshots that were replaced before a time, in seconds since 1970."""

    def __init__(self, end: float) -> None:
        self.files = NewFiles(PREFIX)
        self._end = end * 1000

    def plan(self, version: Version) -> Changes | None:
        metadata = version.table.metadata
        times = [(each.parent_snapshot_id, each.timestamp_ms) for each in metadata.snapshots]
        # A rollback replaces a snapshot, too, which is then the parent of no other.
        times += [(before.snapshot_id, after.timestamp_ms) for before, after in pairwise(metadata.snapshot_log)]
        replaced: dict[int | None, int] = {}
        for number, moment in times:
            replaced[number] = max(moment, replaced.get(number, 0))
        old = [
            each.snapshot_id
            for each in version.unprotected_snapshots
            if replaced.get(each.snapshot_id, each.timestamp_ms) < self._end
        ]
        return Changes(expired=old) if old else None


def _unused(version: Version, end: float) -> list[Path]:
    """Return the files of a table that no snapshot has, and that were written or replaced before a time."""
    place = version.location
    # pyiceberg has a directory for each field of a partition.
    depths = {len(spec.fields) for spec in version.table.specs().values()}
    patterns = [f"data/{'*/' * depth}{name}" for depth in {0, *depths} for name in _DATA_FILES]
    found = [each for pattern in (*patterns, *_METADATA_FILES) for each in files_below(place, pattern).items()]
    there = {place / name for name, written in found if written < end}
    if there:
        there -= _used(version)
    return sorted(there)


def _used(version: Version) -> set[Path]:
    """Return the files that the snapshots of a version have, and those of its metadata."""
    table = version.table
    found = {table.metadata_location, *(each.metadata_file for each in table.metadata.metadata_log)}
    manifests: dict[str, ManifestFile] = {}
    for snapshot in table.metadata.snapshots:
        found.add(snapshot.manifest_list)
        manifests |= {each.manifest_path: each for each in snapshot.manifests(table.io)}
    for path, manifest in manifests.items():
        found.add(path)
        found |= {each.data_file.file_path for each in manifest.fetch_manifest_entry(table.io)}
    return {local_path(each) for each in found}


# -- checks -------------------------------------------------------------------------------------------------------


def _problems(version: Version) -> Iterator[str]:
    key = list(version.schema.primary_key)
    for file in version.files:
        name = file.path.name
        if not file.path.exists() or file.path.stat().st_size != file.size:
            yield f"file {name} does not exist as the metadata has it"
            return
        with data_files.opened(file.path) as opened:
            rows = data_files.read(opened, version.schema.nullable(key), constants=file.constants)
        yield from key_problems(name, rows, file.entry.record_count, file.bounds, "the metadata")
    if key and repeats_a_key(version.scan(Selection(key, KeyRange(), ())), key):
        yield "two rows have the same key"
