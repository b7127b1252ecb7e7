"""The records of a tunnel's batches, in tables ``batch_plan`` and ``batch_end``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic

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
from headrace.stores.shared.tunnel_records import Records, S, TunnelStatements, lock_tunnel

_END = "SELECT position FROM headrace.batch_end WHERE tunnel = %s AND batch = %s AND channel = %s"


class TunnelBatches(BatchRecords, Generic[S]):
    """The recorded batches of one tunnel.

    Args:
        after_prune: deletes what no batch needs any more, in the transaction of `prune`.
    """

    def __init__(self, records: Records[S], tunnel_id: str, after_prune: Callable[[S], None] | None = None) -> None:
        self._records = records
        self._tunnel = tunnel_id
        self._after_prune = after_prune

    def save_plan(self, plan: BatchPlan) -> None:
        """Save a plan, unless the batch has one. The first batch of a chain makes its reader the tunnel's reader."""

        def save(statements: S) -> None:
            lock_tunnel(statements, self._tunnel)
            root, depth = BatchPlace.of(plan, self._place(statements, plan.previous))
            if plan.previous == INITIAL_BATCH:
                statements.execute("UPDATE headrace.tunnel SET reader = %s WHERE id = %s", (root, self._tunnel))
            statements.execute(
                "INSERT INTO headrace.batch_plan (tunnel, batch, root, depth, previous, plan)"
                " VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING",
                (self._tunnel, plan.batch, root, depth, plan.previous, plan_to_json(plan)),
            )

        self._records.run(save)

    def check_reader(self, batch: str) -> None:
        """Raise `TunnelTakenError` if a batch does not belong to the chain that was started last."""
        rows = self._records.query(
            "SELECT p.root = t.reader FROM headrace.batch_plan p JOIN headrace.tunnel t ON t.id = p.tunnel"
            " WHERE p.tunnel = %s AND p.batch = %s",
            (self._tunnel, batch),
        )
        if rows and not rows[0][0]:
            raise reader_replaced(self._tunnel)

    def load_plan(self, batch: str) -> BatchPlan | None:
        """Return the plan of a batch, or None."""
        rows = self._records.query(
            "SELECT plan FROM headrace.batch_plan WHERE tunnel = %s AND batch = %s", (self._tunnel, batch)
        )
        return plan_from_json(rows[0][0]) if rows else None

    def record_end(self, batch: str, channel: str, end: ChannelEnd) -> ChannelEnd:
        """Save the end of a batch in a channel, unless it has one; return the saved end."""

        def save(statements: S) -> ChannelEnd:
            lock_tunnel(statements, self._tunnel)
            statements.execute(
                "INSERT INTO headrace.batch_end (tunnel, batch, channel, position) VALUES (%s, %s, %s, %s)"
                " ON CONFLICT DO NOTHING",
                (self._tunnel, batch, channel, end_to_json(end)),
            )
            (saved,) = statements.execute(_END, (self._tunnel, batch, channel)).fetchall()
            return end_from_json(saved[0])

        return self._records.run(save)

    def end(self, batch: str, channel: str) -> ChannelEnd | None:
        """Return the saved end of a batch in one channel, or None."""
        rows = self._records.query(_END, (self._tunnel, batch, channel))
        return end_from_json(rows[0][0]) if rows else None

    def ends(self, batch: str) -> dict[str, ChannelEnd]:
        """Return the saved ends of a batch, by channel."""
        rows = self._records.query(
            "SELECT channel, position FROM headrace.batch_end WHERE tunnel = %s AND batch = %s", (self._tunnel, batch)
        )
        return {channel: end_from_json(end) for channel, end in rows}

    def prune(self, batch: str, keep: int) -> None:
        """Delete the batches that a batch outdates, see `BatchPlace.outdates`."""

        def delete(statements: S) -> None:
            place = self._place(statements, batch)
            if place is not None:
                delete_outdated(statements, place)
            if self._after_prune is not None:
                self._after_prune(statements)

        def delete_outdated(statements: S, place: BatchPlace) -> None:
            chain = statements.execute(
                "SELECT batch, root, depth FROM headrace.batch_plan"
                " WHERE tunnel = %s AND root = %s AND depth <= %s AND batch <> %s",
                (self._tunnel, place.root, place.depth, batch),
            ).fetchall()
            for other, *at in chain:
                if place.outdates(BatchPlace(*at), keep):
                    of_batch = (self._tunnel, other)
                    statements.execute("DELETE FROM headrace.batch_plan WHERE tunnel = %s AND batch = %s", of_batch)
                    statements.execute("DELETE FROM headrace.batch_end WHERE tunnel = %s AND batch = %s", of_batch)

        self._records.run(delete)

    def _place(self, statements: TunnelStatements, batch: str) -> BatchPlace | None:
        row = statements.execute(
            "SELECT root, depth FROM headrace.batch_plan WHERE tunnel = %s AND batch = %s", (self._tunnel, batch)
        ).fetchone()
        return None if row is None else BatchPlace(*row)
