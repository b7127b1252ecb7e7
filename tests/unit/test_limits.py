"""Limits of a batch: it always progresses, shares follow the waiting rows, and none exceeds them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.batches.feeds.limits import Limits, enough_rows, row_budget, share_rows
from headrace.model.tunnels.values import Backlog

backlogs = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=2),
    st.builds(Backlog, rows=st.integers(0, 1000), bytes=st.integers(0, 100_000), seconds=st.floats(0, 100)),
    max_size=8,
)


@given(backlogs, st.integers(1, 500), st.none() | st.integers(1, 300))
def test_shares_use_the_budget_and_no_more(waiting: dict[str, Backlog], budget: int, per_channel: int | None) -> None:
    shares = share_rows(waiting, Limits(rows_per_batch=budget, rows_per_channel=per_channel))
    assert shares.keys() == waiting.keys()
    available = {c: min(b.rows or 0, per_channel or 10**9) for c, b in waiting.items()}
    granted = {channel: share or 0 for channel, share in shares.items()}
    assert all(granted[channel] <= available[channel] for channel in waiting)
    assert sum(granted.values()) == min(budget, sum(available.values()))


@given(backlogs, st.integers(1, 10_000))
def test_a_byte_limit_always_allows_a_row(waiting: dict[str, Backlog], limit: int) -> None:
    budget = row_budget(waiting, Limits(bytes_per_batch=limit))
    assert budget is None or budget >= 1


def test_a_byte_limit_counts_rows_of_the_average_size() -> None:
    waiting = {"a": Backlog(rows=100, bytes=1000), "b": Backlog(rows=100, bytes=3000)}
    assert row_budget(waiting, Limits(bytes_per_batch=400)) == 20


def test_the_oldest_rows_are_first_if_the_limit_is_below_the_number_of_channels() -> None:
    waiting = {name: Backlog(rows=10, seconds=age) for name, age in (("a", 1.0), ("b", 9.0), ("c", 5.0))}
    assert share_rows(waiting, Limits(rows_per_batch=2)) == {"a": 0, "b": 1, "c": 1}


def test_without_limits_every_channel_with_rows_is_read_to_its_end() -> None:
    waiting = {"a": Backlog(rows=10), "b": Backlog(rows=0), "c": Backlog(rows=None)}
    assert share_rows(waiting, Limits()) == {"a": None, "b": 0, "c": None}


def test_a_channel_of_unknown_size_counts_as_one_that_fills_the_batch() -> None:
    shares = share_rows({"a": Backlog(rows=1), "b": Backlog(rows=None)}, Limits(rows_per_batch=100))
    assert shares == {"a": 1, "b": 99}


def test_a_single_channel_of_unknown_size_respects_both_limits() -> None:
    waiting = {"a": Backlog(rows=None), "b": Backlog(rows=0)}
    assert share_rows(waiting, Limits(rows_per_batch=100, rows_per_channel=10_000)) == {"a": 100, "b": 0}
    assert share_rows(waiting, Limits(rows_per_batch=10_000, rows_per_channel=100)) == {"a": 100, "b": 0}


COPIED = Backlog(rows=None, copied=100)


def test_of_channels_that_the_store_copies_a_batch_opens_as_many_as_fill_it() -> None:
    waiting = dict.fromkeys("abcd", COPIED)
    assert share_rows(waiting, Limits(rows_per_batch=150)) == {"a": 75, "b": 75, "c": 0, "d": 0}
    assert share_rows(waiting, Limits(rows_per_batch=1)) == {"a": 1, "b": 0, "c": 0, "d": 0}
    assert share_rows(waiting, Limits(rows_per_channel=7, copied_rows=150)) == {"a": 7, "b": 7, "c": 0, "d": 0}
    assert share_rows(waiting, Limits(copied_rows=None)) == dict.fromkeys("abcd", None)


def test_no_channel_is_copied_while_those_with_a_copy_fill_the_batch() -> None:
    waiting = {"a": COPIED, "b": Backlog(rows=25, copied=100), "c": COPIED}
    assert share_rows(waiting, Limits(rows_per_batch=20)) == {"a": 0, "b": 20, "c": 0}
    assert share_rows(waiting, Limits(rows_per_channel=7, copied_rows=100)) == {"a": 0, "b": 7, "c": 0}
    assert share_rows(waiting, Limits(rows_per_batch=100)) == {"a": 79, "b": 21, "c": 0}


def test_a_batch_waits_for_the_minimum_or_for_the_delay() -> None:
    limits = Limits(min_rows=100, max_delay=60.0)
    assert not enough_rows({"a": Backlog(rows=99, seconds=59.0)}, limits)
    assert enough_rows({"a": Backlog(rows=60, seconds=1.0), "b": Backlog(rows=40, seconds=1.0)}, limits)
    assert enough_rows({"a": Backlog(rows=1, seconds=60.0)}, limits)
    assert enough_rows({"a": Backlog(rows=1)}, limits)
