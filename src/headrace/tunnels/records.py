"""The records of a batch: its plan, and where it ended in each channel. As values, and as the JSON that stores keep."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from headrace.errors import StoreDamagedError
from headrace.tunnels.values import Position

_FORMAT = 1


@dataclass(frozen=True)
class ChannelEnd:
    """Where a batch ended in a channel, and how many rows it had from there: with the start, the batch's content."""

    position: Position
    rows: int


@dataclass(frozen=True)
class ChannelPlan:
    """One channel's part in a batch: where it starts, how many rows it may give, where it must stop.

    ``max_rows`` None is no limit; with 0 the channel is not read in this batch and keeps its position.
    """

    channel: str
    start: Position
    max_rows: int | None = None
    until: Position | None = None


@dataclass(frozen=True)
class BatchPlan:
    """What a batch reads, fixed before Spark learns of the batch.

    Attributes:
        batch: the batch id, a UUID.
        previous: the batch id that it follows, or `INITIAL_BATCH`.
        channels: the channels that it reads.
        finished: channels that are read to their end, until the store says so too.
    """

    batch: str
    previous: str
    channels: tuple[ChannelPlan, ...]
    finished: tuple[str, ...] = field(default=())

    def __iter__(self) -> Iterator[ChannelPlan]:
        return iter(self.channels)


INITIAL_BATCH = "00000000-0000-0000-0000-000000000000"
"""The batch id before the first: its positions follow from the start position and the tunnel."""


def plan_to_json(plan: BatchPlan) -> str:
    """Return a plan as text, with the version of its form."""
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
    """Read a plan back; the inverse of `plan_to_json`."""
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
    """Return the end of a batch in one channel as text, with the version of its form."""
    content = {"v": _FORMAT, "position": _position_to_list(end.position), "rows": end.rows}
    return json.dumps(content, separators=(",", ":"))


def end_from_json(text: str) -> ChannelEnd:
    """Read an end back; the inverse of `end_to_json`."""
    content = _versioned(text)
    return ChannelEnd(Position(*content["position"]), content["rows"])


def _position_to_list(position: Position) -> list[str | int]:
    return [position.token, position.skip]


def _versioned(text: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(text)
    if content.get("v") != _FORMAT:
        raise StoreDamagedError(
            "a batch was recorded by another version of headrace",
            received=f"format {content.get('v')}",
            valid=f"format {_FORMAT}",
        )
    return content
