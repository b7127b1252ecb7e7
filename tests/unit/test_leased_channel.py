"""A channel of a worker: pauses between reads, prefetching, releasing."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from headrace.errors import DataLossError, StoreBusyError
from headrace.model.tables.changes import Changes
from headrace.model.tunnels.leases import Lease, LeaseStatus, Saved
from headrace.model.tunnels.values import FINISHED, Page, Position
from headrace.workers.leased_channel import (
    FIRST_INTERVAL,
    FIRST_PAUSE,
    LONGEST_INTERVAL,
    LONGEST_PAUSE,
    READ_AHEAD_PAGES,
    LeasedChannel,
)

START = Position("0")


@pytest.fixture
def leased() -> LeasedChannel:
    return LeasedChannel(Lease("c", 1, LeaseStatus.OPEN), Saved(START, 4))


def page(rows: int, token: str) -> Page:
    numbers = pa.array(np.arange(rows, dtype=np.int64))
    times = numbers.view(pa.timestamp("us", tz="UTC"))
    changes = Changes(pa.RecordBatch.from_arrays([numbers], ["id"]), numbers.cast(pa.int8()), numbers, times)
    return Page(changes, FINISHED if token == "finished" else Position(token))


def arrive(leased: LeasedChannel, rows: int, token: str, now: float = 0.0) -> bool:
    leased.begin_read()
    arrived = page(rows, token)
    return leased.arrived(leased.read, [arrived] if rows else [], arrived.next, now, full=10)


def test_pauses_double_without_new_rows_and_end_with_a_full_page(leased: LeasedChannel) -> None:
    expected = FIRST_PAUSE
    for _ in range(12):
        arrive(leased, 0, "0", now=100.0)
        assert 0.75 * expected <= leased.due - 100.0 <= 1.25 * expected
        expected = min(2 * expected, LONGEST_PAUSE)
    arrive(leased, 10, "1", now=100.0)
    assert leased.due == 100.0


def test_the_interval_of_reads_follows_the_interval_of_rows(leased: LeasedChannel) -> None:
    pauses = []
    for number in range(40):
        # One row in each four reads.
        arrive(leased, 1 if number % 4 == 0 else 0, str(number), now=0.0)
        leased.pages.clear()
        pauses.append(leased.due)
    assert max(pauses[-8:]) > 4 * FIRST_PAUSE
    arrive(leased, 1, "x", now=0.0)
    for _ in range(9):
        arrive(leased, 1, "y", now=0.0)
    assert leased.due <= 1.25 * FIRST_PAUSE


def test_a_commit_shortens_a_pause(leased: LeasedChannel) -> None:
    for _ in range(12):
        arrive(leased, 0, "0", now=100.0)
    leased.may_have_more()
    assert leased.due == 100.0 + FIRST_INTERVAL


def test_commits_to_other_tables_cause_fewer_reads(leased: LeasedChannel) -> None:
    intervals = []
    for _ in range(8):
        arrive(leased, 0, "0", now=100.0)
        leased.may_have_more()
        intervals.append(leased.due - 100.0)
    assert intervals == sorted(intervals)
    assert intervals[-1] == pytest.approx(LONGEST_INTERVAL)
    arrive(leased, 1, "1", now=100.0)
    leased.may_have_more()
    assert leased.due == 100.0 + FIRST_INTERVAL


def test_a_commit_during_a_read_is_looked_for_after_it(leased: LeasedChannel) -> None:
    for _ in range(12):
        arrive(leased, 0, "0", now=100.0)
    leased.begin_read()
    leased.may_have_more()
    leased.arrived(leased.read, [], START, 100.0, full=10)
    assert leased.due == 100.0 + FIRST_INTERVAL


def test_commits_hurry_reads_that_fail_less(leased: LeasedChannel) -> None:
    for _ in range(12):
        leased.begin_read()
        leased.failed(StoreBusyError("not now"), 100.0)
    leased.may_have_more()
    assert leased.due == 100.0 + LONGEST_INTERVAL


def test_prefetching_is_limited(leased: LeasedChannel) -> None:
    for number in range(READ_AHEAD_PAGES):
        assert leased.may_be_read
        assert arrive(leased, 10, str(number + 1))
    assert not leased.may_be_read
    leased.deliver()
    assert leased.may_be_read
    leased.begin_read()
    assert not leased.may_be_read


def test_pages_count_when_they_are_done_and_the_end_after_the_last_one(leased: LeasedChannel) -> None:
    arrive(leased, 10, "1")
    arrive(leased, 0, "finished")
    leased.deliver()
    assert (leased.processed, leased.has_news) == (START, False)
    leased.done()
    leased.done()
    assert (leased.processed, leased.has_news) == (FINISHED, True)
    assert leased.report() == Lease("c", 1, LeaseStatus.OPEN)
    leased.saved = FINISHED
    assert leased.report() == leased.report() == Lease("c", 2, LeaseStatus.TERMINATED)
    assert leased.at_rest


def test_a_closing_channel_is_released_after_the_page_in_hand(leased: LeasedChannel) -> None:
    arrive(leased, 10, "1")
    arrive(leased, 10, "2")
    leased.deliver()
    leased.reading, start = True, leased.read
    leased.update(Lease("c", 2, LeaseStatus.CLOSING))
    assert not leased.arrived(start, [page(10, "3")], Position("3"), 0.0, full=10)
    assert (leased.has_news, leased.may_be_read, list(leased.pages)) == (False, False, [])
    assert leased.report().status is LeaseStatus.CLOSING
    leased.done()
    assert (leased.processed, leased.has_news) == (Position("1"), True)
    leased.saved = leased.processed
    assert leased.report() == Lease("c", 3, LeaseStatus.CLOSE)
    leased.update(Lease("c", 2, LeaseStatus.CLOSING))
    assert leased.report() == Lease("c", 3, LeaseStatus.CLOSE)


def test_only_temporary_errors_are_retried(leased: LeasedChannel) -> None:
    leased.begin_read()
    leased.failed(StoreBusyError("not now"), 100.0)
    assert leased.may_be_read
    assert leased.due > 100.0
    leased.failed(DataLossError("removed"), 100.0)
    assert not leased.may_be_read
