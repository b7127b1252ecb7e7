"""Trimming, manual and automatic: removed rows, kept rows, and the effect on readers."""

from __future__ import annotations

import pytest

from headrace.errors import DataLossError, OptionError
from headrace.model.queues.values import Bounds
from headrace.ports import Consumer, Queue, Store
from headrace.testing import Place, queue_workers
from headrace.testing.processes import racing
from headrace.testing.queue_reading import consumer_of, data_in, edges, values, wait_until

pytestmark = pytest.mark.needs("queues")


@pytest.fixture
def queue(store: Store) -> Queue:
    """A queue with automatic trimming, and with 5 rows in partition 0 and 7 in partition 1."""
    queue = store.create_queue("q", {"data": "string", "$timestamp": "timestamp"}, partitions=2, auto_trim=True)
    append(queue, 5, 0)
    append(queue, 7, 1)
    return queue


def append(queue: Queue, count: int, partition: int) -> None:
    """Append rows that contain their row index, each in its own commit."""
    for _ in range(count):
        queue.append(values(str(queue.bounds()[partition].upper)), partition=partition)


def kept(queue: Queue) -> list[int]:
    return [bounds.rows for bounds in queue.bounds().values()]


# -- manual -------------------------------------------------------------------------------------------------


def test_trimming_removes_rows_below_an_index_and_keeps_other_indexes(queue: Queue) -> None:
    assert queue.trim(0, 3) == 3
    assert edges(queue) == [(3, 5), (0, 7)]
    assert data_in(queue) == ["3", "4"]
    assert queue.read(0, 4).rows.column("data").to_pylist() == ["4"]
    append(queue, 1, 0)
    assert data_in(queue) == ["3", "4", "5"]


def test_trimming_never_brings_rows_back(queue: Queue) -> None:
    assert queue.trim(0, 3) == 3
    assert queue.trim(0, 1) == 0
    assert queue.trim(0, 3) == 0
    assert edges(queue)[0] == (3, 5)


def test_trimming_beyond_the_end_is_refused(queue: Queue) -> None:
    with pytest.raises(OptionError):
        queue.trim(0, 6)
    with pytest.raises(OptionError):
        queue.trim(0, -1)
    assert edges(queue)[0] == (0, 5)
    assert queue.trim(0, 5) == 5
    assert (edges(queue)[0], data_in(queue)) == ((5, 5), [])


@pytest.mark.parametrize("first_row", [0, 2])
def test_reading_a_trimmed_row_is_an_error_that_names_the_lost_rows(queue: Queue, first_row: int) -> None:
    queue.trim(0, 3)
    with pytest.raises(DataLossError, match=rf"'q'.*partition 0.*{first_row}"):
        queue.read(0, first_row)
    queue.trim(0, 5)
    with pytest.raises(DataLossError):
        queue.read(0, 4)
    assert queue.read(0, 5).rows.num_rows == 0


def test_rows_in_the_middle_of_a_large_append_can_be_trimmed(store: Store) -> None:
    queue = store.create_queue("large", {"data": "string"})
    queue.append(values(*map(str, range(10_000))))
    assert queue.trim(0, 4321) == 4321
    assert data_in(queue) == [str(number) for number in range(4321, 10_000)]
    with pytest.raises(DataLossError):
        queue.read(0, 4320)
    assert queue.bounds()[0].rows == 10_000 - 4321


def test_a_trimmed_queue_takes_no_space(store: Store) -> None:
    queue = store.create_queue("room", {"data": "string"})
    for number in range(20):
        queue.append(values("x" * 50_000))
        queue.trim(0, number + 1)
    assert queue.bounds() == {0: Bounds(20, 20, 0)}


# -- automatic: the scenarios of YTsaurus' own tests ----------------------------------------------------------


def consumers_of(store: Store) -> tuple[Consumer, Consumer, Consumer]:
    """Create c1 and c3, which are vital, and c2, which is not."""
    return (
        consumer_of(store, "c1", "q", vital=True),
        consumer_of(store, "c2", "q"),
        consumer_of(store, "c3", "q", vital=True),
    )


def test_rows_are_trimmed_when_all_vital_consumers_have_read_them(store: Store, queue: Queue) -> None:
    c1, c2, c3 = consumers_of(store)
    # (a) c3 has read nothing of partition 0; c2 does not count.
    c1.advance("q", {0: 3, 1: 3})
    c2.advance("q", {0: 5, 1: 1})
    c3.advance("q", {1: 2})
    wait_until(lambda: kept(queue) == [5, 5])
    # (b)
    c3.advance("q", {0: 2})
    wait_until(lambda: kept(queue) == [3, 5])
    # (c) Now c1 is the slowest.
    c3.advance("q", {0: 4})
    wait_until(lambda: kept(queue) == [2, 5])
    # (d)
    c1.advance("q", {1: 6})
    c3.advance("q", {1: 6})
    wait_until(lambda: kept(queue) == [2, 1])
    assert [data_in(queue, number) for number in range(2)] == [["3", "4"], ["6"]]


def test_a_queue_without_a_vital_consumer_is_not_trimmed(store: Store, queue: Queue) -> None:
    reader = consumer_of(store, "reader", "q")
    reader.advance("q", {0: 5, 1: 7})
    assert queue.trim() == 0
    assert kept(queue) == [5, 7]


def test_only_vital_registrations_delay_trimming(store: Store, queue: Queue) -> None:
    c1, _, _ = consumers_of(store)
    c1.advance("q", {0: 4})
    assert queue.trim() == 0
    store.register_consumer("q", "c3", vital=False)
    queue.trim()
    assert kept(queue) == [1, 7]
    store.register_consumer("q", "c3", vital=True)
    c1.advance("q", {0: 5})
    assert (queue.trim(), kept(queue)) == (0, [1, 7])
    store.unregister_consumer("q", "c3")
    queue.trim()
    assert kept(queue) == [0, 7]


def test_without_auto_trim_nothing_is_trimmed(store: Store, queue: Queue) -> None:
    queue.set_options(auto_trim=False)
    reader = consumer_of(store, "reader", "q", vital=True)
    reader.advance("q", {0: 3})
    append(queue, 1, 0)
    assert kept(queue) == [6, 7]
    assert queue.trim() == 3
    assert kept(queue) == [3, 7]


def test_an_offset_beyond_the_end_trims_all_existing_rows(store: Store, queue: Queue) -> None:
    consumer_of(store, "reader", "q", vital=True).advance("q", {0: 1000})
    wait_until(lambda: kept(queue) == [0, 7])
    assert edges(queue)[0] == (5, 5)


def test_moving_an_offset_back_restores_no_trimmed_rows(store: Store, queue: Queue) -> None:
    reader = consumer_of(store, "reader", "q", vital=True)
    reader.advance("q", {0: 4})
    wait_until(lambda: kept(queue)[0] == 1)
    reader.advance("q", {0: 1})
    queue.trim()
    assert edges(queue)[0] == (4, 5)


def test_retained_rows_are_not_trimmed(store: Store, queue: Queue) -> None:
    queue.set_options(retained_rows=3)
    reader = consumer_of(store, "c1", "q", vital=True)
    reader.advance("q", {0: 3})
    wait_until(lambda: kept(queue)[0] == 3)
    append(queue, 5, 0)
    queue.trim()
    assert edges(queue)[0] == (3, 10)
    reader.advance("q", {1: 6})
    wait_until(lambda: kept(queue)[1] == 3)
    assert edges(queue)[1] == (4, 7)
    queue.set_options(retained_rows=None)
    queue.trim()
    assert edges(queue)[1] == (6, 7)


def test_rows_younger_than_retained_seconds_are_not_trimmed(store: Store, queue: Queue) -> None:
    queue.set_options(retained_seconds=5 * 3600.0)
    reader = consumer_of(store, "c1", "q", vital=True)
    reader.advance("q", {0: 5, 1: 7})
    assert (queue.trim(), kept(queue)) == (0, [5, 7])
    queue.set_options(retained_seconds=None)
    queue.trim()
    assert kept(queue) == [0, 0]


def test_an_advance_that_fails_trims_nothing(store: Store, queue: Queue) -> None:
    reader = consumer_of(store, "reader", "q", vital=True)
    with pytest.raises(OptionError):
        reader.advance("q", {0: 5, 9: 1})
    assert kept(queue) == [5, 7]


# -- while others read ------------------------------------------------------------------------------------------


def test_a_reader_sees_each_row_under_its_index_while_others_append_and_trim(place: Place, store: Store) -> None:
    queue = store.create_queue("busy", {"data": "string"})
    with racing(3) as pool:
        appended = pool.submit(queue_workers.append_indexes, place)
        readers = [pool.submit(queue_workers.read_indexes, place) for _ in range(2)]
        total = appended.result()
        found = [reader.result() for reader in readers]
    for seen, lost in found:
        assert seen + lost == total
        assert seen > 0
    assert edges(queue)[0][1] == total
