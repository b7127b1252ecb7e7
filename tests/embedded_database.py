"""The SQLite database of an embedded store, for tests that look inside or damage it."""

from __future__ import annotations

import struct
from pathlib import Path

import apsw

from headrace.stores.embedded.store_files import DATABASE_FILE
from headrace.support.sqlite.opening import checksum_vfs


def raw_connection(directory: Path) -> apsw.Connection:
    """Open the database of a store. Its changes get checksums, which those of other SQLite programs do not."""
    return apsw.Connection(str(directory / DATABASE_FILE), vfs=checksum_vfs())


def with_checksum(page: bytes | bytearray) -> bytes:
    """Return a page with the checksum of its bytes, for damage that checksums cannot show."""
    page = bytes(page)
    words = struct.unpack(f"<{(len(page) - 8) // 4}I", page[:-8])
    first = second = 0
    for at in range(0, len(words), 2):
        first = (first + words[at] + second) & 0xFFFFFFFF
        second = (second + words[at + 1] + first) & 0xFFFFFFFF
    return page[:-8] + struct.pack("<II", first, second)
