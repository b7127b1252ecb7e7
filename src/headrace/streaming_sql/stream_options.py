"""The options of ``CREATE STREAM``: those of the stream itself, and those that go to its sink."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.errors import OptionError

OUTPUT_MODES = ("append", "update", "complete")
TRIGGER_TYPES = ("ProcessingTime", "AvailableNow", "Once")
KNOWN = ("checkpointLocation", "outputMode", "triggerType", "triggerIntervalMs", "triggerInterval", "timeoutMs")
# Below this likeness an option is taken for one of the sink's.
_NEAR_MISS = 0.85


@dataclass(frozen=True)
class StreamOptions:
    """How a stream runs.

    Attributes:
        checkpoint: the checkpoint location.
        output_mode: one of `OUTPUT_MODES`.
        trigger: as `DataStreamWriter.trigger` takes it.
        timeout_ms: stop the stream after so many milliseconds; None never.
        sink: the options that are not the stream's own.
    """

    checkpoint: str
    output_mode: str
    trigger: Mapping[str, Any]
    timeout_ms: int | None
    sink: Mapping[str, str] = field(repr=False)

    @property
    def trigger_text(self) -> str:
        """The trigger as its option says it."""
        if "processingTime" in self.trigger:
            return f"ProcessingTime, {self.trigger['processingTime']}"
        return "AvailableNow" if "availableNow" in self.trigger else "Once"


def read_stream_options(stream: str, options: Mapping[str, str], *, available_now: bool = False) -> StreamOptions:
    """Check the options of a stream. Names are compared without regard to case.

    Args:
        available_now: stop when all is read that is there now, whatever the options say.

    Raises:
        OptionError: one is missing, unknown but close to a known one, or has a value that cannot be.
    """
    known = {name.lower(): name for name in KNOWN}
    own: dict[str, str] = {}
    sink: dict[str, str] = {}
    for name, value in options.items():
        if name.lower() in known:
            own[known[name.lower()]] = value
            continue
        close = difflib.get_close_matches(name.lower(), known, n=1, cutoff=_NEAR_MISS)
        if close:
            raise OptionError(
                f"unknown option of stream {stream}", received=name, valid=f"did you mean {known[close[0]]}?"
            )
        sink[name] = value
    if not own.get("checkpointLocation"):
        raise OptionError(
            f"stream {stream} needs option checkpointLocation",
            valid="a directory that this stream alone uses, kept over restarts; headrace:///path is in the store",
            remedy=f"CREATE STREAM {stream} OPTIONS (checkpointLocation='…') …",
        )
    timeout = own.get("timeoutMs")
    return StreamOptions(
        checkpoint=own["checkpointLocation"],
        output_mode=_one_of(OUTPUT_MODES, "outputMode", own.get("outputMode", "append")),
        trigger={"availableNow": True} if available_now else _trigger(own),
        timeout_ms=None if timeout is None else _milliseconds("timeoutMs", timeout),
        sink=sink,
    )


def _trigger(own: Mapping[str, str]) -> dict[str, Any]:
    kind = _one_of(TRIGGER_TYPES, "triggerType", own.get("triggerType", "ProcessingTime"))
    name = "triggerIntervalMs" if "triggerIntervalMs" in own else "triggerInterval"
    interval = _milliseconds(name, own.get(name, "0"))
    if kind == "ProcessingTime":
        return {"processingTime": f"{interval} milliseconds"}
    return {"availableNow": True} if kind == "AvailableNow" else {"once": True}


def _one_of(values: tuple[str, ...], name: str, given: str) -> str:
    for value in values:
        if value.lower() == given.strip().lower():
            return value
    raise OptionError(f"unknown value of option {name}", received=repr(given), valid=values)


def _milliseconds(name: str, text: str) -> int:
    if not (text.strip().isascii() and text.strip().isdigit() and len(text) < 18):
        raise OptionError(f"option {name} cannot be read", received=repr(text), valid="a whole number of milliseconds")
    return int(text)
