"""`LogGrowth`: waits until the write-ahead log of a server grows.

Other databases and the server's own work also write to the log. LISTEN would need triggers in the users' tables, and a
connection for each waiting process.
"""

from __future__ import annotations

import time

import psycopg

from headrace.stores.postgres.connection import PostgresConnection

# Tunnels read the log up to its flushed end. Its inserted end has a commit earlier: a look in between would find
# nothing, and the next growth of the log can be 15 seconds away. Readers of a standby see what it has replayed.
_POSITION = """
SELECT (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_flush_lsn() END)::text
"""
# A pause is this part of the time without growth.
_PART = 0.01


class LogGrowth:
    """The end of the log at the last look. Pauses between looks grow with the time in which the log did not.

    Args:
        first_pause: the first pause in seconds; ``longest_pause`` is the limit.
    """

    def __init__(self, connection: PostgresConnection, first_pause: float, longest_pause: float) -> None:
        self._connection = connection
        self._pauses = first_pause, longest_pause
        self._seen: str | None = None
        self._since = 0.0

    def wait(self, timeout: float) -> bool:
        """Wait at most ``timeout`` seconds; return whether the log has grown since the last look."""
        first, longest = self._pauses
        deadline = time.monotonic() + timeout
        while True:
            position, now = self._connection.ask(_position), time.monotonic()
            if position != self._seen:
                self._seen, self._since = position, now
                return True
            if now >= deadline:
                return False
            pause = min(max(first, (now - self._since) * _PART), longest)
            time.sleep(min(pause, deadline - now))


def _position(session: psycopg.Connection) -> str:
    row = session.execute(_POSITION).fetchone()
    assert row is not None
    return str(row[0])
