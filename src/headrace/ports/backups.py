"""A backup of a store: a value that describes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

Progress: TypeAlias = Callable[[int, int], None]
"""Is called with the number of bytes that are done, and of all bytes."""


@dataclass(frozen=True)
class Backup:
    """A complete backup.

    Attributes:
        store_id: the identity of the store, see `headrace.ports.Store.id`. A restored store has the same.
        created: when the state was read, in seconds since 1970.
        commit_version: the commit version of the last change in the backup.
        size: bytes of data.
        sha256: the checksum of the data, in hexadecimal digits.
    """

    store_id: str
    created: float
    commit_version: int
    size: int
    sha256: str
