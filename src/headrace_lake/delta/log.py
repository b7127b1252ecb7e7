"""The entries of a Delta table's log: what each version has changed, as far as files and properties tell.

The package ``deltalake`` reads the log, too, but does not return deletion vectors as the log has them. `added_files`
does.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq

from headrace.errors import DataLossError, StoreDamagedError
from headrace_lake.delta.vectors import Vector
from headrace_lake.places import Place, file_identity, identity_of, open_input

LOG = "_delta_log"
FEED = "_change_data"
"""The directory with the files of the change feed of a table."""
_ENTRY = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.\d{10}\.(\d{10}))?\.parquet")
_KEPT = 4096


@dataclass(frozen=True)
class DataFile:
    """A data file of a table, or a file of its change feed.

    Attributes:
        log_path: the path relative to the directory of the table, as the log has it.
        stored_rows: the number of rows of the file, with deleted ones; None if the log does not have it.
        bounds: the least and the greatest value of the first key column, or values beyond them; None if unknown.
        partition: the values of the partition columns, in the form of the log.
        vector: which rows are deleted; None if none is.
    """

    log_path: str
    size: int
    stored_rows: int | None
    bounds: tuple[Any, Any] | None = None
    partition: Mapping[str, str | None] = field(default_factory=dict)
    vector: Vector | None = None

    @property
    def path(self) -> str:
        """The path relative to the directory of the table."""
        return unquote(self.log_path)

    @property
    def deleted_rows(self) -> int:
        """The number of deleted rows."""
        return 0 if self.vector is None else self.vector.rows

    @property
    def rows(self) -> int | None:
        """The number of rows without deleted ones; None if the log does not have it."""
        return None if self.stored_rows is None else self.stored_rows - self.deleted_rows


@dataclass(frozen=True)
class Entry:
    """What a version has changed.

    Attributes:
        version: the version.
        time: the time of the commit, in microseconds since 1970.
        digest: a hash of the entry.
        added: the new data files. Files with the same rows as removed ones, as those of OPTIMIZE, are left out.
        removed: the data files that are no longer in the table.
        feed: the files of the change feed; empty if the version has none.
        properties: the properties of the table; None if the version has not changed them.
    """

    version: int
    time: int
    digest: str
    added: tuple[DataFile, ...] = ()
    removed: tuple[DataFile, ...] = ()
    feed: tuple[DataFile, ...] = ()
    properties: Mapping[str, str | None] | None = None

    @property
    def files(self) -> tuple[DataFile, ...]:
        """The files whose rows tell the changes."""
        return self.feed or (*self.removed, *self.added)

    @property
    def size(self) -> int:
        """The size of these files, in bytes."""
        return sum(file.size for file in self.files)


def log_entry(directory: Place, version: int) -> Place:
    """Return the entry of a version of a table in a directory."""
    return directory / LOG / f"{version:020}.json"


class Log:
    """The log of a table. Entries never change, so it keeps what it has read, until the table is replaced.

    Args:
        name: the table's name, for messages.
        directory: the directory of the table.
    """

    def __init__(self, name: str, directory: Place) -> None:
        self._name = name
        self._directory = directory
        self._entries: dict[int, tuple[object, Entry]] = {}

    def versions(self) -> range:
        """Return the versions whose entries exist, up to the newest one and without a gap."""
        try:
            names = [path.name for path in (self._directory / LOG).iterdir()]
        except FileNotFoundError:
            return range(0)
        numbers = sorted((int(found[1]) for name in names if (found := _ENTRY.fullmatch(name))), reverse=True)
        first = next((at for at, number in enumerate(numbers) if number != numbers[0] - at), len(numbers))
        return range(numbers[0] - first + 1, numbers[0] + 1) if numbers else range(0)

    def after(self, version: int, until: int) -> Iterator[Entry]:
        """Yield the entries after a version, up to another one.

        Raises:
            DataLossError: the entry of a version was deleted.
        """
        for number in range(version + 1, until + 1):
            yield self.entry(number)

    def entry(self, version: int, *, look: bool = False) -> Entry:
        """Return the entry of a version that the table has had.

        In a directory, another file of the name is always noticed.

        Args:
            look: notice it in a bucket, too, where that is a request.

        Raises:
            DataLossError: the entry was deleted, or has no actions.
        """
        path, known = log_entry(self._directory, version), self._entries.get(version)
        looks = look or isinstance(path, Path)
        # An entry that was only deleted is no other one.
        if known is not None and not (looks and file_identity(path) not in (known[0], None)):
            return known[1]
        try:
            status, text = path.stat(), path.read_text("utf-8")
        except FileNotFoundError:
            raise self._lost(version) from None
        if known is not None:
            # The others are of the former table, too.
            self._entries.clear()
        found = _parsed(self._name, version, text, status.st_mtime)
        self._entries[version] = identity_of(status), found
        while len(self._entries) > _KEPT:
            del self._entries[next(iter(self._entries))]
        return found

    def check_has(self, version: int) -> None:
        """Raise `DataLossError` if the log no longer has all that a version is read from."""
        try:
            names = {path.name for path in (self._directory / LOG).iterdir()}
        except FileNotFoundError:
            names = set()
        checkpoint, _ = _last_checkpoint(names, version)
        if not {log_entry(self._directory, number).name for number in range(checkpoint + 1, version + 1)} <= names:
            raise self._lost(version)

    def _lost(self, version: int) -> DataLossError:
        there = self.versions()
        return DataLossError(
            f"the log of Delta table {self._name!r} no longer has the entry of a version that was not read",
            received=f"version {version}",
            valid=f"versions {there[0]} to {there[-1]}" if there else "none",
            remedy="the table's property delta.logRetentionDuration must be longer than the pauses of its readers",
        )


def _parsed(name: str, version: int, text: str, modified: float) -> Entry:
    added: dict[str, DataFile] = {}
    removed: dict[str, DataFile] = {}
    feed: list[DataFile] = []
    properties: Mapping[str, str | None] | None = None
    time = modified * 1000
    try:
        actions = [json.loads(line) for line in _lines(text)]
    except ValueError as error:
        raise StoreDamagedError(
            f"the log of Delta table {name!r} cannot be read", received=f"{version}: {error}"
        ) from None
    if not actions:
        raise DataLossError(
            f"the log of Delta table {name!r} has an empty entry, so the changes of this version are unknown",
            received=f"version {version}",
            remedy="if a program is writing it, start again when it is complete; a power failure can empty an entry, "
            "too: restore it from a copy of the table",
        )
    for action in actions:
        for kind, content in action.items():
            match kind:
                case "add" if content["dataChange"]:
                    added[content["path"]] = _file(content)
                case "remove" if content["dataChange"]:
                    removed[content["path"]] = _file(content)
                case "cdc":
                    feed.append(_file(content))
                case "metaData":
                    properties = content.get("configuration") or {}
                case "commitInfo":
                    time = content.get("inCommitTimestamp") or content.get("timestamp") or time
    digest = hashlib.sha256(text.encode()).hexdigest()
    return Entry(
        version, int(time * 1000), digest, tuple(added.values()), tuple(removed.values()), tuple(feed), properties
    )


def _lines(text: str) -> list[str]:
    """Return the actions of an entry.

    JSON escapes line feeds, but not all other characters at which `str.splitlines` cuts.
    """
    return [line for line in text.split("\n") if line.strip()]


def _file(content: Mapping[str, Any]) -> DataFile:
    statistics = json.loads(content.get("stats") or "{}")
    return DataFile(
        content["path"],
        content.get("size") or 0,
        statistics.get("numRecords"),
        partition=content.get("partitionValues") or {},
        vector=Vector.of(content.get("deletionVector")),
    )


# -- the files of a version ---------------------------------------------------------------------------------------


def added_files(name: str, directory: Place, version: int, paths: Collection[str]) -> dict[str, Mapping[str, Any]]:
    """Return what the log has for files of a version: the content of their last ``add``.

    Args:
        name: the table's name, for messages.
        directory: the directory of the table.
        paths: the files, as the log has their paths.

    Raises:
        StoreDamagedError: the log does not have all of them.
    """
    found: dict[str, Mapping[str, Any]] = {}
    names = {path.name for path in (directory / LOG).iterdir()}
    checkpoint, parts = _last_checkpoint(names, version)
    for number in range(version, checkpoint, -1):
        if len(found) == len(paths):
            break
        try:
            text = log_entry(directory, number).read_text("utf-8")
        except FileNotFoundError:
            break
        for line in _lines(text):
            if '"add"' in line and (content := json.loads(line).get("add")) and content["path"] in paths:
                found.setdefault(content["path"], content)
    for part in parts if len(found) < len(paths) else ():
        with open_input(directory / LOG / part) as file:
            opened = pq.ParquetFile(file)
            # Spark repeats statistics and partitions in the types of the columns, which an entry does not have.
            fields = [field.name for field in opened.schema_arrow.field("add").type]
            columns = [f"add.{name}" for name in fields if not name.endswith("_parsed")]
            for content in opened.read(columns=columns).column("add").to_pylist():
                if content is not None and content["path"] in paths:
                    maps = {each: dict(content.get(each) or ()) for each in ("partitionValues", "tags")}
                    found.setdefault(content["path"], content | maps)
    if len(found) < len(paths):
        raise StoreDamagedError(
            f"the log of Delta table {name!r} lacks the entries of files", received=sorted(set(paths) - set(found))[:3]
        )
    return found


def _last_checkpoint(names: Collection[str], version: int) -> tuple[int, Sequence[str]]:
    """Return the version of the last complete checkpoint up to a version, and its files; -1 if there is none."""
    found: dict[tuple[int, int], list[str]] = {}
    for name in names:
        parts = _CHECKPOINT.fullmatch(name)
        if parts and int(parts[1]) <= version:
            found.setdefault((int(parts[1]), int(parts[2] or 1)), []).append(name)
    complete = [(number, files) for (number, count), files in found.items() if len(files) == count]
    return max(complete, default=(-1, ()))
