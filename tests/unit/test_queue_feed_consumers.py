"""The advance of a consumer by a queue feed, and conflicts with other readers."""

from __future__ import annotations

import logging

import pytest

from headrace.batches.feeds.limits import Limits
from headrace.batches.feeds.queue_offset import QueueOffset
from headrace.batches.feeds.queue_reading import QueueRange
from headrace.errors import (
    DataLossError,
    NotFoundError,
    OffsetConflictError,
)
from headrace.model.tunnels.values import Start, StartKind
from tests.unit.memory_queues import (
    MemoryConsumer,
    MemoryQueue,
    begun,
    feed_of,
    values,
)

EARLIEST, LATEST = Start(StartKind.EARLIEST), Start(StartKind.LATEST)


@pytest.fixture
def queue() -> MemoryQueue:
    queue = MemoryQueue("q")
    queue.append(10)
    return queue


@pytest.fixture
def consumer(queue: MemoryQueue) -> MemoryConsumer:
    return MemoryConsumer("c", [queue])


def test_a_consumer_must_be_registered(queue: MemoryQueue, consumer: MemoryConsumer) -> None:
    with pytest.raises(NotFoundError, match="not registered for queue 'other'"):
        feed_of(queue, MemoryQueue("other"), consumer=consumer)


def test_the_consumer_advances_when_the_next_batch_is_requested(queue: MemoryQueue, consumer: MemoryConsumer) -> None:
    feed = feed_of(queue, consumer=consumer)
    end = feed.latest(begun(feed))
    assert consumer.at["q"] == {}
    assert feed.latest(end) is end
    assert consumer.at["q"] == {0: 10}


def test_a_start_chosen_by_the_user_moves_the_consumer_without_a_warning(
    queue: MemoryQueue, consumer: MemoryConsumer, caplog: pytest.LogCaptureFixture
) -> None:
    consumer.at["q"] = {0: 7}
    feed = feed_of(queue, consumer=consumer, start=EARLIEST)
    feed.latest(begun(feed))
    assert consumer.at["q"] == {0: 0}
    assert not caplog.records


def test_the_checkpoint_wins_and_the_difference_is_logged(
    queue: MemoryQueue, consumer: MemoryConsumer, caplog: pytest.LogCaptureFixture
) -> None:
    consumer.at["q"] = {0: 9}
    feed = feed_of(queue, consumer=consumer)
    with caplog.at_level(logging.WARNING, "headrace"):
        feed.latest(QueueOffset("here", "c", {"q": {0: 4}}))
    assert consumer.at["q"] == {0: 4}
    assert "from {0: 9} to {0: 4}" in caplog.text


@pytest.mark.parametrize("at", [2, 6])
def test_a_consumer_at_either_end_of_a_repeated_batch_gets_no_warning(
    queue: MemoryQueue, consumer: MemoryConsumer, caplog: pytest.LogCaptureFixture, at: int
) -> None:
    consumer.at["q"] = {0: at}
    start, end = QueueOffset("here", "c", {"q": {0: 2}}), QueueOffset("here", "c", {"q": {0: 6}})
    feed = feed_of(queue, consumer=consumer)
    assert feed.ranges(start, end) == [QueueRange("q", 0, 2, 6)]
    assert consumer.at["q"] == {0: at}
    feed.latest(end)
    assert consumer.at["q"] == {0: 6}
    assert not caplog.records


@pytest.mark.parametrize("restarted", [True, False])
def test_rows_of_a_recreated_queue_do_not_count_as_read(restarted: bool) -> None:
    queue = MemoryQueue("q", 2)
    queue.append(10)
    queue.append(10, 1)
    consumer = MemoryConsumer("c", [queue])
    feed = feed_of(queue, consumer=consumer, fail_on_data_loss=False)
    end = feed.latest(begun(feed))
    feed.latest(end)
    assert consumer.at["q"] == {0: 10, 1: 10}
    queue.recreate()
    queue.append(3)
    consumer.at["q"] = {}
    if restarted:
        with pytest.raises(DataLossError, match="created again"):
            feed_of(queue, consumer=consumer).latest(end)
        assert consumer.offsets("q") == {0: 0}
        feed = feed_of(queue, consumer=consumer, fail_on_data_loss=False)
    again = feed.latest(end)
    assert consumer.offsets("q") == {0: 0}
    assert values(feed, queue, end, again) == [0, 1, 2]
    queue.append(20)
    repeated = feed_of(queue, consumer=consumer, fail_on_data_loss=False)
    assert values(repeated, queue, end, again) == [0, 1, 2]
    assert consumer.offsets("q") == {0: 0}
    repeated.latest(again)
    assert consumer.at["q"] == {0: 3}


def test_two_readers_of_one_consumer_are_detected(queue: MemoryQueue, consumer: MemoryConsumer) -> None:
    limits = Limits(rows_per_batch=4)
    first = feed_of(queue, consumer=consumer, limits=limits)
    offset = first.latest(begun(first))
    second = feed_of(queue, consumer=consumer, limits=Limits(rows_per_batch=3))
    second.latest(second.latest(begun(second)))
    with pytest.raises(OffsetConflictError, match="create a consumer for each streaming query"):
        first.latest(offset)
    assert consumer.at["q"] == {0: 3}


def test_two_readers_in_lockstep_are_detected(queue: MemoryQueue, consumer: MemoryConsumer) -> None:
    first, second = feed_of(queue, consumer=consumer), feed_of(queue, consumer=consumer)
    offsets = first.latest(begun(first)), second.latest(begun(second))
    assert offsets[0] == offsets[1]
    first.latest(offsets[0])
    with pytest.raises(OffsetConflictError):
        second.latest(offsets[1])


def test_an_advance_made_by_a_publication_is_no_conflict(queue: MemoryQueue, consumer: MemoryConsumer) -> None:
    feed = feed_of(queue, consumer=consumer)
    end = feed.latest(begun(feed))
    consumer.publish("q", end.queues["q"])
    assert feed.latest(end) is end
