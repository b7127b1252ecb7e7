"""Checks of the arguments of `write_stream` with a fixed list of values: format, output mode and trigger."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headrace.errors import OptionError
from headrace.formats.registry import FORMATS
from headrace.options.names import check_names

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

OUTPUT_MODES = ("append", "update", "complete")
TRIGGERS = ("processingTime", "availableNow", "once", "continuous", "realTime")
"""The triggers of Spark. Spark rejects the last two for Python sources."""


def format_name(given: object) -> str:
    """Return the name of a format in lower case."""
    return _one_of("format", given, tuple(FORMATS))


def output_mode(given: object) -> str:
    """Return an output mode in lower case."""
    return _one_of("mode", given, OUTPUT_MODES)


def _one_of(name: str, given: object, valid: tuple[str, ...]) -> str:
    if not isinstance(given, str) or given.lower() not in valid:
        raise OptionError(f"unknown value of {name}", received=repr(given)[:200], valid=valid)
    return given.lower()


def checked_trigger(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a trigger: one name with its value.

    Raises:
        OptionError: the name is unknown, or the number of entries is not one.
    """
    if not isinstance(given, Mapping):
        raise OptionError(
            "a trigger must be a dict with one entry", received=type(given).__name__, valid='{"availableNow": True}'
        )
    check_names("a trigger", given, TRIGGERS)
    named = {name: value for name, value in given.items() if value is not None}
    if len(named) != 1:
        raise OptionError("a trigger must have one entry", received=", ".join(named) or "none", valid=TRIGGERS)
    return named


def triggered(stream: DataStreamWriter, trigger: Mapping[str, Any]) -> DataStreamWriter:
    """Return a stream with a trigger.

    Raises:
        OptionError: Spark rejects the value of the trigger.
    """
    from pyspark.errors import PySparkException

    try:
        return stream.trigger(**trigger)
    except (PySparkException, ValueError, TypeError) as error:
        raise OptionError(
            "invalid trigger",
            received=repr(dict(trigger))[:200],
            valid='processingTime="5 seconds", or availableNow=True',
        ) from error
