"""The types of options: how their texts are read, and which texts are valid."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace.errors import OptionError

LARGEST = 2**63 - 1
"""The largest whole number that stores and options can have."""
_MOST_TASKS = 1_000_000
# 285 years: 64 bits hold a longer time in µs.
_LONGEST_SECONDS = 9e9


@dataclass(frozen=True)
class OptionKind:
    """A type of options.

    Attributes:
        valid: a description of the valid texts, for docs/options.md and errors.
        parse: returns the value of a text, or raises `ValueError` or `OptionError`.
        values: the valid texts, if they can be listed. Their case does not matter.
        name: a short name for docs/options.md; ``valid`` if empty.
    """

    valid: str
    parse: Callable[[str], Any]
    values: tuple[str, ...] = ()
    name: str = ""

    @property
    def short(self) -> str:
        """The short name of the type."""
        return self.name or self.valid

    def __call__(self, text: str) -> Any:
        """Return the value of a text.

        Raises:
            ValueError: the text is not valid. The message is ``valid``.
            OptionError: the text is not valid, for a reason that the message gives.
        """
        try:
            return self.parse(_checked(text))
        except OptionError:
            raise
        except (ValueError, OverflowError):
            raise ValueError(self.valid) from None


def one_of(*values: str, convert: Callable[[str], Any] = str) -> OptionKind:
    """Return a type with a list of valid values. ``convert`` returns the value of a listed text."""
    known = {value.lower(): value for value in values}

    def parse(text: str) -> Any:
        value = known.get(text.strip().lower())
        if value is None:
            raise ValueError
        return convert(value)

    return OptionKind(", ".join(values), parse, values)


def whole(least: int, most: int, words: str) -> OptionKind:
    """Return the type of whole numbers from ``least`` to ``most``; ``words`` describes it."""

    def parse(text: str) -> int:
        value = _whole_number(text)
        if not least <= value <= most:
            raise ValueError
        return value

    return OptionKind(words, parse)


def _checked(given: str) -> str:
    """Return a text after checking that stores and file systems accept it."""
    if not isinstance(given, str) or "\0" in given or any("\ud800" <= character <= "\udfff" for character in given):
        raise ValueError
    return given


def _whole_number(text: str) -> int:
    # int() also accepts "1_000" and digits of all scripts.
    if not re.fullmatch(r"\s*[+-]?[0-9]{1,20}\s*", text):
        raise ValueError
    return int(text)


def _limit(text: str) -> int | None:
    value = _whole_number(text)
    if value == 0 or value > LARGEST:
        raise ValueError
    return value if value > 0 else None


def _names(text: str) -> tuple[str, ...]:
    try:
        listed = json.loads(text) if text.lstrip().startswith("[") else [name.strip() for name in text.split(",")]
    except RecursionError:
        raise ValueError from None
    if not all(isinstance(name, str) and name.strip() for name in listed):
        raise ValueError
    return tuple(_checked(name) for name in listed)


def _boolean(text: str) -> bool:
    return {"true": True, "false": False, "1": True, "0": False}[text]


def _name(text: str) -> str:
    if not text.strip():
        raise ValueError
    return text


_DURATION_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def _duration(text: str) -> float:
    match = re.fullmatch(r"\s*([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*(ms|s|m|h|d)?\s*", text.lower())
    if not match:
        raise ValueError
    seconds = float(match[1]) * _DURATION_UNITS[match[2] or "s"]
    if seconds > _LONGEST_SECONDS:
        raise ValueError
    return seconds


_BYTE_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def _size(text: str) -> int:
    match = re.fullmatch(r"\s*([0-9]{1,20})\s*([kmg]?)b?\s*", text.lower())
    if not match:
        raise ValueError
    value = int(match[1]) * _BYTE_UNITS[match[2]]
    if not 0 < value <= LARGEST:
        raise ValueError
    return value


text = OptionKind("a text without NUL characters and lone surrogates", str, name="text")
"""Any text, including the empty text."""
secret = OptionKind(text.valid, str, name="text")
"""A text that messages do not show."""
name = OptionKind("a name that is not empty", _name, name="name")
names = OptionKind("names separated by commas, or a JSON list of names", _names, name="names")
positive = whole(1, LARGEST, "whole number, 1 or more")
natural = whole(0, LARGEST, "whole number, 0 or more")
tasks = whole(1, _MOST_TASKS, f"whole number from 1 to {_MOST_TASKS}")
limit = OptionKind("a whole number other than 0; below 0 means no limit", _limit, name="whole number, not 0")
boolean = one_of("true", "false", "1", "0", convert=_boolean)
duration = OptionKind(
    "a duration such as 500ms, 30s, 15m or 1h (a bare number is seconds), at most 285 years",
    _duration,
    name="duration: `500ms`, `30s`, `15m`, `1h`, `7d`",
)
size = OptionKind("a size such as 1048576, 512k, 64m or 1g", _size, name="size: `1048576`, `512k`, `64m`, `1g`")
