"""Checks of the bytes themselves: SQLite's structures, the checksum of each page, and those of the write-ahead log."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import apsw

from headrace.stores.embedded.checks.problems import Problem, Repair
from headrace.support.sqlite.opening import checksum_vfs, is_checksum_error
from headrace.support.sqlite.wal import damaged_frames

_MOST_MESSAGES = 20
# Damage of an index alone. SQLite builds an index again from the rows of its table.
_OF_INDEX = re.compile(r"row \d+ missing from index (\w+)|wrong # of entries in index (\w+)")


def sqlite(connection: apsw.Connection) -> Iterator[Problem]:
    """Check the pages and indexes of the database. Each page that is in use is read, which verifies its checksum."""
    if connection.pragma("checksum_verification") != "1":
        yield Problem("the header of the database does not say that pages have checksums")
    try:
        messages = [str(message) for (message,) in connection.execute(f"PRAGMA integrity_check({_MOST_MESSAGES})")]
    except apsw.IOError as error:
        if not is_checksum_error(error):
            raise
        yield Problem("a page of the database does not have its checksum")
        return
    for message in messages:
        if message == "ok":
            return
        index = _OF_INDEX.fullmatch(message)
        name = index and (index[1] or index[2])
        yield Problem(message, (Repair(f"build index {name} again", f'REINDEX "{name}"'),) if name else ())


def write_ahead_log(connection: apsw.Connection) -> Iterator[Problem]:
    """Check the checksums of the commits that are not in the database file yet. SQLite does only after a crash."""
    # Another connection: inside a transaction, SQLite does not say how many frames there are.
    with contextlib.closing(
        apsw.Connection(connection.filename, flags=apsw.SQLITE_OPEN_READWRITE, vfs=checksum_vfs())
    ) as outside:
        outside.pragma("user_version")
        frames, _ = outside.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
    damaged = damaged_frames(Path(connection.filename_wal), frames)
    if damaged:
        yield Problem(f"{len(damaged)} of {frames} frames of the write-ahead log do not have their checksum")
