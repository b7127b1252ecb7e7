"""Retries: how long the pauses are, and when they end."""

from __future__ import annotations

import pytest

from headrace.retries import Retries


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses, which no test waits for."""
    found: list[float] = []
    monkeypatch.setattr("headrace.retries.sleep", found.append)
    return found


def test_pauses_double_up_to_the_longest_and_are_random(pauses: list[float]) -> None:
    retries = Retries(1000, first_pause=1, longest_pause=10)
    assert all(retries.wait("busy") for _ in range(2000))
    for pause, limit in zip(pauses, [1, 2, 4, 8, *[10] * 1996], strict=True):
        assert limit / 2 <= pause <= limit
    assert len(set(pauses)) > 1900


def test_a_longer_first_pause_lengthens_one_pause(pauses: list[float]) -> None:
    retries = Retries(1000, first_pause=1, longest_pause=100)
    assert retries.wait("slow")
    assert retries.wait("busy", first_pause=8)
    assert 8 <= pauses[1] <= 16


def test_retries_end_with_their_time_or_their_number(pauses: list[float]) -> None:
    assert not Retries(0, first_pause=0.001, longest_pause=1).wait("busy")
    counted = Retries(1000, first_pause=1, longest_pause=1, count=2)
    assert [counted.wait("busy") for _ in range(3)] == [True, True, False]
    assert len(pauses) == 2
