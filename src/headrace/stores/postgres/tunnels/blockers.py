"""Open write transactions, for which the server waits before it creates a replication slot."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, LiteralString

from headrace.errors import HeadraceError, StoreBusyError
from headrace.stores.postgres.tunnels.meta_tables import TunnelDatabase

_log = logging.getLogger("headrace")
_SHOWN_SECONDS = 5.0
_MOST = 5
# Each transaction that writes has a lock on its own number, which everybody may see. Without the right to see what
# others do, their activity has no times and no statement.
_OPEN: Final[LiteralString] = """
SELECT * FROM (
    SELECT DISTINCT ON (l.pid) concat(
        'process ', l.pid, ' of user ', a.usename, ', database ', a.datname, ', ',
        nullif(a.application_name, '') || ', ',
        upper(substring(a.query from '^\\s*([A-Za-z]+)')) || ', ', nullif(a.state, 'active') || ', ',
        'open for ' || extract(epoch from clock_timestamp() - a.xact_start)::bigint || ' s'
    ) AS description, a.xact_start AS began
    FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
    WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted AND l.pid <> pg_backend_pid()
) AS open
UNION ALL
SELECT concat(
    'prepared transaction ', quote_literal(gid), ' of user ', owner, ', database ', database,
    ', for ', extract(epoch from clock_timestamp() - prepared)::bigint, ' s'
), prepared
FROM pg_prepared_xacts
ORDER BY 2 NULLS LAST
"""


@contextmanager
def named(database: TunnelDatabase, seconds: float) -> Iterator[None]:
    """Log which transactions the block waits for, if it takes longer than `_SHOWN_SECONDS`.

    Args:
        seconds: how long it waits at most.
    """
    done = threading.Event()

    def watch() -> None:
        if done.wait(_SHOWN_SECONDS):
            return
        try:
            transactions = _found(database)
        except HeadraceError:
            return
        if transactions and not done.is_set():
            _log.warning(
                "PostgreSQL: a new tunnel waits up to %.0f s for open write transactions: %s",
                seconds,
                "; ".join(transactions),
            )

    watcher = threading.Thread(target=watch, name="headrace-waits-for-transactions", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def waited(database: TunnelDatabase, seconds: float) -> StoreBusyError:
    """Return the error for transactions that were open for too long."""
    return StoreBusyError(
        f"a new tunnel has waited {seconds:.0f} s for open write transactions, and nothing of it is left",
        received="; ".join(_found(database)) or "none any more",
        remedy="end them by COMMIT or ROLLBACK, pg_terminate_backend(process), COMMIT PREPARED or ROLLBACK PREPARED; "
        "then create the tunnel again",
    )


def _found(database: TunnelDatabase) -> list[str]:
    """Return descriptions of open write transactions, the oldest first, without values of their statements."""
    rows = database.query(_OPEN)
    more = [f"and {len(rows) - _MOST} more"] if len(rows) > _MOST else []
    return [description for description, _ in rows[:_MOST]] + more
