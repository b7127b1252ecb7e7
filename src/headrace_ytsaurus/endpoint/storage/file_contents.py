"""The contents of files and static tables. Each part of a file is a file of the store; copies share the parts."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from typing import BinaryIO

import apsw

from headrace.ports.files import Files, Upload
from headrace_ytsaurus.endpoint.storage import static_rows as static_tables
from headrace_ytsaurus.endpoint.storage.part_lists import ContentPart, Version
from headrace_ytsaurus.endpoint.storage.tree import Tree

DIRECTORY = "/.cypress"
"""The directory of the parts among the files of the store."""
PIECE_BYTES = 4 << 20
GRACE_MICROSECONDS = 60_000_000
"""An unused list of parts is deleted after this time, because clients may still be reading a file from it."""


class Contents:
    """The contents of all files and static tables."""

    def __init__(self, tree: Tree, files: Files) -> None:
        self._tree = tree
        self._files = files

    def upload(self, source: BinaryIO) -> tuple[Upload, ContentPart]:
        """Copy bytes into the store. They become visible when the caller commits the returned upload."""
        name = uuid.uuid4().hex
        upload = self._files.create(f"{DIRECTORY}/{name}")
        size = 0
        try:
            while piece := source.read(PIECE_BYTES):
                upload.write(piece)
                size += len(piece)
        except BaseException:
            upload.abort()
            raise
        return upload, ContentPart(name, size, size)

    def parts(self, chain: tuple[str, ...], node: str) -> list[ContentPart]:
        """Return the parts of a file or static table, in order."""
        return self._tree.lists.parts(self._version(chain, node).whole)

    def totals(self, chain: tuple[str, ...], node: str) -> tuple[int, int, int]:
        """Return the number of parts, of rows of a table, and of bytes of a node."""
        return self._tree.lists.totals(self._version(chain, node).whole)

    def append(self, chain: tuple[str, ...], node: str, parts: Iterable[ContentPart]) -> None:
        """Append parts to a node. The transaction needs a shared lock."""
        self._tree.branch(chain, node)
        version = self._version(chain, node)
        self._tree.set_version(chain, node, self._tree.lists.appended(version, parts))

    def replace(self, chain: tuple[str, ...], node: str, parts: Iterable[ContentPart]) -> None:
        """Replace the parts of a node. The transaction needs an exclusive lock."""
        self._tree.set_version(chain, node, self._tree.lists.appended(Version(), parts))

    def concatenate(
        self, chain: tuple[str, ...], node: str, sources: Iterable[tuple[tuple[str, ...], str]], *, append: bool
    ) -> None:
        """Replace the parts of a node by those of sources (chain and id of each), or append them; parts are shared."""
        found = Version(added=tuple(each for source in sources for each in self._version(*source).whole))
        self._tree.branch(chain, node)
        version = self._version(chain, node) if append else Version()
        self._tree.set_version(chain, node, self._tree.lists.joined(version, found))

    def read(self, parts: list[ContentPart], offset: int, length: int) -> Iterator[bytes]:
        """Yield ``length`` bytes of a file from an offset, in pieces. The file must have that many bytes."""
        for part in parts:
            skipped = min(offset, part.size)
            wanted = min(part.size - skipped, length)
            offset -= skipped
            length -= wanted
            # Each piece is read separately. Otherwise a slow client would keep a snapshot of the whole store open.
            for begin in range(skipped, skipped + wanted, PIECE_BYTES):
                size = min(PIECE_BYTES, skipped + wanted - begin)
                yield b"".join(self._files.open_read(f"{DIRECTORY}/{part.name}", begin, size).parts)

    def sweep(self, now: int) -> None:
        """Delete the parts that no version of a node has used for a while."""
        before = now - GRACE_MICROSECONDS
        released = set(self._tree.lists.released(before))
        if not released:
            return
        # A list that no version uses at one time is never used again, because versions are only derived from others.
        used = released & self._tree.used_lists().keys()
        for name in released - used:
            with self._tree.database.write() as connection:
                self._cut(connection, name, 0, before)
        if used:
            with self._tree.database.write() as connection:
                ends = self._tree.used_lists()
                for name in used:
                    # A copy or a snapshot may share the list, and parts that were appended later may be unused.
                    self._cut(connection, name, ends.get(name, 0), before)

    def _cut(self, connection: apsw.Connection, name: str, end: int, before: int) -> None:
        for part in self._tree.lists.cut(name, end):
            if isinstance(part.name, str):
                self._files.remove(f"{DIRECTORY}/{part.name}")
            else:
                static_tables.drop(connection, part.name)
        self._tree.lists.keep(name, before)

    def _version(self, chain: tuple[str, ...], node: str) -> Version:
        return self._tree.version(chain, node) or Version()
