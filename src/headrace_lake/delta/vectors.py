"""Deletion vectors: which rows of a data file are deleted, beside the file, which never changes.

The protocol of Delta Lake has the form of a vector: a set of row numbers as a 64-bit roaring bitmap, after a number
that names the form. A vector is text in the log, or a part of a file below the directory of the table. The vectors of a
commit of headrace are one file in the directory `DIRECTORY`, which readers take for a random prefix.
"""

from __future__ import annotations

import base64
import struct
import uuid
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyroaring

from headrace.errors import StoreDamagedError, UnsupportedError
from headrace_lake.data_files import PREFIX, MissingFileError, RowNumbers
from headrace_lake.places import Place, open_input, write_new

DIRECTORY = PREFIX.rstrip("-")
FILES = "deletion_vector_*.bin"
"""The names of files of vectors."""
_PORTABLE = 1681511377
_VERSION = b"\x01"
# RFC 1924 and Z85 differ in their digits only.
_RFC = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_FROM_Z85, _TO_Z85 = str.maketrans(_Z85, _RFC), str.maketrans(_RFC, _Z85)
_UUID_DIGITS = 20


@dataclass(frozen=True)
class Vector:
    """A deletion vector of the log.

    Attributes:
        storage: ``i`` for a vector in the log, ``u`` for one in a file.
        location: the vector; or the prefix of its file, and the UUID in the file's name, as the log has them.
        offset: the place of its size in the file; None for a vector in the log.
        size: the size of the vector in bytes.
        rows: the number of deleted rows.
    """

    storage: str
    location: str
    offset: int | None
    size: int
    rows: int

    @classmethod
    def of(cls, content: Mapping[str, Any] | None) -> Vector | None:
        """Return the vector of an action of the log; None if it has none."""
        if not content:
            return None
        return cls(
            content["storageType"],
            content["pathOrInlineDv"],
            content.get("offset"),
            content["sizeInBytes"],
            content["cardinality"],
        )

    @property
    def content(self) -> dict[str, Any]:
        """The vector in an action of the log."""
        content: dict[str, Any] = {"storageType": self.storage, "pathOrInlineDv": self.location}
        if self.offset is not None:
            content["offset"] = self.offset
        return {**content, "sizeInBytes": self.size, "cardinality": self.rows}

    @property
    def file(self) -> str | None:
        """The file of the vector, relative to the directory of the table; None if it is in the log."""
        if self.storage == "i":
            return None
        if self.storage != "u":
            raise UnsupportedError(
                "headrace does not read deletion vectors outside of the directory of their table, as those of clones",
                received=self.location,
                remedy="OPTIMIZE or REORG the table with the program that has written them",
            )
        prefix, digits = self.location[:-_UUID_DIGITS], self.location[-_UUID_DIGITS:]
        name = f"deletion_vector_{uuid.UUID(bytes=_decoded(digits))}.bin"
        return f"{prefix}/{name}" if prefix else name


def load(directory: Place, vector: Vector) -> RowNumbers:
    """Return the deleted rows of a vector.

    Raises:
        MissingFileError: its file does not exist.
        StoreDamagedError: the vector is not as the log and the checksum have it.
    """
    damaged = StoreDamagedError("a deletion vector cannot be read", received=f"{directory}: {vector.location[:100]}")
    try:
        data = _decoded(vector.location)[: vector.size] if vector.storage == "i" else _content(directory, vector)
        if len(data) != vector.size or struct.unpack_from("<i", data)[0] != _PORTABLE:
            raise damaged
        rows: RowNumbers = np.frombuffer(pyroaring.BitMap64.deserialize(data[4:]).to_array(), np.uint64)
    except (ValueError, struct.error) as error:
        raise damaged from error
    if len(rows) != vector.rows:
        raise damaged
    return rows


def _content(directory: Place, vector: Vector) -> bytes:
    name = vector.file
    assert name is not None
    try:
        with open_input(directory / name) as file:
            file.seek(vector.offset or 0)
            content: bytes = file.read(vector.size + 8)
    except FileNotFoundError:
        raise MissingFileError(
            "a file of deletion vectors does not exist",
            received=str(directory / name),
            remedy="read again: VACUUM may have deleted a file that was replaced meanwhile",
        ) from None
    size, data, check = content[:4], content[4:-4], content[-4:]
    if (struct.unpack(">i", size)[0], struct.unpack(">I", check)[0]) != (len(data), zlib.crc32(data)):
        raise ValueError("the checksum differs")
    return data


def write(directory: Place, vectors: Sequence[RowNumbers]) -> list[Vector]:
    """Write the vectors of a commit into a new file, and wait until it is on the disk."""
    name = uuid.uuid4()
    location = DIRECTORY + base64.b85encode(name.bytes).decode().translate(_TO_Z85)
    written: list[Vector] = []
    content = bytearray(_VERSION)
    for rows in vectors:
        data = struct.pack("<i", _PORTABLE) + pyroaring.BitMap64(rows).serialize()
        written.append(Vector("u", location, len(content), len(data), len(rows)))
        content += struct.pack(">i", len(data)) + data + struct.pack(">I", zlib.crc32(data))
    if written:
        (directory / DIRECTORY).mkdir(exist_ok=True)
        path = directory / DIRECTORY / f"deletion_vector_{name}.bin"
        write_new(path, lambda file: file.write(content))
    return written


def location_of(name: str) -> str:
    """Return how the log names one of headrace's files of vectors."""
    digits = uuid.UUID(name.rpartition("/")[2].removeprefix("deletion_vector_").removesuffix(".bin"))
    return DIRECTORY + base64.b85encode(digits.bytes).decode().translate(_TO_Z85)


def _decoded(text: str) -> bytes:
    return base64.b85decode(text.translate(_FROM_Z85))
