"""The bytes of Cypress' files: parts that never change, each a file of the store, shared by copies and snapshots."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from typing import BinaryIO

import apsw

from headrace.endpoints.ytsaurus.storage import static_rows as static_tables
from headrace.endpoints.ytsaurus.storage.part_lists import Part, Version
from headrace.endpoints.ytsaurus.storage.tree import Tree
from headrace.ports.files import Files, Upload

DIRECTORY = "/.cypress"
"""Where the parts are among the files of the store."""
PIECE_BYTES = 4 << 20
GRACE_MICROSECONDS = 60_000_000
"""A list of parts that no node has any more stays this long, for clients that are reading a file of it."""


class Contents:
    """What all files and static tables hold."""

    def __init__(self, tree: Tree, files: Files) -> None:
        self._tree = tree
        self._files = files

    def upload(self, source: BinaryIO) -> tuple[Upload, Part]:
        """Bring bytes into the store, where nobody sees them before the upload is committed."""
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
        return upload, Part(name, size, size)

    def parts(self, chain: tuple[str, ...], node: str) -> list[Part]:
        """Return the parts of a file or static table, in order."""
        return self._tree.lists.parts(self._version(chain, node).whole)

    def totals(self, chain: tuple[str, ...], node: str) -> tuple[int, int, int]:
        """Return how many parts, rows of a table, and bytes a node holds."""
        return self._tree.lists.totals(self._version(chain, node).whole)

    def append(self, chain: tuple[str, ...], node: str, parts: Iterable[Part]) -> None:
        """Put parts behind those of a node, of which the transaction has at least a shared lock."""
        self._tree.branch(chain, node)
        version = self._version(chain, node)
        self._tree.set_version(chain, node, self._tree.lists.appended(version, parts))

    def replace(self, chain: tuple[str, ...], node: str, parts: Iterable[Part]) -> None:
        """Give a node other parts, under an exclusive lock."""
        self._tree.set_version(chain, node, self._tree.lists.appended(Version(), parts))

    def concatenate(
        self, chain: tuple[str, ...], node: str, sources: Iterable[tuple[tuple[str, ...], str]], *, append: bool
    ) -> None:
        """Give a node the parts of other ones (each a chain and an id), which then share them, or put these behind."""
        found = Version(added=tuple(each for source in sources for each in self._version(*source).whole))
        self._tree.branch(chain, node)
        version = self._version(chain, node) if append else Version()
        self._tree.set_version(chain, node, self._tree.lists.joined(version, found))

    def read(self, parts: list[Part], offset: int, length: int) -> Iterator[bytes]:
        """Yield ``length`` bytes of a file from an offset on, which must be there, in pieces."""
        for part in parts:
            skipped = min(offset, part.size)
            wanted = min(part.size - skipped, length)
            offset -= skipped
            length -= wanted
            # A piece at a time: a client that reads slowly must not keep a snapshot of the whole store open.
            for begin in range(skipped, skipped + wanted, PIECE_BYTES):
                size = min(PIECE_BYTES, skipped + wanted - begin)
                yield b"".join(self._files.open_read(f"{DIRECTORY}/{part.name}", begin, size).parts)

    def sweep(self, now: int) -> None:
        """Remove parts that no version of a node has had for a while: replaced, removed or aborted."""
        before = now - GRACE_MICROSECONDS
        released = set(self._tree.lists.released(before))
        if not released:
            return
        # A list that no version has in one state of the store gets into none later, as versions only come of others.
        used = released & self._tree.used_lists().keys()
        for name in released - used:
            with self._tree.database.write() as connection:
                self._cut(connection, name, 0, before)
        if used:
            with self._tree.database.write() as connection:
                ends = self._tree.used_lists()
                for name in used:
                    # Of a list that a copy or a snapshot shares, what was appended later may be in use no longer.
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
