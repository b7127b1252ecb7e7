"""Numbers of pictures: shares of a bar, places on an axis. The templates draw them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.model.tables.conditions import KeyRange
from headrace.model.tables.schema import Key


@dataclass(frozen=True)
class Share:
    """A piece of a bar: its begin and its width in percent, and its place in the list."""

    begin: float
    width: float
    index: int


def shares(sizes: Sequence[int]) -> list[Share]:
    """Return the pieces of a bar for sizes. All are equal if all sizes are 0."""
    counted = [max(0, size) for size in sizes]
    if not any(counted):
        counted = [1] * len(counted)
    total, begin, found = sum(counted), 0, []
    for index, size in enumerate(counted):
        found.append(Share(round(100 * begin / total, 3), round(100 * size / total, 3), index))
        begin += size
    return found


def offset_place(lower: int, upper: int, offset: int) -> float:
    """Return the place of an offset between two others, in percent; one outside of them is at an end."""
    if not lower < offset < upper:
        return 0.0 if offset < upper else 100.0
    return round(100 * (offset - lower) / (upper - lower), 2)


def range_text(keys: KeyRange) -> str:
    """Return a key range as a short text."""
    if keys.low is None and keys.high is None:
        return "all keys"
    if keys.low is None:
        return f"up to {_key(keys.high)}"
    return f"from {_key(keys.low)}" + ("" if keys.high is None else f" up to {_key(keys.high)}")


def _key(key: Key | None) -> str:
    parts = [value.hex() if isinstance(value, bytes) else str(value) for value in key or ()]
    return ", ".join(part if len(part) <= 24 else part[:24] + "…" for part in parts)
