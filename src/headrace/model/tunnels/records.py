"""The records of a batch: its plan, and its end in each channel; as values, and as the JSON that stores save.

The batches of one reader of a tunnel form a chain, see `BatchPlace`. Stores save the records, see
`headrace.stores.shared.tunnel_batches`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from headrace.errors import StoreDamagedError, TunnelTakenError
from headrace.model.tunnels.values import Position

_FORMAT = 1


@dataclass(frozen=True)
class ChannelEnd:
    """The end of a batch in a channel.

    Attributes:
        position: the position after the last row of the batch.
        rows: the number of rows between the planned start and ``position``.
    """

    position: Position
    rows: int


@dataclass(frozen=True)
class ChannelPlan:
    """The plan of one channel in a batch.

    Attributes:
        channel: the channel id.
        start: the position of the first row.
        max_rows: the maximum number of rows; None is no limit. With 0 the channel is not read in this batch and keeps
            its position.
        until: the position after the last row that the batch may read; None is the end of the channel.
    """

    channel: str
    start: Position
    max_rows: int | None = None
    until: Position | None = None


@dataclass(frozen=True)
class BatchPlan:
    """The plan of a batch, saved before Spark knows the batch id.

    Attributes:
        batch: the batch id, a UUID.
        previous: the id of the batch before, or `INITIAL_BATCH`.
        channels: the plans of the channels.
        finished: finished channels that the store does not yet report as finished.
    """

    batch: str
    previous: str
    channels: tuple[ChannelPlan, ...]
    finished: tuple[str, ...] = field(default=())

    def __iter__(self) -> Iterator[ChannelPlan]:
        return iter(self.channels)


INITIAL_BATCH = "00000000-0000-0000-0000-000000000000"
"""The position before the first batch; its positions in the channels follow from the tunnel and the query's start."""


class BatchPlace(NamedTuple):
    """The place of a batch in the chain of a reader: ``root`` is the reader's first batch, which has depth 0.

    Two drivers of one query can plan two batches after the same batch; only one of them continues the chain.
    """

    root: str
    depth: int

    @classmethod
    def of(cls, plan: BatchPlan, before: BatchPlace | None) -> BatchPlace:
        """Return the place of a new batch.

        Args:
            before: the place of the previous batch; None if it is not recorded, so the batch starts a chain.
        """
        return cls(plan.batch, 0) if before is None else cls(before.root, before.depth + 1)

    def outdates(self, other: BatchPlace, keep: int) -> bool:
        """Return whether a commit of this batch makes another batch of the chain unnecessary.

        Args:
            keep: the number of earlier batches to keep.
        """
        return other.depth < self.depth - keep or other.depth == self.depth


def reader_replaced(tunnel_id: str) -> TunnelTakenError:
    """Return the error for a reader whose tunnel another reader has taken."""
    return TunnelTakenError(
        "another query, or a client, has started to read this tunnel",
        received=f"tunnel {tunnel_id}",
        remedy="create a tunnel for each query (and for each side of a self-join), and one for clients",
    )


def plan_to_json(plan: BatchPlan) -> str:
    """Return a plan as JSON text, with a format version."""
    content = {
        "v": _FORMAT,
        "batch": plan.batch,
        "previous": plan.previous,
        "channels": [
            {
                "channel": part.channel,
                "start": _position_to_list(part.start),
                "max_rows": part.max_rows,
                "until": None if part.until is None else _position_to_list(part.until),
            }
            for part in plan.channels
        ],
        "finished": list(plan.finished),
    }
    return json.dumps(content, separators=(",", ":"))


def plan_from_json(text: str) -> BatchPlan:
    """Return the plan of a JSON text; the inverse of `plan_to_json`."""
    content = _versioned(text)
    return BatchPlan(
        batch=content["batch"],
        previous=content["previous"],
        channels=tuple(
            ChannelPlan(
                channel=part["channel"],
                start=Position(*part["start"]),
                max_rows=part["max_rows"],
                until=None if part["until"] is None else Position(*part["until"]),
            )
            for part in content["channels"]
        ),
        finished=tuple(content["finished"]),
    )


def end_to_json(end: ChannelEnd) -> str:
    """Return an end as JSON text, with a format version."""
    content = {"v": _FORMAT, "position": _position_to_list(end.position), "rows": end.rows}
    return json.dumps(content, separators=(",", ":"))


def end_from_json(text: str) -> ChannelEnd:
    """Return the end of a JSON text; the inverse of `end_to_json`."""
    content = _versioned(text)
    return ChannelEnd(Position(*content["position"]), content["rows"])


def _position_to_list(position: Position) -> list[str | int]:
    return [position.token, position.skip]


def _versioned(text: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(text)
    if content.get("v") != _FORMAT:
        raise StoreDamagedError(
            "another version of headrace has recorded this batch",
            received=f"format {content.get('v')}",
            valid=f"format {_FORMAT}",
        )
    return content
