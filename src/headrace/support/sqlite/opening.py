"""Opening a database in WAL mode while other processes create it."""

from __future__ import annotations

import functools
import threading
from pathlib import Path

import apsw

from headrace.errors import StoreError
from headrace.support.retries import Retries

CHECKSUM_BYTES = 8
APSW_OF_PYPI = "pip install --force-reinstall --only-binary apsw apsw"
"""Installs an apsw with SQLite's extensions."""
_loading = threading.Lock()


def open_wal(
    path: Path, busy_timeout_ms: int, *, cached_statements: int = 100, checksums_from: int | None = None
) -> apsw.Connection:
    """Open a database in WAL mode; create it if it does not exist.

    The first connections of a new database all try to change its mode. SQLite does not wait for the lock of this
    change, because two that wait would block each other.

    Args:
        checksums_from: give each page of a new database a checksum, and verify those of databases of this
            ``user_version`` and later ones. None for no checksums.

    Raises:
        apsw.BusyError: another process held the lock for ``busy_timeout_ms``.
    """
    connection = apsw.Connection(
        str(path), vfs=None if checksums_from is None else checksum_vfs(), statementcachesize=cached_statements
    )
    connection.set_busy_timeout(busy_timeout_ms)
    connection.pragma("page_size", 4096)
    if checksums_from is not None:
        connection.reserve_bytes(reserve=CHECKSUM_BYTES)
        if 0 < connection.pragma("user_version") < checksums_from:
            # A killed upgrade leaves pages with checksums and pages without.
            connection.pragma("checksum_verification", "off")
    retries = Retries(busy_timeout_ms / 1000, first_pause=0.01, longest_pause=0.2)
    while True:
        try:
            connection.pragma("journal_mode", "wal")
        except apsw.BusyError as error:
            if not retries.wait(f"{path.name}: {error}"):
                raise
        else:
            return connection


def checksum_vfs() -> str:
    """Return the name of SQLite's layer that writes and verifies a checksum in the last 8 bytes of each page.

    It comes with the wheels of apsw, and knows by the reserved bytes in a database's header whether it has checksums.
    """
    with _loading:
        _load_checksums()
    return "cksmvfs"


@functools.cache
def _load_checksums() -> None:
    # Slow to import.
    import apsw.sqlite_extra

    default = apsw.vfs_names()[0]
    connection = apsw.Connection(":memory:")
    try:
        apsw.sqlite_extra.load(connection, "cksumvfs")
    except (LookupError, apsw.sqlite_extra.NotAvailable, apsw.ExtensionLoadingError) as error:
        raise StoreError(
            "this apsw has no checksums of pages (cksumvfs)",
            received=f"apsw {apsw.apsw_version()}: {error}",
            valid="a wheel of PyPI",
            remedy=APSW_OF_PYPI,
        ) from error
    finally:
        connection.close()
    # Databases of other code of this process stay as they are.
    apsw.set_default_vfs(default)


def is_checksum_error(error: BaseException) -> bool:
    """Return whether SQLite has read a page that does not have its checksum."""
    return getattr(error, "extendedresult", None) == apsw.SQLITE_IOERR_DATA
