"""Producers: rows of a session are appended once, even if they are pushed repeatedly."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from headrace.errors import (
    AlreadyExistsError,
    NotFoundError,
    OptionError,
    SchemaError,
    SequenceNumberError,
    SessionEpochError,
)
from headrace.model.queues.values import ProducerSession, Pushed
from headrace.ports import Producer, Queue, Store
from headrace.testing import Place, queue_workers
from headrace.testing.processes import racing
from headrace.testing.queue_reading import data_in, edges, values

pytestmark = pytest.mark.needs("queues")


@pytest.fixture
def producer(store: Store, queue: Queue) -> Producer:
    return store.create_producer("writer")


@pytest.fixture
def session(producer: Producer) -> ProducerSession:
    return producer.open_session("clicks", "s")


def numbered(*numbers: Any) -> list[dict[str, Any]]:
    """Return rows whose data contains their sequence numbers."""
    return [{"data": str(number), "$sequence_number": number} for number in numbers]


# -- sessions -----------------------------------------------------------------------------------------------


def test_producers_have_names(place: Place, store: Store) -> None:
    for name in ("b", "home/a"):
        assert store.create_producer(name).name == name
    assert store.producers() == ["b", "home/a"]
    with pytest.raises(AlreadyExistsError):
        store.create_producer("b")
    assert store.create_producer("b", exist_ok=True).name == "b"
    with place.open() as other:
        assert other.producer("b").name == "b"
    with pytest.raises(NotFoundError):
        store.producer("nobody")
    store.drop_producer("b")
    with pytest.raises(NotFoundError):
        store.drop_producer("b")
    store.drop_producer("b", missing_ok=True)
    assert store.producers() == ["home/a"]


def test_opening_a_session_starts_at_epoch_0_and_then_increases_the_epoch(place: Place, producer: Producer) -> None:
    first = producer.open_session("clicks", "s", user_meta={"file": "a"})
    assert first == ProducerSession("writer", "clicks", "s", 0, -1, {"file": "a"})
    producer.push(first, values("a", "b"), sequence_number=4)
    with place.open() as other:
        second = other.producer("writer").open_session("clicks", "s")
    assert second == ProducerSession("writer", "clicks", "s", 1, 5, {"file": "a"})
    assert producer.open_session("clicks", "s", user_meta=[1, None]).user_meta == [1, None]
    assert producer.open_session("clicks", "new").user_meta is None
    assert [(found.session, found.epoch, found.sequence_number) for found in producer.sessions()] == [
        ("new", 0, -1),
        ("s", 2, 5),
    ]


def test_meta_must_be_json(producer: Producer, session: ProducerSession, queue: Queue) -> None:
    for meta in (object(), {1, 2}, float("nan")):
        with pytest.raises(OptionError, match="user_meta"):
            producer.open_session("clicks", "s", user_meta=meta)
        with pytest.raises(OptionError, match="user_meta"):
            producer.push(session, values("a"), sequence_number=0, user_meta=meta)
    assert producer.sessions() == [session]
    assert edges(queue) == [(0, 0)] * 3


def test_a_push_can_change_the_meta_of_its_session(producer: Producer, session: ProducerSession) -> None:
    producer.push(session, values("a"), sequence_number=0, user_meta={"line": 1})
    assert producer.sessions()[0].user_meta == {"line": 1}
    producer.push(session, values("b"), sequence_number=1)
    assert producer.sessions()[0].user_meta == {"line": 1}


def test_a_session_can_be_removed(queue: Queue, producer: Producer, session: ProducerSession) -> None:
    producer.push(session, values("a"), sequence_number=7, partition=0)
    producer.remove_session("clicks", "s")
    producer.remove_session("clicks", "s")
    assert producer.sessions() == []
    with pytest.raises(SessionEpochError):
        producer.push(session, values("b"), sequence_number=8)
    assert producer.open_session("clicks", "s") == session
    assert data_in(queue) == ["a"]


def test_sessions_belong_to_a_producer_and_a_queue(store: Store, producer: Producer, session: ProducerSession) -> None:
    store.create_queue("other", {"data": "string"})
    twin = store.create_producer("twin")
    elsewhere = producer.open_session("other", "s")
    its_own = twin.open_session("clicks", "s")
    for opened, owner in ((session, producer), (elsewhere, producer), (its_own, twin)):
        assert opened.epoch == 0
        assert owner.push(opened, values("a"), sequence_number=0) == Pushed(0, 0)
    assert [found.queue for found in producer.sessions()] == ["clicks", "other"]
    assert [found.queue for found in producer.sessions("other")] == ["other"]
    with pytest.raises(OptionError, match="writer"):
        twin.push(session, values("b"), sequence_number=1)
    store.drop_producer("twin")
    assert [found.session for found in store.create_producer("twin").sessions()] == []
    store.drop_queue("other")
    assert [found.queue for found in producer.sessions()] == ["clicks"]
    for use in (lambda: producer.open_session("other", "s"), lambda: producer.sessions("other")):
        with pytest.raises(NotFoundError):
            use()


@pytest.mark.parametrize("epoch", [0, 2])
def test_only_the_newest_epoch_can_push(queue: Queue, producer: Producer, epoch: int) -> None:
    producer.open_session("clicks", "s")
    newest = producer.open_session("clicks", "s")
    wrong = ProducerSession("writer", "clicks", "s", epoch, -1)
    for rows in (values("a"), []):
        with pytest.raises(SessionEpochError, match=str(epoch)):
            producer.push(wrong, rows, sequence_number=0)
    assert (edges(queue), producer.sessions()) == ([(0, 0)] * 3, [newest])
    producer.push(newest, values("a"), sequence_number=0)


# -- sequence numbers ---------------------------------------------------------------------------------------


def test_rows_are_numbered_from_the_given_number(queue: Queue, producer: Producer, session: ProducerSession) -> None:
    assert producer.push(session, values("a", "b"), sequence_number=0, partition=0) == Pushed(1, 0)
    assert producer.push(session, values("c"), sequence_number=2, partition=0) == Pushed(2, 0)
    assert data_in(queue) == ["a", "b", "c"]


@pytest.mark.parametrize("form", [list, pa.Table.from_pylist, pd.DataFrame], ids=["dicts", "arrow", "pandas"])
def test_rows_may_carry_their_numbers(queue: Queue, producer: Producer, session: ProducerSession, form: Any) -> None:
    assert producer.push(session, form(numbered(3, 5, 10)), partition=0) == Pushed(10, 0)
    assert queue.schema.names == ("data",)
    assert data_in(queue) == ["3", "5", "10"]


def test_rows_pushed_before_are_skipped(queue: Queue, producer: Producer, session: ProducerSession) -> None:
    producer.push(session, values("0", "1", "2"), sequence_number=0, partition=0)
    assert producer.push(session, values("1", "2", "3", "4"), sequence_number=1, partition=0) == Pushed(4, 2)
    assert producer.push(session, numbered(4, 7), partition=0) == Pushed(7, 1)
    # 5 and 6 were never pushed, but every number below the last one counts as a repetition.
    assert producer.push(session, numbered(5, 6, 7, 8), partition=0) == Pushed(8, 3)
    assert data_in(queue) == ["0", "1", "2", "3", "4", "7", "8"]


def test_a_push_of_only_old_rows_changes_nothing(queue: Queue, producer: Producer, session: ProducerSession) -> None:
    producer.push(session, values("a", "b", "c"), sequence_number=10, partition=0)
    for first, rows in ((10, ["a", "b", "c"]), (3, ["x"]), (0, ["x", "y"])):
        assert producer.push(session, values(*rows), sequence_number=first, partition=0) == Pushed(12, len(rows))
    assert producer.sessions()[0].sequence_number == 12
    assert data_in(queue) == ["a", "b", "c"]


def test_a_push_without_rows_returns_the_last_number(producer: Producer, session: ProducerSession) -> None:
    assert producer.push(session, []) == Pushed(-1, 0)
    producer.push(session, values("a"), sequence_number=5)
    assert producer.push(session, [], sequence_number=6) == Pushed(5, 0)


@pytest.mark.parametrize(
    ("rows", "first"),
    [
        (values("a"), None),
        (numbered(1), 1),
        (numbered(1, 1), None),
        (numbered(2, 1), None),
        (numbered(-1, 1), None),
        (numbered((1 << 63) - 1, -5), None),
        (values("a"), -1),
        (values("a", "b"), (1 << 63) - 1),
        ([*numbered(1), *values("a")], None),
        ([*numbered(1), *values("a")], 0),
    ],
    ids=[
        "none",
        "two",
        "equal",
        "falling",
        "negative",
        "wrapping",
        "negative first",
        "too large",
        "missing",
        "some and first",
    ],
)
def test_invalid_sequence_numbers_are_refused(
    queue: Queue, producer: Producer, session: ProducerSession, rows: list[dict[str, Any]], first: int | None
) -> None:
    with pytest.raises(SequenceNumberError):
        producer.push(session, rows, sequence_number=first)
    assert (edges(queue), producer.sessions()) == ([(0, 0)] * 3, [session])


@pytest.mark.parametrize("number", ["1", 1.5, 1 << 63])
def test_numbers_are_whole_numbers_of_64_bits(
    queue: Queue, producer: Producer, session: ProducerSession, number: Any
) -> None:
    with pytest.raises(SchemaError, match=r"\$sequence_number"):
        producer.push(session, numbered(number))
    assert edges(queue) == [(0, 0)] * 3


def test_the_largest_number_can_be_used(queue: Queue, producer: Producer, session: ProducerSession) -> None:
    last = (1 << 63) - 1
    assert producer.push(session, values("a"), sequence_number=last) == Pushed(last, 0)
    assert producer.push(session, values("a"), sequence_number=last) == Pushed(last, 1)
    assert sum(upper for _, upper in edges(queue)) == 1


def test_a_push_with_an_invalid_row_is_refused_as_a_whole(
    queue: Queue, producer: Producer, session: ProducerSession
) -> None:
    for rows in ([{"data": "a"}, {"data": 1}], [{"data": "a", "colour": "red"}]):
        with pytest.raises(SchemaError):
            producer.push(session, rows, sequence_number=0)
    assert (edges(queue), producer.sessions()) == ([(0, 0)] * 3, [session])


# -- partitions ---------------------------------------------------------------------------------------------


def test_rows_may_name_their_partition(queue: Queue, producer: Producer, session: ProducerSession) -> None:
    rows = [{**row, "$tablet_index": index} for row, index in zip(numbered(*range(6)), (2, 0, 2, 1, 0, 2), strict=True)]
    producer.push(session, rows[:2])
    assert producer.push(session, rows) == Pushed(5, 2)
    assert [data_in(queue, number) for number in range(3)] == [["1", "4"], ["3"], ["0", "2", "5"]]


def test_a_push_chooses_partitions_like_an_append(queue: Queue, producer: Producer, session: ProducerSession) -> None:
    queue.append(values(*"abcdefgh"), key="data")
    by_key = [data_in(queue, number) for number in range(3)]
    producer.push(session, values(*"abcdefgh"), sequence_number=0, key="data")
    assert [data_in(queue, number) for number in range(3)] == [found * 2 for found in by_key]
    for wrong in ({"partition": 3}, {"partition": 0, "key": "data"}):
        with pytest.raises(OptionError):
            producer.push(session, values("x"), sequence_number=100, **wrong)
    assert producer.sessions()[0].sequence_number == 7


# -- many at once -------------------------------------------------------------------------------------------


def test_sessions_are_independent(queue: Queue, producer: Producer, session: ProducerSession) -> None:
    other = producer.open_session("clicks", "other")
    for number in range(4):
        for opened in (session, other):
            rows = values(f"{opened.session} {number}")
            assert producer.push(opened, rows, sequence_number=number, partition=0) == Pushed(number, 0)
            assert producer.push(opened, rows, sequence_number=number, partition=0) == Pushed(number, 1)
    assert data_in(queue) == [f"{name} {number}" for number in range(4) for name in ("s", "other")]


def test_concurrent_processes_push_every_row_once(place: Place, queue: Queue, producer: Producer) -> None:
    with racing(2) as pool:
        skipped = [pool.submit(queue_workers.push_rows, place, session) for session in ("s0", "s1")]
        commits = place.commits(queue_workers.COMMITS)
        each = commits * queue_workers.ROWS
        assert [found.result() for found in skipped] == [each, each]
    found = data_in(queue)
    assert set(Counter(found).values()) == {1}
    for session in ("s0", "s1"):
        mine = [value for value in found if value.startswith(session)]
        expected = [(commit, row) for commit in range(commits) for row in range(queue_workers.ROWS)]
        assert [tuple(map(int, value.split()[1:])) for value in mine] == expected
