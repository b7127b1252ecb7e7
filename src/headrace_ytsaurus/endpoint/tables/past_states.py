"""Past states of the store, which clients can read for a while after they have asked for a timestamp.

The store keeps only the newest rows. A past state is an open snapshot of the database.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

from headrace.stores.embedded.for_servers import Database
from headrace_ytsaurus.endpoint.clock import next_timestamp, timestamp_of
from headrace_ytsaurus.endpoint.storage.snapshot import SnapshotDatabase

KEPT_SECONDS = 30.0
"""A state can be read for this time after its timestamp was generated. Open snapshots keep the database large."""
MAX_STATES = 16
_TRIES = 5


class _State:
    """One state of the store.

    Attributes:
        first, last: the known first and last timestamps of this state.
        view: the store in this state; hold ``guard`` while using it.
    """

    def __init__(self, database: Database) -> None:
        self.guard = threading.Lock()
        self.is_open = True
        self._stack = contextlib.ExitStack()
        connection = self._stack.enter_context(database.snapshot())
        # The snapshot is the state at the first statement that reads.
        ((version, committed),) = connection.execute("SELECT version, ts FROM clock")
        self.version = int(version)
        self.view = SnapshotDatabase(database, connection)
        self.first = self.last = timestamp_of(int(committed))
        self.until = time.monotonic() + KEPT_SECONDS

    def close(self) -> bool:
        """Close the state and return True; return False if it is being read."""
        if not self.guard.acquire(blocking=False):
            return False
        try:
            self.is_open = False
            self._stack.close()
        finally:
            self.guard.release()
        return True


class PastStates:
    """The past states of a cluster's store."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._guard = threading.Lock()
        self._states: list[_State] = []
        self._being_read: list[_State] = []

    def timestamp(self) -> int:
        """Return a timestamp later than all previous ones; the store can be read at it for a while."""
        with self._guard:
            for _ in range(_TRIES):
                state = self._newest()
                found = next_timestamp()
                if self._version() == state.version:
                    state.last = found
                    state.until = time.monotonic() + KEPT_SECONDS
                    return found
        # Writes are too frequent. The timestamp is valid, but its state is not kept.
        return next_timestamp()

    @contextlib.contextmanager
    def at(self, timestamp: int) -> Iterator[Database | None]:
        """Yield the state of the store at a timestamp; None if it is not kept."""
        with self._guard:
            found = next((state for state in self._states if state.first <= timestamp <= state.last), None)
        if found is None:
            yield None
            return
        with found.guard:
            yield found.view if found.is_open else None

    def expire(self) -> None:
        """Close the states whose time has passed."""
        with self._guard:
            now = time.monotonic()
            over = [*self._being_read, *(state for state in self._states if state.until < now)]
            self._states = [state for state in self._states if state.until >= now]
            self._being_read = [state for state in over if not state.close()]

    def _newest(self) -> _State:
        """Return the current state, and keep it."""
        if self._states and self._states[-1].version == self._version():
            return self._states[-1]
        if len(self._states) >= MAX_STATES:
            oldest = self._states.pop(0)
            if not oldest.close():
                self._being_read.append(oldest)
        self._states.append(_State(self._database))
        return self._states[-1]

    def _version(self) -> int:
        # `query` is not used, because the current command may itself read a past state.
        with self._database.snapshot() as connection:
            ((version,),) = connection.execute("SELECT version FROM clock")
        return int(version)
