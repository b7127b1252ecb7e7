"""The content of Cypress' files: parts that never change, each a file of the store, shared by copies and snapshots."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from headrace.endpoints.ytsaurus.tree import Facet, Tree
from headrace.ports.files import Files, Upload

DIRECTORY = "/.cypress"
"""Where the parts are among the files of the store."""
PIECE_BYTES = 4 << 20
GRACE_MICROSECONDS = 60_000_000
"""A part that nobody uses any more stays for so long, for those who are reading it."""


@dataclass(frozen=True)
class Part:
    """One part of a file's content: the name of the store's file that holds it, and how many bytes it has."""

    name: str
    size: int

    @classmethod
    def parse(cls, text: str) -> Part:
        name, size = json.loads(text)
        return cls(name, size)

    @property
    def text(self) -> str:
        return json.dumps([self.name, self.size])


class Contents:
    """The contents of all file nodes."""

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
        return upload, Part(name, size)

    def parts(self, chain: tuple[str, ...], node: str) -> list[Part]:
        """Return the parts of a node, in order."""
        return [Part.parse(text) for text in self._tree.items(chain, node, Facet.PART).values()]

    def set_parts(self, chain: tuple[str, ...], node: str, parts: list[Part], *, append: bool = False) -> None:
        """Replace the parts of a node, or put more of them at the end."""
        old = self._tree.items(chain, node, Facet.PART)
        first = len(old) if append else 0
        for number, part in enumerate(parts, start=first):
            self._tree.put(chain[0], node, Facet.PART, _key(number), part.text)
        for number in range(first + len(parts), len(old)):
            self._tree.put(chain[0], node, Facet.PART, _key(number), None)

    def read(self, parts: list[Part], offset: int, length: int) -> Iterator[bytes]:
        """Yield ``length`` bytes from an offset on, which must be there, in pieces."""
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
        """Remove parts that have not been used for a while."""
        before = now - GRACE_MICROSECONDS
        orphans = self._tree.orphans(before)
        with self._tree.database.write():
            for text in orphans:
                self._files.remove(f"{DIRECTORY}/{Part.parse(text).name}")
            self._tree.forget_garbage(before)


def _key(number: int) -> str:
    return f"{number:08d}"
