"""The start and the end of tunnels of type Stream, kept as JSON in a table of the instance.

The embedded store has the start of a tunnel, but its tunnels have no end.
"""

from __future__ import annotations

import datetime
import time
from dataclasses import dataclass

from headrace.model.tunnels.values import Start, StartKind
from headrace_tablestore.endpoint.errors import invalid
from headrace_tablestore.wire import tunnel_pb2 as pb

STREAM_BOUNDS_TABLE = ":tunnels"
"""The name is invalid for a table of Tablestore."""
_NANOSECONDS = 1_000_000_000
# Seconds by which a start must be younger than the oldest change of the table, because reading takes time.
_MARGIN = 5 * 60
_EPOCH = datetime.datetime.fromtimestamp(0, datetime.UTC)


@dataclass(frozen=True)
class StreamBounds:
    """The start and the end of a tunnel of type Stream, in ns since 1970.

    Attributes:
        earliest: without a ``start``, whether the tunnel begins with the oldest change, not with the next one.
        start: the time of the first change; 0 for none.
        end: the time at which the tunnel ends, exclusive; 0 for none.
        over: whether all changes before ``end`` are committed.
    """

    earliest: bool = False
    start: int = 0
    end: int = 0
    over: bool = False

    @classmethod
    def of(cls, config: pb.StreamTunnelConfig, retention: float | None) -> StreamBounds:
        """Parse the bounds of a request.

        Args:
            retention: for how many seconds the table keeps changes; None for no limit.

        Raises:
            ServiceError: OTSParameterInvalid.
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
            raise invalid("the end of a tunnel must be after its start", received=f"end {bounds.end} ns")
        return bounds

    @property
    def begin(self) -> Start:
        """The start of the store's tunnel."""
        if self.start:
            return Start(StartKind.TIMESTAMP, _EPOCH + datetime.timedelta(microseconds=self.start // 1000))
        return Start(StartKind.EARLIEST if self.earliest else StartKind.LATEST)

    @property
    def config(self) -> pb.StreamTunnelConfig:
        """The bounds as a message."""
        flag = pb.EARLIEST if self.earliest else pb.LATEST
        return pb.StreamTunnelConfig(flag=flag, start_offset=self.start, end_offset=self.end)
