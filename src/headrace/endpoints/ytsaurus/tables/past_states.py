"""States of the store for which clients have asked a timestamp, so that they can read at it for a while.

The store keeps the newest rows only. A state of the past is a snapshot of the database, which is held open.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from headrace.endpoints.ytsaurus.clock import next_timestamp, timestamp_of
from headrace.endpoints.ytsaurus.periodic import periodic
from headrace.endpoints.ytsaurus.storage.snapshot import SnapshotDatabase
from headrace.stores.embedded.connection import Database

if TYPE_CHECKING:
    from headrace.endpoints.ytsaurus.cluster import Cluster

KEPT_SECONDS = 30.0
"""A state can be read for this long after its timestamp was generated; held longer, the database could not shrink."""
MAX_STATES = 16
_TRIES = 5


class _State:
    """One state of the store.

    Attributes:
        first, last: the timestamps at which the store was in this state, as far as is known.
        view: the store in this state; use it while holding ``guard``.
    """

    def __init__(self, database: Database) -> None:
        self.guard = threading.Lock()
        self.is_open = True
        self._stack = contextlib.ExitStack()
        connection = self._stack.enter_context(database.snapshot())
        # The first statement that reads fixes the state.
        ((version, committed),) = connection.execute("SELECT version, ts FROM clock")
        self.version = int(version)
        self.view = SnapshotDatabase(database, connection)
        self.first = self.last = timestamp_of(int(committed))
        self.until = time.monotonic() + KEPT_SECONDS

    def close(self) -> bool:
        """Close the state and return True; return False if somebody is reading it."""
        if not self.guard.acquire(blocking=False):
            return False
        try:
            self.is_open = False
            self._stack.close()
        finally:
            self.guard.release()
        return True


class PastStates:
    """The states of a cluster's store that have a timestamp."""

    def __init__(self, cluster: Cluster) -> None:
        self._database = cluster.database
        self._guard = threading.Lock()
        self._states: list[_State] = []
        self._being_read: list[_State] = []

    def timestamp(self) -> int:
        """Return a timestamp that is later than all before; the store can be read at it for a while."""
        with self._guard:
            for _ in range(_TRIES):
                state = self._newest()
                found = next_timestamp()
                if self._version() == state.version:
                    state.last = found
                    state.until = time.monotonic() + KEPT_SECONDS
                    return found
        # The store is written all the time: the timestamp is right, but nothing is kept for it.
        return next_timestamp()

    @contextlib.contextmanager
    def at(self, timestamp: int) -> Iterator[Database | None]:
        """Give the store as it was at a timestamp; None if that state is not kept."""
        with self._guard:
            found = next((state for state in self._states if state.first <= timestamp <= state.last), None)
        if found is None:
            yield None
            return
        with found.guard:
            yield found.view if found.is_open else None

    def expire(self) -> None:
        """Close the states that have been kept for long enough."""
        with self._guard:
            now = time.monotonic()
            over = [*self._being_read, *(state for state in self._states if state.until < now)]
            self._states = [state for state in self._states if state.until >= now]
            self._being_read = [state for state in over if not state.close()]

    def _newest(self) -> _State:
        """Return the present state, which is kept from now on."""
        if self._states and self._states[-1].version == self._version():
            return self._states[-1]
        if len(self._states) >= MAX_STATES:
            oldest = self._states.pop(0)
            if not oldest.close():
                self._being_read.append(oldest)
        self._states.append(_State(self._database))
        return self._states[-1]

    def _version(self) -> int:
        # Not by `query`: the command that asks may itself be looking at a state of the past.
        with self._database.snapshot() as connection:
            ((version,),) = connection.execute("SELECT version FROM clock")
        return int(version)


@periodic(1.0)
def close_past_states(cluster: Cluster) -> None:
    """Close states of the past that nobody may read any more."""
    cluster.part(PastStates).expire()
