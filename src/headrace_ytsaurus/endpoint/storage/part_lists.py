"""The contents of static tables and files: append-only lists of parts, and versions of a node that share them.

A part never changes: rows of a static table, or bytes of a file. A version of a node is a sequence of segments, each of
them a prefix of a list. So a branch of a table or a copy does not touch the parts. A reader of an older version reads
its own prefixes of the lists while other transactions append.
"""

from __future__ import annotations

import enum
import json
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headrace.stores.embedded.for_servers import Database
from headrace_ytsaurus.endpoint.ids import ObjectType, derived_id

DDL = """
CREATE TABLE IF NOT EXISTS yt_part_list (list TEXT NOT NULL, number INTEGER NOT NULL, part NOT NULL,
    n INTEGER NOT NULL, bytes INTEGER NOT NULL, PRIMARY KEY (list, number)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS yt_part_list_part ON yt_part_list (part);
CREATE TABLE IF NOT EXISTS yt_list_garbage (list TEXT PRIMARY KEY, since INTEGER NOT NULL) WITHOUT ROWID
"""


@dataclass(frozen=True)
class ContentPart:
    """A part of a file or a static table.

    Attributes:
        name: the number of a piece of rows, or the name of a file in the store.
        count: rows of a table, bytes of a file.
        size: bytes.
    """

    name: int | str
    count: int
    size: int

    @property
    def chunk_id(self) -> str:
        """The id of the part for clients, to whom it is a chunk."""
        return derived_id(ObjectType.CHUNK, str(self.name))


@dataclass(frozen=True)
class Segment:
    """The first ``end`` parts of a list."""

    list: str
    end: int


class Mode(enum.StrEnum):
    """A transaction's change of the content of a node."""

    SAME = "same"
    """None. The version is the content at the time when the transaction locked the node."""
    APPENDED = "appended"
    REPLACED = "replaced"
    """The content is new. Committed versions always have this mode."""


@dataclass(frozen=True)
class Version:
    """The content of a node in one transaction.

    Attributes:
        base: the content when the transaction locked the node; empty if the transaction has replaced it.
        added: the segments appended by the transaction.
        own: the last list of `added` belongs to this version only, and can be appended to.
    """

    mode: Mode = Mode.REPLACED
    base: tuple[Segment, ...] = ()
    added: tuple[Segment, ...] = ()
    own: bool = False

    @property
    def whole(self) -> tuple[Segment, ...]:
        """All segments of the content."""
        return (*self.base, *self.added)

    @property
    def text(self) -> str:
        """The version in its saved form."""
        base, added = ([[each.list, each.end] for each in segments] for segments in (self.base, self.added))
        return json.dumps([self.mode, base, added, self.own])

    @classmethod
    def parse(cls, text: str) -> Version:
        """Parse a saved version."""
        mode, base, added, own = json.loads(text)
        return cls(Mode(mode), _segments(base), _segments(added), own)

    def on(self, other: Version) -> Version:
        """Return the version with the content of another one as its base."""
        return replace(self, base=other.whole)

    def appended(self, more: tuple[Segment, ...], *, own: bool) -> Version:
        """Return the version with more segments."""
        mode = Mode.REPLACED if self.mode is Mode.REPLACED else Mode.APPENDED
        return replace(self, mode=mode, added=(*self.added, *more), own=own)


def _segments(kept: list[list[Any]]) -> tuple[Segment, ...]:
    return tuple(Segment(name, end) for name, end in kept)


def kept(segments: Sequence[Segment]) -> Version:
    """Return a version without changes."""
    return Version(Mode.SAME, tuple(segments))


class PartLists:
    """All lists of parts. Methods that change something must run in a write transaction of the store."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def appended(self, version: Version, parts: Iterable[ContentPart]) -> Version:
        """Append parts to a version, and return the result."""
        given = list(parts)
        if not given:
            return version.appended((), own=version.own)
        last = version.added[-1] if version.own else Segment(uuid.uuid4().hex, 0)
        with self._database.write() as connection:
            connection.executemany(
                "INSERT INTO yt_part_list VALUES (?, ?, ?, ?, ?)",
                ((last.list, number, part.name, part.count, part.size) for number, part in enumerate(given, last.end)),
            )
        return _grown(version, last, len(given))

    def joined(self, version: Version, child: Version) -> Version:
        """Return a version with the segments that another has added; the result may take over the other's own list."""
        if child.own and not version.own:
            return version.appended(child.added, own=True)
        # The parts are copied into one list, because otherwise each commit would add a segment.
        last = version.added[-1] if version.own else Segment(uuid.uuid4().hex, 0)
        for segment in child.added:
            self._database.execute(
                "INSERT INTO yt_part_list SELECT ?, number + ?, part, n, bytes FROM yt_part_list"
                " WHERE list = ? AND number < ?",
                (last.list, last.end, segment.list, segment.end),
            )
            version = _grown(version, last, segment.end)
            last = version.added[-1]
        return version.appended((), own=version.own)

    def parts(self, segments: Iterable[Segment]) -> list[ContentPart]:
        """Return all parts of segments, in order."""
        query = "SELECT part, n, bytes FROM yt_part_list WHERE list = ? AND number < ? ORDER BY number"
        return [ContentPart(*row) for each in segments for row in self._database.query(query, (each.list, each.end))]

    def totals(self, segments: Iterable[Segment]) -> tuple[int, int, int]:
        """Return the number of parts, of rows (or bytes of a file), and of bytes in segments."""
        query = (
            "SELECT count(*), ifnull(sum(n), 0), ifnull(sum(bytes), 0) FROM yt_part_list WHERE list = ? AND number < ?"
        )
        found = [self._database.query(query, (each.list, each.end))[0] for each in segments]
        parts, count, size = (sum(column) for column in zip((0, 0, 0), *found, strict=True))
        return parts, count, size

    # -- unused lists -------------------------------------------------------------------------------

    def release(self, old: Version, new: Version | None) -> None:
        """Mark the lists that a replaced version used and the new one does not, so that they are deleted if unused."""
        left = {each.list for each in old.whole} - {each.list for each in (new.whole if new else ())}
        now = time.time_ns() // 1000
        for each in left:
            self._database.execute("INSERT OR REPLACE INTO yt_list_garbage VALUES (?, ?)", (each, now))

    def released(self, before: int) -> list[str]:
        """Return the lists whose last mark is older than a time (µs since 1970)."""
        rows = self._database.query("SELECT list FROM yt_list_garbage WHERE since < ?", (before,))
        return [name for (name,) in rows]

    def keep(self, name: str, before: int) -> None:
        """Remove the mark of a list, unless it is newer than a time."""
        self._database.execute("DELETE FROM yt_list_garbage WHERE list = ? AND since < ?", (name, before))

    def cut(self, name: str, end: int) -> list[ContentPart]:
        """Delete the parts of a list from a number on; return the deleted parts that no other list has."""
        removed = self._database.query(
            "SELECT DISTINCT part, n, bytes FROM yt_part_list a WHERE list = ?1 AND number >= ?2 AND NOT EXISTS"
            " (SELECT 1 FROM yt_part_list b WHERE b.part = a.part AND (b.list != ?1 OR b.number < ?2))",
            (name, end),
        )
        self._database.execute("DELETE FROM yt_part_list WHERE list = ? AND number >= ?", (name, end))
        return [ContentPart(*row) for row in removed]


def _grown(version: Version, last: Segment, count: int) -> Version:
    """Return a version whose own list has more parts."""
    before = version.added[:-1] if version.own else version.added
    return replace(version, added=before).appended((replace(last, end=last.end + count),), own=True)
