"""The records of a tunnel's batches, in tables ``batch_plan`` and ``batch_end``."""

from __future__ import annotations

import json
from collections.abc import Callable

import apsw

from headrace.errors import NotFoundError
from headrace.model.tunnels.records import (
    INITIAL_BATCH,
    BatchPlace,
    BatchPlan,
    ChannelEnd,
    end_from_json,
    end_to_json,
    plan_from_json,
    plan_to_json,
    reader_replaced,
)
from headrace.ports import BatchRecords
from headrace.stores.embedded.connection import Database


class EmbeddedBatches(BatchRecords):
    """The recorded batches of one tunnel.

    Args:
        forget_finished: deletes the tunnel's channels that no batch needs, inside a write transaction.
    """

    def __init__(
        self, database: Database, tunnel_id: str, forget_finished: Callable[[apsw.Connection], None] = lambda _: None
    ) -> None:
        self._database = database
        self._tunnel = tunnel_id
        self._forget_finished = forget_finished

    def save_plan(self, plan: BatchPlan) -> None:
        """Save a plan, unless the batch has one. The first batch of a chain makes its reader the tunnel's reader."""
        with self._database.write() as connection:
            self._check_tunnel(connection)
            root, depth = BatchPlace.of(plan, self._place(connection, plan.previous))
            if plan.previous == INITIAL_BATCH:
                connection.execute("UPDATE tunnel SET reader = ? WHERE id = ?", (root, self._tunnel))
            connection.execute(
                "INSERT OR IGNORE INTO batch_plan (tunnel, batch, root, depth, previous, plan)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                (self._tunnel, plan.batch, root, depth, plan.previous, plan_to_json(plan)),
            )

    def check_reader(self, batch: str) -> None:
        """Raise `TunnelTakenError` if a batch does not belong to the chain that was started last."""
        found = self._database.query(
            "SELECT p.root = t.reader FROM batch_plan p JOIN tunnel t ON t.id = p.tunnel"
            " WHERE p.tunnel = ? AND p.batch = ?",
            (self._tunnel, batch),
        )
        if found and not found[0][0]:
            raise reader_replaced(self._tunnel)

    def load_plan(self, batch: str) -> BatchPlan | None:
        """Return the plan of a batch, or None."""
        found = self._database.query(
            "SELECT plan FROM batch_plan WHERE tunnel = ? AND batch = ?", (self._tunnel, batch)
        )
        return plan_from_json(found[0][0]) if found else None

    def record_end(self, batch: str, channel: str, end: ChannelEnd) -> ChannelEnd:
        """Save the end of a batch in a channel, unless it has one; return the saved end."""
        recorded = self.end(batch, channel)
        if recorded is not None:
            return recorded
        with self._database.write() as connection:
            self._check_tunnel(connection)
            connection.execute(
                "INSERT OR IGNORE INTO batch_end (tunnel, batch, channel, position) VALUES (?, ?, ?, ?)",
                (self._tunnel, batch, channel, end_to_json(end)),
            )
            saved = self.end(batch, channel)
            assert saved is not None
            return saved

    def end(self, batch: str, channel: str) -> ChannelEnd | None:
        """Return the saved end of a batch in one channel, or None."""
        found = self._database.query(
            "SELECT position FROM batch_end WHERE tunnel = ? AND batch = ? AND channel = ?",
            (self._tunnel, batch, channel),
        )
        return end_from_json(found[0][0]) if found else None

    def ends(self, batch: str) -> dict[str, ChannelEnd]:
        """Return the saved ends of a batch, by channel."""
        found = self._database.query(
            "SELECT channel, position FROM batch_end WHERE tunnel = ? AND batch = ?", (self._tunnel, batch)
        )
        return {channel: end_from_json(end) for channel, end in found}

    def prune(self, batch: str, keep: int) -> None:
        """Delete outdated batches, and finished channels of closed partitions that no other channel or batch names."""
        with self._database.write() as connection:
            self._prune(connection, batch, keep)
            self._forget_finished(connection)

    def _prune(self, connection: apsw.Connection, batch: str, keep: int) -> None:
        """Delete the batches that a batch outdates, see `BatchPlace.outdates`."""
        place = self._place(connection, batch)
        if place is None:
            return
        chain = connection.execute(
            "SELECT batch, root, depth FROM batch_plan WHERE tunnel = ? AND root = ? AND depth <= ? AND batch <> ?",
            (self._tunnel, place.root, place.depth, batch),
        )
        outdated = [(self._tunnel, other) for other, *at in chain if place.outdates(BatchPlace(*at), keep)]
        connection.executemany("DELETE FROM batch_plan WHERE tunnel = ? AND batch = ?", outdated)
        connection.executemany("DELETE FROM batch_end WHERE tunnel = ? AND batch = ?", outdated)

    def names(self, connection: apsw.Connection, channel: str) -> bool:
        """Return whether a plan or an end refers to a channel."""
        found = connection.execute(
            "SELECT EXISTS (SELECT 1 FROM batch_end WHERE tunnel = ?1 AND channel = ?2)"
            " OR EXISTS (SELECT 1 FROM batch_plan WHERE tunnel = ?1 AND instr(plan, ?3))",
            (self._tunnel, channel, json.dumps(channel)),
        )
        return any(row[0] for row in found)

    def _place(self, connection: apsw.Connection, batch: str) -> BatchPlace | None:
        found = connection.execute(
            "SELECT root, depth FROM batch_plan WHERE tunnel = ? AND batch = ?", (self._tunnel, batch)
        ).fetchone()
        return None if found is None else BatchPlace(*found)

    def _check_tunnel(self, connection: apsw.Connection) -> None:
        if connection.execute("SELECT 1 FROM tunnel WHERE id = ?", (self._tunnel,)).fetchone() is None:
            raise NotFoundError("the tunnel was dropped", received=self._tunnel, remedy="create a new tunnel")
