"""Results of a size that a client can read: a model that reads them has room for a few thousand words."""

from __future__ import annotations

import itertools
from typing import Any

MOST_ITEMS = 1000
"""The most items of one list, and entries of one object."""
MOST_CHARACTERS = 2000
"""The most characters of one text."""
MOST_IN_ALL = 60_000
"""The characters of a result after which lists end, texts have `FEW_CHARACTERS`, and objects `FEW_ENTRIES`."""
FEW_CHARACTERS = 50
FEW_ENTRIES = 100
"""The most entries of one object after `MOST_IN_ALL` characters."""
_CHARACTERS_OF_A_NUMBER = 8


def limited(result: dict[str, Any]) -> dict[str, Any]:
    """Return a result within the limits. What was cut is in its key ``cut``, by the path of the list or text."""
    cutting = _Cutting()
    found: dict[str, Any] = cutting.value(result, "")
    return {**found, "cut": {**result.get("cut", {}), **cutting.cut}} if cutting.cut else found


class _Cutting:
    def __init__(self) -> None:
        self.cut: dict[str, str] = {}
        self._left = MOST_IN_ALL

    def value(self, value: Any, path: str) -> Any:
        if isinstance(value, dict):
            return self._entries(value, path)
        if isinstance(value, list | tuple):
            return self._items(value, path)
        if isinstance(value, str | bytes):
            return self._text(value, path)
        self._left -= _CHARACTERS_OF_A_NUMBER
        return value

    def _entries(self, values: dict[Any, Any], path: str) -> dict[Any, Any]:
        most = MOST_ITEMS if self._left > 0 else FEW_ENTRIES
        if len(values) > most:
            self.cut[path] = f"the first {most} of {len(values)}"
        found = {}
        for key, item in itertools.islice(values.items(), most):
            self._left -= len(str(key))
            found[key] = self.value(item, f"{path}.{key}" if path else str(key))
        return found

    def _items(self, values: list[Any] | tuple[Any, ...], path: str) -> list[Any]:
        found: list[Any] = []
        for value in values[:MOST_ITEMS]:
            if self._left <= 0:
                break
            found.append(self.value(value, path))
        if len(found) < len(values):
            self.cut[path] = f"the first {len(found)} of {len(values)}"
        return found

    def _text(self, value: str | bytes, path: str) -> str | bytes:
        most = MOST_CHARACTERS if self._left > 0 else FEW_CHARACTERS
        self._left -= min(len(value), most)
        if len(value) <= most:
            return value
        self.cut[path] = f"a text has its first {most} of {len(value)} characters"
        return value[:most]
