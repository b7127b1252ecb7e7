"""The meta table of a tunnel: what each batch reads, and where it ended in each channel."""

from __future__ import annotations

import json

import apsw

from headrace.errors import NotFoundError, TunnelTakenError
from headrace.stores.embedded.connection import Database
from headrace.tunnels.records import (
    INITIAL_BATCH,
    BatchPlan,
    ChannelEnd,
    end_from_json,
    end_to_json,
    plan_from_json,
    plan_to_json,
)


class BatchRecords:
    """The recorded batches of one tunnel."""

    def __init__(self, database: Database, tunnel_id: str) -> None:
        self._database = database
        self._tunnel = tunnel_id

    def save_plan(self, plan: BatchPlan) -> None:
        """Record a plan, unless one of its batch id is there.

        Plans form chains: the first batch of a chain is its root, and each batch is one deeper than the
        batch before it.
        """
        with self._database.write() as connection:
            self._check_tunnel(connection)
            before = None
            if plan.previous != INITIAL_BATCH:
                before = connection.execute(
                    "SELECT root, depth FROM batch_plan WHERE tunnel = ? AND batch = ?", (self._tunnel, plan.previous)
                ).fetchone()
            root, depth = (plan.batch, 0) if before is None else (before[0], before[1] + 1)
            if plan.previous == INITIAL_BATCH:
                connection.execute("UPDATE tunnel SET reader = ? WHERE id = ?", (root, self._tunnel))
            connection.execute(
                "INSERT OR IGNORE INTO batch_plan (tunnel, batch, root, depth, previous, plan)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                (self._tunnel, plan.batch, root, depth, plan.previous, plan_to_json(plan)),
            )

    def check_reader(self, batch: str) -> None:
        """Raise `TunnelTakenError` if a batch belongs to another chain than the one that was begun last."""
        found = self._database.query(
            "SELECT p.root = t.reader FROM batch_plan p JOIN tunnel t ON t.id = p.tunnel"
            " WHERE p.tunnel = ? AND p.batch = ?",
            (self._tunnel, batch),
        )
        if found and not found[0][0]:
            raise TunnelTakenError(
                "another query, or a client, has begun to read this tunnel since",
                received=f"tunnel {self._tunnel}",
                remedy="create a tunnel for each query (and for each side of a self-join), and one for clients",
            )

    def load_plan(self, batch: str) -> BatchPlan | None:
        """Return the plan of a batch, or None."""
        found = self._database.query(
            "SELECT plan FROM batch_plan WHERE tunnel = ? AND batch = ?", (self._tunnel, batch)
        )
        return plan_from_json(found[0][0]) if found else None

    def record_end(self, batch: str, channel: str, end: ChannelEnd) -> ChannelEnd:
        """Record where a batch ends in a channel, unless it is recorded; return what is recorded."""
        recorded = self.ends(batch).get(channel)
        if recorded is not None:
            return recorded
        with self._database.write() as connection:
            self._check_tunnel(connection)
            connection.execute(
                "INSERT OR IGNORE INTO batch_end (tunnel, batch, channel, position) VALUES (?, ?, ?, ?)",
                (self._tunnel, batch, channel, end_to_json(end)),
            )
            return self.ends(batch)[channel]

    def ends(self, batch: str) -> dict[str, ChannelEnd]:
        """Return the recorded ends of a batch, by channel."""
        found = self._database.query(
            "SELECT channel, position FROM batch_end WHERE tunnel = ? AND batch = ?", (self._tunnel, batch)
        )
        return {channel: end_from_json(end) for channel, end in found}

    def prune(self, connection: apsw.Connection, batch: str, keep: int) -> None:
        """Forget the batches more than ``keep`` before this one in its chain, and its siblings that lost."""
        found = connection.execute(
            "SELECT root, depth FROM batch_plan WHERE tunnel = ? AND batch = ?", (self._tunnel, batch)
        ).fetchone()
        if found is None:
            return
        root, depth = found
        old = connection.execute(
            "DELETE FROM batch_plan WHERE tunnel = ?1 AND root = ?2 AND depth < ?3 RETURNING batch",
            (self._tunnel, root, depth - keep),
        ).fetchall()
        unused = connection.execute(
            "DELETE FROM batch_plan WHERE tunnel = ? AND root = ? AND depth = ? AND batch <> ? RETURNING batch",
            (self._tunnel, root, depth, batch),
        ).fetchall()
        connection.executemany(
            "DELETE FROM batch_end WHERE tunnel = ? AND batch = ?", [(self._tunnel, row[0]) for row in old + unused]
        )

    def names(self, connection: apsw.Connection, channel: str) -> bool:
        """Tell whether a recorded batch reads, or has read, a channel."""
        found = connection.execute(
            "SELECT EXISTS (SELECT 1 FROM batch_end WHERE tunnel = ?1 AND channel = ?2)"
            " OR EXISTS (SELECT 1 FROM batch_plan WHERE tunnel = ?1 AND instr(plan, ?3))",
            (self._tunnel, channel, json.dumps(channel)),
        )
        return any(row[0] for row in found)

    def _check_tunnel(self, connection: apsw.Connection) -> None:
        if connection.execute("SELECT 1 FROM tunnel WHERE id = ?", (self._tunnel,)).fetchone() is None:
            raise NotFoundError("the tunnel was dropped", received=self._tunnel, remedy="create a new tunnel")
