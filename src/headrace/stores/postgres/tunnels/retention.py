"""The log that the server keeps for a slot: its release, and its description.

The server keeps its log from ``restart_lsn`` on. An advance of the slot moves ``restart_lsn`` only to a place where the
log has a list of the running transactions. The server writes one every 15 s if there is other log, and with each
checkpoint. All databases of the server share one log. So the slot of an idle table must follow the end of the log, and
must be advanced once more after a burst of others, when the next list is written.

Each read and each advance of a slot decodes the log from ``restart_lsn`` on, also that of other tables: a million rows
of a transaction cost seconds. So where much log follows it, the server is asked for a list, which a user with the right
to do so can from PostgreSQL 16 on, and the slot follows the committed position without a distance.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from headrace.model.tunnels.lag import Slot
from headrace.stores.postgres.tunnels import slots
from headrace.stores.postgres.tunnels.meta_tables import TunnelDatabase
from headrace.stores.postgres.tunnels.positions import lsn_text
from headrace.stores.postgres.tunnels.slot_limits import SlotLimits, limit_of
from headrace.stores.postgres.tunnels.tunnel_options import megabytes

KEPT_BYTES = 1 << 20
"""The log in bytes that the slot keeps before the committed position, so that recent batches can be read again."""
LAG_BYTES = 32 << 20
"""The log from ``restart_lsn`` on that is much: two segments."""
LIST_SECONDS = 1.0
"""The time between two lists of running transactions: the server keeps a file for each list that it decodes."""
# With a long open transaction, each advance costs 0.6 s of CPU time for each GB of log since its begin.
_ADVANCING_SHARE = 0.05
_LONG_TRANSACTION_BYTES = 1 << 30
# The function is there from PostgreSQL 16 on.
_LAG = """
SELECT (t.advanced - '0/0')::bigint, (s.restart_lsn - '0/0')::bigint, (pg_current_wal_flush_lsn() - '0/0')::bigint,
    pg_snapshot_xmin(pg_current_snapshot())::text::bigint, pg_snapshot_xmax(pg_current_snapshot())::text::bigint,
    has_function_privilege(to_regprocedure('pg_catalog.pg_log_standby_snapshot()'), 'EXECUTE')
FROM headrace.tunnel t LEFT JOIN pg_replication_slots s ON s.slot_name = t.slot WHERE t.id = %s
"""
# Warn when less than this share of max_slot_wal_keep_size is left.
_SCARCE = 0.2
_STATE = """
SELECT s.slot_name::text AS slot, s.active, s.restart_lsn::text AS restart_lsn,
    s.confirmed_flush_lsn::text AS confirmed_flush_lsn, s.wal_status, s.safe_wal_size,
    w.lsn::text AS current_lsn, (w.lsn - s.restart_lsn)::bigint AS retained_bytes,
    (s.confirmed_flush_lsn - s.restart_lsn)::bigint AS confirmed_bytes,
    (SELECT setting::bigint << 20 FROM pg_settings WHERE name = 'max_slot_wal_keep_size') AS allowed,
    -- From PostgreSQL 17 on.
    to_jsonb(s) ->> 'invalidation_reason' AS reason, (to_jsonb(s) ->> 'failover')::boolean AS failover
FROM pg_replication_slots s, pg_current_wal_flush_lsn() w (lsn) WHERE s.slot_name = %s
"""


class LogRelease:
    """Lets the server forget log that a tunnel no longer needs."""

    def __init__(self, database: TunnelDatabase, tunnel: str, slot: str) -> None:
        self._database = database
        self._tunnel = tunnel
        self._slot = slot
        self._limits = SlotLimits(database)
        self._next_list = self._next_advance = 0.0
        # The lists that were asked for and that the slot has not reached, and the next transaction at the last one.
        self._lists: list[int] = []
        self._next_xid = 0

    def release(self, committed: int, idle_until: int, look: Callable[[], None]) -> None:
        """Advance the slot, if the server keeps much log for nothing.

        Args:
            committed: the LSN of the committed position.
            idle_until: the LSN up to which the tables have had no change since then.
            look: records the definitions of the tables. The log tells of what has happened to partitions.
        """
        self._limits.look()
        rows = self._database.query(_LAG, (self._tunnel,))
        if not rows or rows[0][1] is None:
            # A tunnel that was dropped meanwhile needs none.
            return
        ((advanced, restart, flushed, oldest, next_xid, can_list),) = rows
        now = time.monotonic()
        if lags := idle_until - restart > LAG_BYTES:
            # Each read decodes this log: that is dearer than log that an older copy of a checkpoint can read again.
            target = idle_until
        else:
            # If there is nothing to read again for a while, the slot follows the end of the log.
            target = idle_until if idle_until - committed >= KEPT_BYTES else committed - KEPT_BYTES
        # Ahead of the slot, which does not move while base data is read, one list for each `LAG_BYTES` is enough.
        ahead = max((each for each in self._lists if each > target), default=restart)
        # Before a transaction of the last list has ended, another list cannot move ``restart_lsn`` up to that one.
        if can_list and flushed - ahead > LAG_BYTES and oldest >= self._next_xid and now >= self._next_list:
            ((lsn,),) = self._database.query("SELECT (pg_log_standby_snapshot() - '0/0')::bigint")
            self._lists.append(lsn)
            self._next_xid, self._next_list = next_xid, now + LIST_SECONDS
        reaches = any(each <= target for each in self._lists)
        if target <= advanced + (0 if lags else KEPT_BYTES) or (now < self._next_advance and not reaches):
            return
        # A TRUNCATE of partitions that no look has seen would be one of them alone: the log is without it then.
        look()
        # Before the slot moves, so that a read never takes our own advance for one of others.
        self._database.query(
            "UPDATE headrace.tunnel SET advanced = greatest(advanced, %s::pg_lsn), lost = greatest(lost, %s::pg_lsn)"
            " WHERE id = %s RETURNING 1",
            (lsn_text(target), lsn_text(min(committed, target)), self._tunnel),
        )
        slots.advance(self._database, self._slot, target)
        self._lists = [each for each in self._lists if each > target]
        end = time.monotonic()
        self._next_advance = end + (end - now) / _ADVANCING_SHARE


def slot_of(database: TunnelDatabase, slot: str) -> Slot:
    """Return the status of a slot, and the log from its ``restart_lsn`` on."""
    rows = database.query(
        "SELECT coalesce(wal_status, 'reserved'), (pg_current_wal_flush_lsn() - restart_lsn)::bigint"
        " FROM pg_replication_slots WHERE slot_name = %s",
        (slot,),
    )
    return Slot(*rows[0]) if rows else Slot("missing")


def describe(database: TunnelDatabase, slot: str) -> tuple[Mapping[str, int | str | bool | None], list[str]]:
    """Return the state of a slot by the names of ``pg_replication_slots``, and warnings about it.

    ``retained_bytes`` is the log from ``restart_lsn`` to ``current_lsn``, ``confirmed_bytes`` the part of it up to
    ``confirmed_flush_lsn``.
    """

    def read(statements: Any) -> dict[str, Any]:
        cursor = statements.execute(_STATE, (slot,))
        row = cursor.fetchone()
        assert cursor.description is not None
        return (
            {} if row is None else {column.name: value for column, value in zip(cursor.description, row, strict=True)}
        )

    state, limit = database.ask(read), database.ask(lambda statements: limit_of(statements, slot))
    limits: dict[str, int | str | bool | None] = (
        {} if limit is None else {"max_slot_bytes": limit.bytes, "at_slot_limit": limit.action}
    )
    if not state:
        return {"slot": slot, **limits}, [] if limit is None else limit.warnings(None)
    warnings = list(_warnings(state))
    if limit is not None:
        warnings += limit.warnings(state["retained_bytes"])
    allowed, reason, failover = (state.pop(name) for name in ("allowed", "reason", "failover"))
    state["max_slot_wal_keep_size"] = None if allowed < 0 else allowed
    state |= limits
    if reason is not None:
        state["invalidation_reason"] = reason
    if failover:
        state["failover"] = True
    return state, warnings


def _warnings(state: Mapping[str, Any]) -> list[str]:
    status, kept, allowed, left = (state[name] for name in ("wal_status", "retained_bytes", "allowed", "safe_wal_size"))
    if status == "lost" or kept is None:
        why = "" if state["reason"] is None else f" ({state['reason']})"
        return [f"the server has invalidated slot {state['slot']}{why}: create a new tunnel"]
    warnings = []
    if status == "unreserved" or (allowed > 0 and left is not None and left < allowed * _SCARCE):
        warnings.append(
            f"the server keeps {megabytes(kept)} of log for slot {state['slot']}, and removes it beyond "
            f"max_slot_wal_keep_size = {megabytes(allowed)}: start the query that reads the tunnel, or raise the limit"
        )
    elif status == "extended":
        warnings.append(
            f"the server keeps {megabytes(kept)} of log for slot {state['slot']}, more than max_wal_size: start the "
            "query that reads the tunnel, or drop the tunnel"
        )
    confirmed = state["confirmed_bytes"]
    if confirmed > _LONG_TRANSACTION_BYTES:
        warnings.append(
            f"{megabytes(confirmed)} of this log are kept for a transaction that has been open for long: each "
            "read of the slot decodes them again"
        )
    return warnings
