"""The queue agent's attributes of queues and consumers. They are computed when they are read, so they are current.

Rates are always 0, because they are not measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from headrace.model.queues.columns import CUMULATIVE_DATA_WEIGHT, TIMESTAMP, data_weights
from headrace.model.queues.values import Bounds, Disposition
from headrace.ports import QueuePartition
from headrace.stores.embedded.for_servers import EmbeddedQueue, catalog, stored_queues
from headrace_ytsaurus.endpoint.context import Context
from headrace_ytsaurus.endpoint.cypress.node_types import NOTHING
from headrace_ytsaurus.endpoint.errors import refused
from headrace_ytsaurus.endpoint.queues import registration_rows
from headrace_ytsaurus.endpoint.queues.registration_rows import RegistrationRow
from headrace_ytsaurus.endpoint.storage.snapshot import SnapshotDatabase
from headrace_ytsaurus.endpoint.tables import state as table_state
from headrace_ytsaurus.endpoint.tables.state import UNMOUNTED, Table, TableKind
from headrace_ytsaurus.endpoint.tables.tablets import cell_of
from headrace_ytsaurus.endpoint.values import time_text
from headrace_ytsaurus.wire.errors import Code, YtError

AGENT_HOST = "localhost"
_NO_RATE = {"current": 0.0, "1m_raw": 0.0, "1m": 0.0, "1h": 0.0, "1d": 0.0}
NEVER = time_text(0)


def attribute(context: Context, table: Table, name: str, *, banned: bool = False) -> Any:
    """Return an attribute, `NOTHING` if tables of this kind do not have it. Call it in a read transaction."""
    wanted, read = ATTRIBUTES[name]
    if table.kind is not wanted:
        return NOTHING
    if banned:
        what = "Queue" if wanted is TableKind.QUEUE else "Consumer"
        error = YtError(Code.GENERIC, f"{what} is banned").to_json()
        return {"error": error} if name.endswith("_status") else []
    return read(_Agent(context), table)


class _Agent:
    """Computes attributes of queues and consumers in one read transaction."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._cluster: str = context.cluster.name
        self.connection = context.database.connection
        self._database = SnapshotDatabase(context.database, self.connection)
        self._now = time.time()
        self._registrations = registration_rows.rows(self.connection, self._cluster)

    # -- queues -----------------------------------------------------------------------------------------

    def queue_status(self, table: Table) -> dict[str, Any]:
        names = {column.name for column in table.schema.columns}
        found = [row for row in self._registrations if row.key[:2] == (self._cluster, table.name)]
        return {
            "queue_agent_host": AGENT_HOST,
            "alerts": {},
            "exports": {},
            "family": "ordered_dynamic_table",
            "partition_count": len(table.tablets),
            "registrations": [_registration(row) for row in found],
            "has_timestamp_column": TIMESTAMP in names,
            "has_cumulative_data_weight_column": CUMULATIVE_DATA_WEIGHT in names,
            "write_row_count_rate": _NO_RATE,
            "write_data_weight_rate": _NO_RATE,
        }

    def queue_partitions(self, table: Table) -> list[dict[str, Any]]:
        state = stored_queues.load(self.connection, table.name)
        return [self._queue_partition(table, each) for each in stored_queues.partitions(self.connection, state)]

    def _queue_partition(self, table: Table, partition: QueuePartition) -> dict[str, Any]:
        if table.tablets[partition.number].state == UNMOUNTED:
            return {"error": self._not_mounted(table, partition.number)}
        bounds, weight = partition.bounds, partition.weight
        trimmed = None if weight is None else self._weight_before(table, partition.number, bounds, bounds.lower, weight)
        committed = partition.last_commit
        idle = self._now - committed if committed else self._now
        return {
            "lower_row_index": bounds.lower,
            "upper_row_index": bounds.upper,
            "available_row_count": bounds.rows,
            "last_row_commit_time": _time(committed),
            "commit_idle_time": _milliseconds(idle),
            "cumulative_data_weight": weight,
            "trimmed_data_weight": trimmed,
            "available_data_weight": None if weight is None or trimmed is None else weight - trimmed,
            "write_row_count_rate": _NO_RATE,
            "write_data_weight_rate": _NO_RATE,
            "meta": {"cell_id": cell_of(self._context.cypress), "host": AGENT_HOST},
        }

    def _not_mounted(self, table: Table, number: int) -> dict[str, Any]:
        tablet = table.tablets[number]
        return YtError(
            Code.TABLET_NOT_MOUNTED,
            f"Tablet {tablet.id} is not mounted or frozen",
            attributes={"state": tablet.state, "tablet_index": number},
        ).to_json()

    def _weight_before(self, table: Table, number: int, bounds: Bounds, row: int, weight: int) -> int | None:
        """Return the cumulative data weight of the rows before a row; ``weight`` is the weight of all rows."""
        if row == bounds.upper:
            return weight
        if not bounds.lower <= row < bounds.upper:
            return None
        first = EmbeddedQueue(self._database, table.name).read(number, row, 1).rows
        # A row from before the column was added had a smaller weight than it has now.
        return max(0, int(first.column(CUMULATIVE_DATA_WEIGHT)[0].as_py() - data_weights(first)[0]))

    # -- consumers --------------------------------------------------------------------------------------

    def consumer_status(self, table: Table) -> dict[str, Any]:
        found = self._registrations_of(table)
        return {
            "queue_agent_host": AGENT_HOST,
            "registrations": [_registration(row) for row in found],
            "queues": {_ref(*row.key[:2]): self._subscription(table, row) for row in found},
        }

    def _subscription(self, table: Table, row: RegistrationRow) -> dict[str, Any]:
        """Return the part of a consumer's status for one queue."""
        try:
            queue = self._queue_for(table, row)
        except YtError as error:
            return {"error": error.to_json()}
        return {
            "partition_count": len(queue.tablets),
            "read_row_count_rate": _NO_RATE,
            "read_data_weight_rate": _NO_RATE,
        }

    def consumer_partitions(self, table: Table) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for row in self._registrations_of(table):
            ref = _ref(*row.key[:2])
            try:
                queue = self._queue_for(table, row)
            except YtError:
                # The error is in the consumer's status.
                found[ref] = []
                continue
            state = stored_queues.load(self.connection, queue.name)
            consumed = self._consumed(table.name, state.id)
            found[ref] = [
                self._consumer_partition(queue, partition, *consumed.get(partition.number, (0, None)))
                for partition in stored_queues.partitions(self.connection, state)
            ]
        return found

    def _registrations_of(self, table: Table) -> list[RegistrationRow]:
        return [row for row in self._registrations if row.key[2:] == (self._cluster, table.name)]

    def _queue_for(self, table: Table, row: RegistrationRow) -> Table:
        """Return the queue of a consumer's registration.

        Raises:
            YtError: there is no such queue, or the consumer is not mounted.
        """
        if row.key.queue_cluster != self._cluster:
            raise refused(f'Queue cluster "{row.key.queue_cluster}" was not found for path {row.key.queue}')
        queue = table_state.load(self.connection, self._context.cypress.find(row.key.queue))
        if queue.kind is not TableKind.QUEUE:
            raise refused("Only ordered dynamic tables are supported as queues", received=queue.name)
        table.require_mounted(reading=True)
        return queue

    def _consumed(self, consumer: str, queue_id: int) -> dict[int, tuple[int, float]]:
        consumer_id = catalog.find(self.connection, consumer, "consumer")
        found = self.connection.execute(
            "SELECT number, next, consumed FROM consumer_offset WHERE queue = ? AND consumer = ?",
            (queue_id, consumer_id),
        )
        return {number: (offset, consumed) for number, offset, consumed in found}

    def _consumer_partition(
        self, queue: Table, partition: QueuePartition, offset: int, consumed: float | None
    ) -> dict[str, Any]:
        if queue.tablets[partition.number].state == UNMOUNTED:
            return {"error": self._not_mounted(queue, partition.number)}
        bounds, weight = partition.bounds, partition.weight
        before = None if weight is None else self._weight_before(queue, partition.number, bounds, offset, weight)
        committed = None
        if max(offset, bounds.lower) < bounds.upper:
            handle = EmbeddedQueue(self._database, queue.name)
            committed = handle.commit_time(partition.number, max(offset, bounds.lower))
        return {
            "next_row_index": offset,
            "last_consume_time": _time(consumed),
            "disposition": str(Disposition.of(bounds, offset)),
            "unread_row_count": bounds.upper - offset,
            "unread_data_weight": None if not offset or weight is None or before is None else weight - before,
            "next_row_commit_time": None if committed is None else _time(committed),
            "processing_lag": 0 if committed is None else max(1, _milliseconds(self._now - committed)),
            "consume_idle_time": _milliseconds(self._now - consumed if consumed else self._now),
            "cumulative_data_weight": before if offset else None,
            "read_row_count_rate": _NO_RATE,
            "read_data_weight_rate": _NO_RATE,
        }


def _registration(row: RegistrationRow) -> dict[str, Any]:
    return {"queue": _ref(*row.key[:2]), "consumer": _ref(*row.key[2:]), "vital": row.vital}


def _ref(cluster: str, path: str) -> str:
    return f"{cluster}:{path}"


def _time(seconds: float | None) -> str:
    return NEVER if not seconds else time_text(round(seconds * 1e6))


def _milliseconds(seconds: float) -> int:
    return max(0, int(seconds * 1000))


ATTRIBUTES: Mapping[str, tuple[TableKind, Callable[[_Agent, Table], Any]]] = {
    "queue_status": (TableKind.QUEUE, _Agent.queue_status),
    "queue_partitions": (TableKind.QUEUE, _Agent.queue_partitions),
    "queue_consumer_status": (TableKind.CONSUMER, _Agent.consumer_status),
    "queue_consumer_partitions": (TableKind.CONSUMER, _Agent.consumer_partitions),
}
