"""The entries of a Delta table's log: what each version has changed, as far as files and properties tell."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from headrace.errors import DataLossError, StoreDamagedError, UnsupportedError
from headrace_lake.delta.places import Place

LOG = "_delta_log"
_ENTRY = re.compile(r"(\d{20})\.json")
_KEPT = 4096


@dataclass(frozen=True)
class DataFile:
    """A data file of a table, or a file of its change feed.

    Attributes:
        path: relative to the directory of the table.
        rows: the number of rows; None if the log does not have it.
        bounds: the least and the greatest value of the first key column, or values beyond them; None if unknown.
        partition: the values of the partition columns, in the form of the log.
    """

    path: str
    size: int
    rows: int | None
    bounds: tuple[Any, Any] | None = None
    partition: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Entry:
    """What a version has changed.

    Attributes:
        version: the version.
        time: the time of the commit, in microseconds since 1970.
        added: the new data files. Files with the same rows as removed ones, as those of OPTIMIZE, are left out.
        removed: the data files that are no longer in the table.
        feed: the files of the change feed; empty if the version has none.
        properties: the properties of the table; None if the version has not changed them.
    """

    version: int
    time: int
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


class Log:
    """The log of a table. Entries never change, so it keeps what it has read.

    Args:
        name: the table's name, for messages.
        directory: the directory of the table.
    """

    def __init__(self, name: str, directory: Place) -> None:
        self._name = name
        self._directory = directory / LOG
        self._entries: dict[int, Entry] = {}

    def versions(self) -> range:
        """Return the versions whose entries exist, up to the newest one and without a gap."""
        try:
            names = [path.name for path in self._directory.iterdir()]
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

    def entry(self, version: int) -> Entry:
        """Return the entry of a version that the table has had.

        Raises:
            DataLossError: the entry was deleted.
        """
        found = self._entries.get(version)
        if found is None:
            path = self._directory / f"{version:020}.json"
            try:
                text, modified = path.read_text(), path.stat().st_mtime
            except FileNotFoundError:
                raise self._lost(version) from None
            found = self._entries[version] = _parsed(self._name, version, text, modified)
            while len(self._entries) > _KEPT:
                del self._entries[next(iter(self._entries))]
        return found

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
        actions = [json.loads(line) for line in text.splitlines() if line.strip()]
    except ValueError as error:
        raise StoreDamagedError(
            f"the log of Delta table {name!r} cannot be read", received=f"{version}: {error}"
        ) from None
    for action in actions:
        for kind, content in action.items():
            match kind:
                case "add" if content["dataChange"]:
                    added[content["path"]] = _file(name, content)
                case "remove" if content["dataChange"]:
                    removed[content["path"]] = _file(name, content)
                case "cdc":
                    feed.append(_file(name, content))
                case "metaData":
                    properties = content.get("configuration") or {}
                case "commitInfo":
                    time = content.get("inCommitTimestamp") or content.get("timestamp") or time
    return Entry(version, int(time * 1000), tuple(added.values()), tuple(removed.values()), tuple(feed), properties)


def _file(name: str, content: Mapping[str, Any]) -> DataFile:
    if content.get("deletionVector"):
        raise UnsupportedError(
            f"headrace does not support what Delta table {name!r} needs",
            received="feature deletionVectors",
            remedy="use a table without it",
        )
    statistics = json.loads(content.get("stats") or "{}")
    return DataFile(
        unquote(content["path"]),
        content.get("size") or 0,
        statistics.get("numRecords"),
        partition=content.get("partitionValues") or {},
    )
