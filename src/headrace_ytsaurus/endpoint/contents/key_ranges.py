"""Conversion of key ranges of sorted static tables to ranges of row numbers."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace_ytsaurus.endpoint.errors import refused
from headrace_ytsaurus.endpoint.tables.tablets import plain_key, sortable
from headrace_ytsaurus.wire.yson.scalars import as_text

_BY_KEY = ("key", "key_bound")
_BOUNDS = (">=", ">", "<=", "<")


class KeyRanges:
    """Converts limits with keys to limits with row numbers.

    Args:
        width: the number of key columns.
        count: the number of rows, which are sorted by key.
        key_of: returns the key of a row, given its number.
    """

    def __init__(self, width: int, count: int, key_of: Callable[[int], Sequence[Any]]) -> None:
        self._width = width
        self._count = count
        self._key_of = key_of

    def by_number(self, ranges: Sequence[Any]) -> list[Any]:
        """Return the ranges of a path with row numbers instead of keys. Other ranges are unchanged.

        Raises:
            YtError: a limit has a key but the table is not sorted, or the key is invalid.
        """
        return [self._range(each) if isinstance(each, Mapping) else each for each in ranges]

    def _range(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        exact = given.get("exact")
        if isinstance(exact, Mapping) and "key" in exact:
            key = self._key(exact["key"])
            return {"lower_limit": self._limit(key, after=False), "upper_limit": self._limit(key, after=True)}
        return {side: self._side(limit, side == "lower_limit") for side, limit in given.items()}

    def _side(self, limit: Any, lower: bool) -> Any:
        if not isinstance(limit, Mapping) or len(limit) != 1 or next(iter(limit)) not in _BY_KEY:
            return limit
        if "key" in limit:
            return self._limit(self._key(limit["key"]), after=False, whole=True)
        bound = limit["key_bound"]
        how = as_text(bound[0]) if isinstance(bound, list) and len(bound) == 2 else None
        if how not in _BOUNDS or (how[0] == ">") != lower:
            valid = "[>=; key] or [>; key] as lower_limit, [<; key] or [<=; key] as upper_limit"
            raise refused("A key bound is a relation and a key", received=repr(bound)[:200], valid=valid)
        return self._limit(self._key(bound[1]), after=how in (">", "<="))

    def _key(self, given: Any) -> list[tuple[int, Any]]:
        if not self._width:
            raise refused("Rows of a table that is not sorted have no keys", received=repr(given)[:200])
        if not isinstance(given, list):
            raise refused("A key must be a list of values", received=repr(given)[:200])
        return sortable([plain_key(value) for value in given])

    def _limit(self, key: list[tuple[int, Any]], *, after: bool, whole: bool = False) -> dict[str, int]:
        """Return the number of the first row whose key is at least ``key``, or greater if ``after``.

        Args:
            whole: compare whole keys of rows. Otherwise only their prefixes with the length of ``key`` are compared.
        """
        size = None if whole else len(key)

        def of_row(number: int) -> list[tuple[int, Any]]:
            return sortable(self._key_of(number))[:size]

        search = bisect.bisect_right if after else bisect.bisect_left
        return {"row_index": search(range(self._count), key, key=of_row)}
