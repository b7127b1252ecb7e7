"""The options of ``CREATE STREAM``: those of the stream itself, and those that go to its sink."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.checkpoint_server.locations import checkpoint_text
from headrace.errors import OptionError
from headrace.option_names import check_names, nearest

OUTPUT_MODES = ("append", "update", "complete")
TRIGGER_TYPES = ("ProcessingTime", "AvailableNow", "Once")
KNOWN = ("checkpointLocation", "outputMode", "triggerType", "triggerIntervalMs", "triggerInterval", "timeoutMs")
_MOST_DIGITS = 15
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
    of_stream = [name for name in options if name.lower() in known]
    names = check_names(f"stream {stream}", of_stream, KNOWN, any_case=True)
    own = {names[name]: options[name] for name in of_stream}
    sink = {name: value for name, value in options.items() if name not in names}
    for name in sink:
        near = nearest(name, KNOWN, _NEAR_MISS)
        if near is not None:
            raise OptionError(f"unknown option of stream {stream}", received=repr(name), remedy=f"did you mean {near}?")
    if not own.get("checkpointLocation"):
        raise OptionError(
            f"stream {stream} needs option checkpointLocation",
            valid="a directory that this stream alone uses, kept over restarts; headrace:///path is in the store",
            remedy=f"CREATE STREAM {stream} OPTIONS (checkpointLocation='…') …",
        )
    timeout = own.get("timeoutMs")
    return StreamOptions(
        checkpoint=checkpoint_text(own["checkpointLocation"]),
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
    raise OptionError(f"unknown value of option {name}", received=repr(given)[:200], valid=values)


def _milliseconds(name: str, text: str) -> int:
    digits = text.strip()
    # Spark counts µs in 64 bits.
    if not (digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS):
        raise OptionError(
            f"option {name} cannot be read", received=repr(text)[:200], valid="a whole number of milliseconds"
        )
    return int(digits)
