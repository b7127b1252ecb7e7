"""The open descriptors of a process, by what they are of."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

# Each thread that has used a store has some of them.
_OF_DATABASES = ("/db", "/db-wal", "/db-shm")


def files_in(directory: Path) -> int:
    """Return the number of descriptors of this process for files in a directory."""
    return sum(each.startswith(f"{directory}/") for each in _named("self"))


def without_databases(process: int) -> int:
    """Return the number of descriptors of a process, without those of the databases of stores."""
    return sum(not each.endswith(_OF_DATABASES) for each in _named(str(process)))


def _named(process: str) -> list[str]:
    """Return the file of each descriptor, or a name such as ``socket:[7]``."""
    found = []
    for each in Path("/proc", process, "fd").iterdir():
        # It may be closed meanwhile; that of the listing itself is.
        with suppress(FileNotFoundError):
            found.append(str(each.readlink()))
    return found
