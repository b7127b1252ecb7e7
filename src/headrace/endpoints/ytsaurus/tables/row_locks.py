"""Which rows were changed since a transaction began: what makes the first committer win."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Hashes: TypeAlias = npt.NDArray[np.int64]


class Locked(NamedTuple):
    """Rows of one table, by the hashes of their keys.

    Two different keys of one hash, of which there are 2^62, may cost a transaction that would not have had to fail.
    """

    written: Hashes
    """Rows that are changed, or locked as if they were."""
    read: Hashes
    """Rows that nobody may change meanwhile."""

    def joined(self, other: Locked) -> Locked:
        """Return the rows of both."""
        return Locked(np.concatenate([self.written, other.written]), np.concatenate([self.read, other.read]))


NO_HASHES: Hashes = np.empty(0, dtype=np.int64)
Locks: TypeAlias = Mapping[int, Locked]
"""Id of an object of the store → its rows."""


class RowLocks:
    """The rows that recent commits changed, for as long as a transaction is open that began before.

    Commits of this process count; they come one after the other, as each holds the writer lock of the store. Versions
    are those of the store's commits, so that what a snapshot shows and what it does not is told by one number.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._commits: list[tuple[int, Locks]] = []
        self._open: dict[str, int] = {}

    def begin(self, transaction: str) -> None:
        """Keep what is committed from now on; call it before the transaction has its snapshot."""
        with self._guard:
            self._open[transaction] = -1

    def began(self, transaction: str, version: int) -> None:
        """Note which commit is the last that the transaction sees."""
        with self._guard:
            self._open[transaction] = version

    def end(self, transaction: str) -> None:
        """Forget a transaction, and what was kept only for it."""
        with self._guard:
            self._open.pop(transaction, None)
            if not self._open:
                self._commits.clear()
                return
            oldest = min(self._open.values())
            self._commits = [commit for commit in self._commits if commit[0] > oldest]

    def conflict(self, since: int, locks: Locks) -> int | None:
        """Return the object with rows that a commit after a version has changed or read, None if there is none."""
        with self._guard:
            recent = [others for version, others in self._commits if version > since]
        for others in recent:
            for object_id, locked in locks.items():
                if object_id in others and any(_meet(mine, his) for mine, his in _pairs(locked, others[object_id])):
                    return object_id
        return None

    def committed(self, version: int, locks: Locks) -> None:
        """Note the rows of a commit, inside its write transaction."""
        with self._guard:
            if self._open:
                self._commits.append((version, locks))


def _pairs(mine: Locked, his: Locked) -> Iterator[tuple[Hashes, Hashes]]:
    yield mine.written, his.written
    yield mine.written, his.read
    yield mine.read, his.written


def _meet(one: Hashes, other: Hashes) -> bool:
    return bool(len(one) and len(other) and np.isin(one, other).any())
