"""The options of ``CREATE STREAM``: options of the stream, and options of its sink."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.errors import NotFoundError, OptionError
from headrace.formats.checkpoint_locations import checkpoint_text
from headrace.options.kinds import natural, one_of
from headrace.options.names import check_names, did_you_mean
from headrace.options.option import Option

OUTPUT_MODES = ("append", "update", "complete")
TRIGGER_TYPES = ("ProcessingTime", "AvailableNow", "Once")
_FOLLOWS = "streams that follow tables (`readAs = 'table'`): "
OPTIONS = (
    Option("checkpointLocation", "a directory, a URL that Spark can write, or a place [in a store](checkpoints.md); by "
           "default in the target's store, under the stream's name. Only this stream may use it. A target in "
           "Tablestore or outside of stores needs it"),
    Option("outputMode", "Spark's output mode", one_of(*OUTPUT_MODES), "append"),
    Option("triggerType", "`AvailableNow` processes the existing data and stops; `Once` does so in one batch",
           one_of(*TRIGGER_TYPES), "ProcessingTime"),
    Option("triggerIntervalMs", "milliseconds between the starts of batches, with `ProcessingTime`", natural, "0"),
    Option("triggerInterval", "a synonym of `triggerIntervalMs`", natural),
    Option("timeoutMs", "stop the stream after this number of milliseconds", natural),
    Option("overwrite", f"{_FOLLOWS}the first batch replaces the rows of the target. Without it, a stream with a new "
           "checkpoint needs an empty target", one_of("false", "true"), "false"),
    Option("allowFullRead", f"{_FOLLOWS}whether a query may start whose batches [read whole "
           "tables](several-tables.md#reads-of-whole-tables)", one_of("true", "false"), "true"),
    Option("schemaChange", "mirrors: what happens after [changes of the source's columns](sql.md#mirror)",
           one_of("evolve", "lenient", "fail"), "evolve"),
)  # fmt: skip
"""The options of `CREATE STREAM`, for docs/options.md. Their values are read by `read_stream_options`."""
KNOWN = tuple(option.name for option in OPTIONS)
_MOST_DIGITS = 15
# An unknown option that is less similar to the stream's options counts as an option of the sink.
_NEAR_MISS = 0.85


@dataclass(frozen=True)
class StreamOptions:
    """The options of a stream.

    Attributes:
        checkpoint: the checkpoint location; None for the default one, in the store of the target.
        output_mode: one of `OUTPUT_MODES`.
        trigger: the arguments of `DataStreamWriter.trigger`.
        timeout_ms: the time after which the stream is stopped, in milliseconds; None for no limit.
        sink: the options of the sink.
        overwrite: the first batch of a stream that follows tables replaces the rows of the target.
        allow_full_read: a stream that follows tables may read whole tables in its batches.
        schema_change: what a mirror does after changes of its source's columns; None for the default.
    """

    checkpoint: str | None
    output_mode: str
    trigger: Mapping[str, Any]
    timeout_ms: int | None
    sink: Mapping[str, str] = field(repr=False)
    overwrite: bool = False
    allow_full_read: bool = True
    schema_change: str | None = None

    @property
    def trigger_text(self) -> str:
        """The trigger in the words of its options."""
        if "processingTime" in self.trigger:
            return f"ProcessingTime, {self.trigger['processingTime']}"
        return "AvailableNow" if "availableNow" in self.trigger else "Once"


def read_stream_options(stream: str, options: Mapping[str, str], *, available_now: bool = False) -> StreamOptions:
    """Read the options of a stream. Names are case-insensitive.

    Args:
        available_now: process the existing data and stop, regardless of the options.

    Raises:
        OptionError: an option is missing, similar to a known one, or has an invalid value.
    """
    known = {name.lower(): name for name in KNOWN}
    of_stream = [name for name in options if name.lower() in known]
    names = check_names(f"stream {stream}", of_stream, KNOWN, any_case=True)
    own = {names[name]: options[name] for name in of_stream}
    sink = {name: value for name, value in options.items() if name not in names}
    for name in sink:
        if remedy := did_you_mean(name, KNOWN, _NEAR_MISS):
            raise OptionError(f"unknown option of stream {stream}", received=repr(name), remedy=remedy)
    checkpoint = own.get("checkpointLocation")
    if checkpoint == "":
        raise no_checkpoint(stream)
    timeout = own.get("timeoutMs")
    return StreamOptions(
        checkpoint=None if checkpoint is None else checkpoint_text(checkpoint),
        output_mode=_one_of(OUTPUT_MODES, "outputMode", own.get("outputMode", "append")),
        trigger={"availableNow": True} if available_now else _trigger(own),
        timeout_ms=None if timeout is None else _milliseconds("timeoutMs", timeout),
        sink=sink,
        overwrite=_one_of(("false", "true"), "overwrite", own.get("overwrite", "false")) == "true",
        allow_full_read=_one_of(("true", "false"), "allowFullRead", own.get("allowFullRead", "true")) == "true",
        schema_change=own.get("schemaChange"),
    )


def no_checkpoint(stream: str) -> OptionError:
    """Return the error for a stream that must name a checkpoint location and does not."""
    return OptionError(
        f"stream {stream} needs option checkpointLocation",
        valid="a lasting directory that no other stream uses; headrace:///path is a directory in the store; a stream "
        "into a store with files may leave out the option",
        remedy=f"CREATE STREAM {stream} OPTIONS (checkpointLocation='…') …",
    )


def no_target(table: str, known: Sequence[str]) -> NotFoundError:
    """Return the error for a stream into a table that does not exist."""
    return NotFoundError(
        "no such table in this workspace",
        received=f"INSERT INTO {table}",
        valid=known,
        remedy=did_you_mean(table, known) or "CREATE TABLE … USING defines one",
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
    # Spark stores µs in 64 bits.
    if not (digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS):
        raise OptionError(
            f"invalid value of option {name}", received=repr(text)[:200], valid="a whole number of milliseconds"
        )
    return int(digits)
