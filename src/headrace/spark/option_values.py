"""How the texts of options are read. Every function raises `ValueError` with what would have been valid."""

from __future__ import annotations

import json
import re

from headrace.wire.ytsaurus.paths import PARTS, WHOLE, has_suffix


def names(text: str) -> tuple[str, ...]:
    """Read names with commas between, or a JSON list of names that have commas themselves."""
    valid = "names with commas between, or a JSON list of names"
    try:
        listed = json.loads(text) if text.lstrip().startswith("[") else [name.strip() for name in text.split(",")]
    except ValueError:
        raise ValueError(valid) from None
    if not all(isinstance(name, str) and name for name in listed):
        raise ValueError(valid)
    return tuple(listed)


def positive(text: str) -> int:
    """Read a whole number above 0."""
    value = int(text)
    if value <= 0:
        raise ValueError("a positive whole number")
    return value


def natural(text: str) -> int:
    """Read a whole number, 0 or above."""
    value = int(text)
    if value < 0:
        raise ValueError("a whole number, not negative")
    return value


def limit(text: str) -> int | None:
    """A row limit in the connector's manner: below 0 means none."""
    value = int(text)
    if value == 0:
        raise ValueError("a whole number other than 0; below 0 means no limit")
    return value if value > 0 else None


def boolean(text: str) -> bool:
    """Read true or false."""
    words = {"true": True, "false": False, "1": True, "0": False}
    if text.strip().lower() not in words:
        raise ValueError("true or false")
    return words[text.strip().lower()]


_DURATION_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def duration(text: str) -> float:
    """Read a duration; return seconds."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?\s*", text.lower())
    if not match:
        raise ValueError("a duration such as 500ms, 30s, 15m or 1h (a bare number is seconds)")
    return float(match[1]) * _DURATION_UNITS[match[2] or "s"]


_BYTE_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def size(text: str) -> int:
    """Read a size; return bytes."""
    match = re.fullmatch(r"\s*(\d+)\s*([kmg]?)b?\s*", text.lower())
    if not match or int(match[1]) == 0:
        raise ValueError("a size such as 1048576, 512k, 64m or 1g")
    return int(match[1]) * _BYTE_UNITS[match[2]]


# As names of attributes, not within the texts of others.
_CHOICE = re.compile(rf"""[<;]\s*"?(?:{"|".join(sorted(PARTS))})"?\s*=""")
_ATTRIBUTES = re.compile(r"""\s*<(?:"(?:[^"\\]|\\.)*"|[^">])*>""")


def ypath(text: str) -> str:
    """Read a YPath of a whole table or queue; return it without the attributes in front, as it is used for a name."""
    path = text
    while match := _ATTRIBUTES.match(path):
        if _CHOICE.search(match[0]):
            raise ValueError(WHOLE)
        path = path[match.end() :]
    if not path.strip():
        raise ValueError("a path such as //home/project/queue")
    if path.strip().startswith("//") and has_suffix(path):
        raise ValueError(WHOLE)
    return path.strip()
