"""Checks of the names of options, the same for Spark, SQL and Python."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any

from headrace.errors import OptionError
from headrace.formats.format import Format
from headrace.options.names import check_names

SPARKS_OWN = ("path", "checkpointLocation", "queryName", "outputMode", "asyncProgressTrackingEnabled",
              "asyncProgressTrackingCheckpointIntervalMs")  # fmt: skip
"""Options that Spark reads or adds, and then passes to the data source."""
_TABLE_PROPERTY = "option."


def check_options(
    format: Format, given: Collection[str], *, use: str | None = None, more: Collection[str] = (), place: str = ""
) -> None:
    """Check that a format has the given options.

    Args:
        given: the names of the options, in any case.
        use: the use that the options are for; None if they may be for any use.
        more: names that are valid besides the format's.
        place: where the options were given, for messages; the format by default.

    Raises:
        OptionError: the format does not have an option, or has it for another use only.
    """
    usable = [option for option in format.options if use is None or use in option.used_by]
    elsewhere = {
        option.name: f"another use of format {format.name}: {', '.join(option.used_by)}" for option in format.options
    }
    place = place or f"format {format.name}"
    valid = [option.name for option in usable]
    check_names(place, given, dict.fromkeys([*valid, *more]), any_case=True, elsewhere=elsewhere)


def checked_by_spark(format: Format, given: Mapping[str, str]) -> Mapping[str, str]:
    """Return the options of a format from the options that Spark passes to a data source, names in lower case.

    Raises:
        OptionError: the format does not have an option.
    """
    lower = {name.lower(): value for name, value in given.items()}
    if "provider" in lower and any(name.startswith(_TABLE_PROPERTY) for name in lower):
        # A table of Spark's CREATE TABLE: Spark passes its properties, and each option also with this prefix.
        options = {name.removeprefix(_TABLE_PROPERTY) for name in lower if name.startswith(_TABLE_PROPERTY)}
        lower = {name: value for name, value in lower.items() if name in options}
    check_options(format, lower, more=SPARKS_OWN)
    return lower


def options_for(format: Format, given: Mapping[str, str], use: str) -> dict[str, str]:
    """Return options without the options that apply only to other uses of the format."""
    others = {option.name.lower() for option in format.options if use not in option.used_by}
    return {name: value for name, value in given.items() if name.lower() not in others}


def option_texts(given: Mapping[str, Any] | None, place: str) -> dict[str, str]:
    """Return the texts of options given in Python, as Spark writes them. None means not set.

    Args:
        place: where the options were given, for messages.

    Raises:
        OptionError: the options are not a mapping, or a value is not a string, number or boolean.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise OptionError(f"the options of {place} must be a dict of names and values", received=type(given).__name__)
    texts: dict[str, str] = {}
    for name, value in given.items():
        value = os.fspath(value) if isinstance(value, os.PathLike) else value
        if isinstance(value, bool):
            texts[name] = str(value).lower()
        elif isinstance(value, str | int | float):
            texts[name] = str(value)
        elif value is not None:
            raise OptionError(
                f"option {str(name)[:80]!r} of {place} cannot be read",
                received=type(value).__name__,
                valid="a text, a number, True or False",
            )
    return texts
