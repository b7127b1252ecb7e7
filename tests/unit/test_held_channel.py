"""One channel of a worker: pauses, the room to read ahead, and giving it back."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from headrace.errors import DataLossError, StoreBusyError
from headrace.tables.changes import Changes
from headrace.tunnels.leases import Lease, LeaseStatus, Saved
from headrace.tunnels.values import FINISHED, Page, Position
from headrace.workers.held import FIRST_PAUSE, LONGEST_PAUSE, READ_AHEAD_PAGES, HeldChannel

START = Position("0")


@pytest.fixture
def held() -> HeldChannel:
    return HeldChannel(Lease("c", 1, LeaseStatus.OPEN), Saved(START, 4))


def page(rows: int, token: str) -> Page:
    numbers = pa.array(np.arange(rows, dtype=np.int64))
    times = numbers.view(pa.timestamp("us", tz="UTC"))
    changes = Changes(pa.RecordBatch.from_arrays([numbers], ["id"]), numbers.cast(pa.int8()), numbers, times)
    return Page(changes, FINISHED if token == "finished" else Position(token))


def arrive(held: HeldChannel, rows: int, token: str, now: float = 0.0) -> bool:
    held.reading = True
    arrived = page(rows, token)
    return held.arrived(held.read, [arrived] if rows else [], arrived.next, now, full=10)


def test_pauses_double_while_nothing_comes_and_end_with_a_full_page(held: HeldChannel) -> None:
    expected = FIRST_PAUSE
    for _ in range(12):
        arrive(held, 0, "0", now=100.0)
        assert 0.75 * expected <= held.due - 100.0 <= 1.25 * expected
        expected = min(2 * expected, LONGEST_PAUSE)
    arrive(held, 10, "1", now=100.0)
    assert held.due == 100.0


def test_a_few_rows_at_a_time_are_read_about_as_often_as_they_come(held: HeldChannel) -> None:
    pauses = []
    for number in range(40):
        # One row for each four looks.
        arrive(held, 1 if number % 4 == 0 else 0, str(number), now=0.0)
        held.pages.clear()
        pauses.append(held.due)
    assert max(pauses[-8:]) > 4 * FIRST_PAUSE
    arrive(held, 1, "x", now=0.0)
    for _ in range(9):
        arrive(held, 1, "y", now=0.0)
    assert held.due <= 1.25 * FIRST_PAUSE


def test_a_commit_cuts_a_pause_short(held: HeldChannel) -> None:
    for _ in range(12):
        arrive(held, 0, "0", now=100.0)
    held.may_have_more()
    assert 100.0 < held.due <= 100.0 + 0.05


def test_reading_ahead_has_an_end(held: HeldChannel) -> None:
    for number in range(READ_AHEAD_PAGES):
        assert held.may_be_read
        assert arrive(held, 10, str(number + 1))
    assert not held.may_be_read
    held.hand_out()
    assert held.may_be_read
    held.reading = True
    assert not held.may_be_read


def test_pages_count_when_they_are_done_and_the_end_behind_the_last(held: HeldChannel) -> None:
    arrive(held, 10, "1")
    arrive(held, 0, "finished")
    held.hand_out()
    assert (held.processed, held.has_news) == (START, False)
    held.done()
    held.done()
    assert (held.processed, held.has_news) == (FINISHED, True)
    assert held.report() == Lease("c", 1, LeaseStatus.OPEN)
    held.saved = FINISHED
    assert held.report() == held.report() == Lease("c", 2, LeaseStatus.TERMINATED)
    assert held.at_rest


def test_a_channel_that_is_wanted_back_is_given_when_the_page_in_hand_is_done(held: HeldChannel) -> None:
    arrive(held, 10, "1")
    arrive(held, 10, "2")
    held.hand_out()
    held.reading, start = True, held.read
    held.told(Lease("c", 2, LeaseStatus.CLOSING))
    assert not held.arrived(start, [page(10, "3")], Position("3"), 0.0, full=10)
    assert (held.has_news, held.may_be_read, list(held.pages)) == (False, False, [])
    assert held.report().status is LeaseStatus.CLOSING
    held.done()
    assert (held.processed, held.has_news) == (Position("1"), True)
    held.saved = held.processed
    assert held.report() == Lease("c", 3, LeaseStatus.CLOSE)
    held.told(Lease("c", 2, LeaseStatus.CLOSING))
    assert held.report() == Lease("c", 3, LeaseStatus.CLOSE)


def test_only_errors_that_pass_are_waited_for(held: HeldChannel) -> None:
    held.reading = True
    held.failed(StoreBusyError("not now"), 100.0)
    assert held.may_be_read
    assert held.due > 100.0
    held.failed(DataLossError("gone"), 100.0)
    assert not held.may_be_read
