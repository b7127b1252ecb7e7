"""The marker of a sink of a job: the last published batch, or the batch that is being published in parts."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace_ytsaurus.store.catalog import Names
from headrace_ytsaurus.store.connection import YtConnection
from headrace_ytsaurus.store.meta_table import StateTable
from headrace_ytsaurus.store.tables.conditions import literal
from headrace_ytsaurus.wire.types import YtColumn

PUBLISHED, PUBLISHING = "published", "publishing"


@dataclass(frozen=True)
class Marker:
    """A batch, the hash of its content, and the attempt that wrote the marker.

    Attributes:
        attempt: the unique id of a publication. After a lost response it shows whether the commit succeeded.
        intent: for a batch that is being published in parts, its files and options. None for a published batch.
    """

    batch: int
    content: str
    attempt: str
    intent: Mapping[str, Any] | None = field(default=None, hash=False)

    @property
    def state(self) -> str:
        return PUBLISHED if self.intent is None else PUBLISHING

    def covers(self, batch: int) -> bool:
        """Return whether a batch is published: all before this one, and this one if it has no intent."""
        return batch < self.batch or (batch == self.batch and self.intent is None)


class Markers:
    """Reads and writes the marker of one sink of a job."""

    def __init__(self, connection: YtConnection, names: Names, job: str, sink: str) -> None:
        self._key = {"job": job, "sink": sink}
        self._table = StateTable(
            connection,
            f"{names.state}/publications",
            (
                YtColumn.of("job", "string", sort_order="ascending"),
                YtColumn.of("sink", "string", sort_order="ascending"),
                YtColumn.of("batch", "int64", required=False),
                YtColumn.of("content", "string", required=False),
                YtColumn.of("state", "string", required=False),
                YtColumn.of("attempt", "string", required=False),
                YtColumn.of("intent", "string", required=False),
                YtColumn.of("written", "int64", required=False),
            ),
        )

    def ensure(self) -> None:
        self._table.ensure()

    def load(self, client: Any = None) -> Marker | None:
        """Return the marker; with ``client``, as its transaction sees it."""
        for row in self._table.load([self._key], client=client):
            intent = json.loads(row["intent"]) if row["state"] == PUBLISHING else None
            return Marker(row["batch"], row["content"] or "", row["attempt"] or "", intent)
        return None

    def last_of_job(self) -> int | None:
        """Return the greatest batch of the markers of all sinks of the job; None if there is none."""
        if not self._table.exists:
            return None
        columns = {column.name: column for column in self._table.columns}
        condition = f"job = {literal(columns['job'], self._key['job'])}"
        with self._table.connection.snapshot() as select:
            found = select(f"batch from [{self._table.path}] where {condition}", [columns["batch"]])
        return max((int(row["batch"]) for row in found.to_pylist()), default=None)

    def write(self, marker: Marker, client: Any) -> None:
        intent = None if marker.intent is None else json.dumps(marker.intent)
        row = {
            **self._key,
            "batch": marker.batch,
            "content": marker.content,
            "state": marker.state,
            "attempt": marker.attempt,
            "intent": intent,
            "written": time.time_ns() // 1000,
        }
        self._table.write([row], client=client)

    def remove(self) -> None:
        self._table.delete([self._key])
