"""Scalars as clients send them: values of Python or of ``yt.yson``, and texts that a cluster parses."""

from __future__ import annotations

import re
from typing import Any

_NUMBER = re.compile(r"-?[0-9]{1,20}")
_DURATION = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)(w|d|h|m|s|ms|us|ns|)")
_UNITS = {
    "w": 604_800_000,
    "d": 86_400_000,
    "h": 3_600_000,
    "m": 60_000,
    "s": 1000,
    "": 1000,
    "ms": 1,
    "us": 1e-3,
    "ns": 1e-6,
}
# A cluster also parses numbers and texts as booleans.
_FLAGS = {"true": True, "1": True, "false": False, "0": False}


def is_entity(value: Any) -> bool:
    """Return whether a value is Python's None or YSON's entity."""
    return value is None or type(value).__name__ == "YsonEntity"


def is_boolean(value: Any) -> bool:
    """Return whether a value is a boolean of Python or of YSON, whose class is not a subclass of ``bool``."""
    return isinstance(value, bool) or type(value).__name__ == "YsonBoolean"


def as_text(value: Any) -> str | None:
    """Return a string of any YSON class as ``str``; None for another value and for bytes that are not UTF-8."""
    if isinstance(value, bytes):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            return None
    return str(value) if isinstance(value, str) else None


def as_flag(value: Any) -> bool | None:
    """Return a boolean, or the boolean of 0, 1, "true", "false", "0" or "1"; None for another value."""
    if is_boolean(value):
        return bool(value)
    if isinstance(value, int):
        return bool(value) if value in (0, 1) else None
    return _FLAGS.get(as_text(value) or "")


def as_number(value: Any) -> int | None:
    """Return a whole number, or that of a text with one; None for another value."""
    if isinstance(value, int):
        return None if is_boolean(value) else int(value)
    text = as_text(value)
    return int(text) if text is not None and _NUMBER.fullmatch(text) else None


def as_milliseconds(value: Any) -> int | None:
    """Return a duration: a number of milliseconds, or a text such as "5m" or "1.5s"; None for another value.

    As on a cluster, a text without a unit counts seconds.
    """
    if isinstance(value, float):
        return int(value) if 0 <= value < 1 << 63 else None
    if isinstance(value, int):
        return None if is_boolean(value) or value < 0 else int(value)
    found = _DURATION.fullmatch(as_text(value) or "")
    return int(float(found[1]) * _UNITS[found[2]]) if found else None
