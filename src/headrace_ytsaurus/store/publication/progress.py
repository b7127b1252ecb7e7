"""Advances of consumers by publications: the offsets that a job has set, and the rows of its last batch.

A publication advances consumers in its transaction. Spark may still run the batch again, for example for another sink,
or after it was killed. So the offsets of publications are saved, and the rows of the batch are kept from automatic
trimming by a consumer of headrace (the *keeper*). It is registered as vital next to a vital consumer and stays at the
beginning of the batch until the consumer advances again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace_ytsaurus.store.catalog import Names, node_name
from headrace_ytsaurus.store.connection import YtConnection
from headrace_ytsaurus.store.failures import translated
from headrace_ytsaurus.store.meta_table import StateTable
from headrace_ytsaurus.store.queues import registrations
from headrace_ytsaurus.wire.types import YtColumn


class Progress:
    """The offsets that jobs have set, in a table of headrace."""

    def __init__(self, connection: YtConnection, names: Names) -> None:
        self._table = StateTable(
            connection,
            f"{names.state}/progress",
            (
                YtColumn.of("consumer", "string", sort_order="ascending"),
                YtColumn.of("queue", "string", sort_order="ascending"),
                YtColumn.of("partition", "int64", sort_order="ascending"),
                YtColumn.of("offset", "int64", required=False),
                YtColumn.of("job", "string", required=False),
            ),
        )

    def ensure(self) -> None:
        self._table.ensure()

    def load(
        self, client: Any, consumer: str, queue: str, partitions: Sequence[int], job: str | None = None
    ) -> dict[int, int]:
        """Return the offsets that publications have set, of one job or of any."""
        rows = self._table.load(_keys(consumer, queue, partitions), client=client)
        return {row["partition"]: row["offset"] for row in rows if job is None or row["job"] == job}

    def record(self, client: Any, consumer: str, queue: str, offsets: Mapping[int, int], job: str) -> None:
        rows = [
            {**key, "offset": offsets[key["partition"]], "job": job} for key in _keys(consumer, queue, list(offsets))
        ]
        if rows:
            self._table.write(rows, client=client)

    def forget(self, client: Any, consumer: str, queue: str, partitions: Sequence[int]) -> None:
        if partitions and self._table.exists:
            self._table.delete(_keys(consumer, queue, partitions), client=client)


def _keys(consumer: str, queue: str, partitions: Sequence[int]) -> list[dict[str, Any]]:
    return [{"consumer": consumer, "queue": queue, "partition": number} for number in partitions]


def keeper_of(names: Names, consumer: str) -> str:
    """Return the path of the keeper of a consumer."""
    return f"{names.state}/keepers/{node_name(consumer)}"


def ensure_keeper(connection: YtConnection, names: Names, consumer: str, queue: str) -> None:
    """Register the keeper of a vital consumer at the consumer's current offsets."""
    keeper = keeper_of(names, consumer)
    client = connection.client
    with translated(f"make {keeper}, which keeps rows until batches are done"):
        client.create("queue_consumer", keeper, recursive=True, ignore_existing=True)
        client.mount_table(keeper, sync=True)
        for partition, offset in registrations.offsets(connection, consumer, queue).items():
            client.advance_queue_consumer(keeper, queue, partition, None, offset)
        # After the offsets are set: a vital consumer without offsets would keep all rows.
        client.register_queue_consumer(queue, keeper, vital=True)


def move_keeper(client: Any, names: Names, consumer: str, queue: str, offsets: Mapping[int, int]) -> None:
    """Set the keeper's offsets in the transaction of a client."""
    with translated("advance a keeper"):
        for partition, offset in offsets.items():
            client.advance_queue_consumer(keeper_of(names, consumer), queue, partition, None, offset)
