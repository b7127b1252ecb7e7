"""Which options each use of a format takes: the one place that decides it, for Spark, SQL and Python alike."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any

from headrace.errors import OptionError
from headrace.formats.options import OPTIONS_OF
from headrace.option_names import check_names

SPARKS_OWN = ("path", "checkpointLocation", "queryName", "outputMode", "asyncProgressTrackingEnabled",
              "asyncProgressTrackingCheckpointIntervalMs")  # fmt: skip
"""Options that Spark itself takes, or adds, and hands on to a data source."""
_TABLE_PROPERTY = "option."


def check_options(
    provider: str, given: Collection[str], *, use: str | None = None, more: Collection[str] = (), place: str = ""
) -> None:
    """Make sure that a format knows each of these options: the one place that decides it, for SQL and Python.

    Args:
        given: the names, in any case.
        use: the only use that the options are for; any if None.
        more: names that the place takes besides the format's.
        place: where the options were given, for messages; the format if empty.

    Raises:
        OptionError: a name is unknown, or only another use of the format has it.
    """
    options = OPTIONS_OF[provider.lower()]
    usable = [option for option in options if use is None or use in option.used_by]
    elsewhere = {option.name: f"another use of format {provider}: {', '.join(option.used_by)}" for option in options}
    place = place or f"format {provider}"
    valid = [option.name for option in usable]
    check_names(place, given, dict.fromkeys([*valid, *more]), any_case=True, elsewhere=elsewhere)


def checked_by_spark(provider: str, given: Mapping[str, str]) -> Mapping[str, str]:
    """Return the options that Spark hands to a format, checked. Spark has options of its own among them.

    Raises:
        OptionError: the format does not know an option.
    """
    lower = {name.lower(): value for name, value in given.items()}
    if "provider" in lower and any(name.startswith(_TABLE_PROPERTY) for name in lower):
        # Spark's CREATE TABLE: the table's properties, and each option a second time under this prefix.
        wanted = {name.removeprefix(_TABLE_PROPERTY) for name in lower if name.startswith(_TABLE_PROPERTY)}
        lower = {name: value for name, value in lower.items() if name in wanted}
    check_options(provider, lower, more=SPARKS_OWN)
    return lower


def options_for(provider: str, given: Mapping[str, str], use: str) -> dict[str, str]:
    """Return the options of a definition that one use of a format has; a definition may have those of all uses."""
    others = {option.name.lower() for option in OPTIONS_OF[provider.lower()] if use not in option.used_by}
    return {name: value for name, value in given.items() if name.lower() not in others}


def option_texts(given: Mapping[str, Any] | None, place: str) -> dict[str, str]:
    """Return options given in Python as the texts that Spark would make of them; None counts as not given.

    Raises:
        OptionError: the options are no mapping, or a value is neither text, number nor boolean.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise OptionError(f"the options of {place} are a dict of names and values", received=type(given).__name__)
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
