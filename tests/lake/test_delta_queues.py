"""Append-only Delta tables as queues: addresses that OPTIMIZE does not change, losses, and what is refused."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import Field, write_deltalake
from deltalake.schema import PrimitiveType

import headrace
from headrace.batches.feeds.limits import Limits
from headrace.batches.feeds.queue_feed import QueueFeed
from headrace.batches.feeds.queue_positions import parse_position
from headrace.errors import DataLossError, NotFoundError, UnsupportedError
from headrace.ports import Queue, Store
from tests.lake.lakes import define_as_spark, foreign, opened


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with opened(tmp_path) as found:
        yield found


@pytest.fixture
def events(tmp_path: Path, store: Store) -> Queue:
    """A queue with three versions of two rows."""
    for first in (0, 2, 4):
        add(tmp_path, first, first + 1)
    return store.queue("events")


def add(directory: Path, *numbers: int) -> None:
    """Append rows as another program."""
    rows = pa.table({"n": pa.array(numbers, "int64"), "text": [str(number) for number in numbers]})
    properties = {"delta.appendOnly": "true"} if not (directory / "events").exists() else None
    write_deltalake(str(directory / "events"), rows, mode="append", configuration=properties)


def values(queue: Queue, first: int = 0) -> list[int]:
    """Return the rows from an index on, page by page."""
    found: list[int] = []
    while (page := queue.read(0, first, 3)).rows.num_rows:
        assert page.first == first
        found += page.rows.column("n").to_pylist()
        first = page.next
    return found


def test_addresses_are_those_of_the_order_of_commits(store: Store, tmp_path: Path, events: Queue) -> None:
    assert events.bounds()[0].rows == 6
    assert values(events) == [*range(6)]
    assert values(store.queue("events"), 3) == [3, 4, 5]
    foreign(tmp_path, "events").optimize.compact()
    add(tmp_path, 6)
    for queue in (events, store.queue("events")):
        assert (queue.bounds()[0].lower, queue.bounds()[0].upper) == (0, 7)
        assert values(queue) == [*range(7)]
        assert queue.read(0, 2, 10, until=3).rows.column("n").to_pylist() == [2]
    times = [events.commit_time(0, row) for row in range(8)]
    assert (times[0], times[7]) == (times[1], None)
    assert times[2] is not None
    assert events.row_at(0, times[2]) == 2
    described = events.describe()
    assert (described.partitions[0].bounds.rows, described.partitions[0].last_commit) == (7, times[6])


def test_a_feed_reads_each_row_once(store: Store, tmp_path: Path, events: Queue) -> None:
    feed = QueueFeed(store, [events], start=parse_position("earliest"), limits=Limits(rows_per_batch=4))
    offset, found = feed.initial(), []
    for _ in range(4):
        following = feed.latest(offset)
        for task in feed.tasks(offset, following):
            for each in task:
                page = store.queue("events").read(0, each.first, 100, until=each.next)
                found += page.rows.column("n").to_pylist()
                found += values(store.queue("events"), page.next)[: each.next - page.next]
        foreign(tmp_path, "events").optimize.compact()
        offset = following
    assert found == [*range(6)]
    assert feed.latest(offset) == offset


def test_rows_that_vacuum_or_the_log_no_longer_has_are_a_loss(store: Store, tmp_path: Path, events: Queue) -> None:
    theirs = foreign(tmp_path, "events")
    theirs.optimize.compact()
    theirs.vacuum(0, dry_run=False, enforce_retention_duration=False)
    add(tmp_path, 6)
    with pytest.raises(DataLossError, match="VACUUM"):
        events.read(0, 0)
    assert events.bounds()[0].lower == 2
    late = store.queue("events")
    assert values(late, 6) == [6]
    foreign(tmp_path, "events").create_checkpoint()
    for version in range(4):
        (tmp_path / "events" / "_delta_log" / f"{version:020}.json").unlink()
    late = store.queue("events")
    assert (late.bounds()[0].lower, late.bounds()[0].upper) == (6, 7)
    with pytest.raises(DataLossError, match="no longer has the versions"):
        late.read(0, 5)


@pytest.mark.parametrize("rows", [6, 8])
def test_a_table_that_was_created_again_is_another_queue(store: Store, tmp_path: Path, rows: int) -> None:
    """Also while it is read, and with the same number of versions or more."""
    for number in range(6):
        add(tmp_path, number)
    events = store.queue("events")
    feed = QueueFeed(store, [events], start=parse_position("earliest"), fail_on_data_loss=False)
    offset = feed.latest(feed.initial())
    assert values(events) == [*range(6)]
    (tmp_path / "events").rename(tmp_path / "old")
    for number in range(rows):
        add(tmp_path, 10 + number)
    with pytest.raises(DataLossError, match="created again"):
        QueueFeed(store, [events], start=parse_position("earliest")).latest(offset)
    (task,) = feed.tasks(offset, feed.latest(offset))
    assert [(each.first, each.next) for each in task] == [(0, rows)]
    assert values(events) == [*range(10, 10 + rows)]


def test_an_older_copy_that_has_grown_since_has_other_rows(store: Store, tmp_path: Path, events: Queue) -> None:
    shutil.copytree(tmp_path / "events", tmp_path / "copy")
    add(tmp_path, 6)

    def opened_again(*, fail: bool = True) -> QueueFeed:
        # Another process has no versions of the newer copy.
        again = headrace.open(store.url)
        return QueueFeed(again, [again.queue("events")], start=parse_position("earliest"), fail_on_data_loss=fail)

    feed = opened_again()
    offset = feed.latest(feed.latest(feed.initial()))
    assert offset.queues == {"events": {0: 7}}
    foreign(tmp_path, "events").optimize.compact()
    assert opened_again().latest(offset) == offset
    lenient = opened_again(fail=False)
    assert lenient.latest(offset) == offset
    (tmp_path / "events").rename(tmp_path / "newer")
    (tmp_path / "copy").rename(tmp_path / "events")
    for number in (60, 70, 80):
        add(tmp_path, number)
    for reader in (feed, opened_again()):
        with pytest.raises(DataLossError, match="older copy"):
            reader.latest(offset)
    (task,) = lenient.tasks(offset, lenient.latest(offset))
    assert [(each.first, each.next) for each in task] == [(0, 9)]


def test_the_same_table_in_another_place_is_read_on(store: Store, tmp_path: Path, events: Queue) -> None:
    """A copy that is as new has the same entries, in other files."""
    feed = QueueFeed(store, [events], start=parse_position("earliest"))
    offset = feed.latest(feed.latest(feed.initial()))
    shutil.copytree(tmp_path / "events", tmp_path / "copy")
    (tmp_path / "events").rename(tmp_path / "newer")
    (tmp_path / "copy").rename(tmp_path / "events")
    assert feed.latest(offset) == offset
    add(tmp_path, 6)
    assert feed.latest(offset).queues == {"events": {0: 7}}
    assert values(events, 6) == [6]


@pytest.mark.parametrize("opened_again", [False, True])
def test_entries_that_were_deleted_unread_are_a_loss_that_can_be_accepted(
    store: Store, tmp_path: Path, events: Queue, opened_again: bool
) -> None:
    """Also while the queue is read."""
    feeds = [
        QueueFeed(store, [store.queue("events")], start=parse_position("earliest"), fail_on_data_loss=fail)
        for fail in (True, False)
    ]
    offset = feeds[0].latest(feeds[0].latest(feeds[0].initial()))
    assert feeds[1].latest(offset) == offset
    add(tmp_path, 6)
    add(tmp_path, 7)
    foreign(tmp_path, "events").create_checkpoint()
    for version in range(4):
        (tmp_path / "events" / "_delta_log" / f"{version:020}.json").unlink()
    add(tmp_path, 8)
    if opened_again:
        store = headrace.open(store.url)
        feeds = [QueueFeed(store, [store.queue("events")], fail_on_data_loss=fail) for fail in (True, False)]
    with pytest.raises(DataLossError, match="rows 6 to 6 of partition 0"):
        feeds[0].latest(offset)
    (task,) = feeds[1].tasks(offset, feeds[1].latest(offset))
    assert [(each.first, each.next) for each in task] == [(7, 9)]


def test_an_empty_entry_of_the_log_is_a_loss(store: Store, tmp_path: Path, events: Queue) -> None:
    (tmp_path / "events" / "_delta_log" / f"{3:020}.json").touch()
    add(tmp_path, 6)
    for queue in (events, store.queue("events")):
        with pytest.raises(DataLossError, match="empty entry"):
            queue.bounds()


def test_columns_that_another_program_adds_or_renames(store: Store, tmp_path: Path, events: Queue) -> None:
    assert values(events) == [*range(6)]
    foreign(tmp_path, "events").alter.add_columns([Field("note", PrimitiveType("string"))])
    assert events.read(0, 4).rows.to_pylist() == [{"n": n, "text": str(n), "note": None} for n in (4, 5)]
    mapping = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "3"}
    protocol = {"minReaderVersion": 2, "minWriterVersion": 5}
    define_as_spark(tmp_path, mapping, "events", protocol=protocol, rename={"text": "message"})
    with pytest.raises(UnsupportedError, match="columnMapping"):
        events.read(0, 4)


def test_a_delete_is_an_error(store: Store, tmp_path: Path, events: Queue) -> None:
    theirs = foreign(tmp_path, "events")
    theirs.alter.set_table_properties({"delta.appendOnly": "false"})
    theirs.delete("n = 0")
    with pytest.raises(UnsupportedError, match="not append-only"):
        store.queue("events")
    theirs.alter.set_table_properties({"delta.appendOnly": "true"})
    for queue in (events, store.queue("events")):
        with pytest.raises(DataLossError, match="were removed"):
            queue.bounds()


def test_what_a_table_cannot_do_as_a_queue(store: Store, events: Queue) -> None:
    with pytest.raises(NotFoundError):
        events.read(1, 0)
    with pytest.raises(NotFoundError):
        store.queue("nothing")
    for call in (lambda: events.trim(0, 1), lambda: events.add_partitions(2), lambda: events.append([{"n": 1}])):
        with pytest.raises(UnsupportedError, match="is a Delta table"):
            call()
    with pytest.raises(UnsupportedError, match="no queues, consumers"):
        store.create_consumer("c")
