"""Recorded batches as text: what a batch reads, and where it ended. Every store with a meta table keeps them so."""

from __future__ import annotations

import json
from typing import Any

from headrace.errors import StoreDamagedError
from headrace.model import BatchPlan, ChannelEnd, ChannelPlan, Position

_FORMAT = 1


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
