"""Key ranges in paths become the row numbers that a search through all rows finds."""

from __future__ import annotations

from typing import Any

import pytest

from headrace_ytsaurus.endpoint.contents.key_ranges import KeyRanges
from headrace_ytsaurus.wire.errors import YtError

KEYS: list[tuple[Any, int | None]] = [(b"a", None), (b"a", 1), (b"a", 3), (b"b", -1), (b"b", 3), (b"c", 2)]
RANGES = KeyRanges(2, len(KEYS), lambda number: KEYS[number])


def numbers(given: dict[str, Any]) -> tuple[int, int]:
    (found,) = RANGES.by_number([given])
    limits = [found.get(side, {}).get("row_index") for side in ("lower_limit", "upper_limit")]
    return limits[0] or 0, len(KEYS) if limits[1] is None else limits[1]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"exact": {"key": ["a"]}}, (0, 3)),
        ({"exact": {"key": ["b", 3]}}, (4, 5)),
        ({"exact": {"key": ["z"]}}, (6, 6)),
        ({"lower_limit": {"key": ["b"]}}, (3, 6)),
        ({"lower_limit": {"key": ["a", 1]}, "upper_limit": {"key": ["b", 3]}}, (1, 4)),
        ({"upper_limit": {"key": ["a", 1, 5]}}, (0, 2)),
        ({"upper_limit": {"key": []}}, (0, 0)),
        ({"lower_limit": {"key_bound": [">", ["a"]]}}, (3, 6)),
        ({"lower_limit": {"key_bound": [">=", ["a", 3]]}, "upper_limit": {"key_bound": ["<=", ["b"]]}}, (2, 5)),
        ({"upper_limit": {"key_bound": ["<", ["b"]]}}, (0, 3)),
        ({"lower_limit": {"row_index": 2}, "upper_limit": {"key": ["c"]}}, (2, 5)),
    ],
)
def test_key_ranges_become_row_ranges(given: dict[str, Any], wanted: tuple[int, int]) -> None:
    assert numbers(given) == wanted


@pytest.mark.parametrize(
    "given",
    [
        {"lower_limit": {"key": "a"}},
        {"exact": {"key": [{}]}},
        {"lower_limit": {"key_bound": ["<", ["a"]]}},
        {"upper_limit": {"key_bound": ["a"]}},
    ],
)
def test_invalid_key_limits_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(YtError):
        numbers(given)


def test_a_table_that_is_not_sorted_has_no_keys() -> None:
    with pytest.raises(YtError, match="not sorted"):
        KeyRanges(0, 5, lambda number: []).by_number([{"exact": {"key": ["a"]}}])
