"""Consumers: registrations, offsets that move by compare-and-set, and the lag."""

from __future__ import annotations

import pickle
import time

import pytest

from headrace.errors import AlreadyExistsError, NotFoundError, OffsetConflictError, OptionError
from headrace.model.queues.values import Bounds, Disposition
from headrace.ports import Consumer, Queue, Registration, Store
from headrace.testing import Place, queue_workers
from headrace.testing.processes import racing
from headrace.testing.queue_reading import consumer_of, values

pytestmark = pytest.mark.needs("queues")


@pytest.fixture
def queue(store: Store) -> Queue:
    """A queue of three rows in partition 0, and none in 1 and 2."""
    queue = store.create_queue("clicks", {"data": "string"}, partitions=3)
    queue.append(values("a", "b", "c"), partition=0)
    return queue


@pytest.fixture
def reader(store: Store, queue: Queue) -> Consumer:
    return consumer_of(store, "home/reader", "clicks")


# -- names and registrations --------------------------------------------------------------------------------


def test_consumers_have_names(place: Place, store: Store) -> None:
    for name in ("b", "home/a"):
        assert store.create_consumer(name).name == name
    assert store.consumers() == ["b", "home/a"]
    with pytest.raises(AlreadyExistsError):
        store.create_consumer("b")
    assert store.create_consumer("b", exist_ok=True).name == "b"
    with place.open() as other:
        assert other.consumer("b").name == "b"
    with pytest.raises(NotFoundError, match="nobody"):
        store.consumer("nobody")
    store.drop_consumer("b")
    with pytest.raises(NotFoundError):
        store.drop_consumer("b")
    store.drop_consumer("b", missing_ok=True)
    assert store.consumers() == ["home/a"]


def test_registrations_are_many_to_many(store: Store) -> None:
    for name in ("q1", "q2"):
        store.create_queue(name, {"data": "string"})
    for name in ("c1", "c2"):
        store.create_consumer(name)
    expected = [
        store.register_consumer("q1", "c1", vital=True),
        store.register_consumer("q1", "c2"),
        store.register_consumer("q2", "c1"),
    ]
    assert expected == [
        Registration("q1", "c1", True),
        Registration("q1", "c2", False),
        Registration("q2", "c1", False),
    ]
    assert store.registrations() == expected
    assert store.registrations("q1") == expected[:2]
    assert store.registrations(consumer="c1") == store.consumer("c1").registrations() == expected[::2]
    assert store.registrations("q2", "c2") == []
    assert store.queue("q1").describe().registrations == tuple(expected[:2])


def test_registering_again_changes_whether_a_consumer_is_vital(store: Store, queue: Queue, reader: Consumer) -> None:
    assert store.register_consumer("clicks", reader.name, vital=True).vital
    assert reader.registrations() == [Registration("clicks", reader.name, True)]
    assert not store.register_consumer("clicks", reader.name).vital
    assert reader.registrations() == [Registration("clicks", reader.name, False)]


def test_queue_and_consumer_must_exist_before_registration(store: Store, queue: Queue, reader: Consumer) -> None:
    for names in (("nothing", reader.name), ("clicks", "nobody"), (reader.name, "clicks")):
        with pytest.raises(NotFoundError):
            store.register_consumer(*names)
    assert len(store.registrations()) == 1


def test_unregistering_keeps_the_offsets(store: Store, queue: Queue, reader: Consumer) -> None:
    reader.advance("clicks", {0: 2})
    store.unregister_consumer("clicks", reader.name)
    assert reader.registrations() == []
    store.unregister_consumer("clicks", reader.name)
    assert reader.offsets("clicks") == {0: 2, 1: 0, 2: 0}
    store.register_consumer("clicks", reader.name)
    reader.advance("clicks", {0: 3}, {0: 2})


def test_a_consumer_that_is_not_registered_cannot_advance(store: Store, queue: Queue) -> None:
    stranger = store.create_consumer("stranger")
    with pytest.raises(NotFoundError, match=r"is not registered.*register_consumer"):
        stranger.advance("clicks", {0: 1})
    assert stranger.offsets("clicks") == {0: 0, 1: 0, 2: 0}


def test_a_dropped_consumer_leaves_no_offsets_or_registrations(store: Store, queue: Queue, reader: Consumer) -> None:
    reader.advance("clicks", {0: 2})
    store.drop_consumer(reader.name)
    assert store.registrations() == []
    for use in (lambda: reader.offsets("clicks"), lambda: reader.advance("clicks", {0: 1}), reader.registrations):
        with pytest.raises(NotFoundError):
            use()
    again = consumer_of(store, reader.name, "clicks")
    assert again.offsets("clicks") == {0: 0, 1: 0, 2: 0}


# -- offsets ------------------------------------------------------------------------------------------------


def test_an_offset_is_the_first_unread_row_and_0_at_the_beginning(place: Place, queue: Queue, reader: Consumer) -> None:
    assert reader.offsets("clicks") == {0: 0, 1: 0, 2: 0}
    reader.advance("clicks", {0: 2, 2: 1})
    assert reader.offsets("clicks") == {0: 2, 1: 0, 2: 1}
    with place.open() as other:
        assert other.consumer(reader.name).offsets("clicks") == {0: 2, 1: 0, 2: 1}
    queue.add_partitions(1)
    assert reader.offsets("clicks") == {0: 2, 1: 0, 2: 1, 3: 0}
    with pytest.raises(NotFoundError):
        reader.offsets("nothing")


def test_an_offset_can_be_before_or_after_the_existing_rows(reader: Consumer) -> None:
    for offset in (2, 1000, 0, (1 << 63) - 1):
        reader.advance("clicks", {0: offset})
        assert reader.offsets("clicks")[0] == offset


@pytest.mark.parametrize("offsets", [{0: 1, 3: 1}, {0: 1, -1: 1}, {0: 1, 1: -1}, {0: 1, 1: 1 << 63}])
def test_invalid_offsets_are_refused_and_none_is_set(reader: Consumer, offsets: dict[int, int]) -> None:
    with pytest.raises(OptionError, match=r"partition|offsets is out of range"):
        reader.advance("clicks", offsets)
    assert reader.offsets("clicks") == {0: 0, 1: 0, 2: 0}


def test_an_expected_offset_of_an_unknown_partition_is_refused(reader: Consumer) -> None:
    with pytest.raises(OptionError, match="partition"):
        reader.advance("clicks", {0: 1}, {3: 0})
    assert reader.offsets("clicks")[0] == 0


def test_an_advance_is_compare_and_set_over_all_partitions_or_nothing(reader: Consumer) -> None:
    reader.advance("clicks", {0: 1, 1: 5}, {0: 0, 1: 0})
    with pytest.raises(OffsetConflictError) as caught:
        reader.advance("clicks", {0: 2, 1: 6}, {0: 1, 1: 4})
    assert reader.offsets("clicks") == {0: 1, 1: 5, 2: 0}
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.consumer, error.queue) == (reader.name, "clicks")
    assert (error.partition, error.expected, error.found) == (1, 4, 5)
    assert "partition 1" in str(error)
    reader.advance("clicks", {0: 2, 1: 6}, {0: 1, 1: 5})
    assert reader.offsets("clicks") == {0: 2, 1: 6, 2: 0}


def test_an_advance_without_an_expected_offset_is_not_checked(reader: Consumer) -> None:
    reader.advance("clicks", {0: 3, 1: 3})
    reader.advance("clicks", {0: 1, 1: 4}, {1: 3})
    assert reader.offsets("clicks") == {0: 1, 1: 4, 2: 0}


def test_an_advance_to_the_current_offset_can_conflict(reader: Consumer) -> None:
    reader.advance("clicks", {0: 2}, {0: 0})
    with pytest.raises(OffsetConflictError):
        reader.advance("clicks", {0: 2}, {0: 0})


def test_each_consumer_has_its_own_offsets_in_each_queue(store: Store, queue: Queue, reader: Consumer) -> None:
    store.create_queue("other", {"data": "string"})
    store.register_consumer("other", reader.name)
    twin = consumer_of(store, "twin", "clicks")
    reader.advance("clicks", {0: 1})
    reader.advance("other", {0: 2})
    twin.advance("clicks", {0: 3})
    assert (reader.offsets("clicks")[0], reader.offsets("other"), twin.offsets("clicks")[0]) == (1, {0: 2}, 3)
    store.drop_queue("other")
    assert reader.registrations() == [Registration("clicks", reader.name, False)]
    store.create_queue("other", {"data": "string"})
    store.register_consumer("other", reader.name)
    assert reader.offsets("other") == {0: 0}


def test_processes_that_share_a_consumer_never_take_the_same_row(place: Place, store: Store, queue: Queue) -> None:
    shared = consumer_of(store, "shared", "clicks")
    rows = place.commits(500)
    with racing(3) as pool:
        found = [pool.submit(queue_workers.move_on, place, number, rows) for number in range(3)]
        taken = sorted(taken for part in found for taken in part.result())
    assert [first for first, _ in taken] == [0, *(end for _, end in taken[:-1])]
    assert shared.offsets("clicks")[0] == taken[-1][1] >= rows


# -- lag ----------------------------------------------------------------------------------------------------


def test_the_disposition_follows_from_the_offset(queue: Queue, reader: Consumer) -> None:
    queue.trim(0, 1)
    found = []
    for offset in range(5):
        reader.advance("clicks", {0: offset})
        status = reader.status("clicks")[0]
        assert (status.partition, status.offset, status.bounds) == (0, offset, queue.bounds()[0])
        assert status.unread_rows == 3 - offset
        found.append(status.disposition)
    assert found == [
        Disposition.EXPIRED,
        Disposition.PENDING_CONSUMPTION,
        Disposition.PENDING_CONSUMPTION,
        Disposition.UP_TO_DATE,
        Disposition.AHEAD,
    ]


def test_every_partition_has_a_status(queue: Queue, reader: Consumer) -> None:
    reader.advance("clicks", {0: 1})
    statuses = reader.status("clicks")
    assert [status.partition for status in statuses] == [0, 1, 2]
    assert [status.unread_rows for status in statuses] == [2, 0, 0]
    assert statuses[1].bounds == Bounds(0, 0, 0)
    assert statuses[1].disposition is Disposition.UP_TO_DATE
    with pytest.raises(NotFoundError):
        reader.status("nothing")


def test_the_time_of_the_last_advance_is_kept(reader: Consumer) -> None:
    before = time.time()
    assert [status.last_consumed for status in reader.status("clicks")] == [None] * 3
    reader.advance("clicks", {1: 0})
    consumed = [status.last_consumed for status in reader.status("clicks")]
    assert consumed[::2] == [None, None]
    assert consumed[1] is not None
    assert before - 1 <= consumed[1] <= time.time() + 1


def test_the_weight_of_unread_rows_is_known_if_the_queue_has_weights(store: Store) -> None:
    queue = store.create_queue("q", {"data": "string", "$timestamp": "long", "$cumulative_data_weight": "long"})
    for _ in range(6):
        queue.append(values("foo"))
    reader = consumer_of(store, "reader", "q")
    queue.trim(0, 2)
    found = {}
    for offset in range(9):
        reader.advance("q", {0: offset})
        found[offset] = reader.status("q")[0].unread_weight
    # 20 for each row. Unknown before the first row is read, and if rows are missing.
    assert found == {0: None, 1: None, 2: 80, 3: 60, 4: 40, 5: 20, 6: 0, 7: None, 8: None}
    queue.trim(0, 6)
    reader.advance("q", {0: 6})
    assert reader.status("q")[0].unread_weight == 0


def test_the_weight_of_unread_rows_is_none_without_weights(reader: Consumer) -> None:
    reader.advance("clicks", {0: 1})
    assert reader.status("clicks")[0].unread_weight is None


@pytest.mark.needs("row_times")
def test_the_lag_is_the_age_of_the_first_existing_unread_row(store: Store, queue: Queue, reader: Consumer) -> None:
    committed = queue.commit_time(0, 0)
    assert committed is not None
    while time.time() - committed < 0.2:
        queue.append(values("later"), partition=0)
    upper = queue.bounds()[0].upper

    def lag(offset: int) -> float:
        reader.advance("clicks", {0: offset})
        return reader.status("clicks")[0].lag_seconds

    assert 0.2 <= lag(0) <= time.time() - committed + 1
    assert lag(upper - 1) < lag(0)
    assert [lag(upper), lag(upper + 5)] == [0.0, 0.0]
    queue.trim(0, upper - 1)
    # Trimmed rows do not count: the first existing row is the last one.
    last = queue.commit_time(0, upper - 1)
    assert last is not None
    assert lag(0) <= time.time() - last
    queue.trim(0, upper)
    assert lag(0) == 0.0
