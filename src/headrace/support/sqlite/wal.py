"""The write-ahead log of a database as a file: which of its frames have their checksums, and which commits are cut off.

SQLite verifies the checksums of frames only when it recovers the log after a crash, and drops the first wrong frame and
all after it: the rest of a transaction that a crash has cut. A damaged byte looks the same to it, and loses every
later commit silently. The salts of frames show the difference: those of this log have the salts of its header, and at
most the last transaction can be cut, because each commit forces the log to the disk before the next one begins.

The file has a header, and for each frame a header and a page (https://sqlite.org/fileformat2.html#walformat).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeAlias

import numpy as np

_HEADER_BYTES = 32
_FRAME_HEADER_BYTES = 24
_PAGE_BYTES = 4096
_FRAME_BYTES = _FRAME_HEADER_BYTES + _PAGE_BYTES
# The last bit of the magic number is set if checksums read the bytes as big-endian numbers.
_MAGIC = 0x377F0682
# Enough for whole columns of numbers, and few enough for the cache of the processor.
_FRAMES_AT_ONCE = 256

_Numbers: TypeAlias = "np.ndarray[tuple[int, int], np.dtype[np.uint32]]"


def cut_commits(log: Path, frames: int) -> int:
    """Return the number of commits in a log after its last valid frame.

    Args:
        frames: the number of valid frames; no process may write meanwhile.
    """
    try:
        descriptor = os.open(log, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return 0
    try:
        header = os.pread(descriptor, _HEADER_BYTES, 0)
        if len(header) < _HEADER_BYTES:
            return 0
        salts = header[16:24] if _is_valid(header) else _frame_header(descriptor, 0)[8:16]
        # Usually there is nothing, or frames that an earlier log has left in the file.
        if all(_frame_header(descriptor, frames + ahead)[8:16] != salts for ahead in (0, 1)):
            return 0
        later = range(frames, (os.fstat(descriptor).st_size - _HEADER_BYTES) // _FRAME_BYTES)
        headers = (_frame_header(descriptor, number) for number in later)
        # The last frame of a transaction has the size of the database, the others have 0.
        return sum(header[8:16] == salts and header[4:8] != bytes(4) for header in headers)
    finally:
        os.close(descriptor)


def damaged_frames(log: Path, frames: int) -> list[int]:
    """Return the numbers of the first frames, from 1 on, that do not have their checksum; 0 is the log's header.

    Args:
        frames: the number of frames that SQLite takes as valid.
    """
    if not frames:
        return []
    with log.open("rb") as content:
        header = content.read(_HEADER_BYTES)
        found = [] if _is_valid(header) else [0]
        order = _order(header)
        salts = np.frombuffer(header[16:24], np.uint8)
        before = np.frombuffer(header[24:32], ">u4").astype(np.uint32)
        for first in range(0, frames, _FRAMES_AT_ONCE):
            count = min(_FRAMES_AT_ONCE, frames - first)
            read = content.read(count * _FRAME_BYTES)
            if len(read) < count * _FRAME_BYTES:
                found.append(first + len(read) // _FRAME_BYTES + 1)
                break
            words = np.frombuffer(read, f"{order}u4").reshape(count, _FRAME_BYTES // 4).astype(np.uint32)
            stored = np.frombuffer(read, ">u4").reshape(words.shape)[:, 4:6].astype(np.uint32)
            seeds = np.vstack([before, stored[:-1]])
            data = np.concatenate([words[:, :2], words[:, _FRAME_HEADER_BYTES // 4 :]], axis=1)
            is_other = (np.frombuffer(read, np.uint8).reshape(count, -1)[:, 8:16] != salts).any(axis=1)
            wrong = np.flatnonzero((_checksums(seeds, data) != stored).any(axis=1) | is_other)
            found += [first + int(number) + 1 for number in wrong]
            before = stored[-1]
        # A process may have begun the log again meanwhile: then all frames are copied into the database.
        content.seek(0)
        return found if content.read(_HEADER_BYTES) == header else []


def _checksums(seeds: _Numbers, data: _Numbers) -> _Numbers:
    """Return the checksum of each row of data, which goes on from the seed of the row."""
    columns = np.ascontiguousarray(data.T)
    first, second = seeds[:, 0].copy(), seeds[:, 1].copy()
    for at in range(0, len(columns), 2):
        first += columns[at] + second
        second += columns[at + 1] + first
    return np.stack([first, second], axis=1)


def _is_valid(header: bytes) -> bool:
    if len(header) < _HEADER_BYTES or int.from_bytes(header[:4], "big") & ~1 != _MAGIC:
        return False
    words = np.frombuffer(header[:24], f"{_order(header)}u4").astype(np.uint32).reshape(1, 6)
    found = _checksums(np.zeros((1, 2), np.uint32), words)[0]
    return bool((found == np.frombuffer(header[24:32], ">u4")).all())


def _order(header: bytes) -> str:
    return ">" if header[3] & 1 else "<"


def _frame_header(descriptor: int, number: int) -> bytes:
    return os.pread(descriptor, _FRAME_HEADER_BYTES, _HEADER_BYTES + number * _FRAME_BYTES)
