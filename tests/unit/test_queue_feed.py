"""The queue feed: bounds and limits of batches, starts, and lost rows."""

from __future__ import annotations

import datetime
import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.batches.feeds.limits import Limits
from headrace.batches.feeds.queue_offset import QueueOffset, is_queue_offset
from headrace.batches.feeds.queue_positions import parse_position
from headrace.errors import (
    DataLossError,
    OptionError,
    SchemaError,
)
from headrace.model.tunnels.values import Start, StartKind
from tests.unit.memory_queues import (
    MemoryConsumer,
    MemoryQueue,
    begun,
    feed_of,
    rows,
    values,
)

EARLIEST, LATEST = Start(StartKind.EARLIEST), Start(StartKind.LATEST)


# -- offsets ---------------------------------------------------------------------------------------------


def test_an_offset_round_trips_through_json() -> None:
    offset = QueueOffset("id", "//c", {"//tmp/q": {0: 5, 10: 3}, "r": {}})
    assert offset.to_json() == {"store": "id", "consumer": "//c", "queues": {"//tmp/q": {"0": 5, "10": 3}, "r": {}}}
    assert QueueOffset.of_json(offset.to_json()) == offset
    assert is_queue_offset(offset.to_json())


@pytest.mark.parametrize(
    "other", [{"batch": "b"}, None, 5, {"store": "s", "consumer": None, "queues": {"q": {"x": 1}}}]
)
def test_the_offset_of_another_source_is_refused(other: Any) -> None:
    with pytest.raises(OptionError, match="new location"):
        QueueOffset.of_json(other)


def test_the_offset_of_another_store_is_refused() -> None:
    feed = feed_of(MemoryQueue("q"))
    with pytest.raises(OptionError, match="another store"):
        feed.latest(QueueOffset("there", None, {}))


# -- starts ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", {0: 2, 1: 0}),
        ("latest", {0: 10, 1: 4}),
        ("committed", {0: 2, 1: 0}),
        ("1970-01-01T00:00:03", {0: 3, 1: 3}),
        ('{"0": 5, "1": 1}', {0: 5, 1: 1}),
        ('{"q": {"1": 4}}', {0: 2, 1: 4}),
    ],
)
def test_a_new_query_begins_at_its_starting_position(text: str, expected: dict[int, int]) -> None:
    queue = MemoryQueue("q", 2)
    queue.append(10, 0)
    queue.append(4, 1)
    queue.trim(0, 2)
    assert rows(begun(feed_of(queue, start=parse_position(text)))) == expected


def test_committed_is_the_consumers_offset_or_the_earliest_row() -> None:
    queue = MemoryQueue("q", 3)
    for partition in range(3):
        queue.append(10, partition)
    queue.trim(1, 4)
    consumer = MemoryConsumer("c", [queue])
    consumer.at["q"] = {0: 7, 2: 0}
    assert rows(begun(feed_of(queue, consumer=consumer))) == {0: 7, 1: 4, 2: 0}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"0": 11}', "no such row yet"),
        ('{"2": 0}', "no such partition"),
        ('{"r": {"0": 1}}', "not read"),
        ('{"0": -1}', "invalid row indexes"),
        ('{"0": "x"}', "invalid row indexes"),
        ("{", "invalid row indexes"),
        ("somewhere", "unknown start position"),
    ],
)
def test_an_invalid_start_is_refused(text: str, problem: str) -> None:
    queue = MemoryQueue("q")
    queue.append(10)
    with pytest.raises(OptionError, match=problem):
        begun(feed_of(queue, start=parse_position(text)))


def test_row_indexes_without_a_queue_are_refused_for_several_queues() -> None:
    with pytest.raises(OptionError, match="need the names of the queues"):
        feed_of(MemoryQueue("q"), MemoryQueue("r"), start=parse_position('{"0": 1}'))


# -- batches ---------------------------------------------------------------------------------------------


def test_there_is_no_batch_without_new_rows() -> None:
    queue = MemoryQueue("q")
    feed = feed_of(queue)
    start = begun(feed)
    assert feed.latest(start) is start
    queue.append(1)
    end = feed.latest(start)
    assert rows(end) == {0: 1}
    assert feed.latest(end) is end


def test_a_batch_always_has_the_same_rows() -> None:
    queue = MemoryQueue("q", 2)
    queue.append(5, 0)
    feed = feed_of(queue)
    start = begun(feed)
    end = feed.latest(start)
    queue.append(5, 0)
    queue.append(5, 1)
    fresh = feed_of(queue)
    assert values(fresh, queue, start, end) == [0, 1, 2, 3, 4]


def test_a_batch_of_trigger_once_includes_its_start() -> None:
    queue = MemoryQueue("q")
    queue.append(5)
    queue.trim(0, 2)
    feed = feed_of(queue, limits=Limits(rows_per_batch=1))
    end = feed.latest(feed.initial(), unlimited=True)
    queue.append(5)
    assert values(feed_of(queue), queue, feed.initial(), QueueOffset.of_json(end.to_json())) == [2, 3, 4]


def test_added_partitions_are_read_from_their_first_row() -> None:
    queue = MemoryQueue("q")
    queue.append(2)
    feed = feed_of(queue, start=LATEST)
    start = begun(feed)
    queue.add_partitions(1)
    assert feed.latest(start) is start
    queue.append(2, 1)
    end = feed.latest(start)
    assert values(feed, queue, start, end) == [1000, 1001]


def test_an_added_queue_begins_at_the_start_position() -> None:
    first, second = MemoryQueue("q"), MemoryQueue("r")
    second.append(5)
    start = begun(feed_of(first))
    feed = feed_of(first, second, start=LATEST)
    fixed = feed.latest(start)
    assert (rows(fixed), rows(fixed, "r")) == ({0: 0}, {0: 5})
    assert feed.ranges(start, fixed) == []


def test_a_queue_missing_from_the_source_is_an_error() -> None:
    first, second = MemoryQueue("q"), MemoryQueue("r")
    start = begun(feed_of(first, second))
    with pytest.raises(OptionError, match="does not read"):
        feed_of(first).latest(start)


def test_queues_of_one_stream_have_equal_columns() -> None:
    with pytest.raises(SchemaError, match="different columns"):
        feed_of(MemoryQueue("q"), MemoryQueue("r", columns={"value": "string"}))


# -- limits ----------------------------------------------------------------------------------------------


def test_limits_are_divided_among_the_partitions_of_all_queues() -> None:
    first, second = MemoryQueue("q", 2), MemoryQueue("r")
    first.append(300, 0)
    first.append(100, 1)
    second.append(600)
    feed = feed_of(first, second, limits=Limits(rows_per_batch=103))
    end = feed.latest(begun(feed))
    taken = {**{("q", n): row for n, row in rows(end).items()}, ("r", 0): rows(end, "r")[0]}
    assert sum(taken.values()) == 103
    assert taken["q", 1] in (10, 11, 12)
    assert taken["r", 0] in (60, 61, 62)
    assert feed.rows_behind() == {"q[0]": 300 - taken["q", 0], "q[1]": 100 - taken["q", 1], "r[0]": 600 - taken["r", 0]}


def test_a_byte_limit_is_respected_and_allows_at_least_one_row() -> None:
    queue = MemoryQueue("q")
    queue.append(100)
    feed = feed_of(queue, limits=Limits(bytes_per_batch=75))
    assert rows(feed.latest(begun(feed))) == {0: 7}
    feed = feed_of(queue, limits=Limits(bytes_per_batch=1))
    assert rows(feed.latest(begun(feed))) == {0: 1}


def test_partitions_beyond_a_small_limit_are_read_in_turn() -> None:
    queue = MemoryQueue("q", 4)
    for partition in range(4):
        queue.append(1000, partition)
    feed = feed_of(queue, limits=Limits(rows_per_batch=2))
    offset = begun(feed)
    for _ in range(20):
        offset = feed.latest(offset)
    assert rows(offset) == dict.fromkeys(range(4), 10)


def test_a_batch_waits_for_the_minimum_of_rows_up_to_the_maximum_delay() -> None:
    queue = MemoryQueue("q")
    now = datetime.datetime.now(datetime.UTC).timestamp()
    queue.append(int(now) - 100)
    feed = feed_of(queue, start=LATEST, limits=Limits(min_rows=10, max_delay=10_000.0))
    start = begun(feed)
    queue.append(9)
    assert feed.latest(start) is start
    assert feed.rows_behind() == {"q[0]": 9}
    queue.append(1)
    assert feed.latest(start) != start
    impatient = feed_of(queue, limits=Limits(min_rows=10**12, max_delay=1.0))
    assert impatient.latest(start) != start


def test_planning_asks_each_queue_once_and_for_no_ages() -> None:
    queue = MemoryQueue("q", 64)
    for partition in range(64):
        queue.append(100, partition)
    feed = feed_of(queue, limits=Limits(rows_per_batch=1000, rows_per_channel=50))
    start = begun(feed)
    queue.asked.clear()
    feed.latest(start)
    assert queue.asked == {"bounds": 1}


def test_available_now_ignores_data_written_after_its_start() -> None:
    queue = MemoryQueue("q")
    queue.append(5)
    feed = feed_of(queue, limits=Limits(rows_per_batch=3, min_rows=1000))
    feed.fix_end()
    queue.append(5)
    queue.add_partitions(1)
    queue.append(5, 1)
    offset = begun(feed)
    seen = []
    while (end := feed.latest(offset)) is not offset:
        seen += values(feed, queue, offset, end)
        offset = end
    assert seen == [0, 1, 2, 3, 4]


# -- loss ------------------------------------------------------------------------------------------------


def test_rows_trimmed_unread_fail_the_query() -> None:
    queue = MemoryQueue("q")
    queue.append(10)
    feed = feed_of(queue)
    start = begun(feed)
    queue.trim(0, 4)
    with pytest.raises(DataLossError, match=r"rows 0 to 3 of partition 0 .*failOnDataLoss"):
        feed.latest(start)


def test_with_accepted_loss_trimmed_rows_are_skipped_by_index_and_named(caplog: pytest.LogCaptureFixture) -> None:
    queue = MemoryQueue("q")
    queue.append(10)
    feed = feed_of(queue, limits=Limits(rows_per_batch=3), fail_on_data_loss=False)
    start = begun(feed)
    queue.trim(0, 4)
    end = feed.latest(start)
    with caplog.at_level(logging.WARNING, "headrace"):
        assert values(feed, queue, start, end) == [4, 5, 6]
    assert "rows 0 to 3 of partition 0 of queue 'q' are trimmed; 4 rows are skipped" in caplog.text


@pytest.mark.parametrize("rows", [0, 3, 30])
def test_a_recreated_queue_is_detected_at_any_length(rows: int) -> None:
    queue = MemoryQueue("q")
    queue.append(10)
    feed = feed_of(queue)
    end = feed.latest(start := begun(feed))
    queue.recreate()
    queue.append(rows)
    with pytest.raises(DataLossError, match="created again"):
        feed.latest(end)
    with pytest.raises(DataLossError, match="created again"):
        feed.ranges(start, end)
    careless = feed_of(queue, fail_on_data_loss=False)
    assert careless.ranges(start, end) == []
    again = careless.latest(end)
    assert values(careless, queue, end, again) == list(range(rows))
    assert careless.latest(again) is again


# -- random runs -----------------------------------------------------------------------------------------


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.integers(0, 2), st.integers(1, 9)),
            st.tuples(st.just("batch"), st.just(0), st.just(0)),
            st.tuples(st.just("restart"), st.just(0), st.just(0)),
            st.tuples(st.just("trim read"), st.integers(0, 2), st.integers(0, 9)),
            st.tuples(st.just("add"), st.just(0), st.just(0)),
        ),
        max_size=40,
    ),
    st.integers(1, 12),
)
def test_every_row_is_read_once_and_in_order(steps: list[tuple[str, int, int]], limit: int) -> None:
    queue = MemoryQueue("q", 3)
    consumer = MemoryConsumer("c", [queue])
    feed = feed_of(queue, consumer=consumer, limits=Limits(rows_per_batch=limit))
    offset = begun(feed)
    seen: dict[int, list[int]] = {}

    def batch() -> bool:
        nonlocal offset
        end = feed.latest(offset)
        found = values(feed, queue, offset, end)
        assert len(found) <= limit
        assert bool(found) == (end is not offset)
        assert found == values(feed_of(queue), queue, offset, end)
        for value in found:
            seen.setdefault(value // 1000, []).append(value % 1000)
        offset = end
        return bool(found)

    for step, partition, number in steps:
        match step:
            case "append":
                queue.append(number, partition)
            case "batch":
                batch()
            case "restart":
                feed = feed_of(queue, consumer=consumer, limits=Limits(rows_per_batch=limit))
            case "trim read":
                queue.trim(partition, min(consumer.offsets("q")[partition], number))
            case "add" if len(queue.upper) < 6:
                queue.add_partitions(1)
    while batch():
        pass
    assert seen == {number: list(range(end)) for number, end in enumerate(queue.upper) if end}
    assert consumer.offsets("q") == dict(enumerate(queue.upper))
