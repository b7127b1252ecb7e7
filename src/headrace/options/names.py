"""Checks of option names, with suggestions, for SQL statements, Spark formats, stores, tables and queues."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping

from headrace.errors import OptionError, shown

_LIKENESS = 0.7
_COMPARED_CHARACTERS = 80


def check_names(
    place: str,
    given: Iterable[object],
    valid: Iterable[str],
    *,
    any_case: bool = False,
    elsewhere: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the documented spelling of each name.

    Args:
        place: the owner of the options, for messages: ``format headrace``, ``a tunnel``.
        given: the names to check.
        valid: the documented names.
        any_case: ignore case, as Spark and SQL do.
        elsewhere: the names of other owners, with a text for the owner; for messages.

    Raises:
        OptionError: a name is not a text, is unknown, or is set twice.
    """
    spelled = {_key(name, any_case): name for name in valid}
    others = {_key(name, any_case): (name, text) for name, text in (elsewhere or {}).items()}
    names: dict[str, str] = {}
    for name in given:
        if not isinstance(name, str):
            raise OptionError(f"the name of an option of {place} must be a text", received=shown(name))
        key = _key(name, any_case)
        if key in others and key not in spelled:
            other, where = others[key]
            raise OptionError(
                f"option {other} has no effect in {place}", valid=spelled.values(), remedy=f"it belongs to {where}"
            )
        if key not in spelled:
            raise OptionError(
                f"unknown option of {place}",
                received=shown(name),
                valid=spelled.values(),
                remedy=did_you_mean(name, spelled.values()),
            )
        if spelled[key] in names.values():
            raise OptionError(f"an option of {place} is given twice", received=shown(name))
        names[name] = spelled[key]
    return names


def did_you_mean(name: str, known: Iterable[str], likeness: float = _LIKENESS) -> str | None:
    """Return the remedy for an unknown name that is similar to a known one, see `nearest`; None if none is."""
    meant = nearest(name, known, likeness)
    return None if meant is None else f"did you mean {meant}?"


def nearest(name: str, known: Iterable[str], likeness: float = _LIKENESS) -> str | None:
    """Return the most similar known name; None if no name is similar.

    Case, dots, dashes and underscores are ignored: ``max_rows_per_trigger`` is similar to ``maxRowsPerTrigger``.
    """
    plain = {_plain(other): other for other in known}
    close = difflib.get_close_matches(_plain(name), plain, n=1, cutoff=likeness)
    return plain[close[0]] if close else None


def _key(name: str, any_case: bool) -> str:
    return name.lower() if any_case else name


def _plain(name: str) -> str:
    return re.sub(r"[._-]", "", name[:_COMPARED_CHARACTERS].lower())
