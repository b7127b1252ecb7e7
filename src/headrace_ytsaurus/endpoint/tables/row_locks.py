"""Optimistic locking: the rows that other transactions have changed since a transaction began."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Hashes: TypeAlias = npt.NDArray[np.int64]
NO_HASHES: Hashes = np.empty(0, dtype=np.int64)


class Locked(NamedTuple):
    """Rows of one table, as hashes of their keys.

    A collision of two keys, among 2^62 hashes, may cause an unnecessary conflict.
    """

    written: Hashes = NO_HASHES
    """Rows that are changed or locked exclusively."""
    read: Hashes = NO_HASHES
    """Rows that other transactions must not change."""

    def joined(self, other: Locked) -> Locked:
        """Return the union."""
        return Locked(np.concatenate([self.written, other.written]), np.concatenate([self.read, other.read]))

    def conflicts(self, other: Locked) -> bool:
        """Return whether one of the two has written rows that the other has written or read."""
        pairs = ((self.written, other.written), (self.written, other.read), (self.read, other.written))
        return any(len(mine) and len(theirs) and np.isin(mine, theirs).any() for mine, theirs in pairs)


Locks: TypeAlias = Mapping[str, Locked]
"""Id of a table's node → its rows."""


class RowLocks:
    """The rows of recent commits, kept while a transaction is open that began before them.

    Only commits of this process are recorded. They are sequential, because each holds the store's writer lock. Versions
    are the store's commit numbers, so one number determines which commits a snapshot contains.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._commits: list[tuple[int, Locks]] = []
        self._open: dict[str, int] = {}

    def begin(self, transaction: str) -> None:
        """Record commits from now on. Call this before the transaction takes its snapshot."""
        with self._guard:
            self._open[transaction] = -1

    def began(self, transaction: str, version: int) -> None:
        """Set the last commit that the transaction sees."""
        with self._guard:
            self._open[transaction] = version

    def end(self, transaction: str) -> None:
        """Remove a transaction, and the commits that were recorded only for it."""
        with self._guard:
            self._open.pop(transaction, None)
            if not self._open:
                self._commits.clear()
                return
            oldest = min(self._open.values())
            self._commits = [commit for commit in self._commits if commit[0] > oldest]

    def begin_commit(self, version: int) -> None:
        """Begin a commit, inside its write transaction.

        A recorded commit with this version, or a later one, was rolled back after it was recorded: the disk was full.
        If another program that has the store open takes the version first, the record stays until the transactions that
        are open now have ended, and can refuse one of their commits.
        """
        with self._guard:
            self._commits = [commit for commit in self._commits if commit[0] < version]

    def conflict(self, since: int, locks: Locks) -> str | None:
        """Return the node of a table with rows in conflict with a commit after a version, None if there is none."""
        with self._guard:
            recent = [others for version, others in self._commits if version > since]
        for others in recent:
            for node, locked in locks.items():
                if node in others and locked.conflicts(others[node]):
                    return node
        return None

    def committed(self, version: int, locks: Locks) -> None:
        """Record the rows of a commit, inside its write transaction, which may still fail."""
        with self._guard:
            if self._open:
                self._commits.append((version, locks))
