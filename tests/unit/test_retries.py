"""Retries: how long the pauses are, and when they end."""

from __future__ import annotations

import random
import re

import pytest

from headrace.support.retries import Retries


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses, which no test waits for."""
    found: list[float] = []
    monkeypatch.setattr("headrace.support.retries.sleep", found.append)
    return found


def test_pauses_double_up_to_the_longest_and_are_random(pauses: list[float]) -> None:
    retries = Retries(1000, first_pause=1, longest_pause=10)
    assert all(retries.wait("busy") for _ in range(2000))
    for pause, limit in zip(pauses, [1, 2, 4, 8, *[10] * 1996], strict=True):
        assert limit / 2 <= pause <= limit
    assert len(set(pauses)) > 1900


def test_pauses_take_no_random_numbers_of_the_program(pauses: list[float]) -> None:
    before = random.getstate()
    assert Retries(1000, first_pause=1, longest_pause=10).wait("busy")
    assert random.getstate() == before
    assert pauses


def test_a_longer_first_pause_lengthens_one_pause(pauses: list[float]) -> None:
    retries = Retries(1000, first_pause=1, longest_pause=100)
    assert retries.wait("slow")
    assert retries.wait("busy", first_pause=8)
    assert 8 <= pauses[1] <= 16


def test_a_server_that_is_down_is_one_line_and_one_at_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = [100.0]
    monkeypatch.setattr("headrace.support.retries.monotonic", lambda: clock[0])
    monkeypatch.setattr("headrace.support.retries.sleep", lambda pause: clock.__setitem__(0, clock[0] + pause))
    retries = Retries(30, first_pause=4, longest_pause=4)
    while retries.wait("PostgreSQL: connection refused"):
        pass
    first, last = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert first == "PostgreSQL: connection refused; trying again for up to 30 s"
    assert re.fullmatch(r"gave up after \d+ retries in (2[5-9]|30) s", last)


def test_retries_end_with_their_time_or_their_number(pauses: list[float]) -> None:
    assert not Retries(0, first_pause=0.001, longest_pause=1).wait("busy")
    counted = Retries(1000, first_pause=1, longest_pause=1, count=2)
    assert [counted.wait("busy") for _ in range(3)] == [True, True, False]
    assert len(pauses) == 2
