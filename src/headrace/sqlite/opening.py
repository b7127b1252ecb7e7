"""Opening a database in WAL mode while other processes create it."""

from __future__ import annotations

from pathlib import Path

import apsw

from headrace.retries import Retries


def open_wal(path: Path, busy_timeout_ms: int, *, cached_statements: int = 100) -> apsw.Connection:
    """Open a database in WAL mode; create it if it does not exist.

    The first connections of a new database all try to change its mode. SQLite does not wait for the lock of this
    change, because two that wait would block each other.

    Raises:
        apsw.BusyError: another process held the lock for ``busy_timeout_ms``.
    """
    connection = apsw.Connection(str(path), statementcachesize=cached_statements)
    connection.set_busy_timeout(busy_timeout_ms)
    connection.pragma("page_size", 4096)
    retries = Retries(busy_timeout_ms / 1000, first_pause=0.01, longest_pause=0.2)
    while True:
        try:
            connection.pragma("journal_mode", "wal")
        except apsw.BusyError as error:
            if not retries.wait(f"{path.name}: {error}"):
                raise
        else:
            return connection
