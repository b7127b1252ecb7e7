"""The port of `headrace lake`: what a format offers for the maintenance of its tables."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from headrace.model.findings import Finding
from headrace.ports import Store
from headrace.rows.by_position import repeats
from headrace.rows.rebatching import rebatched

TARGET_BYTES = 64 << 20
_PART_BYTES = 64 << 20
SMALL_BYTES, MOST_SMALL = 8 << 20, 50
RETENTION_SECONDS = 7 * 86400.0


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


@dataclass(frozen=True)
class TableVersion:
    """A version in the history of a table.

    Attributes:
        time: in seconds since 1970.
        job: the job that has published it; None for other writers.
        batch: the batch of the job.
    """

    version: int
    time: float
    operation: str
    job: str | None
    batch: int | None


class Maintenance(Protocol):
    """The maintenance of one table. Streams and other programs may write the table meanwhile."""

    def compact(self, target_bytes: int = TARGET_BYTES) -> Compaction:
        """Replace small files, and files with deleted rows, by larger ones in key order. The rows do not change.

        Args:
            target_bytes: the approximate size of a new file.
        """

    def vacuum(self, older_than: float = RETENTION_SECONDS) -> int:
        """Delete files that were replaced, and those of writers that have died; return their number.

        Args:
            older_than: the least age of the files in seconds, since they were replaced or written.
        """

    def check(self) -> list[Finding]:
        """Compare the files with the metadata of the table, and look for keys that are repeated or null."""

    def history(self, limit: int) -> list[TableVersion]:
        """Return the newest versions, the newest first."""


class LakeStore(Store):
    """A store of lake tables."""

    @abstractmethod
    def lake_tables(self) -> list[str]:
        """Return the names of the tables that `maintenance` knows."""

    @abstractmethod
    def maintenance(self, table: str) -> Maintenance:
        """Return the maintenance of a table.

        Raises:
            NotFoundError: there is no such table.
            UnsupportedError: it is no lake table.
        """


class Sized(Protocol):
    """A data file with its size."""

    @property
    def size(self) -> int:
        """The number of bytes."""


File = TypeVar("File", bound=Sized)


def small_files(files: Sequence[File]) -> list[File]:
    """Return the files that are much smaller than a file of a compaction."""
    return [file for file in files if file.size < SMALL_BYTES]


def has_many_small(files: Sequence[Sized]) -> bool:
    """Return whether a stream merges the small files of its table."""
    return len(small_files(files)) >= MOST_SMALL


def in_partitions(
    files: Iterable[File],
    partition: Callable[[File], Hashable],
    choose: Callable[[Sequence[File]], Iterable[Sequence[File]]],
) -> list[Sequence[File]]:
    """Return the groups of files that a function returns for the files of each partition.

    Args:
        partition: returns the partition of a file. Files of different ones must not be merged.
    """
    found: dict[Hashable, list[File]] = {}
    for file in files:
        found.setdefault(partition(file), []).append(file)
    return [group for of_partition in found.values() for group in choose(of_partition)]


def of_size(files: Iterable[File], size: int) -> Iterator[list[File]]:
    """Yield groups of files, each of about a size, or of one file."""
    group: list[File] = []
    for file in files:
        if group and sum(each.size for each in group) + file.size > size:
            yield group
            group = []
        group.append(file)
    if group:
        yield group


class Compactable(Sized, Protocol):
    """A data file that a compaction can replace."""

    @property
    def bounds(self) -> tuple[Any, Any] | None:
        """Bounds of the first key column; None if they are not known."""

    @property
    def deleted_rows(self) -> int:
        """The number of rows of the file that the table does not have."""


Replaced = TypeVar("Replaced", bound=Compactable)


def groups(files: Sequence[Replaced], target_bytes: int) -> Iterator[list[Replaced]]:
    """Yield groups of files to replace: chains of files that overlap, neighbours that are small, deleted rows."""
    if any(file.bounds is None for file in files):
        small = len(files) > 1 and sum(file.size for file in files) < len(files) * target_bytes // 2
        if small or any(file.deleted_rows for file in files):
            yield list(files)
        return
    group: list[Replaced] = []
    end = None
    for file in sorted(files, key=lambda each: each.bounds or ()):
        assert file.bounds is not None
        low, high = file.bounds
        overlaps = end is not None and low <= end
        small = sum(each.size for each in group) + file.size <= target_bytes
        if group and not overlaps and not small:
            if _is_worth(group):
                yield group
            group, end = [], None
        group.append(file)
        end = high if end is None else max(end, high)
    if _is_worth(group):
        yield group


def _is_worth(group: Sequence[Compactable]) -> bool:
    return len(group) > 1 or any(file.deleted_rows for file in group)


def file_contents(rows: Iterable[pa.RecordBatch], target_bytes: int) -> Iterator[Iterator[pa.Table]]:
    """Yield an iterator for each new file: of the rows that are left, for `data_files.write_ordered`."""
    parts = rebatched(rows, min(target_bytes, _PART_BYTES), by_bytes=True)
    for first in parts:
        yield itertools.chain([first], parts)


def key_problems(
    file: str, keys: pa.Table, rows: int | None, bounds: tuple[Any, Any] | None, metadata: str
) -> Iterator[str]:
    """Yield how a file differs from what the metadata of its table says.

    Args:
        keys: the key columns of the file.
        rows: the number of rows, as the metadata has it.
        bounds: the bounds of the first key column, as the metadata has them.
        metadata: its name in the messages.
    """
    if rows is not None and keys.num_rows != rows:
        yield f"file {file} has {keys.num_rows} rows, and {metadata} has {rows}"
    if any(column.null_count for column in keys.columns):
        yield f"file {file} has a key that is null"
    if bounds is not None and keys.num_rows:
        found = pc.min_max(keys.column(0))
        if found["min"].as_py() < bounds[0] or found["max"].as_py() > bounds[1]:
            yield f"file {file} has a key outside of the bounds in {metadata}"


def repeats_a_key(rows: Iterable[pa.RecordBatch], key: Sequence[str]) -> bool:
    """Return whether two rows have the same key.

    Args:
        rows: the keys, in their order.
    """
    last: pa.RecordBatch | None = None
    for part in rows:
        pieces = [part] if last is None else [last, part]
        if repeats(pa.Table.from_batches(pieces), key):
            return True
        last = part.slice(max(part.num_rows - 1, 0)) if part.num_rows else last
    return False
