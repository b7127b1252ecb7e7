"""Where Stream tunnels begin and end: what a client asked for, kept as JSON in a table of the instance itself.

The embedded store knows where a tunnel begins, and tunnels of its own never end.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.endpoints.tablestore.errors import invalid
from headrace.errors import NotFoundError
from headrace.tunnels.values import Start, StartKind
from headrace.wire.tablestore import tunnel_pb2 as pb

if TYPE_CHECKING:
    from headrace.ports import Store

STREAM_BOUNDS_TABLE = ":tunnels"
"""No table of Tablestore can have this name."""
_NANOSECONDS = 1_000_000_000
# A start must be so much younger than what the table still keeps: reading takes its time.
_MARGIN = 5 * 60
_EPOCH = datetime.datetime.fromtimestamp(0, datetime.UTC)


@dataclass(frozen=True)
class StreamBounds:
    """Where a Stream tunnel begins and ends, in ns since 1970.

    Attributes:
        earliest: whether it begins with the oldest change that there is; else with the next one.
        start: or begins at an instant, if this is not 0.
        end: the first instant whose changes it does not have; 0 for none.
        over: whether all changes before ``end`` are there to be read.
    """

    earliest: bool = False
    start: int = 0
    end: int = 0
    over: bool = False

    @classmethod
    def of(cls, config: pb.StreamTunnelConfig, retention: float | None) -> StreamBounds:
        """Read a request.

        Args:
            retention: for how many seconds the table keeps changes; None is for ever.

        Raises:
            ServiceError: OTSParameterInvalid: the bounds cannot be.
        """
        now = time.time_ns()
        bounds = cls(config.flag == pb.EARLIEST, config.start_offset, config.end_offset)
        if bounds.start >= now:
            raise invalid(
                "the start of a tunnel must be in the past", received=f"{bounds.start} ns", valid=f"below {now}"
            )
        oldest = 0 if retention is None else now - round((retention - _MARGIN) * _NANOSECONDS)
        if 0 < bounds.start < oldest:
            raise invalid(
                "the table does not keep changes for so long",
                received=f"start {bounds.start} ns",
                valid=f"from {oldest} on",
            )
        if 0 < bounds.end <= (bounds.start or (0 if bounds.earliest else now)):
            raise invalid("the end of a tunnel must be behind its start", received=f"end {bounds.end} ns")
        return bounds

    @property
    def begin(self) -> Start:
        """Where the store's tunnel begins."""
        if self.start:
            return Start(StartKind.TIMESTAMP, _EPOCH + datetime.timedelta(microseconds=self.start // 1000))
        return Start(StartKind.EARLIEST if self.earliest else StartKind.LATEST)

    @property
    def config(self) -> pb.StreamTunnelConfig:
        """The bounds as a message."""
        flag = pb.EARLIEST if self.earliest else pb.LATEST
        return pb.StreamTunnelConfig(flag=flag, start_offset=self.start, end_offset=self.end)


class StreamBoundsTable:
    """The bounds of the tunnels of one instance. Tunnels that were not made through the endpoint have no entry."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def get(self, tunnel: str) -> StreamBounds:
        """Return the bounds of a tunnel; those of one which begins with the next change if nothing was saved."""
        try:
            row = self._store.table(STREAM_BOUNDS_TABLE).get({"id": tunnel})
        except NotFoundError:
            return StreamBounds()
        return StreamBounds() if row is None else StreamBounds(**json.loads(row["span"]))

    def save(self, tunnel: str, bounds: StreamBounds) -> None:
        """Save the bounds of a tunnel."""
        table = self._store.create_table(STREAM_BOUNDS_TABLE, {"id": "string", "span": "string"}, "id", exist_ok=True)
        table.put({"id": tunnel, "span": json.dumps(dataclasses.asdict(bounds))})

    def delete(self, tunnel: str) -> None:
        """Forget the bounds of a tunnel."""
        try:
            self._store.table(STREAM_BOUNDS_TABLE).delete({"id": tunnel})
        except NotFoundError:
            return
