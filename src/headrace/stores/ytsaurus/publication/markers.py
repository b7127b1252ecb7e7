"""The marker of a sink of a job: which batch was published last, or is being published in parts."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.errors import PublicationError
from headrace.stores.ytsaurus.catalog import Names
from headrace.stores.ytsaurus.connection import Connection
from headrace.stores.ytsaurus.meta_table import StateTable
from headrace.wire.ytsaurus.types import YtColumn

PUBLISHED, PUBLISHING = "published", "publishing"


@dataclass(frozen=True)
class Marker:
    """A batch, what tells its content, and who wrote the marker.

    Attributes:
        attempt: tells this publication from any other of the same batch: the marker answers whether a commit happened.
        intent: for a batch that is being published in parts: what belongs to it. None when it is published.
    """

    batch: int
    content: str
    attempt: str
    intent: Mapping[str, Any] | None = field(default=None, hash=False)

    @property
    def state(self) -> str:
        return PUBLISHED if self.intent is None else PUBLISHING

    def covers(self, batch: int) -> bool:
        """Tell whether a batch is published: this one if it is whole, and all before it."""
        return batch < self.batch or (batch == self.batch and self.intent is None)

    def check_same(self, job: str, sink: str, batch: int, content: str) -> None:
        """Raise `PublicationError` unless a batch comes again as it was; Spark repeats only the last one."""
        if content and (self.batch != batch or (self.content and self.content != content)):
            raise PublicationError(
                f"batch {batch} of job {job} has other rows than the batch {batch} that was published",
                received=f"batch {batch}, after batch {self.batch} was published to {sink!r}",
                remedy="the checkpoint went back (files lost in a power cut, or an older copy restored): restore the "
                "newest one, or start the query with a new checkpoint location",
            )


class Markers:
    """Reads and writes the marker of one sink of a job."""

    def __init__(self, connection: Connection, names: Names, job: str, sink: str) -> None:
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
        """Return the marker, as a transaction sees it if one's client is given."""
        for row in self._table.load([self._key], client=client):
            intent = json.loads(row["intent"]) if row["state"] == PUBLISHING else None
            return Marker(row["batch"], row["content"] or "", row["attempt"] or "", intent)
        return None

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
