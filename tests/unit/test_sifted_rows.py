"""Refused rows among others of a batch: how many attempts find them, and how many a batch may have."""

from __future__ import annotations

import pytest

from headrace.errors import PublicationError, SchemaError
from headrace.rows.json_objects import MOST_REFUSED, sift


def attempts(rows: int, refused: set[int]) -> tuple[int, list[int]]:
    """Return how often rows were attempted, and the indexes of the refused ones."""
    calls = 0

    def attempt(begin: int, end: int) -> range:
        nonlocal calls
        calls += 1
        if any(begin <= index < end for index in refused):
            raise SchemaError("the row is refused")
        return range(begin, end)

    good, bad = sift(rows, attempt, (SchemaError,))
    indexes = [index for index, _ in bad]
    assert sorted([index for part in good for index in part] + indexes) == list(range(rows))
    return calls, indexes


@pytest.mark.parametrize("index", [0, 12_345, 99_999])
def test_a_refused_row_among_100000_costs_about_35_attempts(index: int) -> None:
    calls, refused = attempts(100_000, {index})
    assert refused == [index]
    assert 30 <= calls <= 35


def test_a_batch_may_have_1000_refused_rows_and_no_more() -> None:
    assert MOST_REFUSED == 1000
    assert len(attempts(1200, set(range(1000)))[1]) == 1000
    with pytest.raises(PublicationError, match="more than 1000 rows"):
        attempts(1200, set(range(1001)))
