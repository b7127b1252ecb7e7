"""Queues that have fewer partitions than a query has read: an error, never a silent loss."""

from __future__ import annotations

import logging

import pytest

from headrace.errors import DataLossError
from headrace.model.tunnels.values import Start, StartKind
from tests.unit.memory_queues import MemoryConsumer, MemoryQueue, begun, feed_of

EARLIEST = Start(StartKind.EARLIEST)


def test_fewer_partitions_are_an_error_that_names_the_missing_ones() -> None:
    queue = MemoryQueue("q", partitions=3)
    queue.append(5, 2)
    feed = feed_of(queue, start=EARLIEST)
    end = feed.latest(begun(feed))
    del queue.lower[1:], queue.upper[1:]
    with pytest.raises(DataLossError, match=r"'q' has fewer partitions.*partition 2"):
        feed.latest(end)


def test_a_query_that_accepts_loss_continues_with_fewer_partitions(caplog: pytest.LogCaptureFixture) -> None:
    queue = MemoryQueue("q", partitions=2)
    consumer = MemoryConsumer("c", [queue])
    feed = feed_of(queue, consumer=consumer, start=EARLIEST, fail_on_data_loss=False)
    end = feed.latest(begun(feed))
    del queue.lower[1:], queue.upper[1:]
    queue.append(3, 0)
    with caplog.at_level(logging.WARNING, "headrace"):
        after = feed.latest(end)
    assert after.queues == {"q": {0: 3}}
    assert "no longer exist, skipped" in caplog.text
