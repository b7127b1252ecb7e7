"""The queue feed on an older copy of its store, to which rows were appended: row indexes alone do not show it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace
from headrace.batches.feeds.queue_feed import QueueFeed
from headrace.batches.feeds.queue_offset import QueueOffset
from headrace.errors import DataLossError
from headrace.ports import Store


def feed(store: Store, *, fail_on_data_loss: bool = True) -> QueueFeed:
    return QueueFeed(store, [store.queue("clicks")], fail_on_data_loss=fail_on_data_loss)


def append(store: Store, first: int, count: int) -> None:
    store.queue("clicks").append([{"n": first + index} for index in range(count)], partition=0)


def ends(offset: QueueOffset) -> dict[int, int]:
    return dict(offset.queues["clicks"])


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Store]:
    with headrace.open(tmp_path / "shop", create=True, synchronous="off") as store:
        store.create_queue("clicks", {"n": "long"}, partitions=2)
        append(store, 0, 50)
        yield store


@pytest.fixture
def offset(shop: Store, tmp_path: Path) -> QueueOffset:
    """An offset after 100 rows; the backup has only the first 50."""
    shop.back_up(tmp_path / "backup")
    append(shop, 50, 50)
    reading = feed(shop)
    planned = QueueOffset.of_json(reading.latest(reading.initial()).to_json())
    assert ends(planned) == {0: 0, 1: 0}
    planned = QueueOffset.of_json(reading.latest(planned).to_json())
    assert ends(planned) == {0: 100, 1: 0}
    return planned


@pytest.fixture
def copy(offset: QueueOffset, tmp_path: Path) -> Iterator[Store]:
    headrace.restore(tmp_path / "backup", tmp_path / "copy")
    with headrace.open(tmp_path / "copy", synchronous="off") as store:
        yield store


def test_an_older_copy_that_has_grown_past_the_offset_is_noticed(copy: Store, offset: QueueOffset) -> None:
    append(copy, 1000, 120)
    with pytest.raises(DataLossError, match="'clicks' has other rows than the query has read"):
        feed(copy).latest(offset)
    with pytest.raises(DataLossError, match="is an older copy"):
        feed(copy).tasks(feed(copy).initial(), offset)


def test_an_older_copy_is_read_from_its_first_row_if_the_loss_is_accepted(
    copy: Store, offset: QueueOffset, caplog: pytest.LogCaptureFixture
) -> None:
    append(copy, 1000, 120)
    reading = feed(copy, fail_on_data_loss=False)
    with caplog.at_level(logging.WARNING, "headrace"):
        end = reading.latest(offset)
    assert "is an older copy" in caplog.text
    assert [(rows.first, rows.next) for rows in reading.ranges(offset, end)] == [(0, 170)]
    append(copy, 2000, 1)
    assert [(rows.first, rows.next) for rows in reading.ranges(end, reading.latest(end))] == [(170, 171)]


def test_the_same_store_and_its_newest_copy_continue(shop: Store, offset: QueueOffset, tmp_path: Path) -> None:
    shop.back_up(tmp_path / "newest")
    headrace.restore(tmp_path / "newest", tmp_path / "moved")
    with headrace.open(tmp_path / "moved", synchronous="off") as moved:
        for store in (shop, moved):
            append(store, 100, 5)
            assert ends(feed(store).latest(offset)) == {0: 105, 1: 0}


def test_trimmed_rows_cannot_be_compared(shop: Store, offset: QueueOffset) -> None:
    shop.queue("clicks").trim(0, 100)
    append(shop, 100, 5)
    assert ends(feed(shop).latest(offset)) == {0: 105, 1: 0}


def test_an_offset_of_an_earlier_release_has_no_times(copy: Store, offset: QueueOffset) -> None:
    value = {name: each for name, each in offset.to_json().items() if name != "times"}
    append(copy, 1000, 120)
    assert ends(feed(copy).latest(QueueOffset.of_json(value))) == {0: 170, 1: 0}
