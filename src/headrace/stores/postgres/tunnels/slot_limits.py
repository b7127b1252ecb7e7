"""Limits of the log that the server keeps for slots: a warning, or the end of a tunnel before the disk is full.

`max_slot_wal_keep_size` of the server is one limit for all slots, and loses the log without a word to its readers. A
tunnel can have a lower one of its own. A query that has failed or was stopped cannot look at its slot, so each reader
of the database looks at the limits of all tunnels.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from typing import LiteralString

from headrace.errors import StoreBusyError
from headrace.stores.postgres.tunnels import slots
from headrace.stores.postgres.tunnels.meta_tables import PostgresStatements, TunnelDatabase
from headrace.stores.postgres.tunnels.tunnel_options import DROP, SlotLimit, megabytes

LOOK_SECONDS = 10.0
"""The time between two looks of a process at the limits."""
_log = logging.getLogger("headrace")
_REACHED: LiteralString = """
SELECT t.id, t.name, t.slot, (pg_current_wal_flush_lsn() - s.restart_lsn)::bigint, l.bytes, l.action
FROM headrace.slot_limit l JOIN headrace.tunnel t ON t.id = l.tunnel
JOIN pg_replication_slots s ON s.slot_name = t.slot
WHERE pg_current_wal_flush_lsn() - s.restart_lsn > l.bytes / 2 AND NOT s.active
"""


class SlotLimits:
    """Looks at the limits of all tunnels of a database, as long as one of them is read."""

    def __init__(self, database: TunnelDatabase) -> None:
        self._database = database
        self._next_look = 0.0
        self._warned: set[str] = set()

    def look(self) -> None:
        """Warn about slots that keep more than half of their limit, and drop those that are to be dropped."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + LOOK_SECONDS
        near = self._database.query(_REACHED)
        self._warned &= {tunnel for tunnel, *_ in near}
        for tunnel, name, slot, retained, limit, action in near:
            if retained > limit and action == DROP:
                kept = f"{megabytes(retained)} of log, and max_slot_bytes is {megabytes(limit)}"
                # A reader of the slot delays its end to a later look.
                with suppress(StoreBusyError):
                    self._drop(tunnel, name, slot, kept)
            elif tunnel not in self._warned:
                self._warned.add(tunnel)
                (warning,) = SlotLimit(limit, action).warnings(retained)
                _log.warning("tunnel %s: %s", name, warning)

    def _drop(self, tunnel: str, name: str, slot: str, kept: str) -> None:
        now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        because = f"on {now}, because the server kept {kept}"
        # Before the slot is dropped, so that no reader finds it missing without a reason. This one stays true if the
        # slot is in use, or the process is killed here: it is dropped later then, perhaps by others.
        self._record(tunnel, f"the slot of tunnel {name!r} does not exist; it was to be dropped {because}")
        slots.drop_slot(self._database, slot)
        reason = f"the slot of tunnel {name!r} was dropped {because}"
        self._record(tunnel, reason)
        _log.error("%s", reason)

    def _record(self, tunnel: str, reason: str) -> None:
        self._database.query(
            "UPDATE headrace.slot_limit SET reason = %s WHERE tunnel = %s RETURNING 1", (reason, tunnel)
        )


def save(statements: PostgresStatements, tunnel: str, limit: SlotLimit | None) -> None:
    """Record the limit of a new tunnel."""
    if limit is not None:
        statements.execute(
            "INSERT INTO headrace.slot_limit (tunnel, bytes, action) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING",
            (tunnel, limit.bytes, limit.action),
        )


def limit_of(statements: PostgresStatements, slot: str) -> SlotLimit | None:
    """Return the limit of the slot of a tunnel, or None."""
    row = statements.first(
        "SELECT bytes, action, reason FROM headrace.slot_limit JOIN headrace.tunnel ON id = tunnel WHERE slot = %s",
        (slot,),
    )
    return None if row is None else SlotLimit(*row)
